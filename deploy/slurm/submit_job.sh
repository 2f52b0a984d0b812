#!/bin/bash
# Trains CONFIG on the nodes of a Slurm job. Change the lines below, then: sbatch submit_job.sh [KEY=VALUE of the config ...]
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
NGPUS=${NGPUS:-8}                      # workers on each node; "cpu" workers are counted the same way
CONFIG=${CONFIG:-train.yaml}           # needs checkpoint.dir on a disk that all nodes share
MIN_NODES=${MIN_NODES:-1}              # goes on with so many when nodes are lost
MAX_RESTARTS=${MAX_RESTARTS:-3}        # of the workers, within one run of the job
MAX_REQUEUES=${MAX_REQUEUES:-20}       # of the job
DDPRUN=${DDPRUN:-ddprun}
REPORTS=${REPORTS:-$PWD}               # on the shared disk too: how each node ended

# What this script does beside `srun ddprun`, and why:
# - 120 s before the time limit Slurm sends USR1 to this shell alone. It is passed on, every worker saves its state and
#   ends with 75, and the job is queued again. Never after scancel: a job that was cancelled must not come back.
# - A lost node does not end the step (--no-kill and the rest); ddprun goes on with those that are left. srun's exit code
#   is 137 then whatever becomes of the training, so what counts is what the nodes reported.
# - The first node carries this shell and the rendezvous. When it is lost nobody is here to act, and Slurm keeps the job
#   RUNNING without a step until its time limit: the other nodes queue it again.
# - The run's name has the job's, the step's and the requeue's number, so nodes of an old run that were cut off meet
#   nobody. Port and nodes come from Slurm too (ddprun --engine=auto).
set -uo pipefail

if [ -z "${SLURM_JOB_ID:-}" ]; then
  exec sbatch "$0" "$@"
fi

report=$REPORTS/slurm-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
settings=()
for setting in "$@"; do settings+=(--set "$setting"); done

on_each_node() {
  trap : TERM USR1 USR2 INT # they are for ddprun, which gets them from Slurm as well; this shell waits for it
  "$DDPRUN" --nnodes="$MIN_NODES:$SLURM_JOB_NUM_NODES" --nproc-per-node="$NGPUS" --max-restarts="$MAX_RESTARTS" \
    --rdzv-conf=join_timeout=60 --report="$report.$SLURMD_NODENAME.json" trainer --config "$CONFIG" "$@"
  local code=$?
  # 69: the rendezvous is gone. Does srun not answer either, then the node of this script is gone. (Slurm knows it only
  # after SlurmdTimeout, and the step runs for Slurm as long as this shell does.)
  if [ $code = 69 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_REQUEUES" ] && ! srun_answers && sleep 5 && ! srun_answers; then
    scontrol requeue "$SLURM_JOB_ID" >/dev/null 2>&1 # nobody reads our words any more
  fi
  exit $code
}
srun_answers() {
  timeout 5 bash -c ': <"/dev/tcp/$SLURM_SRUN_COMM_HOST/$SLURM_SRUN_COMM_PORT"' 2>/dev/null
}
export -f on_each_node srun_answers
export NGPUS CONFIG MIN_NODES MAX_RESTARTS MAX_REQUEUES DDPRUN report

saved=0 cancelled=0
trap 'saved=1; kill -USR1 "$launcher" 2>/dev/null' USR1
trap 'cancelled=1' TERM # Slurm signals the step itself; a TERM to srun would kill its tasks at once

rm -f "$report".*.json
# shellcheck disable=SC2016  # for the nodes' shells
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c 'on_each_node "$@"' on_each_node "${settings[@]}" &
launcher=$!

# `wait` comes back early when a trap runs.
code=0
while :; do
  wait "$launcher"
  code=$?
  kill -0 "$launcher" 2>/dev/null || break
done

if grep -qs '"success": *true' "$report".*.json; then
  exit 0
fi
if [ $saved = 1 ] && [ $cancelled = 0 ] && grep -qs '"exit_code": *75' "$report".*.json; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_REQUEUES" ]; then
    echo "submit_job: the state is saved; the job is queued again" >&2
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "submit_job: the state is saved, but this was requeue $MAX_REQUEUES of at most $MAX_REQUEUES (MAX_REQUEUES)" >&2
  fi
  exit 75
fi
exit "$code"
