#!/bin/bash
#SBATCH --job-name=tool
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=1
#SBATCH --no-requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION. How it works, and how to change it: `dsrun render-slurm --show-template`.
set -u -o pipefail

# sbatch called inside another job exports that job's variables. srun would read them as options, and this script would
# take the other job's array task for its own. The steps of this job get its own options without them.
unset SLURM_GPUS "${!SLURM_GPUS_PER_@}" "${!SLURM_MEM_PER_@}" "${!SLURM_CPU_BIND@}"
if [ -v SLURM_ARRAY_JOB_ID ] || [ -v SLURM_RESTART_COUNT ]; then
    if own=$(scontrol show job "$SLURM_JOB_ID" | sed -n "/^JobId=$SLURM_JOB_ID /,/ Restarts=/p") && [ -n "$own" ]; then
        [[ $own == "JobId=$SLURM_JOB_ID ArrayJobId="* ]] || unset "${!SLURM_ARRAY_@}"
        [[ $own != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
    fi
fi

export PATH=/opt/dsrun/bin:"$PATH"

# One folder per job, the same after a requeue, on a file system that all nodes share. In an array SLURM_JOB_ID may name
# the whole array; scancel and scontrol need the ID of this task.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
restart=${SLURM_RESTART_COUNT:-0}
export DSRUN_OUTPUT="$PWD"/runs/tool-"$job"
export DSRUN_FAILURES="$DSRUN_OUTPUT/logs/slurm-$job-$restart"
export DSRUN_STOP_FILE="$DSRUN_FAILURES/stop"
mkdir -p "$DSRUN_FAILURES" && touch "$DSRUN_FAILURES/began" || exit 4
note() { echo "$(date '+%F %T') dsrun: $*" >&2; }
note "job $job, start $((restart + 1)), on $SLURM_JOB_NODELIST, run folder $DSRUN_OUTPUT"

# Rendezvous: the first host, and a port that differs between jobs; the next port is used as well.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
endpoint="${hosts[0]}:$((15000 + SLURM_JOB_ID * 2 % 15000))"

signalled=
# shellcheck disable=SC2317,SC2329
forward() {
    signalled=$1
    interrupted=1
    note "received $1, forwarded to the workers"
    # Written atomically; the first signal stays. On a full disk an empty file still stops the workers.
    if [ ! -e "$DSRUN_STOP_FILE" ]; then
        echo "SIG$1" >"$DSRUN_STOP_FILE.new"
        mv "$DSRUN_STOP_FILE.new" "$DSRUN_STOP_FILE" || touch "$DSRUN_STOP_FILE"
    fi
    scancel --quiet --signal=USR1 "$job"
}
trap 'forward USR1' USR1
trap 'forward TERM' TERM
# Stores the exit code of a process in `code`. A trapped signal ends `wait` early; the process continues.
wait_for() {
    interrupted=1
    while [ -n "$interrupted" ]; do
        interrupted=
        wait "$1"
        code=$?
    done
}
# Returns only if the job is not requeued.
requeue_if_interrupted() {
    [ -z "$signalled" ] || note "interrupted by $signalled and not finished"
}
# No signal interrupts the rest of this script, and the watchdog does not end workers of a later start.
clean_up() {
    trap '' USR1 TERM
}

# What each node runs; nothing in it is expanded on the batch host. Signals go to the workers, which save and exit; their
# agent must outlive that: by default torch.distributed.run kills them 30 s after a TERM.
# shellcheck disable=SC2016
on_node='
trap "" USR1 TERM
touch "$DSRUN_FAILURES/reached"
export PET_SIGNALS_TO_HANDLE=SIGINT,SIGHUP,SIGQUIT PET_SHUTDOWN_TIMEOUT=10
if [ "$SLURM_NODEID" = 0 ]; then PET_RDZV_CONF=is_host=true; else PET_RDZV_CONF=is_host=false; fi
export PET_RDZV_CONF
cache=${TMPDIR:-/tmp}/dsrun-$UID
# Files in this folder are executed, so it must belong to this user.
mkdir -m 700 "$cache" 2>/dev/null || [ -O "$cache" ] || cache=$(mktemp -d) || exit
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
# torch waits forever for the lock of a killed build: one folder per job, without old locks.
if [ -z "${TORCH_EXTENSIONS_DIR:-}" ]; then
    export TORCH_EXTENSIONS_DIR=$cache/extensions-$SLURM_JOB_ID
    mkdir -p "$TORCH_EXTENSIONS_DIR" && rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
fi
cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
threads=$((cores / 1 / 2))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
exec "$@"
'

# srun does not inherit --cpus-per-task from sbatch (since SLURM 22.05).
srun --export=ALL --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    bash -c "$on_node" dsrun-node \
    /opt/dsrun/bin/python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=1 --max-restarts=0 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --no-python -- ./tool 'a b' &
wait_for "$!"
clean_up

# Finished, failed, or interrupted.
[ "$code" -ne 0 ] || exit 0
requeue_if_interrupted
# torch.distributed.run always exits with 1; the worker's exit code is in the report in this job's log, which is this
# script's stderr. scontrol's name for it may contain patterns that are expanded on the node.
log=/proc/$$/fd/2
[ -f "$log" ] || log=$(scontrol show job "$job" | sed -n 's/^ *StdErr=//p')
# The log of a requeued job also has reports of earlier starts, which do not count.
worker=$(tail -n 500 -- "$log" 2>/dev/null | awk -v start="dsrun: job $job, start $((restart + 1))," '
    index($0, start) { code = "" }
    /^ +exitcode +: -?[1-9]/ { code = $3 }
    END { print code }
')
# The report has -9 for signal 9 (also the kernel's, when memory runs out); shells return 137.
[ -z "$worker" ] || code=$((worker < 0 ? 128 - worker : worker))
exit "$code"
