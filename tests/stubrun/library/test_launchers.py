"""How srun, mpirun, ssh and this machine start a job step on every node, or on one; and refusals."""

import os
import re

import pytest

from bash_library import assert_dies, assert_ended

MPIRUN = {"mpirun": 'printf "%s\\n" "$@"'}


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("local_each_node 5 echo 'a b'", "a b\n"),
        ("(local_each_node 1 sleep 9) || echo $?", "124\n"),
        ("local_node 0 5 echo 'a b'", "a b\n"),
        ("(local_node 0 1 sleep 9) || echo $?", "124\n"),
        ("launcher=local; (probe_nodes 5 n3 n4) | sort", "n3\nn4\n"),
        ("launcher=srun; (probe_nodes 5 n3 n4) | sort", "n3\nn4\n"),
        ("launcher=local; (node_answers 1 5)", "n2\n"),
        ("launcher=srun; (node_answers 1 5)", "n2\n"),
        ("at() { echo \"$*\"; }; nodes=(a b c); loop_over_nodes together at 'x  y' | sort", "0 x  y\n1 x  y\n2 x  y\n"),
        ("sleep 0.1 & a=$!; (exit 4) & wait_for_nodes together $a $! || echo $?", "4\n"),
        (
            (
                "wait_for_nodes apart; terminate_node_processes 999999999; "
                "sleep 20 & terminate_node_processes $!; wait $! || echo $?"
            ),
            "143\n",
        ),
    ],
)
def test_local_steps_return_output_and_exit_code(bash, code, out):
    assert bash(code).out == out


def test_mpirun_starts_one_process_per_node(bash):
    code, out, err = bash("(mpirun_each_node 5 echo hi)", MINE="x", SLURM_X="y", programs=MPIRUN)
    assert (code, out.splitlines()[-4:]) == (0, ["--map-by", "ppr:1:node:OVERSUBSCRIBE", "echo", "hi"]), err
    assert "MINE" in out.splitlines()
    assert "SLURM_X" not in out


LEAVE_OUT = "mpirun_options=(--hostfile all --x A); exclude_nodes; echo ${mpirun_options[*]} ${SLURM_JOB_NODELIST:-}"


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("(mpirun_node 1 5 echo 'a  b') | tr '\\n' ' '", ".* --host n2:2 .* -n 1 echo a  b "),
        ("gpu_options=(--gres=gpu:2); (set_mpirun; echo ${SLURM_GPUS_PER_NODE:-none})", "2\n"),
        ("gpu_options=(); (set_mpirun; echo ${SLURM_GPUS_PER_NODE:-none})", "none\n"),
        (LEAVE_OUT, "--x A --host n1:2,n2:2\n"),
        (f"SLURM_JOB_ID=7; {LEAVE_OUT}", "--x A --host n1:2,n2:2 n1,n2\n"),
    ],
)
def test_mpirun_host_options_and_slurm_variables(bash, code, out):
    assert re.fullmatch(out, bash(code, programs=MPIRUN).out)


def test_missing_mpirun_is_refused(bash):
    assert_dies(bash("PATH=/nowhere; mpirun_options=(--hostfile f); set_mpirun"), "no-mpi", "mpirun")


# regression: HOSTNAME and TMPDIR of the first node reached all nodes
@pytest.mark.parametrize(("scratch", "forwarded"), [("/local/x", True), ("/local/y", False)])
@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("(mpirun_each_node 5 true)", "{}"),
        ("(unset_local_variables; env)", "{}=.*"),
        ("remote_script 0 true", "declare -x {}=.*"),
    ],
)
def test_node_local_variables_are_not_forwarded(bash, call, line, scratch, forwarded):
    env = {"HOSTNAME": "n1", "TMPDIR": "/local/x", "MINE": "1"}
    out = bash(f"scratch={scratch}; {call}", programs=MPIRUN, **env).out
    assert [bool(re.search(f"(?m)^{line.format(name)}$", out)) for name in env] == [False, forwarded, True]


def test_mpirun_process_keeps_node_local_variables(bash):
    env = {"HOSTNAME": "n1", "TMPDIR": "/local/x", "MINE": "1"}
    inherited = bash("scratch=/local/y; mpirun_each_node 5 true", programs={"mpirun": "env"}, **env).out.splitlines()
    assert {f"{name}={value}" for name, value in env.items()} <= {*inherited}


@pytest.mark.parametrize("call", ["set_mpirun", "check_mpi mpirun --version", "refuse_root"])
@pytest.mark.parametrize(
    ("options", "env", "refused"),
    [
        ("", {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": ""}, True),
        ("", {"OMPI_ALLOW_RUN_AS_ROOT": "yes"}, True),
        ("", {}, False),
        ("--allow-run-as-root", {"OMPI_ALLOW_RUN_AS_ROOT": ""}, False),
    ],
)
def test_mpirun_as_root_is_refused_unless_allowed(bash, call, options, env, refused):
    done = bash(f"mpirun_options=({options}); {call}", programs={"mpirun": "echo Open MPI 4"}, **env)
    slug = "mpi-as-root" * (refused and os.geteuid() == 0)
    assert_ended(done, slug, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", out=done.out)


OUTPUT_OF_LAUNCHERS = (
    ("----\nprterun has detected an attempt to run as root.\n\nx", True),
    ("There are not enough slots available in the system to satisfy the 4\nslots", True),
    ("An unrecognized option was included on the mpirun command line:", True),
    ("PRTE was unable to open the hostfile:", True),
    ("srun: unrecognized option '--foo'\nTry \"srun --help\" for more information", True),
    ("srun: error: Unable to create step for job 7: More processors requested than permitted", True),
    ("usage: torchrun [-h]\ntorchrun: error: argument --nproc-per-node: x\033[2J", True),
    ("srun: error: Unable to create step for job 7: Job/step already completing or completed", False),
    ("srun: error: node1: task 0: Killed", False),
    ("my torchrun: error: x", False),
    ("", False),
)
"""Output of launchers, and whether it means that they refuse their arguments."""


@pytest.mark.parametrize(("said", "refused"), OUTPUT_OF_LAUNCHERS)
def test_refused_launcher_arguments_are_recognized(bash, said, refused):
    show = "record_launcher_refusal; cat run/logs/2/cause 2>/dev/null || echo none"
    cause = bash(f"printf '%s\\n' \"$1\" >run/logs/2/stderr.log; {show}", said).out
    assert cause.startswith("78 launch-refused: ") if refused else cause == "none\n"
    assert cause[:-1].isprintable()
    assert bash(f"write_cause stopped-early x; {show}").out == "75 stopped-early: x\n"


class TestSsh:
    @pytest.fixture(autouse=True)
    def ssh(self, stub):
        stub("ssh", '[ "$1" != n9 ] || exit 255; exec env -i PATH=/usr/bin:/bin SSH_CLIENT=x "$2"')

    def test_ssh_step_gets_node_rank_folder_and_environment(self, bash, place):
        show = "(ssh_each_node 5 bash -c 'echo \"$NODE_RANK $MINE $PWD ${SSH_CLIENT-none} $*\"' - 'a b' \"it's\")"
        code, out, _ = bash(show, MINE="x\ny'z")
        lines = ["0 x", "1 x", *[f"y'z {place} none a b it's"] * 2]
        assert (code, sorted(out.splitlines())) == (0, lines)

    @pytest.mark.parametrize(
        ("code", "out"),
        [
            ("(ssh_each_node 5 bash -c 'exit $((NODE_RANK * 7))') || echo $?", "7\n"),
            ("nodes=(n1 n9); (ssh_each_node 5 true) || echo $?", "255\n"),
            ("(ssh_each_node 1 sleep 20) || echo $?", "124\n"),
            ("(ssh_node 1 5 bash -c 'echo \"$PET_NODE_RANK\"')", "1\n"),
            ("remote_script 3 true | grep --count 'export NODE_RANK=3'", "1\n"),
        ],
    )
    def test_ssh_steps_return_exit_code_and_node_rank(self, bash, code, out):
        assert bash(code).out == out

    def test_end_of_command_spares_another_node_on_same_machine(self, bash):
        code = """SLIPWAY_LAUNCH=4711.none.2.77.5
            (ssh_node 0 600 sleep 600) & first=$!
            until sh "$lib/find_ranks.sh" "$SLIPWAY_LAUNCH" >found; do sleep 0.1; done
            (ssh_node 1 600 true)
            sh "$lib/find_ranks.sh" "$SLIPWAY_LAUNCH" | cmp - found && echo runs
            kill $first; wait $first || :
            until ! sh "$lib/find_ranks.sh" "$SLIPWAY_LAUNCH" >/dev/null; do sleep 0.1; done"""
        assert bash(code) == (0, "runs\n", "")


@pytest.mark.parametrize(("limit", "tenths", "ended"), [(5, 10, "n2\n"), (0, 6000, "")], ids=["step", "launch"])
def test_failed_ssh_node_terminates_other_nodes_only_in_launch(bash, limit, tenths, ended):
    ssh = f'[ "$1" = n1 ] || {{ for i in {{1..{tenths}}}; do sleep 0.1; done; echo "$1" >>ended; exit 0; }}; exit 255'
    code = f"touch ended; (ssh_each_node {limit} true) || echo $?; cat ended"
    assert bash(code, programs={"ssh": ssh}).out == f"255\n{ended}"


def test_signal_during_ssh_start_starts_no_further_nodes(bash, place):
    early = """trap '[[ $BASH_COMMAND != started+=* ]] || { sleep 0.2; kill -TERM $BASHPID; }' DEBUG"""
    ssh = {"ssh": "echo $1 >>nodes; exec sleep 600"}
    bash(f"set -o functrace; nodes=(n1 n2 n3); {early}; ssh_each_node 600 true", programs=ssh)
    assert (place / "nodes").read_text() == "n1\n"


STEP = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=8{} --export=ALL --nodelist={} echo a b"


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("srun_node_by_node echo 'a b'", [f"0 0 {STEP.format('', 'n1')}", f"1 1 {STEP.format('', 'n2')}"]),
        ("srun_node 1 0 echo 'a b'", [f"1 1 {STEP.format('', 'n2')}"]),
        ("srun_node 1 9 echo 'a b'", [f"1 1 {STEP.format(' --cpu-bind=none --gres=none', 'n2')}"]),
        ("srun_node_by_node true >/dev/null || echo $?", ["7"]),
    ],
)
def test_srun_starts_one_step_per_node(bash, call, lines):
    srun = {"srun": 'echo "$NODE_RANK $PET_NODE_RANK $*"; [ "${!#}" != true ] || exit $((NODE_RANK * 7))'}
    assert bash(f"({call}) | sort", programs=srun).out.splitlines() == lines


SLOW = "trap 'echo $1 >>ended; exit {}' TERM; for i in {{1..6000}}; do sleep 0.1; done; }}; nodes=(a b c); "
"""End of a function for a node that works for ten minutes, and records when it is ended."""
FAILING = f'at() {{ [ "$1" != 2 ] || {{ sleep 0.5; exit "$2"; }}; {SLOW.format(5)}'
APART = 'at() { [ "$1" != 1 ] || exit 3; sleep 1; echo "$1" >>ended; }; nodes=(a b c); '


@pytest.mark.parametrize(
    ("code", "out"),
    [
        *[(f"{FAILING}(loop_over_nodes together at {code}) || echo $?", f"{code}\n0\n1\n") for code in (3, 127, 143)],
        (f"{APART}(loop_over_nodes apart at) || echo $?", "3\n0\n2\n"),
        (f"at() {{ {SLOW.format(0)}loop_over_nodes apart at & sleep 1; kill -TERM $!; wait $! || :", "0\n1\n2\n"),
    ],
)
def test_failed_node_terminates_others_only_in_together_mode(bash, code, out):
    assert bash(f"{code}; sort ended")[:2] == (0, out)


def test_nodes_are_started_at_once_and_awaited(bash):
    """Each node waits up to 20 s for the others, as ranks do; the last one ends 2 s later than the first."""
    meet = 'touch "up$1"; for i in {1..200}; do [ ! -e up0 ] || [ ! -e up1 ] || [ ! -e up2 ] || break; sleep 0.1; done'
    code = f'at() {{ {meet}; [ "$i" != 200 ] || exit 1; sleep "$1"; echo "$1"; }}; nodes=(a b c)'
    assert bash(f"{code}; loop_over_nodes together at | sort") == (0, "0\n1\n2\n", "")
