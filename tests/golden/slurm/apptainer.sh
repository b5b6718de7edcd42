#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION. How it works, and how to change it: `dsrun render-slurm --show-template`.
set -u -o pipefail

# Called inside another job, sbatch passes on what SLURM has set there. srun would take it for wishes, and the script an
# array's task that is not its own for itself. What this job has asked for holds for its steps without these.
unset SLURM_GPUS "${!SLURM_GPUS_PER_@}" "${!SLURM_MEM_PER_@}" "${!SLURM_CPU_BIND@}"
if [ -v SLURM_ARRAY_JOB_ID ] || [ -v SLURM_RESTART_COUNT ]; then
    if own=$(scontrol show job "$SLURM_JOB_ID" | sed -n "/^JobId=$SLURM_JOB_ID /,/ Restarts=/p") && [ -n "$own" ]; then
        [[ $own == "JobId=$SLURM_JOB_ID ArrayJobId="* ]] || unset "${!SLURM_ARRAY_@}"
        [[ $own != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
    fi
fi

# One folder per job, the same after a requeue, on a file system that all nodes share. In an array SLURM_JOB_ID may
# stand for the whole array: scancel and scontrol need the number of this task.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
restart=${SLURM_RESTART_COUNT:-0}
export DSRUN_OUTPUT="$PWD"/runs/my_train-"$job"
export DSRUN_FAILURES="$DSRUN_OUTPUT/logs/slurm-$job-$restart"
export DSRUN_STOP_FILE="$DSRUN_FAILURES/stop"
mkdir -p "$DSRUN_FAILURES" && touch "$DSRUN_FAILURES/began" || exit 4
say() { echo "$(date '+%F %T') dsrun: $*" >&2; }
say "job $job, start $((restart + 1)), on $SLURM_JOB_NODELIST, run folder $DSRUN_OUTPUT"

# Rendezvous: the first host, and a port that other jobs on it will not have; the next one is taken as well.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
endpoint="${hosts[0]}:$((15000 + SLURM_JOB_ID * 2 % 15000))"

signalled=
# shellcheck disable=SC2317,SC2329
pass_on() {
    signalled=$1
    interrupted=1
    say "got $1, passed on to the workers"
    # In one step, and the first signal stays; on a full disk a file without content still stops the workers.
    if [ ! -e "$DSRUN_STOP_FILE" ]; then
        echo "SIG$1" >"$DSRUN_STOP_FILE.new"
        mv "$DSRUN_STOP_FILE.new" "$DSRUN_STOP_FILE" || touch "$DSRUN_STOP_FILE"
    fi
    scancel --quiet --signal=USR1 "$job"
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
# Leaves the exit code of a process in `code`. A trapped signal ends `wait` early; the process goes on.
await() {
    interrupted=1
    while [ -n "$interrupted" ]; do
        interrupted=
        wait "$1"
        code=$?
    done
}
job_has() { scontrol show job "$job" | grep -qE "^ +$1"; }
# Only returns when an unfinished job is not to go back.
back_into_queue() {
    job_has 'PreemptEligibleTime=[^ ]* PreemptTime=[0-9]' && signalled=preemption
    # When a node dies, the other workers fail at once, and SLURM notices minutes later. Where srun could reach none from
    # the start, something else is wrong, and would be again.
    if [ -z "$signalled" ] && [ "$SLURM_JOB_NUM_NODES" -gt 1 ] && [ -e "$DSRUN_FAILURES/reached" ]; then
        timeout 120 srun --quiet --export=ALL --kill-on-bad-exit=1 true || signalled="the loss of a node"
    fi
    # A job that the user has cancelled is no longer RUNNING.
    if [ -n "$signalled" ] && job_has 'JobState=RUNNING '; then
        if [ "$restart" -lt 20 ]; then
            say "interrupted by $signalled and not finished: back into the queue"
            scontrol requeue "$job" && exit 0
        fi
        say "interrupted by $signalled and not finished after $restart requeues"
    fi
}
# Nothing disturbs what follows the last step, and nobody ends workers of a later start.
wind_up() {
    trap '' USR1 TERM
}

# What each node runs; nothing in it is expanded on the batch host. Signals go to the workers, which save and leave;
# the agent above them must outlive that: left to itself torch.distributed.run kills them 30 s after a TERM.
# shellcheck disable=SC2016
on_node='
trap "" USR1 TERM
touch "$DSRUN_FAILURES/reached"
export PET_SIGNALS_TO_HANDLE=SIGINT,SIGHUP,SIGQUIT PET_SHUTDOWN_TIMEOUT=10
if [ "$SLURM_NODEID" = 0 ]; then PET_RDZV_CONF=is_host=true; else PET_RDZV_CONF=is_host=false; fi
export PET_RDZV_CONF
cache=${TMPDIR:-/tmp}/dsrun-$UID
# What lies in a folder of that name may be run: it has to be of this user.
mkdir -m 700 "$cache" 2>/dev/null || [ -O "$cache" ] || cache=$(mktemp -d) || exit
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
# A build that was killed leaves a lock that torch waits for without end: one folder a job, without old locks.
if [ -z "${TORCH_EXTENSIONS_DIR:-}" ]; then
    export TORCH_EXTENSIONS_DIR=$cache/extensions-$SLURM_JOB_ID
    mkdir -p "$TORCH_EXTENSIONS_DIR" && rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
fi
cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
threads=$((cores / 2 / 2))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
exec "$@"
'

# srun does not take --cpus-per-task over from sbatch (since SLURM 22.05).
srun --export=ALL --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    bash -c "$on_node" dsrun-node \
    apptainer exec --nv --bind="$PWD" --bind="$DSRUN_OUTPUT" --pwd="$PWD" --bind=/data '/images/my train.sif' python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=2 --max-restarts=0 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    -- my_train.py --x 1 $'it\'s $$HOME' &
await "$!"
wind_up

# Finished, failed, or only interrupted.
[ "$code" -ne 0 ] || exit 0
back_into_queue
# torch.distributed.run ends with 1 whatever its workers ended with; the code is in the report it leaves in the log.
# It is what this script writes to; scontrol's name for it may hold patterns that are filled in on the node.
log=/proc/$$/fd/2
[ -f "$log" ] || log=$(scontrol show job "$job" | sed -n 's/^ *StdErr=//p')
# The log of a requeued job has earlier reports, too: those from before this start do not count.
worker=$(tail -n 500 -- "$log" 2>/dev/null | awk -v start="dsrun: job $job, start $((restart + 1))," '
    index($0, start) { code = "" }
    /^ +exitcode +: -?[1-9]/ { code = $3 }
    END { print code }
')
# -9 stands there for signal 9, by which also the kernel ends what takes too much memory; shells say 137.
[ -z "$worker" ] || code=$((worker < 0 ? 128 - worker : worker))
exit "$code"
