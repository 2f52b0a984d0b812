#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds a release, and trains an MLP on
# Fashion-MNIST (60,000 images) with two local workers, on the CPU if there is no GPU.
#   deploy/quickstart.sh [extra trainer arguments, e.g. --set train.epochs=1]
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-dependencies.sh build data
[ -f build/release/build.ninja ] || cmake --preset release
cmake --build --preset release --target ddprun ddprun-rendezvous ddpctl trainer

echo
echo "+ build/release/ddprun --standalone --nproc-per-node=2 trainer --config deploy/configs/fashion_mnist_mlp.yaml $*"
exec build/release/ddprun --standalone --nproc-per-node=2 trainer --config deploy/configs/fashion_mnist_mlp.yaml "$@"
