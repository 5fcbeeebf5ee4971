"""A Dask-Jobqueue client: its node requests, how job steps start there, and how it returns the nodes."""

import pytest

from bash_library import assert_dies
from messages import numbers, slugs

CLIENT = """
echo "$*" >>"$HOME/calls"
[ "$PYTHONSAFEPATH" = 1 ] && [ -z "${PYTHONPATH:-}" ] || exit 9
shift 2
case $1 in
    check) [ -z "${NO_DASK:-}" ] || { echo "No module named dask_jobqueue" >&2; exit 1; } ;;
    nodes)
        [ -z "${CODE:-}" ] || exit "$CODE"
        cp "$2/request.json" "$HOME"
        printf '%s\n' "10.0.0.1 one 100" "10.0.0.2 two 50" "10.0.0.3 three 70" >"$2/.nodes"
        mv "$2/.nodes" "$2/nodes"
        trap 'echo ended >>"$HOME/calls"; exit' TERM
        while [ -d /proc/"$PPID" ]; do read -r -t 0.1 <> <(:) || :; done
        ;;
    each-node) NODE_RANK=1 exec python3 "$HOME/task.py" ;;
    on-head-node) shift 2 && "$@" ;;
    cancel) exit "${CANCEL:-0}" ;;
esac
"""
"""Stub of ``python -m trainer.launch.dask``."""
TASK = """
import subprocess, sys
task = subprocess.Popen(["bash"], stdin=subprocess.PIPE, start_new_session=True)
task.stdin.write(sys.stdin.buffer.read())
task.stdin.flush()
sys.exit(task.wait())
"""
"""Its task on a node, whose standard input stays open."""
REQUEST = "node_request() { echo '{}'; }; "


@pytest.fixture
def dask(bash, place, tmp_path):
    """Return ``bash`` with a client and a run folder whose attempt has begun."""
    (tmp_path / "task.py").write_text(TASK)
    (place / "python").write_text(f"#!/bin/bash\n{CLIENT}")
    client = "mkdir -p venv/bin; cp python venv/bin; chmod +x venv/bin/python; "
    return lambda code, **env: bash(client + code, scheduler="dask", **env)


@pytest.fixture
def calls(tmp_path):
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_client_uses_python_of_environment(dask, place):
    said = dask('check_dask; echo "${client[@]}"', PYTHONPATH="/foreign").out
    assert said.endswith(f" {place}/venv/bin/python -m trainer.launch.dask\n")


@pytest.mark.parametrize(
    ("code", "slug", "values", "lines"),
    [
        (
            "export NO_DASK=1; check_dask",
            "no-environment",
            ["/venv/bin/python ", "pip", "dask-jobqueue", "cryptography"],
            2,  # the first is Python's own
        ),
        (
            "SLIPWAY_VENV=$PWD/venv2; check_dask",
            "no-environment",
            ["SLIPWAY_VENV", "/venv2/bin/python ", "USE_CONTAINER=1"],
            1,
        ),
        (
            "SLIPWAY_MIN_NODES=3; find_allocation",
            "conflicting-settings",
            ["SLIPWAY_MIN_NODES", "SLIPWAY_NODES", " 3", " 2"],
            1,
        ),
    ],
)
def test_missing_dask_or_conflicting_node_settings_are_refused(dask, code, slug, values, lines):
    refused = dask(code)
    assert_dies(refused, slug, *values, lines=lines)
    assert "No module named dask_jobqueue" in refused.err or lines == 1


@pytest.mark.parametrize("minimum", ["", "2"])
def test_find_allocation_of_dask_client(dask, minimum):
    show = 'find_allocation; echo $nnodes $cpus $gpus_per_node $ranks_per_node $world_size "$scratch_id"'
    assert dask(f"SLIPWAY_MIN_NODES={minimum}; {show}").out == "2 8 2 2 4 4711\n"


def test_request_nodes_sets_nodes_and_returns_them_at_exit(dask, calls, tmp_path):
    code, out, err = dask(
        f"{REQUEST} SLIPWAY_NODES=4; SLIPWAY_MIN_NODES=1; find_allocation; trap clean_up_job EXIT; request_nodes; "
        "left=$((time_is_up - SECONDS)); "
        'echo "${nodes[@]}" $nnodes $head_node $world_size; [ "$left" -ge 48 ] && [ "$left" -le 50 ]; '
        '"${on_head_node[@]}" printf "<%s>" "a b" "*"'
    )
    assert (code, out) == (0, "10.0.0.1 10.0.0.2 10.0.0.3 3 10.0.0.1 6\n<a b><*>"), err
    (second,) = [line for line in err.splitlines() if "10.0.0.2" in line]
    assert ("two" in second, numbers(second)) == (True, [2, 4, 10, 0, 0, 2, 50])
    assert (tmp_path / "request.json").read_text() == "{}\n"
    said = next(line for line in calls() if " nodes " in line)
    assert said.endswith("--workers 4 --min-workers 1 --wait 9 --save 120")
    assert calls()[-2].endswith("ended"), "the nodes must be returned at the end of the script"
    assert " cancel " in calls()[-1]


def test_failed_step_returns_its_exit_code(dask):
    fresh = 'unset -v allocation lost_nodes; source "$lib/restart.bash"; launcher=dask; check_dask; request=.; '
    assert dask(f"{fresh}run_step_on_nodes 0 bash -c 'exit 3' || echo $?").out == "3\n"


def test_script_exits_with_75_if_nodes_do_not_arrive(dask):
    assert dask(f"{REQUEST} check_dask; trap clean_up_job EXIT; request_nodes; echo no", CODE="75")[:2] == (75, "")


def test_release_nodes_cancels_once_and_warns_on_failure(dask, calls):
    assert dask("release_nodes")[0] == 0
    code, _, err = dask(
        f"{REQUEST} check_dask; trap clean_up_job EXIT; request_nodes; release_nodes; release_nodes", CANCEL="1"
    )
    assert (code, slugs(err)) == (0, ["jobs-left"])
    assert [line.split()[2] for line in calls() if "trainer.launch.dask" in line] == ["check", "nodes", "cancel"]


def test_dask_each_node_passes_environment_and_exit_code(dask, calls):
    code, out, err = dask(
        "check_dask; request=$PWD/r; export OURS_ID=7 OURS_CONF=8 A='b  $c'; "
        '(dask_each_node 5 sh -c \'echo $NODE_RANK $PET_NODE_RANK ${OURS_ID-unset} $OURS_CONF "$A" "$PWD" "$1"\' '
        'x "it\'s") || echo $?; '
        "(dask_each_node 0 sh -c 'exit 3') || echo $?"
    )
    assert code == 0, err
    assert out.splitlines()[0].startswith("1 1 unset 8 b  $c /")
    assert out.splitlines()[0].endswith(" it's")
    assert out.splitlines()[1:] == ["3"]
    steps = [line for line in calls() if "each-node" in line]
    assert ["--together" in line for line in steps] == [False, True]


@pytest.mark.parametrize(
    ("job", "code"), [('"${HOSTNAME%%.*}"-$$', 0), ('"${HOSTNAME%%.*}"-999999999', 0), ("elsewhere-1", 2)]
)
def test_job_has_ended_by_client_process(dask, job, code):
    assert dask(f"job_has_ended 20260101-000000-{job} || echo $?").out == (f"{code}\n" if code else "")


@pytest.mark.parametrize(("before", "code"), [("", 137), ("SLIPWAY_SCRIPT=x; ", 143)])
def test_stop_signal_writes_stop_file_and_terminates_user_script(dask, place, before, code):
    (place / "launch").mkdir()
    stop = 'sleep 50 & launch_pid=$!; echo $! >"$log_dir/pid"; handle_stop_signal; sleep 0.5; '
    stop += "kill -0 $launch_pid 2>/dev/null && kill -KILL $launch_pid; wait $launch_pid || echo $?; cat run/STOP"
    assert dask(before + stop).out == f"{code}\nuser\n"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "said"), [(121, "warned\n"), (1, "warned\n"), (150, "")])
def test_watch_time_limit_signals_before_nodes_end(dask, seconds, said):
    wait = f"time_is_up=$((SECONDS + {seconds})); trap 'echo warned' USR1; watch_time_limit; read -r -t 4 <> <(:) || :"
    assert dask(wait).out == said


def test_resubmit_runs_kept_script_in_same_process(dask, place):
    (place / "run").mkdir()
    (place / "run/job.sh").write_text(
        'echo "again $$ $SLIPWAY_CLIENT $A ${B-unset}"; trap "echo heard" TERM; kill -TERM $$\n'
    )
    code, out, err = dask("export B=1; echo $$; trap '' TERM USR1 INT; resubmit restart; echo no", A="kept")
    pid = out.split()[0]
    assert (code, out) == (0, f"{pid}\nagain {pid} 4711 kept unset\nheard\n"), err
    assert dask("resubmit none || echo no; continue_command")[1].startswith("no\nbash ")


def test_signal_launch_and_record_pid(dask):
    assert dask('signal_launch; record_pid; cat "$log_dir/pid"')[1].strip().isdigit()
