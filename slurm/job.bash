# shellcheck shell=bash disable=SC2016,SC2034,SC2154,SC2174
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
#   requeue         "yes" if the job may go back into the queue, at most max_requeues times without a new checkpoint
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
used_nodes=
left_out=()
step_nodes=()

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
    on_node="nproc=$nproc cpu_only=$cpu_only trains=$trains supervised=$supervised join_timeout=$join_timeout"
    on_node+=" rdzv_backend=$rdzv_backend gpus_per_node=$gpus_per_node memory=$memory gpu_check=${gpu_check@Q};"
    on_node+=" $(declare -f prepare_node check_gpus)"'; prepare_node "$1"; check_gpus "$@"; exec "$@"'
}

# choose_nodes: the workers use the first `used_nodes` of the job's nodes that are not in `left_out`; false if too few are
# left. SLURM numbers the nodes of a step in the order of the job's.
choose_nodes() {
    local host found=()
    for host in "${all_hosts[@]}"; do
        [[ " ${left_out[*]} " == *" $host "* ]] || found+=("$host")
    done
    [ "${#found[@]}" -ge "$used_nodes" ] || return 1
    hosts=("${found[@]:0:used_nodes}")
    endpoint="${hosts[0]}:$((15000 + SLURM_JOB_ID * 2 % 15000))"
    step_nodes=(--nodes="$used_nodes" --ntasks="$used_nodes" --nodelist="$(IFS=,; echo "${hosts[*]}")")
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
    unset SLURM_GPUS "${!SLURM_GPUS_PER_@}" "${!SLURM_MEM_PER_@}" "${!SLURM_CPU_BIND@}"
    [ -v SLURM_ARRAY_JOB_ID ] || [ -v SLURM_RESTART_COUNT ] || return 0
    local own
    own=$(scontrol show job "$SLURM_JOB_ID" | sed -n "/^JobId=$SLURM_JOB_ID /,/ Restarts=/p") && [ -n "$own" ] || return 0
    [[ $own == "JobId=$SLURM_JOB_ID ArrayJobId="* ]] || unset "${!SLURM_ARRAY_@}"
    [[ $own != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
}

# Runs on each node, before the command "$1 …": caches on the node's own disk, and threads.
prepare_node() {
    # The workers save on these; until their handlers are installed, a signal must not end them.
    trap "" USR1 TERM
    touch "$DSRUN_FAILURES/reached"
    local cache=${TMPDIR:-/tmp}/dsrun-$UID cores threads key
    # Files in this folder are executed, so it must belong to this user.
    mkdir -m 700 "$cache" 2>/dev/null || [ -O "$cache" ] || cache=$(mktemp -d) || exit
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
    export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
    if [ -n "$trains" ]; then
        # One folder per interpreter, kept between jobs; dsrun lets one process compile and removes stale locks.
        key=$(printf %s "$1" | cksum)
        export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$cache/extensions-${key%% *}}
    elif [ -z "${TORCH_EXTENSIONS_DIR:-}" ]; then
        # torch waits forever for the lock of a killed build: one folder per job, without old locks.
        export TORCH_EXTENSIONS_DIR=$cache/extensions-$SLURM_JOB_ID
        mkdir -p "$TORCH_EXTENSIONS_DIR" && rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
    fi
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

# check_gpus COMMAND…: ends the task if the Python that is to run torch.distributed.run sees fewer GPUs than the job has.
check_gpus() {
    [ -n "$gpu_check" ] && [[ " $* " == *" -m torch.distributed.run "* ]] || return 0
    local word python=()
    for word in "$@"; do
        [ "$word" != -m ] || break
        python+=("$word")
    done
    timeout --foreground 300 "${python[@]}" -c "$gpu_check" "$DSRUN_GPUS" </dev/null
    case $? in
        0) ;;
        4) touch "$DSRUN_FAILURES/no-gpus"; exit 4 ;;
        *) echo "note: whether torch sees the $DSRUN_GPUS GPUs of ${SLURMD_NODENAME:-this node} is not known" >&2 ;;
    esac
}

# forward SIGNAL: tells the workers of all nodes to save and exit.
forward() {
    signalled=$1
    interrupted=1
    note "received $1, forwarded to the workers"
    # Written atomically; the first signal stays. On a full disk an empty file still stops the workers.
    if [ ! -e "$DSRUN_STOP_FILE" ]; then
        echo "SIG$1" >"$DSRUN_STOP_FILE.new"
        mv "$DSRUN_STOP_FILE.new" "$DSRUN_STOP_FILE" || touch "$DSRUN_STOP_FILE"
    fi
    # Without --batch the steps get it, and this shell does not (scancel(1)).
    scancel --quiet --signal=USR1 "$job"
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

# finish_with_spares STEP: as finish, of the function STEP, which starts srun on `step_nodes`. When one of them is lost or
# at fault, it runs again with a spare node instead.
finish_with_spares() {
    "$1" &
    wait_for "$!"
    while swap_in_spares; do
        "$1" &
        wait_for "$!"
    done
    conclude
}

# Whether spare nodes have taken the place of those that have failed.
swap_in_spares() {
    local number reason failed=()
    [ -z "$signalled" ] && [ "$code" -ne 0 ] && [ "$code" -ne 75 ] || return 1
    [ -n "$used_nodes" ] && [ "${#left_out[@]}" -lt $((${#all_hosts[@]} - used_nodes)) ] || return 1
    if read -r number reason 2>/dev/null <"$DSRUN_FAILURES/faulty-node"; then
        failed=("${hosts[$number]}")
    else
        reason="the loss" && mapfile -t failed < <(lost_nodes)
    fi
    [ -z "$signalled" ] && [ "${#failed[@]}" -gt 0 ] || return 1
    left_out+=("${failed[@]}")
    choose_nodes || return 1
    # SLURM counts a step's CPUs as taken as long as it has not heard from all its nodes.
    step_nodes+=(--overlap)
    rm -f "$DSRUN_FAILURES/faulty-node" "$DSRUN_FAILURES/no-gpus"
    # The program reads it, to go on from its own checkpoint as after a requeue.
    export SLURM_RESTART_COUNT=$((restart + ${#left_out[@]}))
    note "$reason of ${failed[*]}: again on ${hosts[*]}, with a spare node"
}

# Those of `hosts` on which no task can be started.
lost_nodes() {
    local host place pids=()
    for host in "${hosts[@]}"; do
        timeout 60 srun --quiet --overlap --nodes=1 --ntasks=1 --nodelist="$host" true </dev/null >/dev/null 2>&1 &
        pids+=("$!")
    done
    for place in "${!pids[@]}"; do wait "${pids[$place]}" || echo "${hosts[$place]}"; done
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
    if [ -n "$trains" ]; then
        [ "$DSRUN_OUTPUT/FINISHED" -nt "$DSRUN_FAILURES/began" ] && exit 0
        # 75: the supervisors were stopped by a signal that this shell did not get, as those of a preemption may be.
        [ "$code" -ne 75 ] || signalled=${signalled:-a signal}
        # Whose hardware failed, or who failed again, as node 0's supervisor found out.
        local reason
        read -r faulty reason 2>/dev/null <"$DSRUN_FAILURES/faulty-node" && faulty=${hosts[$faulty]:-} &&
            signalled=${signalled:-"${reason:-a hardware error} of $faulty"}
    elif [ "$code" -eq 0 ]; then
        exit 0
    fi
    requeue_if_interrupted
    if [ -z "$trains$supervised" ]; then
        code=$(code_of_worker)
    elif [ "$code" -eq 0 ] && [ -n "$signalled" ]; then
        code=75 # saved and not finished
    fi
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
        job_shows 'PreemptEligibleTime=[^ ]* PreemptTime=[0-9]' && signalled=preemption
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
    # A cancelled job is no longer RUNNING.
    job_shows 'JobState=RUNNING ' || return
    local idle
    idle=$(requeues_without_progress)
    if [ "$idle" -lt "$max_requeues" ]; then
        note "interrupted by $signalled and not finished: requeued"
        requeue_without "$faulty"
    fi
    note "interrupted by $signalled and not finished after $idle requeues without a new checkpoint"
}

# requeue_without [NODES]: ends this start of the job; it goes back into the queue, and does not run on NODES again. Returns
# only if that fails.
requeue_without() {
    scontrol requeue "$job" && { [ -z "$1" ] || exclude "$1"; exit 0; }
}

# exclude NODES: the requeued job does not run there again. SLURM takes this only of a job that waits.
exclude() {
    local before
    before=$(scontrol show job "$job" | sed -n 's/.*ExcNodeList=\([^ ]*\).*/\1/p')
    [ "$before" != "(null)" ] || before=
    scontrol update JobId="$job" ExcNodeList="${before:+$before,}$1" && note "excluded $1"
}

job_shows() { scontrol show job "$job" | grep -qE "^ +$1"; }

# The requeues of this job since its last new checkpoint, from a list that has one line a start: the newest step. Other
# programs have no such checkpoints; all their requeues count.
requeues_without_progress() {
    local list="$DSRUN_OUTPUT/logs/slurm-$job-requeues" newest
    [ -n "$trains" ] || { echo "$restart"; return; }
    newest=$(newest_step)
    [ "$restart" -gt 0 ] || rm -f "$list"
    echo "$newest" >>"$list"
    awk -v newest="$newest" '$1 == newest { same++; next } { same = 0 } END { print same - 1 }' "$list"
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

# preflight [SRUN OPTIONS] -- COMMAND: runs the doctor on all nodes. If it speaks against some of them, the job goes back into
# the queue without them, at most twice; then, and if nothing speaks against a single node, the job fails.
preflight() {
    local options=() failed=() list="$DSRUN_OUTPUT/logs/slurm-$job-preflight"
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    [ "$restart" -gt 0 ] || rm -f "$list"
    note "preflight: the nodes are checked"
    # A node that cannot take part must not end the others' test, which names it.
    srun --export=ALL --kill-on-bad-exit=0 --wait=0 "${cpus[@]}" "${options[@]}" bash -c "$on_node" dsrun-node "$@" &
    wait_for "$!"
    [ "$code" -ne 0 ] || { rm -f "$list"; return 0; }
    mapfile -t failed < <(sort -u "$DSRUN_FAILURES/doctor-exclude" 2>/dev/null)
    if [ -n "$used_nodes" ] && [ -z "$signalled" ] && [ "${#failed[@]}" -gt 0 ]; then
        left_out+=("${failed[@]}")
        choose_nodes && { note "preflight: ${failed[*]} failed: left out, for spare nodes"; return 0; }
    fi
    clean_up
    if [ -z "$signalled" ] && [ "${#failed[@]}" -gt 0 ]; then
        echo "${failed[*]}" >>"$list"
        if [ -n "$requeue" ] && [ "$(wc -l <"$list")" -le 2 ]; then
            note "preflight: ${failed[*]} failed: requeued without it"
            requeue_without "$(IFS=,; echo "${failed[*]}")"
        fi
        note "preflight: ${failed[*]} failed, in start $((restart + 1)); the table above says why"
        exit "$code"
    fi
    requeue_if_interrupted
    [ -z "$signalled" ] || exit 75
    note "preflight: failed; the table above says why"
    exit "$code"
}

on_all() { srun --export=ALL --kill-on-bad-exit=1 "$@"; }

# stage_environment KIND PATH FILE FOLDER PYTHON: copies an environment to the local disks once; otherwise every rank imports
# it from the shared file system. KIND is wheel, tar or folder, FILE what PATH is called below FOLDER on the nodes.
stage_environment() {
    export DSRUN_LOCAL=$4/dsrun-"$UID-$SLURM_JOB_ID"
    copy_environment "$@" &
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
    if [ "$1" = wheel ]; then
        export PYTHONPATH="$DSRUN_LOCAL/site${PYTHONPATH:+:$PYTHONPATH}"
    else
        export PATH="$DSRUN_LOCAL/env/bin:$PATH"
    fi
}

copy_environment() {
    local source=$2
    on_all bash -c "$(declare -f make_room); make_room \"\$1\"" dsrun-stage "$DSRUN_LOCAL" || return
    touch "$DSRUN_FAILURES/reached"
    if [ "$1" = folder ]; then
        source=$DSRUN_LOCAL/packed
        tar -C "$2" -cf "$source" . || return
    fi
    sbcast --force "$source" "$DSRUN_LOCAL/$3" || return
    [ "$1" != folder ] || rm -f "$source"
    # sbcast and tar ignore the forwarded signal.
    [ ! -e "$DSRUN_STOP_FILE" ] || return
    on_all bash -c "$(declare -f unpack); unpack \"\$@\"" dsrun-stage "$1" "$DSRUN_LOCAL/$3" "${5:-}"
}

# Removes copies of cancelled jobs and of jobs that lost this node; jobs that SLURM still knows keep theirs.
make_room() {
    local root
    for root in "${1%-*}"-[0-9]*; do
        scontrol show job "${root##*-}" 2>&1 | grep -q "Invalid job id" && rm -rf "$root"
    done
    rm -rf "$1" && mkdir -p -m 700 "$1"
}

unpack() {
    if [ "$1" = wheel ]; then
        "$3" -m pip install --quiet --no-deps --no-index --no-compile --target "$DSRUN_LOCAL/site" "$2" && rm -f "$2"
        return
    fi
    mkdir "$DSRUN_LOCAL/unpacked" && tar -C "$DSRUN_LOCAL/unpacked" -xf "$2" && rm -f "$2" || return
    # The environment may be one folder deep; conda-unpack fixes the prefixes of a conda-pack archive.
    local root
    for root in "$DSRUN_LOCAL/unpacked" "$DSRUN_LOCAL/unpacked"/*; do [ -e "$root/bin/python" ] && break; done
    [ -x "$root/bin/python" ] || { echo "dsrun: $2 contains no bin/python that runs here" >&2; return 4; }
    mv "$root" "$DSRUN_LOCAL/env" && cd "$DSRUN_LOCAL/env" || return
    [ ! -e bin/conda-unpack ] || bin/python bin/conda-unpack
}
