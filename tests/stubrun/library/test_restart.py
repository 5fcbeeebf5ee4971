"""Whether another attempt follows a failed one, and on which nodes; test_restarts.py has whole jobs."""

import pytest

from bash_library import assert_dies
from messages import assert_names, assert_warning, messages, numbers, slugs

RESERVE = "nodes=(a b c d); SLIPWAY_SPARES=1; reserve_spares; "
HELPER = "srun --overlap --nodes=1 --ntasks=1 --export=ALL --cpu-bind=none --gres=none --nodelist=c"


@pytest.mark.parametrize(
    ("scheduler", "code", "nodes"),
    [
        ("slurm", RESERVE, "3 a d / --export=ALL --nodelist=a,b,c / "),
        ("slurm", f"{RESERVE}set_nodes b c d; set_nodes c d", f"2 c d / --export=ALL --nodelist=c,d / {HELPER}"),
        ("slurm", f"{RESERVE}set_nodes a b c d", "4 a d / --export=ALL / "),
        ("pbs", f"{RESERVE}set_nodes b c", "2 b d / --export=ALL / "),
        ("local", f"{RESERVE}set_nodes b c", "2 b d / --export=ALL / "),
    ],
)
def test_spare_nodes_are_reserved_and_used(bash, scheduler, code, nodes):
    show = 'echo "$nnodes $head_node ${spare_nodes[*]} / ${srun_options[*]} / ${on_head_node[*]}"'
    assert bash(f"{code}\n{show}", scheduler=scheduler, SLURMD_NODENAME="a").out == f"{nodes}\n"


def test_too_many_spare_nodes_are_refused(bash):
    refused = bash("nodes=(a); SLIPWAY_SPARES=1; reserve_spares")
    assert_dies(refused, "too-few-nodes", "SLIPWAY_SPARES=1")
    assert numbers(refused.err) == [1, 1]


TORCHRUN = "  host      : n{}\n  rank      : 1 (local_rank: 0)\n  exitcode  : {} (pid: 12)\n"
LOST, KILLED, ENDED = TORCHRUN.format(1, 1), TORCHRUN.format(2, -9), TORCHRUN.format(1, -15)
SLURM_SAID = (
    "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n3: task 2: {}\nsrun: error: n4: task 3: Killed"
)


@pytest.mark.parametrize(
    ("said", "node"),
    [
        (LOST + KILLED + ENDED, "n2"),
        (LOST, "none"),
        (SLURM_SAID.format("Segmentation fault"), "n3"),
        (SLURM_SAID.format("Terminated"), "n4"),
    ],
)
def test_failed_node_is_node_of_first_signal(bash, said, node):
    assert bash('find_failed_node <<<"$1" || echo none', said).out == f"{node}\n"


RUN = """run_launch() { echo "$1 $attempt"; code=$((attempt < 4)); [ $code = 1 ] || echo done 1 x >run/verdict.4; }
plan_restart() { chosen_nodes=(n1 n2); }
run_attempts launch"""
COUNT = "declare -A failures=(); failed={}; for n in 1 2 3; do record_node_failure; done; echo ${{failures[*]}}"
VERDICT = 'read_verdict; echo "<$state> ${step-} ${reason-}"'


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("replace_lost_nodes || echo no", "no\n"),
        ("SLURM_JOB_ID=7 SLIPWAY_SPARES=1 lost_nodes=(); replace_lost_nodes || echo no", "no\n"),
        (COUNT.format("n2"), "2\n"),
        (COUNT.format("n9"), "\n"),
        ("code=143; launch_crashed || echo no", "no\n"),
        ("mkdir run/logs/5; begin_attempt 5; echo $attempt; cat run/logs/6/job", "6\nslurm 4711\n"),
        (RUN, "launch 2\nlaunch 3\nlaunch 4\n"),
        (
            "export_plan; env | grep '^TRAINER_' | sort --unique",
            "TRAINER_ATTEMPT=2\nTRAINER_RANKS_PER_NODE=2\nTRAINER_WORLD_SIZE=4\n",
        ),
        (VERDICT, "<>  \n"),
        (f"echo stopped 7 user asked >run/verdict.2; {VERDICT}", "<stopped> 7 user asked\n"),
        (r"printf 'x\ntrainer: first\ntrainer: second\n' >run/logs/2/stderr.log; last_log_line", "trainer: second\n"),
        ("last_log_line | grep --count .", "1\n"),
    ],
    ids=[
        *("no node was lost", "no list of lost nodes", "failures of a node", "failure of a node of another job"),
        *("sigterm is no crash", "a number is taken", "until the verdict", "plan", "no verdict", "verdict"),
        *("last words", "no last words"),
    ],
)
def test_restart_helper_functions(bash, code, out):
    assert bash(code)[:2] == (0, out)


@pytest.mark.parametrize(
    ("verdict", "code", "died"),
    [
        (None, "code=1", True),
        (None, "code=0", True),
        *[(None, given, False) for given in ("code=0 SLIPWAY_SCRIPT=x", "code=2 SLIPWAY_SCRIPT=x", "code=78")],
        (None, "code=1 cancelled=1", False),
        ("stopped 7 launcher", "code=1", True),
        # regression: mpirun was killed, its daemons stopped the ranks, and the job ended as if a user had stopped it
        ("stopped 7 signal", "code=137", True),
        ("stopped 7 signal", "code=1", False),
        ("stopped 7 signal", "code=137 cancelled=1", False),
        ("failed 7 NaN", "code=1", False),
    ],
)
def test_attempt_has_died_by_verdict_and_exit_code(bash, verdict, code, died):
    write = f"echo {verdict} >run/verdict.2; " if verdict else ""
    assert bash(f"{write}{code}; attempt_has_died && echo yes || echo no").out == ("yes\n" if died else "no\n")


BEGIN = "declare -A failures=(); first_step=0; "
FEW = f"{BEGIN}allocation=(n1 n2 n3) healthy_nodes=(n1 n3); "
SILENT = {"squeue": "exit 1"}


@pytest.mark.parametrize(
    ("code", "chosen"),
    [
        (f"{BEGIN}: >run/logs/2/stderr.log; plan_restart", "n1 n2 /  / 4"),
        (f"{BEGIN}SLIPWAY_MAX_RESTARTS=0; plan_restart || echo no; exit", "no"),
        (f"{FEW}choose_nodes", "n1 n3 /  / 4"),
        (f"{FEW}planned_nodes=3 SLIPWAY_SHRINK=1; choose_nodes", "n1 n3 /  / 4"),
        (f"{FEW}failures[n1]=2; planned_nodes=2; choose_nodes", "n1 n3 /  / 4"),
        (f"{FEW}failures[n1]=2; SLIPWAY_SHRINK=1; choose_nodes", "n3 / n1 / 2"),
        (f"{FEW}failures[n1]=1 planned_nodes=1; choose_nodes", "n3 / n1 / 2"),
    ],
)
def test_choose_nodes_of_next_attempt(bash, code, chosen):
    show = 'activate_chosen_nodes; echo "${nodes[*]} / ${spare_nodes[*]} / $world_size"'
    assert bash(f"{code}; {show}", programs=SILENT).out == f"{chosen}\n"


def test_notify_program_runs_for_node_that_failed_twice(bash):
    code = 'declare -A failures=(); failed=n2; notify() { echo "$1 $2"; }; record_node_failure; echo once; '
    _, out, err = bash(f"{code}record_node_failure")
    once, told = out.splitlines()
    assert (once, told.split()[0], slugs(err)) == ("once", "exclude", ["node-suspect"])
    assert_names(told, "node-suspect", "n2")


def test_too_few_nodes_for_restart_give_warning(bash):
    code, out, err = bash(f"{FEW}planned_nodes=3; choose_nodes || echo no $requeue_reason", programs=SILENT)
    assert (code, out.split()[0], numbers(out)) == (0, "no", [2, 3])
    assert_warning(err, "no-restart", "SLIPWAY_SPARES", "SLIPWAY_SHRINK=1")
    assert numbers(err)[:2] == [2, 3]


def test_next_attempt_has_new_number_and_port(bash):
    code = "chosen_nodes=(n1 n2); rendezvous=1 given_address=10.0.0.9 MASTER_PORT=24711; start_next_attempt; "
    code += 'port_is_given=1; open_rendezvous; echo "$attempt $restarts $first_port $TRAINER_ATTEMPT $MASTER_ADDR"'
    _, out, err = bash(code)
    assert out == "3 1 24712 3 10.0.0.9\n"
    assert_warning(err, "restarted", "n1, n2")
    assert [numbers(message.text) for message in messages(err) if message.slug == "restarted"] == [[1, 3, 3, 0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "slug", "values"),
    [
        (
            "lost_nodes=(a1 b2 c3) node_states=([b2]=DOWN [c3]=DRAINED); warn_of_death 2",
            "node-lost",
            ["7", "b2 (DOWN)", "c3 (DRAINED)"],
        ),
        ("failed=n1; warn_of_death 0", "rank-killed", ["7", "n1", "/run/logs/2/stderr.log"]),
        ("echo 'trainer: x' >run/logs/2/stderr.log; warn_of_death 0", "rank-failed", ["7", "trainer: x"]),
    ],
)
def test_warn_of_death_selects_slug_by_cause(bash, given, slug, values):
    code, out, err = bash(f"attempt=7; {given}")
    assert (code, out, slugs(err)) == (0, "", [slug])
    assert_warning(err, slug, *values)
    assert "a1" not in err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "none"),
        ("78 node2: [rank 1] no data\n", "<78> <node2: [rank 1] no data>"),
        ("2 unknown flag --épochs", "<2> <unknown flag --épochs>"),
        ("2 first\n78 second\n", "<2> <first>"),
        *[(text, "none") for text in ("1 no cause\n", "078 x\n", "778 x\n", "0 x\n", "78\n", "78 \n", "2x")],
        *[(text, "none") for text in ("78 \x1b[2J\n", "\n78 x\n", "x" * 9999)],
    ],
)
def test_attempt_has_cause_parses_cause_file(bash, text, found):
    write = "" if text is None else 'printf %s "$1" >run/logs/2/cause; '
    ask = 'attempt_has_cause && echo "<$cause_code> <$cause>" || echo none'
    assert bash(write + ask, text or "").out == f"{found}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ("guard.sh on n2: silent\nmore\n", [("warning", "node-lost", "guard.sh on n2: silent")]),
    ],
)
def test_guard_log_of_previous_attempt_is_reported(bash, text, said):
    assert messages(bash('mkdir run/logs/1; printf %s "$1" >run/logs/1/guard.log; log_guard_kill 1', text).err) == said
