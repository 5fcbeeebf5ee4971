"""End of a job: stop requests, verdict and exit code, and cleanup."""

import pytest

from messages import assert_warning, numbers, slugs


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "time-limit 4711/2\n"), ("time-limit 1/1\n", "time-limit 4711/2\n"), ("user\n", "user\n"), ("", "")],
)
def test_request_stop_writes_reason_and_keeps_user_stop(bash, before, after):
    write = "" if before is None else 'printf %s "$1" >run/STOP; '
    assert bash(f"{write}request_stop; cat run/STOP", before or "") == (0, after, "")


def test_unwritable_stop_file_gives_warning(bash, place):
    code, _, err = bash("rm -r run; request_stop user; echo on")
    assert code == 0
    assert_warning(err, "cannot-stop", place / "run" / "STOP")


@pytest.mark.parametrize(
    ("scheduler", "code", "out"),
    [
        ("slurm", "handle_stop_signal; ls run", "logs\n"),
        ("pbs", "handle_stop_signal; cat run/STOP", "user\n"),
        (
            "local",
            "(record_pid; exec sleep 600) & launch_pid=$!; sleep 0.3; handle_stop_signal; wait $launch_pid || echo $?",
            "143\n",
        ),
        ("local", "launch_pid=''; handle_stop_signal", ""),
        ("local", "echo 999999999 >run/logs/2/pid; handle_stop_signal", ""),
    ],
)
def test_handle_stop_signal_on_each_scheduler(bash, scheduler, code, out):
    assert bash(code, scheduler=scheduler)[:2] == (0, out)


@pytest.mark.parametrize(
    ("verdict", "code", "expected"),
    [
        ("done 9 trained", 1, 0),
        ("stopped 9 user", 0, 75),
        ("failed 0 nan", 0, 1),
        ("failed 0 nan", 78, 78),
        (None, 0, 1),
        (None, 9, 9),
        ("", 5, 5),
        ("\n", 5, 5),
        ("done", 0, 0),
    ],
)
def test_verdict_decides_exit_code(bash, verdict, code, expected):
    write = "" if verdict is None else 'printf %s "$1" >run/verdict.2; '
    assert bash(f"{write}code={code}; finish none", verdict or "").code == expected


def test_no_wait_for_verdict_of_user_script(bash):
    ended = "cancelled=1 launch_pid=1 code=143 world_size=1 SLIPWAY_SCRIPT=mine.py verdict_seconds=900"
    assert bash(f"{ended}; finish none", scheduler="local").code == 143


@pytest.mark.parametrize(
    ("sizes", "said"),  # ranks, groups, the size of each
    [
        ([], [4]),
        (["4"], []),
        (["8"], []),  # the user's script has started more
        (["1", "1", "1", "1"], [4, 4, 1, 1, 1, 1]),
        (["1"] * 12, [4, 12, *[1] * 8]),
        (["2", "a[$(touch executed)]"], [4, 1, 2]),
    ],
)
def test_unconnected_ranks_give_warning(bash, sizes, said):
    write = 'for size; do echo "$size" >run/logs/2/world.n$((++n)).1; done; '
    code, _, err = bash(f"n=10; {write}code=0 world_size=4; check_process_groups", *sizes)
    assert (code, slugs(err), numbers(err)) == (0, ["ranks-not-connected"] * bool(said), said)
    assert ("1, 1, ..." in err) == (len(sizes) > 8)


LIVES = "SLIPWAY_LAUNCH=a.b sleep 9 & until launch_runs; do :; done"


@pytest.mark.parametrize(
    ("node", "before", "waited"),
    [
        ("n1", ":", "no\nover\n"),
        ("n2", ":", "yes\nover\n"),
        ("", ":", "yes\nover\n"),
        ("n1", LIVES, "yes\n"),
        *[(node, "touch run/verdict.2", "no\nover\n") for node in ("n1", "n2", "")],
        ("n1", f"touch run/verdict.2; {LIVES}", "no\n"),
    ],
)
def test_script_waits_for_verdict_only_if_ranks_may_run(bash, node, before, waited):
    wait = "SECONDS=0; wait_for_verdict 2; ((SECONDS < 2)) && echo no || echo yes"
    code = f"this_node={node} launch_id=a.b\n{before}\n{wait}; launch_runs || echo over; kill $! 2>/dev/null || :"
    assert bash(code).out == waited


@pytest.mark.parametrize("code", [0, 75, 9])
@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("scratch=$PWD/disk/x", []),
        ("server=999999999; rm() { return 1; }; scratch=x; stop_server", []),
        (
            "attempt=3 log_dir=x; mkdir run/.lib.3; touch run/.job.sh.3{,.settings} run/.job.sh.30",
            [".job.sh.30"],  # of another attempt
        ),
    ],
)
def test_cleanup_keeps_exit_code(bash, place, before, left, code):
    assert bash(f"{before}; trap clean_up_job EXIT; exit {code}", programs={"srun": "exit 1"}).code == code
    assert [path.name for path in (place / "run").glob(".[lj]*")] == left
