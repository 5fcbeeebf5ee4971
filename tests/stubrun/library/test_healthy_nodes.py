"""Nodes of a job that still answer before a new attempt, and nodes that the scheduler reports as down."""

import shlex

import pytest

from bash_library import SRUN
from messages import slugs


# regression: "no process can be started on this node", for which administrators drain nodes
def test_full_disk_does_not_mark_nodes_lost(bash):
    full = "mkdir run/logs/2/answers; "  # so that nothing can be written
    code, out, err = bash(f"{full}launcher=srun allocation=(n1 n2); find_healthy_nodes || echo no")
    assert (code, out, set(slugs(err))) == (0, "no\n", {"no-restart"})
    assert "run/logs/2/answers" in err


LAUNCHERS = {
    "srun": f'[[ "$*" == *n1* ]] || exit 1; {SRUN}',
    "ssh": '[ "$1" = n1 ] || exit 255; exec bash',
    "mpirun": '[[ "$*" == *"--host n1:2 "* ]] || exit 1; echo a banner; exec "${@: -2}"',
}
"""Launchers for which only n1 answers."""
DOWN = 'nodes_out_of_service() { echo "$2 DOWN*"; }; '
SHOW = 'echo "${healthy_nodes[*]} / ${lost_nodes[*]} / ${node_states[n2]:-}"'


@pytest.mark.parametrize(
    ("launcher", "healthy", "lost", "silent"),
    [
        *[(launcher, "n1 /  / ", "n1 / n2 / DOWN*", ["node-silent"]) for launcher in ("srun", "ssh", "mpirun")],
        ("local", "n1 n2 /  / ", "n1 n2 /  / ", []),
    ],
)
def test_silent_node_is_lost_only_if_scheduler_reports_down(bash, launcher, healthy, lost, silent):
    code = f'launcher={launcher} allocation=(n1 n2); find_healthy_nodes; {SHOW}; echo "${{nodes[*]}}"'
    for before, nodes, said in (("", healthy, silent), (DOWN, lost, [])):
        done = bash(before + code, programs=LAUNCHERS)
        assert (done.out.splitlines(), slugs(done.err)) == ([nodes, "n1 n2"], said)


@pytest.mark.parametrize("before", ["", DOWN])
@pytest.mark.parametrize(
    ("launcher", "found"),
    [*[(launcher, ["no", "n1 n2 /  / "]) for launcher in ("srun", "ssh", "mpirun")], ("local", ["n1 n2 /  / "])],
)
def test_node_check_fails_if_own_node_does_not_answer(bash, before, launcher, found):
    code = f"launcher={launcher} this_node=n2; find_healthy_nodes || echo no; {SHOW}"
    assert bash(before + code, programs=LAUNCHERS).out.replace("DOWN*", "").splitlines() == found


# regression: the second query had no longer time limit, and a node that is down was called silent
@pytest.mark.parametrize(
    ("before", "node", "out"),
    [
        # the second time it has three times as long, unless the scheduler reports it as down
        ("SLIPWAY_PROBE_SECONDS=0.3; ", "echo >>asked; sleep 0.5", "n1 n2 /  / 2"),
        (f"SLIPWAY_PROBE_SECONDS=0.3; {DOWN}", "echo >>asked; sleep 0.5", "n1 / n2 / 1"),
        ("SLIPWAY_PROBE_SECONDS=0.5; ", "echo >>asked; exit 1", "n1 / n2 / 2"),
    ],
    ids=["a slow node", "one that is down", "a slow scheduler"],
)
def test_silent_node_is_probed_twice(bash, before, node, out):
    programs = {"srun": f'[[ "$*" != *n2* ]] || {{ {node}; }}; {SRUN}'}
    programs["scontrol"] = "sleep 0.8; echo 'NodeName=n2 State=DOWN*'"
    show = 'echo "${healthy_nodes[*]} / ${lost_nodes[*]} / $(grep --count "" asked)"'
    assert bash(f"{before}find_healthy_nodes; {show}", programs=programs) == (0, f"{out}\n", "")


# regression: nodes that had not answered by the time limit counted as lost
def test_signal_during_probe_does_not_mark_nodes_lost(bash):
    srun = {"srun": f'[[ "$*" != *n2* ]] || {{ kill -USR1 "$SCRIPT"; sleep 0.5; }}; {SRUN}'}
    code = f"export SCRIPT=$$ SLURM_JOB_ID=7; terminate_leftover_ranks() {{ :; }}; {DOWN}plan_restart || echo no; "
    code, out, err = bash(f'{code}echo "${{lost_nodes[*]}}/${{requeue_reason:-}}"', programs=srun)
    assert (code, out, slugs(err)) == (0, "no\n/\n", ["no-restart"])


ANSWERS = 'printf "%s\n" "a banner" "n2 is gone" "n10" "n3 DOWN*" n1 >run/logs/2/answers; silent=(n1 n2 n3); '
ASK = "SLIPWAY_PROBE_SECONDS=0.2; query_scheduler"


@pytest.mark.parametrize(
    ("code", "out"),
    [
        (
            (
                f"{ANSWERS}found=(); move_answered_nodes found; "
                'echo "${found[*]} / ${silent[*]} / ${node_states[n3]}"'
            ),
            "n1 n3 / n2 / DOWN*",
        ),
        ("run_to_file log true && run_to_file log false && echo yes", "yes"),
        ("cancelled=1; run_to_file log true || echo no", "no"),
        (f"{ASK} sleep 0.4 && echo yes || echo $?", "yes"),
        (f"{ASK} sleep 9 && echo yes || echo $?", "124"),
        (f"{ASK} sh -c 'exit 7' && echo yes || echo $?", "7"),
    ],
)
def test_node_answers_are_parsed_and_scheduler_queries_limited(bash, code, out):
    assert bash(code).out == f"{out}\n"


UP = ["IDLE", "ALLOCATED+MAINTENANCE", "MIXED", "UNKNOWN", "ALLOCATED+DRAIN", "MIXED+FAIL"]
OUT = ["DOWN*", "ALLOCATED*", "IDLE+DRAIN", "ALLOCATED+NOT_RESPONDING", "MIXED+DRAIN+NOT_RESPONDING", "FAIL"]
OUT += ["IDLE+POWERED_DOWN"]


@pytest.mark.parametrize(("state", "out"), [*[(state, False) for state in UP], *[(state, True) for state in OUT]])
def test_nodes_out_of_service_by_slurm_state(bash, state, out):
    nodes = f'echo "NodeName=n1 Arch=x State=IDLE Reason=DOWN"; echo "NodeName=n2 Arch=x State={state} Weight=1"'
    scontrol = {"scontrol": f'[ "$*" = "--oneliner show node n1,n2" ] || exit 1; {nodes}'}
    assert bash("nodes_out_of_service 20 n1 n2", programs=scontrol).out == f"n2 {state}\n" * out


PBS_UP = ["free", "job-exclusive,busy", "offline", "Stale"]
PBS_OUT = ["down", "down,offline", "state-unknown,down", "down,job-busy", "stale"]


@pytest.mark.parametrize(
    ("state", "out"), [*[(state, False) for state in PBS_UP], *[(state, True) for state in PBS_OUT]]
)
def test_nodes_out_of_service_by_pbs_state(bash, state, out):
    lines = ["n1", "     Mom = down", "     state = free", "", "n2", f"     state = {state}", "     queue = down", "n3"]
    pbsnodes = {"pbsnodes": f'[ "$*" = -a ] || exit 1; printf "%s\n" {shlex.join([*lines, "     state = down"])}'}
    asked = bash("nodes_out_of_service 20 n1 n2.site", scheduler="pbs", programs=pbsnodes).out
    assert asked == f"n2.site {state}\n" * out


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_silent_scheduler_reports_no_nodes_out_of_service(bash, scheduler):
    code = "nodes_out_of_service 0.2 n1 n2 || :"
    assert bash(code, scheduler=scheduler, programs={"scontrol": "exec sleep 60"})[:2] == (0, "")


@pytest.mark.parametrize(("nodes", "spares", "code"), [("(n1 n2)", "()", 1), ("(n1)", "(n2)", 1), ("(n1)", "()", 0)])
def test_node_is_left_out_if_neither_used_nor_spare(bash, nodes, spares, code):
    assert bash(f"allocation=(n1 n2) nodes={nodes} spare_nodes={spares}; nodes_are_left_out").code == code
