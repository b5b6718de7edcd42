#!/bin/bash
#SBATCH --job-name=t5-large
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=48
#SBATCH --signal=B:USR1@144
#SBATCH --requeue
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

[ -v TOKENIZERS_PARALLELISM ] || export TOKENIZERS_PARALLELISM=false
[ -v PYTORCH_CUDA_ALLOC_CONF ] || export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
# With these set Accelerate silently drops DeepSpeed.
unset ACCELERATE_USE_CPU ACCELERATE_USE_DEEPSPEED ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP

# One folder per job, the same after a requeue, on a file system that all nodes share. In an array SLURM_JOB_ID may name
# the whole array; scancel and scontrol need the ID of this task.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
restart=${SLURM_RESTART_COUNT:-0}
export DSRUN_OUTPUT="$PWD"/runs/ro
export DSRUN_FAILURES="$DSRUN_OUTPUT/logs/slurm-$job-$restart"
export DSRUN_STOP_FILE="$DSRUN_FAILURES/stop"
export DSRUN_SAVE_ON=USR1,TERM
mkdir -p "$DSRUN_FAILURES" && touch "$DSRUN_FAILURES/began" || exit 4
note() { echo "$(date '+%F %T') dsrun: $*" >&2; }
note "job $job, start $((restart + 1)), on $SLURM_JOB_NODELIST, run folder $DSRUN_OUTPUT"

# Rendezvous: the first host, and a port that differs between jobs; the next port is used as well.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
endpoint="${hosts[0]}:$((15000 + SLURM_JOB_ID * 2 % 15000))"

signalled=
watchdog=
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
    # A job that is still saving at its time limit dies with its batch script, and cannot be requeued.
    if [ "$1" = USR1 ] && [ -z "$watchdog" ]; then
        { sleep 114 && scancel --quiet --signal=HUP "$job"; } >/dev/null 2>&1 &
        watchdog=$!
    fi
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
job_shows() { scontrol show job "$job" | grep -qE "^ +$1"; }
# Returns only if the job is not requeued.
requeue_if_interrupted() {
    job_shows 'PreemptEligibleTime=[^ ]* PreemptTime=[0-9]' && signalled=preemption
    # When a node dies, the other workers fail at once, but SLURM notices minutes later. If srun reached no node at all,
    # the error is another one, and would come again.
    if [ -z "$signalled" ] && [ "$SLURM_JOB_NUM_NODES" -gt 1 ] && [ -e "$DSRUN_FAILURES/reached" ]; then
        timeout 120 srun --quiet --export=ALL --kill-on-bad-exit=1 true || signalled="the loss of a node"
    fi
    # A cancelled job is no longer RUNNING.
    if [ -n "$signalled" ] && job_shows 'JobState=RUNNING '; then
        if [ "$restart" -lt 20 ]; then
            note "interrupted by $signalled and not finished: requeued"
            scontrol requeue "$job" && exit 0
        fi
        note "interrupted by $signalled and not finished after $restart requeues"
    fi
}
# No signal interrupts the rest of this script, and the watchdog does not end workers of a later start.
clean_up() {
    trap '' USR1 TERM
    [ -z "$watchdog" ] || kill "$watchdog"
    on_all --quiet --immediate=20 rm -rf "$DSRUN_LOCAL"
}

# Copies the environment to the local disks once; otherwise every rank imports it from the shared file system.
export DSRUN_LOCAL='/local disk'/dsrun-"$UID-$SLURM_JOB_ID"
on_all() { srun --export=ALL --kill-on-bad-exit=1 "$@"; }
# shellcheck disable=SC2016
make_room='
# Remove copies of cancelled jobs and of jobs that lost this node; jobs that SLURM still knows keep theirs.
for root in "${1%-*}"-[0-9]*; do
    scontrol show job "${root##*-}" 2>&1 | grep -q "Invalid job id" && rm -rf "$root"
done
rm -rf "$1" && mkdir -p -m 700 "$1"
'
# shellcheck disable=SC2016
unpack='
mkdir "$DSRUN_LOCAL/unpacked" && tar -C "$DSRUN_LOCAL/unpacked" -xf "$1" && rm -f "$1" || exit
# The environment may be one folder deep; conda-unpack fixes the prefixes of a conda-pack archive.
for root in "$DSRUN_LOCAL/unpacked" "$DSRUN_LOCAL/unpacked"/*; do [ -e "$root/bin/python" ] && break; done
[ -x "$root/bin/python" ] || { echo "dsrun: $1 contains no bin/python that runs here" >&2; exit 4; }
mv "$root" "$DSRUN_LOCAL/env" || exit
cd "$DSRUN_LOCAL/env" || exit
[ ! -e bin/conda-unpack ] || bin/python bin/conda-unpack
'
copy_environment() {
    on_all bash -c "$make_room" dsrun-stage "$DSRUN_LOCAL" || return
    touch "$DSRUN_FAILURES/reached"
    sbcast --force /shared/env.tar.gz "$DSRUN_LOCAL"/env.tar.gz || return
    # sbcast and tar ignore the forwarded signal.
    [ ! -e "$DSRUN_STOP_FILE" ] || return
    on_all bash -c "$unpack" dsrun-stage "$DSRUN_LOCAL"/env.tar.gz
}
copy_environment &
wait_for "$!"
if [ "$code" -ne 0 ]; then
    clean_up
    # The copying steps have no handlers: 128 plus the number of a signal sent to them, such as by preemption.
    case $code in 138 | 143) signalled=${signalled:-a signal} ;; esac
    requeue_if_interrupted
    [ -z "$signalled" ] || exit 75
    note "the environment could not be copied to the local disks"
    exit 4
fi
export PATH="$DSRUN_LOCAL/env/bin:$PATH"

# What each node runs; nothing in it is expanded on the batch host. Signals go to the supervisors, which make the workers
# save and exit; until their handlers are installed, a signal must not end them.
# shellcheck disable=SC2016
on_node='
trap "" USR1 TERM
touch "$DSRUN_FAILURES/reached"
cache=${TMPDIR:-/tmp}/dsrun-$UID
# Files in this folder are executed, so it must belong to this user.
mkdir -m 700 "$cache" 2>/dev/null || [ -O "$cache" ] || cache=$(mktemp -d) || exit
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
# One folder per interpreter, kept between jobs; dsrun lets one process compile and removes stale locks.
key=$(printf %s "$1" | cksum)
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$cache/extensions-${key%% *}}
cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
threads=$((cores / 4 / 2))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
exec "$@"
'

# One supervisor per node. They start and end the workers of all nodes together, restart them after a transient failure,
# and exit with one exit code: 75 for a run that was stopped by a signal. Each starts the command after `--`. They
# authenticate one another with this secret.
DSRUN_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export DSRUN_SECRET
# srun does not inherit --cpus-per-task from sbatch (since SLURM 22.05).
srun --export=ALL --wait=60 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    bash -c "$on_node" dsrun-node \
    "$DSRUN_LOCAL/env/bin/python" -m dsrun launch -- \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --module -- dsrun.train --model t5-large --dataset wmt16 --dataset-config ro-en --output runs/ro &
wait_for "$!"
clean_up

# Finished, failed, or interrupted.
[ "$DSRUN_OUTPUT/FINISHED" -nt "$DSRUN_FAILURES/began" ] && exit 0
case $code in 0 | 75) signalled=${signalled:-a signal} ;; esac
requeue_if_interrupted
# srun returns the highest exit code of the supervisors, which all exit with that of the first failed worker.
[ "$code" -ne 0 ] || code=75
exit "$code"
