"""The guard of a Slurm job, a job step on another node: it requeues the job if the first node is dead."""

import re

import pytest

from bash_library import LIB

WATCH = "healthy_nodes=(n1 n2 n3) SLIPWAY_SPARES=1 SLIPWAY_SHRINK=0; start_guard"


@pytest.mark.parametrize(
    ("before", "first", "guard", "command"),
    [
        ("", "n1", "n3", "scontrol requeue 4711"),
        ("unset SLIPWAY_MAX_REQUEUES; ", "n3", "n2", "scancel 4711"),
    ],
)
def test_guard_runs_on_other_node_than_script(bash, before, first, guard, command):
    show = "; sleep 0.5; ls run/.heartbeat.4711; kill -0 $guard; stop_guard; sleep 0.2; cat steps; ls -A run"
    srun = {"srun": 'echo "$*" >>steps; exec sleep 53'}
    heart, step, *left = bash(before + WATCH + show, SLURMD_NODENAME=first, programs=srun).out.splitlines()
    assert (heart, left) == ("run/.heartbeat.4711", ["logs"])
    assert f"--nodelist={guard} sh" in step
    assert re.search(rf" 4711 /.*/run/requeues 1 {command}$", step)


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_no_guard_starts_without_spare_node(bash, scheduler):
    code = "SLIPWAY_SHRINK=0; start_guard; echo ${guard:-none}; stop_guard"
    assert bash(code, scheduler=scheduler)[:2] == (0, "none\n")


@pytest.mark.slow
def test_heartbeat_is_not_recreated_after_stop_guard(bash):
    look = "ls run/.heartbeat.4711 2>/dev/null || echo gone"
    code = f"{WATCH}; {look}; stop_guard; sleep 11; {look}; start_guard; {look}; stop_guard; {look}"
    out = bash(code, SLURMD_NODENAME="n1", programs={"srun": "exec sleep 53"}).out
    assert out.splitlines() == ["run/.heartbeat.4711", "gone"] * 2


GUARD = f"""
export SLURM_JOB_ID=4711
sh '{LIB}/guard.sh' 0.2 0.6 "$PWD/heart" "$PWD/log" n1 4711 "$PWD/requeues" 1 scontrol requeue 4711
echo $?
ls
"""


@pytest.mark.parametrize(
    ("before", "state"),
    [("", "RUNNING"), *[("touch heart; ", state) for state in ("COMPLETING", "COMPLETED", "CANCELLED", "PENDING")]],
)
def test_guard_leaves_ended_job_unchanged(bash, before, state):
    """Slurm cannot end the guard if the node's slurmd is dead."""
    says = f'case $1 in requeue) echo requeued >>log ;; *) echo "JobId=4711 JobState={state} Reason=None"; esac'
    programs = {"sleep": "exit 0", "srun": "echo asked >>srun", "scontrol": says}
    out = bash(before + GUARD, programs=programs).out.split()
    assert "0" in out
    assert not {"srun", "log", "requeues", "goodput.jsonl"} & set(out)


@pytest.mark.parametrize(("accepted", "acts"), [(True, ["requeue"]), (False, ["requeue", "scancel"])])
def test_guard_requeues_once_or_cancels_if_refused(bash, accepted, acts):
    """It must query Slurm four times: Slurm is silent, the job is suspended, is resized, runs."""
    scontrol = f"""
    if [ "$1" = requeue ]; then echo requeue >>acts; exit {int(not accepted)}; fi
    echo asked >>asked
    case $(wc -l <asked) in
        1) exit 1 ;;
        2) echo "JobId=4711 JobState=SUSPENDED Reason=None" ;;
        3) echo "JobId=4711 JobState=RESIZING Reason=None" ;;
        4) echo "JobId=4711 JobState=RUNNING Reason=None" ;;
        *) echo "JobId=4711 JobState=PENDING Reason=None" ;;
    esac
    """
    programs = {"sleep": "exit 0", "srun": "exit 1", "scancel": "echo scancel >>acts", "scontrol": scontrol}
    out = bash(f"touch heart; {GUARD}cat acts requeues", programs=programs).out.splitlines()
    assert (out[0], out[-len(acts) - 1 :]) == ("0", [*acts, "1 4711"])


# regression: a slow first node, or a requeue that the controller did not confirm in time, ended the job
@pytest.mark.parametrize(
    ("state", "acts", "asked"),
    [
        # first it answers the second query; then it does not answer, and two requests are not confirmed
        ("ALLOCATED", ["requeue", "requeue", "1 4711"], "6"),
        ("DOWN*", ["requeue", "requeue", "1 4711"], "3"),
    ],
)
def test_guard_probes_twice_and_repeats_unconfirmed_requeue(bash, state, acts, asked):
    scontrol = f"""
    case $* in
        *"show node"*) echo "NodeName=n1 Arch=x State={state} X=y" ;;
        requeue*) echo requeue >>acts ;;
        *) if [ "$(grep --count requeue acts)" = 2 ]; then echo "JobId=1 JobState=PENDING X=y"
           else echo "JobId=1 JobState=RUNNING X=y"; fi ;;
    esac
    """
    programs = {
        "sleep": "exit 0",
        "scancel": "echo scancel >>acts",
        "timeout": 'shift 2; case $* in *requeue*) "$@"; exit 124 ;; esac; exec "$@"',
        "srun": 'echo srun >>asked; [ "$(wc -l <asked)" = 2 ] || exit 124',
        "scontrol": scontrol,
    }
    out = bash(f"touch heart acts; {GUARD}cat acts requeues; wc -l <asked", programs=programs).out.splitlines()
    assert (out[0], out[-len(acts) - 1 :]) == ("0", [*acts, asked])
