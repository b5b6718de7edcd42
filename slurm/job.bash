# shellcheck shell=bash disable=SC1090,SC2016,SC2034,SC2154,SC2174
# What every job script of dsrun sources: the run folder and the rendezvous, signals, requeueing, and what each node does
# before it starts the workers. It defines functions and runs nothing.
#
# A job is told to stop by a signal: --signal before its time limit, preemption, or scancel. `forward` passes it on to the
# workers, which save a checkpoint and exit. `finish` waits for them, and then either ends the job with their exit code
# or, if it was interrupted and is not finished, puts it back into the queue, where it resumes from that checkpoint.
#
# The script sets these before it calls anything:
#   nproc           workers of each node
#   cpu_only        "yes" for a job without GPUs
#   trains          "yes" for dsrun's own training, which leaves the file FINISHED
#   supervised      "yes" for what runs under `dsrun launch`: dsrun's own training, and other programs if their Python has dsrun
#   requeue         "yes" if the job may go back into the queue: at most max_requeues times without progress, which is a new
#                   checkpoint or, of other programs, a further step; max_requeues_unseen times where that cannot be seen
#   join_timeout    seconds that agents without a supervisor wait for each other; unless set, torch's 600
#   rdzv_backend    how agents without a supervisor meet: static, where ranks follow the order of the nodes, or c10d
#   gpus_per_node   [TYPE:]N, as it is asked of SLURM; for programs that read SLURM_GPUS_PER_NODE
#   gpu_check       Python's program that ends with 4 if torch sees fewer GPUs than DSRUN_GPUS; of jobs without a supervisor
#   used_nodes      how many of the job's nodes the workers use, where it has spare ones
#   saving_time     seconds from the time limit's signal until workers that have not exited are ended; empty for never

signalled=
watchdog=
faulty=
code=
supervised=
memory=
join_timeout=
rdzv_backend=
gpus_per_node=
gpu_check=
max_requeues_unseen=20
used_nodes=
left_out=()
step_nodes=()

# What only some jobs need is in files beside this one, which the first call loads. Scripts of --inline contain the functions
# that they call; without a line `[ -z "$x" ] || …` or `[ -n "$x" ] || …` whose x makes it do nothing in that script.
choose_nodes() { load_functions spare choose_nodes && choose_nodes; }
preflight() { load_functions preflight preflight && preflight "$@"; }
finish_elastic() { load_functions elastic finish_elastic && finish_elastic "$@"; }
stage_environment() { load_functions stage stage_environment && stage_environment "$@"; }

# load_functions FILE NAME: ends the job unless FILE.bash defines NAME, which would otherwise call itself without end.
load_functions() {
    local file
    file="$(dirname "${BASH_SOURCE[0]}")/$1.bash"
    unset -f "$2"
    { source "$file" && declare -F "$2" >/dev/null; } ||
        { echo "dsrun: $file does not define $2: it is missing, or not whole" >&2; exit 4; }
}

note() { echo "$(date '+%F %T') dsrun: $*" >&2; }

# need NAME: ends the job unless that variable is set. Secrets come this way, as everybody can read a job's script.
need() { [ -n "${!1:-}" ] || { echo "dsrun: $1 is not set where sbatch was called" >&2; exit 4; }; }

# start_job [--per-job] FOLDER: the job's names and its run folder, which all nodes share and which stays the same after a
# requeue; with --per-job it is FOLDER-JOB.
start_job() {
    forget_outer_job
    # In an array SLURM_JOB_ID may name the whole array; scancel and scontrol need the ID of this task.
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    job=${job:-$SLURM_JOB_ID}
    restart=${SLURM_RESTART_COUNT:-0}
    if [ "$1" = --per-job ]; then export DSRUN_OUTPUT="$2-$job"; else export DSRUN_OUTPUT="$1"; fi
    export DSRUN_FAILURES="$DSRUN_OUTPUT/logs/slurm-$job-$restart"
    export DSRUN_STOP_FILE="$DSRUN_FAILURES/stop"
    [ -z "$trains" ] || export DSRUN_SAVE_ON=USR1,TERM
    mkdir -p "$DSRUN_FAILURES" && touch "$DSRUN_FAILURES/began" || exit 4
    trap 'forward USR1' USR1
    trap 'forward TERM' TERM
    note "job $job, start $((restart + 1)), on $SLURM_JOB_NODELIST, run folder $DSRUN_OUTPUT"
    # Node 0 has a connection to every node.
    ulimit -n "$(ulimit -H -n)" 2>/dev/null
    # Rendezvous: the first host, and a port that differs between jobs; the next port is used as well. Below 32768, where
    # the ports begin that the kernel gives away by itself (ip(7), ip_local_port_range).
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    all_hosts=("${hosts[@]}")
    [ -z "$used_nodes" ] || choose_nodes || { used_nodes=${#all_hosts[@]} && choose_nodes; }
    endpoint="${hosts[0]}:$((15000 + SLURM_JOB_ID * 2 % 15000))"
    [ -z "$trains" ] || time_in_queue
    # The supervisors of the nodes authenticate one another with it.
    DSRUN_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export DSRUN_SECRET
    # srun does not inherit --cpus-per-task from sbatch (since SLURM 22.05).
    cpus=(${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
    # Expanded by bash on each node: what `prepare_node` needs, and then the command.
    on_node="job=$job nproc=$nproc cpu_only=$cpu_only trains=$trains supervised=$supervised join_timeout=$join_timeout"
    on_node+=" rdzv_backend=$rdzv_backend gpus_per_node=$gpus_per_node memory=$memory gpu_check=${gpu_check@Q};"
    on_node+=" $(declare -f prepare_node own_folder choose_caches versions_key python_of hold remove_unused remove_copies);"
    [ -n "$trains" ] || on_node+=" $(declare -f pass_on_term is_taken is_preempted job_shows tell_workers);"
    on_node+=' prepare_node "$@";'
    [ -z "$gpu_check" ] || on_node+=" $(declare -f check_gpus); check_gpus \"\$@\";"
    # Two lines, as scripts of --inline leave out those whose variable they do not set.
    [ -z "$used_nodes" ] || on_node+=" requeue=$requeue batch_host=${all_hosts[0]};"
    [ -z "$used_nodes" ] || on_node+=" $(declare -f write_event run_without_batch_host starts_tasks); run_without_batch_host \"\$@\";"
    on_node+=' exec "$@"'
}

# What the run's goodput counts as time in the queue and as start-up.
time_in_queue() {
    local times='^ +(SubmitTime|StartTime)=[0-9T:-]+' submitted began
    { read -r submitted && read -r began; } < <(scontrol show job "$job" | grep -oE "$times") || return 0
    submitted=$(date -d "${submitted#*=}" +%s) && began=$(date -d "${began#*=}" +%s) || return 0
    export DSRUN_BEGAN=$began DSRUN_QUEUED=$((began - submitted))
}

# sbatch called inside another job exports that job's variables. srun would read them as options, and this script would
# take the other job's array task for its own. The steps of this job get its own options without them.
forget_outer_job() {
    # A job has one of these; of several, all but one are the outer job's.
    local limits=("${!SLURM_MEM_PER_@}")
    [ "${#limits[@]}" -ne 1 ] || memory=${limits[0]}=${!limits[0]}
    unset DSRUN_LOCAL SLURM_GPUS "${!SLURM_GPUS_PER_@}" "${!SLURM_MEM_PER_@}" "${!SLURM_CPU_BIND@}"
    [ -v SLURM_ARRAY_JOB_ID ] || [ -v SLURM_RESTART_COUNT ] || return 0
    local own
    own=$(scontrol show job "$SLURM_JOB_ID" | sed -n "/^JobId=$SLURM_JOB_ID /,/ Restarts=/p") && [ -n "$own" ] || return 0
    [[ $own == "JobId=$SLURM_JOB_ID ArrayJobId="* ]] || unset "${!SLURM_ARRAY_@}"
    [[ $own != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
}

# Runs on each node, before the command "$@": caches on the node's own disk, and threads.
prepare_node() {
    [ -n "$trains" ] || pass_on_term
    # The workers save on these; until their handlers are installed, a signal must not end them.
    trap "" USR1 TERM
    touch "$DSRUN_FAILURES/reached"
    local cache=${TMPDIR:-/tmp}/dsrun-$UID cores threads
    remove_copies "$cache"
    cache=$(own_folder "$cache") || exit
    choose_caches "$cache" "$@"
    if [ -z "$trains$supervised" ]; then
        # The agent must outlive the signal: by default torch.distributed.run kills the workers 30 s after a TERM.
        export PET_SIGNALS_TO_HANDLE=SIGINT,SIGHUP,SIGQUIT PET_SHUTDOWN_TIMEOUT=10
        if [ "$rdzv_backend" = static ]; then
            export PET_NODE_RANK=$SLURM_NODEID
            [ -z "$join_timeout" ] || export PET_RDZV_CONF=timeout=$join_timeout
        else
            if [ "$SLURM_NODEID" = 0 ]; then export PET_RDZV_CONF=is_host=true; else export PET_RDZV_CONF=is_host=false; fi
            # read_timeout is how long a node waits until node 0 listens: 60 s by default, whatever join_timeout is.
            [ -z "$join_timeout" ] || PET_RDZV_CONF+=,join_timeout=$join_timeout,read_timeout=$join_timeout
        fi
    fi
    # What `forget_outer_job` has removed and programs may read.
    [ -z "$gpus_per_node" ] || export SLURM_GPUS_PER_NODE="$gpus_per_node"
    [ -z "$memory" ] || export "${memory?}"
    cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
    threads=$((cores / nproc))
    [ -n "$cpu_only" ] || threads=$((threads / 2))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
}

# own_folder FOLDER: prints FOLDER, or one beside it if another user has that: files in it are executed, and removed by age.
own_folder() {
    local each
    mkdir -m 700 "$1" 2>/dev/null
    for each in "$1" "$1".??????; do
        # A link may lead to the other files of this user.
        if [ -O "$each" ] && [ -d "$each" ] && [ ! -L "$each" ]; then echo "$each" && return; fi
    done
    mktemp -d "$1.XXXXXX"
}

# choose_caches CACHE COMMAND…: where what is compiled at run time stays for the next jobs, below the folder CACHE of this node:
# one folder for each interpreter and its versions, which is removed when no job has used it for 30 days.
choose_caches() {
    local place number=0
    place=$1/compiled-$(versions_key "${@:2}")
    # Of an interpreter that does not tell its versions, or without flock(1), nothing can be used again.
    [[ $place =~ -[0-9a-f]{12}$ ]] && hold 60 --shared "$place" || place=$1/compiled-job-$SLURM_JOB_ID
    remove_unused "$1"
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$place/triton}
    export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$place/inductor}
    # dsrun's own training lets one process compile, and removes the locks of killed builds.
    if [ -z "$trains" ]; then
        # Of other programs torch has one wait for the lock of another's build, for ever if that was killed, and then load
        # what that has built, whatever its own source is: jobs that run at the same time have folders of their own.
        while [[ $place != *-job-* ]] && ! hold 0 --exclusive "$place/alone-$number"; do
            if [ "$((number += 1))" -ge 256 ]; then place=$1/compiled-job-$SLURM_JOB_ID; fi
        done
        place+=/alone-$number
        rm -rf "$place/agent" "$place"/extensions/{*,*/*}/lock
        [ -n "$supervised" ] || { mkdir -p "$place/agent" && export PET_LOG_DIR=${PET_LOG_DIR:-$place/agent}; }
    fi
    export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$place/extensions}
}

# versions_key COMMAND…: twelve digits for the Python that COMMAND starts on this node, and for the versions by which it is
# decided whether what it has compiled can be loaded: another one would be given stale code, or compile everything again.
versions_key() {
    local python=()
    python_of "$@"
    timeout --foreground 120 "${python[@]}" -c '
import hashlib, os, platform, shutil, sys
from importlib.metadata import version
def known(name):
    try:
        return version(name)
    except Exception:
        return None
# A staged environment has another path in each job.
prefix = sys.prefix.replace(os.environ.get("DSRUN_LOCAL") or "\0", "")
facts = [prefix, sys.version, platform.node(), platform.machine(), *map(known, ("torch", "deepspeed", "triton"))]
facts += [os.path.realpath(shutil.which(name) or "") for name in ("nvcc", os.environ.get("CXX") or "c++")]
facts += [os.environ.get(name) for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST")]
print(hashlib.sha256(repr(facts).encode()).hexdigest()[:12])
' </dev/null 2>/dev/null
}

# python_of COMMAND…: sets `python` to the words that start Python, also in a container.
python_of() {
    python=()
    local word
    for word in "$@"; do
        [ "$word" != -m ] || break
        python+=("$word")
    done
}

# hold SECONDS KIND FOLDER: makes FOLDER and takes its lock, --shared or --exclusive, as long as what this shell becomes runs.
# False where another job still has it after SECONDS.
hold() {
    local fd
    while mkdir -p "$3" && exec {fd}>>"$3/.in-use"; do
        flock --timeout "$1" "$2" "$fd" || { exec {fd}>&-; return 1; }
        # It may have been removed before it was locked.
        if [ "$3/.in-use" -ef "/proc/self/fd/$fd" ]; then touch "$3/.in-use"; return; fi
        exec {fd}>&-
    done
    return 1
}

# remove_unused CACHE: removes what no job has used for 30 days, and of that age what `dsrun wheel push` and `verify-wheel`
# have copied to this node. A job's start touches `.in-use`, which it holds locked.
remove_unused() {
    local folder mark fd
    for folder in "$1"/* "$1"/compiled-*/alone-* /tmp/dsrun-verify-* "/tmp/dsrun-wheels-${USER:-$UID}"/*; do
        [ -O "$folder" ] && [ ! -L "${folder%/*}" ] || continue
        mark=$folder/.in-use
        [ -e "$mark" ] || mark=$folder
        if [ -n "$(find "$mark" -maxdepth 0 -mtime +30 2>/dev/null)" ] && exec {fd}<"$mark"; then
            ! flock --nonblock "$fd" || rm -rf "$folder"
            exec {fd}<&-
        fi
    done
}

# remove_copies PREFIX: removes the staged copies of jobs that were cancelled or lost this node, PREFIX-JOB; jobs that SLURM
# still knows keep theirs.
remove_copies() {
    local root
    for root in "$1"-[0-9]*; do
        [ ! -O "$root" ] || ! scontrol show job "${root##*-}" 2>&1 | grep -q "Invalid job id" || rm -rf "$root"
    done
}

# A preemption begins with a TERM to the steps; the batch script's shell gets one when the grace time is over. dsrun's own
# training saves on it. Of other programs node 0 has all workers told what `forward` tells them.
pass_on_term() {
    [ "$SLURM_NODEID" = 0 ] || return 0
    {
        local parent
        trap "" USR1
        trap 'is_taken && { touch "$DSRUN_FAILURES/told"; tell_workers TERM; }; exit' TERM
        # As long as the command is its parent: one that has ended may still have its number, and another gets it later.
        while read -r _ _ _ parent _ <"/proc/$BASHPID/stat" && [ "$parent" = "$$" ]; do sleep 1 & wait "$!"; done
    } </dev/null >/dev/null 2>&1 &
}

# Whether SLURM takes the job's nodes away. srun, too, ends tasks with TERM: those of other nodes, when one has failed.
is_taken() { is_preempted || ! job_shows 'JobState=RUNNING '; }
is_preempted() { job_shows 'PreemptEligibleTime=[^ ]* PreemptTime=[0-9]'; }

# check_gpus COMMAND…: ends the task if the Python that is to run torch.distributed.run sees fewer GPUs than the job has.
check_gpus() {
    [[ " $* " == *" -m torch.distributed.run "* ]] || return 0
    local python=()
    python_of "$@"
    timeout --foreground 300 "${python[@]}" -c "$gpu_check" "$DSRUN_GPUS" </dev/null
    case $? in
        0) ;;
        4) touch "$DSRUN_FAILURES/no-gpus"; exit 4 ;;
        *) echo "note: whether torch sees the $DSRUN_GPUS GPUs of ${SLURMD_NODENAME:-this node} is not known" >&2 ;;
    esac
}

# tell_workers SIGNAL: has the workers of all nodes save and exit.
tell_workers() {
    # Written atomically; the first signal stays. On a full disk an empty file still stops the workers.
    if [ ! -e "$DSRUN_STOP_FILE" ]; then
        echo "SIG$1" >"$DSRUN_STOP_FILE.new"
        mv "$DSRUN_STOP_FILE.new" "$DSRUN_STOP_FILE" || touch "$DSRUN_STOP_FILE"
    fi
    # Without --batch the steps get it, and the batch script's shell does not (scancel(1)).
    scancel --quiet --signal=USR1 "$job"
}

# forward SIGNAL: passes the job's signal on.
forward() {
    signalled=$1
    interrupted=1
    note "received $1, forwarded to the workers"
    # Of the TERM that ends a grace time node 0 has told them when it began: a second one may mean another thing to them.
    if [ "$1" = TERM ] && rm "$DSRUN_FAILURES/told" 2>/dev/null; then :; else tell_workers "$1"; fi
    # A job that is still saving at its time limit dies with its batch script, and cannot be requeued.
    if [ "$1" = USR1 ] && [ -z "$watchdog" ] && [ "$trains$requeue" = yesyes ] && [ -n "$saving_time" ]; then
        # HUP is the second request, at which the supervisors end all ranks at once.
        { sleep "$saving_time" && scancel --quiet --signal=HUP "$job"; } >/dev/null 2>&1 &
        watchdog=$!
    fi
}

# wait_for PID: stores the exit code of a process in `code`. A trapped signal ends `wait` early; the process continues.
wait_for() {
    interrupted=1
    while [ -n "$interrupted" ]; do
        interrupted=
        wait "$1"
        code=$?
    done
}

# finish PID: waits for srun, then ends the job or puts it back into the queue.
finish() {
    wait_for "$1"
    conclude
}

conclude() {
    clean_up
    # Of a node whose GPU failed in this job another start does without that node.
    if [ -e "$DSRUN_FAILURES/no-gpus" ] && [ ! -e "$DSRUN_FAILURES/faulty-node" ]; then
        note "a node shows fewer GPUs than the job has: not requeued, another start would see no more"
        exit 4
    fi
    # 75: the supervisors were stopped by a signal that this shell did not get, as those of a preemption may be.
    [ "$code" -ne 75 ] || [ -z "$trains$supervised" ] || signalled=${signalled:-a signal}
    if [ -n "$trains" ]; then
        [ "$DSRUN_OUTPUT/FINISHED" -nt "$DSRUN_FAILURES/began" ] && exit 0
        # Whose hardware failed, or who failed again, as node 0's supervisor found out.
        local reason
        read -r faulty reason 2>/dev/null <"$DSRUN_FAILURES/faulty-node" && faulty=${hosts[$faulty]:-} &&
            signalled=${signalled:-"${reason:-a hardware error} of $faulty"}
    elif [ "$code" -eq 0 ]; then
        exit 0
    fi
    requeue_if_interrupted
    [ -n "$trains$supervised" ] || code=$(code_of_worker)
    [ -z "$trains$supervised" ] || [ "$code" -ne 0 ] || [ -z "$signalled" ] || code=75 # saved and not finished
    exit "$code"
}

# No signal interrupts the rest of the script, and the watchdog does not end workers of a later start.
clean_up() {
    trap '' USR1 TERM
    [ -z "$watchdog" ] || kill "$watchdog"
    [ -z "${DSRUN_LOCAL:-}" ] || on_all --quiet --immediate=20 rm -rf "$DSRUN_LOCAL"
}

# Returns only if the job is not requeued.
requeue_if_interrupted() {
    if [ -n "$requeue" ]; then
        # SLURM requeues no job that ends within the grace time of a preemption, whatever it ends with: seen on 22.05.
        is_preempted && signalled=preemption
        # When a node dies, the other workers fail at once, but SLURM notices minutes later. If srun reached no node at
        # all, the error is another one, and would come again.
        if [ -z "$signalled" ] && [ "$SLURM_JOB_NUM_NODES" -gt 1 ] && [ -e "$DSRUN_FAILURES/reached" ]; then
            timeout 120 srun --quiet --export=ALL --kill-on-bad-exit=1 "${step_nodes[@]}" true || signalled="the loss of a node"
        fi
    fi
    [ -n "$signalled" ] || return
    if [ -z "$requeue" ]; then
        note "interrupted by $signalled and not finished"
        return
    fi
    local idle most progress why="interrupted by $signalled and not finished"
    # A cancelled job is no longer RUNNING.
    controller_answers || refused "$why" "SLURM's controller does not answer"
    grep -qE '^ +JobState=RUNNING ' <<<"$said" || return
    count_requeues
    [ "$idle" -ge "$most" ] || requeue_without "$faulty" "$why" "requeues $progress: $idle of $most"
    note "$why after $idle requeues $progress"
    write_event failure "$why after $idle requeues $progress" ', "cause": "slurm_requeue_limit"'
}

# requeue_without NODES WHY [MORE]: ends this start of the job; it goes back into the queue, and does not run on NODES again.
requeue_without() {
    local try
    for try in 1 2; do
        if said=$(timeout 60 scontrol requeue "$job" 2>&1); then
            note "$2: requeued${1:+ without $1}${3:+ ($3)}"
            write_event requeue "$2: requeued${3:+ ($3)}"
            [ -z "$1" ] || exclude "$1"
            exit 0
        fi
        # It may have been busy, or away for a moment.
        [ "$try" = 2 ] || sleep 2
    done
    refused "$2"
}

# refused WHY [WHAT]: ends the job, which SLURM does not put back into the queue, as `said` says.
refused() {
    local what="$1, and ${2:-SLURM refused to requeue it}: ${said//$'\n'/ }" fix="submit it again"
    [ -z "$trains" ] || fix+=" with --output $DSRUN_OUTPUT, and it resumes from its last checkpoint"
    if job_shows 'Requeue=0 '; then
        fix+="; without sbatch --no-requeue, or while it runs: scontrol update JobId=JOB Requeue=1"
    fi
    note "$what ($fix)"
    write_event failure "$what" ', "cause": "slurm_requeue_refused", "exit_code": 1'
    exit 1
}

# controller_answers: waits until SLURM's controller tells of the job, for five minutes at most; `said` is what it says.
controller_answers() {
    local end=$((SECONDS + 300))
    until said=$(timeout 60 scontrol show job "$job" 2>&1); do
        [ "$SECONDS" -lt "$end" ] || return 1
        note "SLURM's controller does not answer, and is asked again in 10 s: $said"
        sleep 10
    done
}

# write_event KIND MESSAGE [MORE]: adds to the events of the run, if it has any; MORE is JSON that follows.
write_event() {
    local events=$DSRUN_OUTPUT/events.jsonl text=${2//[[:cntrl:]]/ }
    [ -f "$events" ] || return 0
    text=${text//\\/\\\\}
    # A line that was cut off gets its end.
    [ -z "$(tail -c 1 "$events")" ] || echo >>"$events"
    printf '{"time": "%s", "kind": "%s", "pid": %d, "host": "%s", "message": "%s"%s}\n' \
        "$(date -u +%FT%T.%3NZ)" "$1" "$$" "${SLURMD_NODENAME:-$HOSTNAME}" "${text//\"/\\\"}" "${3:-}" >>"$events"
}

# exclude NODES: the requeued job does not run there again. SLURM takes this only of a job that waits.
exclude() {
    local before
    before=$(scontrol show job "$job" | sed -n 's/.*ExcNodeList=\([^ ]*\).*/\1/p')
    [ "$before" != "(null)" ] || before=
    scontrol update JobId="$job" ExcNodeList="${before:+$before,}$1" && note "excluded $1"
}

job_shows() { scontrol show job "$job" | grep -qE "^ +$1"; }

# count_requeues: `idle` is the number of this job's requeues since the last one that came after `progress`, of which there
# may be `most`; by a list that has one line a start: the newest step. Without progress that can be seen, all count.
count_requeues() {
    local list="$DSRUN_OUTPUT/logs/slurm-$job-requeues" newest
    progress="without a new checkpoint" most=$max_requeues
    if [ -n "$trains" ]; then
        newest=$(newest_step)
    elif newest=$(newest_step_told); then
        progress="without a further step"
    else
        progress="of a program whose progress is not known" idle=$restart most=$max_requeues_unseen
        return
    fi
    [ "$restart" -gt 0 ] || rm -f "$list"
    echo "$newest" >>"$list"
    idle=$(awk 'NR == 1 || $1 > most { most = $1; same = -1 } { same++ } END { print same }' "$list")
    # The list may be missing, as on a full disk: then all count, as otherwise the job would be requeued for ever.
    idle=${idle:-$restart}
}

# The last step that the program has printed, as its supervisor recorded it. False where it has told none.
newest_step_told() {
    tail -c 65536 "$DSRUN_OUTPUT/metrics.jsonl" 2>/dev/null | grep -oE '"step": [0-9]+' | awk '
        $2 > newest { newest = $2 }
        END { if (!NR) exit 1; print newest }
    '
}

newest_step() {
    local manifest step newest=0
    for manifest in "$DSRUN_OUTPUT"/checkpoint-*/manifest.json; do
        step=${manifest%/manifest.json}
        step=${step##*-}
        [[ $step =~ ^[0-9]+$ ]] && [ "$step" -gt "$newest" ] && newest=$step
    done
    echo "$newest"
}

# Without a supervisor torch.distributed.run always exits with 1; the worker's exit code is in the report in this job's log, which is this
# script's stderr. scontrol's name for it may contain patterns that are expanded on the node.
code_of_worker() {
    local log=/proc/$$/fd/2 worker
    [ -f "$log" ] || log=$(scontrol show job "$job" | sed -n 's/^ *StdErr=//p')
    # The log of a requeued job also has reports of earlier starts, which do not count.
    worker=$(tail -n 500 -- "$log" 2>/dev/null | awk -v start="dsrun: job $job, start $((restart + 1))," '
        index($0, start) { code = "" }
        /^ +exitcode +: -?[1-9]/ { code = $3 }
        END { print code }
    ')
    # The report has -9 for signal 9 (also the kernel's, when memory runs out); shells return 137.
    if [ -z "$worker" ]; then echo "$code"; else echo $((worker < 0 ? 128 - worker : worker)); fi
}

on_all() { srun --export=ALL --kill-on-bad-exit=1 "$@"; }
