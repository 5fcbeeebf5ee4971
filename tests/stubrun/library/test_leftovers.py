"""Leftovers of earlier launches end before the next launch: job steps, ranks, and a launcher that hangs."""

import shlex

import pytest

from bash_library import LIB
from messages import slugs

MPIRUN = 'echo "$*" >>launches; while [ "$1" != sh ]; do shift; done; exec "$@"'


STUCK = "srun: launch/slurm: _step_signal: Terminating StepId=1.0"


@pytest.mark.parametrize(
    ("said", "end", "out"), [(STUCK, "wait $! || echo $?", "launcher-stuck\n137\n"), ("fine", "kill $!", "hung\n")]
)
def test_launcher_that_hangs_after_step_is_killed(bash, said, end, out):
    clock = 'reads=0; read() { ((++reads < 20)) || { echo hung; exit; }; }; warn() { echo "$1"; }; '
    code = f"echo {said} >run/logs/2/stderr.log; {clock}sleep 52 >log 2>&1 & (kill_stuck_launcher $!); {end}"
    assert bash(code).out == out


@pytest.mark.parametrize("interactive", ["", "1"])
def test_leftover_steps_of_run_are_killed(bash, interactive):
    others = "7.batch batch", "7.extern extern", "7.0 slipway-guard", "7.2 bash", "7.3 slipway-scratch", "7.4 step"
    others += "7.5 slipway-step-1", "7.6 slipway-step"  # another run in this job
    programs = {"squeue": shlex.join(["printf", "%s\n", *others, "7.1 slipway-step-2"]), "scancel": 'echo "$*"'}
    code = (
        f"interactive={interactive} SLURM_JOB_ID=7 run_mark=2; cancel_leftover_steps >killed; wait; echo $SLURM_OVERLAP"
    )
    assert bash(f"{code}; cat killed", programs=programs).out == "1\n--signal=KILL 7.1\n"


@pytest.mark.parametrize(
    ("scheduler", "code"),
    [("pbs", "cancel_leftover_steps"), ("pbs", "terminate_leftover_ranks"), ("slurm", "terminate_earlier_ranks")],
)
def test_leftover_cleanup_does_nothing_without_leftovers(bash, scheduler, code):
    assert bash(code, scheduler=scheduler)[:2] == (0, "")


@pytest.mark.parametrize("call", ["terminate_leftover_ranks", "SLIPWAY_MAX_RESTARTS=0; plan_restart || :"])
def test_only_leftover_ranks_of_run_are_killed(bash, stub, call):
    stub("mpirun", MPIRUN)
    code = f"""
    launcher=mpirun
    run_mark=ab
    SLIPWAY_LAUNCH=$job_id.ab.1.$$.5 sleep 58 & old=$!
    SLIPWAY_LAUNCH=$job_id.ba.1.$$.5 sleep 58 & other=$!
    healthy_nodes=(n1) allocation=(n1 n2)
    {call}
    wait $old || echo $?
    kill $other && cat launches
    """
    out = bash(f"source '{LIB}/mpirun.bash'; {code}", scheduler="pbs")[1].splitlines()
    assert out[0] == "137"
    assert "--host n1:1" in out[1] or "--host n1:2" in out[1]


def test_leftover_ranks_of_remote_shell_are_terminated(bash):
    """Those of the last launch, on the nodes that answer; they have 15 s to save."""
    code = """
    loop_over_nodes() { echo "${nodes[*]}: $*" >>ended; }
    launch_id=4711.ab.2.77.5 healthy_nodes=(n1 n3)
    terminate_leftover_ranks
    cat ended
    """
    assert bash(code).out == "n1 n3: apart terminate_ranks_on_node 4711.ab.2.77.5 15\n"


@pytest.mark.parametrize(
    ("before", "ended"), [("pbs $job_id", True), ("pbs ${job_id}0", False), ("slurm $job_id", False)]
)
def test_ranks_of_earlier_attempt_of_job_are_killed(bash, stub, before, ended):
    """Only those of this job and run; not those of a job whose number begins with its number."""
    stub("mpirun", MPIRUN)
    code = f"""
    source '{LIB}/mpirun.bash'
    mkdir -p run/logs/1 && echo "{before}" >run/logs/1/job
    launcher=mpirun
    run_mark=ab
    SLIPWAY_LAUNCH=$job_id.ab.1.99.5 sleep 58 & old=$!
    SLIPWAY_LAUNCH=${{job_id}}0.ab.1.99.5 sleep 58 & other=$!
    SLIPWAY_LAUNCH=$job_id.ba.1.99.5 sleep 58 & beside=$!
    healthy_nodes=(n1) allocation=(n1)
    terminate_earlier_ranks
    kill -0 $other && kill -0 $beside && kill $other $beside
    kill $old 2>/dev/null || :
    wait $old || echo $?
    """
    assert bash(code, scheduler="pbs")[:2] == (0, f"{137 if ended else 143}\n")


def test_failed_terminate_ranks_gives_warning(bash, stub):
    stub("mpirun", "exit 1")
    calls = "launcher=mpirun; terminate_ranks a.b; (nodes=(n1); terminate_ranks_on_node 0 a 0) || echo no"
    code, out, err = bash(f"source '{LIB}/mpirun.bash'; {calls}", scheduler="pbs")
    assert (code, out, slugs(err)) == (0, "no\n", ["old-ranks"])
