#!/usr/bin/env bash
# Everything that needs a GPU, in one command, meant to end in less than 8 minutes on one H200:
#   parity of all CUDA kernels with the reference in double, NCCL collectives with checked results, one training run of
#   each model on 1 and on all GPUs, GradScaler with fp16, the all-reduce benchmark beside nccl-tests if
#   all_reduce_perf is on PATH, and one table. Without a GPU it says so and exits 77.
#   tests/gpu/run.sh [BUILD_DIR]        default build/release, built here with -DDDPRUN_CUDA=ON if it is missing
# DDPRUN_GPU_SANITIZER=1 also runs the parity tests under compute-sanitizer (slow).
set -euo pipefail
cd "$(dirname "$0")/../.."

gpus=0
if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l); fi
if [ "$gpus" -eq 0 ]; then
  echo "tests/gpu/run.sh: no GPU on this machine (nvidia-smi lists none): nothing of this was run"
  exit 77
fi
build=${1:-build/release}
if [ ! -f "$build/libddprun_cuda.so" ]; then
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDDPRUN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability"
  cmake --build "$build" --target trainer ddprun ddprun_cuda engine_test
fi
build=$(cd "$build" && pwd)

passed=0 failed=0 rows=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    rows+=("$(printf '%-44s ok' "$name")")
  else
    failed=$((failed + 1))
    rows+=("$(printf '%-44s FAILED' "$name")")
    tail -n 30 "$work/log"
  fi
}

check "kernels: cuda against reference" "$build/tests/engine_test" '--gtest_filter=*KernelParity*cuda*'
if [ "${DDPRUN_GPU_SANITIZER:-}" = 1 ]; then
  check "kernels: compute-sanitizer" compute-sanitizer --error-exitcode 1 "$build/tests/engine_test" \
    '--gtest_filter=*KernelParity*/cuda'
fi

worlds=(1)
[ "$gpus" -eq 1 ] || worlds+=("$gpus")
for n in "${worlds[@]}"; do
  for collective in all-reduce all-gather reduce-scatter broadcast; do
    check "NCCL $collective, $n GPU(s), results checked" "$build/ddprun" --standalone --nproc-per-node="$n" \
      trainer bench "$collective" --backend nccl --sweep 4KiB:64MiB --factor 16 --rounds 3
  done
done

# train NAME GPUS CONFIG [--set ...]: keeps the median of samples/s over the second half of the run in $rate.
train() {
  local name=$1 n=$2 config=$3
  shift 3
  rm -f "$work/metrics.jsonl"
  check "train $name, $n GPU(s)" "$build/ddprun" --standalone --nproc-per-node="$n" trainer --config "$config" \
    --set ddp.backend=nccl --set output.metrics="$work/metrics.jsonl" --set log.file="$work/train.log" "$@"
  rate=$(python3 - "$work/metrics.jsonl" <<'P' || echo 0
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
losses = [r["loss"] for r in rows]
assert all(l == l and abs(l) < 1e6 for l in losses), "a loss is not finite"
print(round(statistics.median(r["samples_per_s"] for r in rows[len(rows) // 2:]), 1))
P
  )
}

# Dense peak of the GPU in TFLOP/s of bf16, for MFU (NVIDIA's data sheets); 0 = not known here.
case $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) in
  *H200* | *H100*) peak=989 ;;
  *A100*) peak=312 ;;
  *B200*) peak=2250 ;;
  *) peak=0 ;;
esac
mfu() { awk -v r="$1" -v f="$2" -v p="$peak" -v n="$3" 'BEGIN { if (p > 0) printf "%.1f %%", 100 * r * f / (p * n); else printf "-" }'; }

"$build/trainer" tokenize --output "$work/train.bin" LICENSE README.md worker/README.md >/dev/null
declare -A single
# TFLOP per sample, forward and backward: ResNet-50 3 x 4.1 GFLOP; GPT-2 124M 6 x parameters x tokens.
for n in "${worlds[@]}"; do
  train mlp "$n" tests/gpu/mlp.yaml
  rows+=("$(printf '    %s samples/s' "$rate")")
  train "resnet18 fp16 with GradScaler" "$n" tests/gpu/resnet18.yaml
  rows+=("$(printf '    %s images/s' "$rate")")
  train resnet50 "$n" tests/gpu/resnet50.yaml
  [ "$n" -ne 1 ] || single[resnet50]=$rate
  rows+=("$(printf '    %s images/s, MFU %s, scaling %s' "$rate" "$(mfu "$rate" 0.0123 "$n")" \
    "$(awk -v a="$rate" -v b="${single[resnet50]}" 'BEGIN { if (b > 0) printf "%.2fx", a / b; else printf "-" }')")")
  train gpt2-124M "$n" tests/gpu/gpt2.yaml --set data.train="$work/train.bin"
  [ "$n" -ne 1 ] || single[gpt2]=$rate
  rows+=("$(printf '    %s tokens/s, MFU %s, scaling %s' "$(awk -v r="$rate" 'BEGIN { print r * 1024 }')" \
    "$(mfu "$rate" 0.764 "$n")" \
    "$(awk -v a="$rate" -v b="${single[gpt2]}" 'BEGIN { if (b > 0) printf "%.2fx", a / b; else printf "-" }')")")
done

if [ "$gpus" -gt 1 ]; then
  echo "=== all-reduce, $gpus GPUs"
  "$build/ddprun" --standalone --nproc-per-node="$gpus" trainer bench all-reduce --backend nccl --sweep 1MiB:1GiB --factor 4
  if command -v all_reduce_perf >/dev/null; then
    echo "=== the same by nccl-tests"
    all_reduce_perf -b 1M -e 1G -f 4 -g "$gpus"
  fi
fi

echo
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sort | uniq -c
printf '%s\n' "${rows[@]}"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
