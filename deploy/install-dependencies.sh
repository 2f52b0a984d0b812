#!/usr/bin/env bash
# Installs what ddprun needs on Debian 12: the one list. Only what is missing is installed; nothing is removed.
#   deploy/install-dependencies.sh [build] [data] [test] [engines] [package] [lint] [bench]      default: build data
# CUDA, cuDNN and NCCL are not Debian packages: they are used where they are found, and the build works without them.
set -euo pipefail

build_packages=(
  cmake ninja-build ccache g++ git ca-certificates
  libboost1.81-dev       # Asio, Process v2 (the child's handle), Beast (metrics over HTTP)
  libfmt-dev             # formatting
  libyaml-cpp-dev        # configuration
  nlohmann-json3-dev     # reports, metrics, safetensors headers
  libssl-dev             # digests, random tokens
  libdnnl-dev            # oneDNN: GEMM and convolution on CPUs
  libjpeg62-turbo-dev libpng-dev   # image_folder
  zlib1g-dev             # idx.gz
  libpcre2-dev           # words of GPT-2's tokenizer
  libhwloc-dev           # --numa-binding
  libgtest-dev libgmock-dev libbenchmark-dev
)
data_packages=(
  dataset-fashion-mnist
  bible-kjv bible-kjv-text   # text for deploy/configs/gpt2_bible.yaml
)
test_packages=(
  python3 python3-venv   # scripts that play the user, and the venv of the interop tests
  iproute2 nftables procps util-linux   # hosts in network namespaces
  openssh-server openssh-client   # a remote shell for --hosts
  podman crun conmon catatonit netavark   # a pod in a real container, where the host lets it
  tmux                   # a terminal for the terminal tests
)
package_packages=(
  python3 python3-venv   # man pages, the wheel's tools
  dpkg-dev lintian binutils   # the Debian packages, and what they need
  debootstrap            # a bare Debian 12 to install them in
  pkg-config             # as a user of ddprun-dev
)
engine_packages=(
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge   # a real Slurm for tests/process/engines
  openmpi-bin mpich hydra                                       # mpirun and mpiexec for the same
)
lint_packages=(clang-format clang clang-tidy libclang-rt-14-dev shellcheck)
bench_packages=(
  libopenmpi-dev openmpi-bin   # optional: what tests/bench/worker/collective_bench.py measures beside
)

[ $# -gt 0 ] || set -- build data
wanted=()
for group in "$@"; do
  case $group in
    build) wanted+=("${build_packages[@]}") ;;
    data) wanted+=("${data_packages[@]}") ;;
    package) wanted+=("${package_packages[@]}") ;;
    test) wanted+=("${test_packages[@]}") ;;
    engines) wanted+=("${engine_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}") ;;
    bench) wanted+=("${bench_packages[@]}") ;;
    *) echo "install-dependencies: no such group '$group' (build, data, test, engines, package, lint, bench)" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-dependencies: nothing to install (${#wanted[@]} packages are there)"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "install-dependencies: these Debian packages are missing and root is needed to install them: ${missing[*]}" >&2
  exit 1
fi
echo "install-dependencies: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for step in "apt-get update" "apt-get install -y --no-install-recommends ${missing[*]}"; do
  # shellcheck disable=SC2086
  if ! $step >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "install-dependencies: '$step' failed; see above" >&2
    exit 1
  fi
done
