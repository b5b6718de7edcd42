# shellcheck shell=bash disable=SC2034,SC2154
# Functions of jobs with spare nodes (--spare), beside those of job.bash.

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

# leave_out [NODES]: the workers use spare nodes instead; false without any NODES, in a job that is to end, and if too few
# nodes are left.
leave_out() {
    [ -z "$signalled" ] && [ "$#" -gt 0 ] || return 1
    left_out+=("$@")
    choose_nodes
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
    leave_out "${failed[@]}" || return 1
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
        starts_tasks "$host" &
        pids+=("$!")
    done
    for place in "${!pids[@]}"; do wait "${pids[$place]}" || echo "${hosts[$place]}"; done
}

# run_without_batch_host COMMAND…: on each node, the command, and then the end of the task. When the node of the batch shell is
# lost, --no-kill leaves the job with nothing in it that could requeue it; so three of the others look.
run_without_batch_host() {
    "$@"
    local code=$?
    [ "$code" -ne 0 ] && [ -n "$requeue" ] && [[ $SLURM_NODEID == [123] ]] || exit "$code"
    # Where this node cannot start a task on itself either, it says nothing of the other one.
    if ! starts_tasks "$batch_host" && starts_tasks "$SLURMD_NODENAME" && scontrol requeue "$job"; then
        write_event requeue "the loss of $batch_host, which ran the job's script: requeued by $SLURMD_NODENAME"
    fi
    exit "$code"
}

# starts_tasks HOST: whether SLURM starts one there.
starts_tasks() {
    timeout 60 srun --quiet --overlap --mem=0 --cpu-bind=none --nodes=1 --ntasks=1 --nodelist="$1" true </dev/null >/dev/null 2>&1
}
