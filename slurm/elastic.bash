# shellcheck shell=bash disable=SC2034,SC2154
# Functions of jobs that go on without a node (--elastic), beside those of job.bash.

# finish_elastic STEP: as finish, of the function STEP, which starts srun on `step_nodes`. Nodes that the run has lost get a
# new supervisor while it goes on.
finish_elastic() {
    "$1" &
    local step=$!
    bring_back "$step" "$1" &
    wait_for "$step"
    conclude
}

# bring_back PID STEP: as long as that process lives. Node 0's supervisor writes what is lost into a file: the number of its
# own step, then those of the nodes.
bring_back() {
    trap '' USR1 TERM
    local step numbers number host
    declare -A began=() pause=() not_before=()
    while sleep 5 && kill -0 "$1" 2>/dev/null; do
        read -r step numbers 2>/dev/null <"$DSRUN_FAILURES/missing-nodes" || continue
        for number in $numbers; do
            # One that joins has left the file soon after; one that has ended is started again.
            [ -z "${began[$number]:-}" ] || ! kill -0 "${began[$number]}" 2>/dev/null || continue
            # One that ends again and again would use up the steps that SLURM allows a job (MaxStepCount).
            [ "$SECONDS" -ge "${not_before[$number]:-0}" ] || continue
            host=$(place_for "$number") || continue
            hosts[number]=$host
            note "node $number: again on $host"
            join_again "$2" "$number" "$step" "$host" &
            began[$number]=$!
            pause[$number]=$((${pause[$number]:-10} < 900 ? ${pause[$number]:-10} * 2 : 1800))
            not_before[$number]=$((SECONDS + ${pause[$number]}))
        done
    done
}

# place_for NUMBER: the machine of that node, or else one of the job's that no node has, where a task can be started. One that
# SLURM holds for down is no longer of the job, whatever becomes of it.
place_for() {
    local host
    for host in "${hosts[$1]}" "${all_hosts[@]}"; do
        [ "$host" = "${hosts[$1]}" ] || [[ " ${hosts[*]} " != *" $host "* ]] || continue
        starts_tasks "$host" || continue
        echo "$host"
        return
    done
    return 1
}

# join_again STEP NUMBER OF HOST: a supervisor that is node NUMBER of the step OF, though it has a step of its own.
join_again() {
    step_nodes=(--overlap --mem=0 --nodes=1 --ntasks=1 --nodelist="$4")
    on_node="export SLURM_STEP_ID=$3 SLURM_STEP_NUM_NODES=$used_nodes SLURM_STEP_NUM_TASKS=$used_nodes; $on_node"
    on_node="export SLURM_NODEID=$2 SLURM_STEP_NODELIST=${hosts[0]}; $on_node"
    "$1"
}
