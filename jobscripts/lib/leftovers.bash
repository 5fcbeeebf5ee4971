# shellcheck shell=bash
# Leftovers of attempts: ranks and job steps that outlive their launcher, and the guard of a job
# whose first node may die.

# start_guard: start a guard if the scheduler keeps a job running whose first node has died. Does
# nothing by default. (slurm.bash overrides this default.)
start_guard() {
    :
}

# stop_guard: stop the guard. Does nothing by default. (slurm.bash overrides this default.)
stop_guard() {
    :
}

# cancel_leftover_steps: end the job steps that a killed launcher has left, if the scheduler can do
# that. Does nothing by default. (slurm.bash overrides this default.)
cancel_leftover_steps() {
    :
}

# terminate_leftover_ranks: end the processes that the launcher has left on healthy_nodes. Does
# nothing by default. (mpirun.bash and ssh.bash override this default.)
terminate_leftover_ranks() {
    :
}

# terminate_earlier_ranks: end the ranks of an earlier attempt of this run in this same job. A
# scheduler that requeues a job ends only the processes that it has started itself, not those of a
# remote shell, and ranks wait for a first node that vanished. (slurm.bash overrides this default.)
terminate_earlier_ranks() {
    local its_scheduler its_job its_cluster its_host its_process
    read_attempt_owner $((attempt - 1))
    ! is_own_job || terminate_ranks "$job_id.$run_mark.*"
}

# terminate_ranks LAUNCH [SECONDS]: end the ranks of these launches on healthy_nodes. LAUNCH is a
# launch_id, in which * matches anything. The ranks have SECONDS (0) to end before they are killed.
terminate_ranks() {
    step_may_run=1
    {
        nodes=("${healthy_nodes[@]}")
        loop_over_nodes apart terminate_ranks_on_node "$1" "${2:-0}"
    } >/dev/null 2>&1 &
    wait_limited $! ||
        warn old-ranks "ranks of an earlier attempt may still run: ending them failed on at" \
        "least one node"
}

# terminate_ranks_on_node NUMBER LAUNCH SECONDS: do the same on the node of this number.
terminate_ranks_on_node() {
    "${launcher}_node" "$1" $((20 + $3)) sh "$lib/end_ranks.sh" "$2" "$3"
}
