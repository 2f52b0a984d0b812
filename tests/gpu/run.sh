#!/usr/bin/env bash
# Everything that needs a GPU, in one command, meant to end in less than 8 minutes on one H200:
#   parity of all CUDA kernels with the reference in double (and once more under compute-sanitizer, if there is one),
#   NCCL collectives with checked results, the same losses as on the CPU, GradScaler, one training run of each model on
#   1 and on all GPUs, the all-reduce benchmark beside nccl-tests if all_reduce_perf is on PATH, and one table.
#   tests/gpu/run.sh [BUILD_DIR]        default build/gpu, built here for this GPU if its library is missing (not part
#                                       of the 8 minutes)
# Exit codes: 0 all passed; 1 something failed; 77 no GPU, nothing was run. Every stage has a time limit of its own.
# DDPRUN_GPU_SANITIZER=1 also looks for races and uninitialised memory (slow).
# DDPRUN_GPU_SMALL=1 shrinks all sizes: for a try of this script over tests/gpu/emulation.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

# Without a driver nvidia-smi prints a failure, and with MIG more lines than GPUs: only lines of GPUs count.
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ')
if [ "$gpus" -eq 0 ]; then
  echo "tests/gpu/run.sh: no GPU on this machine (nvidia-smi lists none): nothing of this was run"
  exit 77
fi
PATH=$PATH:/usr/local/cuda/bin
build=${1:-build/gpu}
if [ ! -f "$build/libddprun_cuda.so" ]; then
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDDPRUN_CUDA=ON -DDDPRUN_BENCH=OFF \
    -DCMAKE_CUDA_ARCHITECTURES="${capability:-90}" &&
    cmake --build "$build" --target trainer ddprun ddprun_cuda engine_test nccl_real_test || exit 1
fi
build=$(cd "$build" && pwd) || exit 1
# The tests lie one folder below the library.
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

passed=0 failed=0 skipped=0 rows=()
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
started=$SECONDS

row() { rows+=("$1"); }
skip() { # skip NAME REASON
  skipped=$((skipped + 1))
  row "$(printf '%-52s skipped: %s' "$1" "$2")"
}
# check NAME SECONDS COMMAND...: the command's output is kept in $work/log. A test program that skips its tests or finds
# none has not passed. Returns what the command returned, 1 for such a program.
check() {
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  echo "--- $name"
  timeout -k 10 "$limit" "$@" >"$work/log" 2>&1 </dev/null
  code=$?
  if [ "$code" -eq 0 ] && grep -qE '\[  SKIPPED \]|\[  PASSED  \] 0 tests' "$work/log"; then code=1; fi
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1))
    row "$(printf '%-52s ok      %4d s' "$name" $((SECONDS - begun)))"
  else
    failed=$((failed + 1))
    row "$(printf '%-52s FAILED  (exit %d%s)' "$name" "$code" "$([ "$code" -eq 124 ] && echo ", over $limit s")")"
    grep -E 'FAILED|SKIPPED| 0 tests|Failure|rror' "$work/log" | head -n 20
    tail -n 20 "$work/log"
  fi
  return "$code"
}
finish() {
  echo
  echo "=== $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sort | uniq -c)"
  printf '%s\n' "${rows[@]}"
  echo "$((SECONDS - started)) s"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
  exit
}

launch() { # launch GPUS PROGRAM...
  local n=$1
  shift
  "$build/ddprun" --standalone --nproc-per-node="$n" "$@"
}
export -f launch
export build

# A device that does not open makes everything fail: say why once.
check "a device opens" 60 bash -c 'launch 1 trainer bench all-reduce --backend nccl --size 4KiB --rounds 1' || finish

worlds=(1)
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
fi
[ "$gpus" -le 1 ] || worlds+=("$gpus")

parity='*KernelParity*cuda*'
[ "${DDPRUN_GPU_SMALL:-}" != 1 ] || parity='*KernelParity.Gemm/cuda'
check "kernels: cuda against reference in double" 120 "$build/tests/engine_test" "--gtest_filter=$parity"
if command -v compute-sanitizer >/dev/null; then
  few='*KernelParity*/cuda:-*Gemm*:*Convolution*'
  check "kernels: compute-sanitizer memcheck" 150 compute-sanitizer --error-exitcode 1 "$build/tests/engine_test" \
    "--gtest_filter=$few"
  if [ "${DDPRUN_GPU_SANITIZER:-}" = 1 ]; then
    for tool in racecheck synccheck initcheck; do
      check "kernels: compute-sanitizer $tool" 600 compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "$build/tests/engine_test" "--gtest_filter=$few"
    done
  fi
else
  skip "kernels: compute-sanitizer" "compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin"
fi
check "NCCL: unique ids" 60 "$build/tests/nccl_real_test" --gtest_filter=RealNccl.MakesDifferentUniqueIds

last=64MiB bench_last=1GiB
small() { :; }
if [ "${DDPRUN_GPU_SMALL:-}" = 1 ]; then
  last=64KiB bench_last=4MiB
  small() { # settings that shrink a model's run
    case $1 in
      mlp) echo model.hidden=[32] data.sample_shape=[16] data.batch_size=16 data.samples=512 train.max_steps=6 ;;
      resnet18) echo model.width=4 data.sample_shape=[8,8,3] data.batch_size=4 data.samples=128 train.max_steps=4 \
        precision.init_scale=1024 ;;
      resnet50) echo model.width=4 data.sample_shape=[32,32,3] data.batch_size=4 data.samples=64 train.max_steps=3 ;;
      gpt2) echo model.layers=1 model.heads=2 model.embedding=16 model.vocabulary=65 data.sequence_length=8 \
        data.batch_size=2 data.samples=64 train.max_steps=4 ;;
    esac
  }
fi

for n in "${worlds[@]}"; do
  for collective in all-reduce all-gather reduce-scatter broadcast; do
    check "NCCL $collective, $n GPU(s), results checked" 60 bash -c \
      "launch $n trainer bench $collective --backend nccl --sweep 4KiB:$last --factor 16 --rounds 3"
  done
done

values() { grep -o "\"$1\":[^,}]*" "$work/$2" | cut -d: -f2; } # values KEY FILE
# train NAME GPUS MODEL SECONDS [KEY=VALUE...]: the median of samples/s over the second half of the run goes to $rate.
train() {
  local name=$1 n=$2 model=$3 limit=$4 setting arguments=()
  shift 4
  # shellcheck disable=SC2046
  for setting in $(small "$model") "$@"; do arguments+=(--set "$setting"); done
  rm -f "$work/metrics.jsonl"
  rate=0
  check "$name" "$limit" "$build/ddprun" --standalone --nproc-per-node="$n" trainer \
    --config "tests/gpu/$model.yaml" --set ddp.backend=nccl --set output.metrics="$work/metrics.jsonl" \
    --set log.file="$work/train.log" "${arguments[@]}" || return 1
  rate=$(values samples_per_s metrics.jsonl | awk '{ v[NR] = $1 } END { for (i = int(NR / 2) + 1; i <= NR; i++) print v[i] }' |
    sort -g | awk '{ v[NR] = $1 } END { print (NR > 0 ? v[int((NR + 1) / 2)] : 0) }')
  awk -v r="$rate" 'BEGIN { exit !(r > 0) }' || check "$name: samples/s in its metrics" 10 false
}

# The losses of the first steps on both sides, f32: as many, and numbers (null is none).
compare() {
  paste <(values loss gpu.jsonl) <(values loss metrics.jsonl) | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (!(d <= 2e-3 * ($2 + 1))) bad = 1; print $1, $2 }
    NF != 2 || $1 !~ /^[0-9.]/ || $2 !~ /^[0-9.]/ { bad = 1 }
    END { exit bad || NR == 0 }'
}
export -f compare values
export work
for case in mlp mlp-bf16-hook resnet18 gpt2; do
  model=${case%%-*} n=1 settings=(precision.dtype=fp32)
  case $case in
    mlp) settings+=(model.hidden=[64,64] data.batch_size=64 data.samples=2048 train.max_steps=8 train.accumulate=2) ;;
    mlp-bf16-hook)
      n=$gpus
      settings+=(model.hidden=[64,64] data.batch_size=64 data.samples=4096 train.max_steps=8 ddp.compression=bf16
        ddp.force_compression=true ddp.bucket_cap_mb=0.01 ddp.first_bucket_mb=0.001)
      ;;
    resnet18) settings+=(model.width=8 data.batch_size=8 data.samples=256 train.max_steps=3) ;;
    gpt2) settings+=(model.layers=2 model.heads=2 model.embedding=32 model.vocabulary=97 data.sequence_length=32
      data.batch_size=4 data.samples=256 train.max_steps=6) ;;
  esac
  # Batch norm over a handful of values would wander: a little more for it.
  # shellcheck disable=SC2207
  [ "${DDPRUN_GPU_SMALL:-}" != 1 ] || settings+=($(small "$model") train.max_steps=3)
  [ "${DDPRUN_GPU_SMALL:-}$model" != 1resnet18 ] || settings+=(data.sample_shape=[16,16,3] data.batch_size=8)
  train "$case: $n GPU(s)" "$n" "$model" 60 "${settings[@]}" || continue
  cp "$work/metrics.jsonl" "$work/gpu.jsonl"
  train "$case: $n rank(s) on the CPU" "$n" "$model" 120 "${settings[@]}" ddp.backend=cpu || continue
  check "$case: both losses agree" 10 bash -c compare
done

# A first scale that overflows fp16 must be halved until the step is finite, and no step counts before.
if train "GradScaler: overflows are skipped" 1 resnet18 60 precision.init_scale=1e11 train.max_steps=30; then
  scaled() {
    values skipped metrics.jsonl | uniq -c
    values scale metrics.jsonl | tail -n 1
    values skipped metrics.jsonl | head -n 1 | grep -q true && values skipped metrics.jsonl | tail -n 1 | grep -q false
  }
  export -f scaled
  check "GradScaler: the scale fell and training went on" 10 bash -c scaled
fi

# Dense peak of the GPU in TFLOP/s of bf16, for MFU (NVIDIA's data sheets); 0 = not known here.
case $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) in
  *H200* | *H100*) peak=989 ;;
  *A100*) peak=312 ;;
  *B200*) peak=2250 ;;
  *) peak=0 ;;
esac
mfu() { awk -v r="$1" -v f="$2" -v p="$peak" -v n="$3" 'BEGIN { if (p > 0) printf "%.1f %%", 100 * r * f / (p * n); else printf "-" }'; }
scaling() { awk -v a="$1" -v b="${2:-0}" 'BEGIN { if (b > 0) printf "%.2fx", a / b; else printf "-" }'; }

declare -A single=()
# TFLOP per sample, forward and backward. ResNet-50: 3 x 2 x 4.09 G multiply-adds. GPT-2 124M: 1024 tokens x (6 x 124 M
# parameters + 12 x 12 layers x 768 x 1024 for the scores).
for n in "${worlds[@]}"; do
  train "train mlp, $n GPU(s)" "$n" mlp 60 && row "    $rate samples/s"
  train "train resnet18 fp16, $n GPU(s)" "$n" resnet18 60 && row "    $rate images/s"
  if train "train resnet50 bf16, $n GPU(s)" "$n" resnet50 120; then
    [ "$n" -ne 1 ] || single[resnet50]=$rate
    row "    $rate images/s, MFU $(mfu "$rate" 0.0245 "$n"), scaling $(scaling "$rate" "${single[resnet50]:-}")"
  fi
  if train "train gpt2-124M bf16, $n GPU(s)" "$n" gpt2 120; then
    [ "$n" -ne 1 ] || single[gpt2]=$rate
    row "    $(awk -v r="$rate" 'BEGIN { printf "%.0f", r * 1024 }') tokens/s, MFU $(mfu "$rate" 0.878 "$n"), scaling $(scaling "$rate" "${single[gpt2]:-}")"
  fi
done

if [ "$gpus" -gt 1 ]; then
  if check "all-reduce bench, $gpus GPUs" 120 bash -c \
    "launch $gpus trainer bench all-reduce --backend nccl --sweep 1MiB:$bench_last --factor 4"; then
    cat "$work/log"
    ours=$(grep -E '^ +[0-9]+ ' "$work/log" | tail -n 1 | awk '{ print $7 }')
    [ -n "$ours" ] || check "busbw in that table" 10 false
    row "    busbw $ours GB/s at $bench_last"
    if command -v all_reduce_perf >/dev/null; then
      if check "the same by nccl-tests" 120 all_reduce_perf -b 1M -e "${bench_last%iB}" -f 4 -g "$gpus"; then
        cat "$work/log"
        # Columns of nccl-tests: size count type redop root time algbw busbw #wrong, then the same in place.
        theirs=$(grep -E '^ +[0-9]+ ' "$work/log" | tail -n 1 | awk '{ print $12 }')
        row "    busbw $theirs GB/s in place; ours : theirs $(scaling "$ours" "$theirs") (aim: at least 0.97)"
      fi
    else
      skip "the same by nccl-tests" "all_reduce_perf is not on PATH"
    fi
  fi
else
  skip "all-reduce and scaling over several GPUs" "one GPU here"
fi
finish
