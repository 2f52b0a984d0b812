#!/usr/bin/env bash
# tests/gpu/run.sh over the emulation: run_script.sh BUILD_DIR. Two emulated GPUs, small sizes, work as late as possible.
set -euo pipefail
build=$1
source=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tests" "$folder/bin"
# Programs look for the library beside them: copies, since a link leads back to the real one.
cp "$build/ddprun" "$build/trainer" "$build/tests/emulated_gpu/libddprun_cuda.so" "$folder"
cp "$build/tests/engine_test" "$build/tests/nccl_real_test" "$folder/tests"
cat >"$folder/bin/nvidia-smi" <<'SMI'
#!/bin/sh
case "$*" in
  *list-gpus*) echo "GPU 0: Emulated (UUID: GPU-0)" && echo "GPU 1: Emulated (UUID: GPU-1)" ;;
  *driver_version*) echo "Emulated, 0, 256 MiB" ;;
  *name*) echo "NVIDIA H200" ;;
esac
SMI
chmod +x "$folder/bin/nvidia-smi"
unset CUDA_VISIBLE_DEVICES
export PATH="$folder/bin:$PATH" EMULATED_GPUS=2 EMULATED_STREAMS=lazy DDPRUN_GPU_SMALL=1 OMP_NUM_THREADS=1
"$source/tests/gpu/run.sh" "$folder" | tee "$folder/out"
# No stage may be left out but those that need tools, and none may have gone missing: they are 36.
grep -E '^[0-9]+ passed, 0 failed, [0-2] skipped$' "$folder/out" | awk '{ print; all = $1 + $5 } END { exit all != 36 }'
