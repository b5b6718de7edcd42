# shellcheck shell=bash disable=SC2154
# The function that checks the nodes before the workers start (--preflight), beside those of job.bash.

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
    [ -z "$used_nodes" ] || ! leave_out "${failed[@]}" || { note "preflight: ${failed[*]} failed: left out, for spare nodes"; return 0; }
    clean_up
    if [ -z "$signalled" ] && [ "${#failed[@]}" -gt 0 ]; then
        echo "${failed[*]}" >>"$list"
        if [ -n "$requeue" ] && [ "$(wc -l <"$list")" -le 2 ]; then
            requeue_without "$(IFS=,; echo "${failed[*]}")" "preflight: ${failed[*]} failed"
        fi
        note "preflight: ${failed[*]} failed, in start $((restart + 1)); the table above says why"
        exit "$code"
    fi
    requeue_if_interrupted
    [ -z "$signalled" ] || exit 75
    note "preflight: failed; the table above says why"
    exit "$code"
}
