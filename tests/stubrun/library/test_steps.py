"""Job steps on the nodes: time limit, output, signals during a step; the setting that a failure names."""

import signal

import pytest

from bash_library import ANSWER, assert_dies
from messages import assert_error, messages, numbers, slugs


def test_srun_starts_one_task_per_node(bash):
    words = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--export=ALL", "echo"]
    done = bash("(srun_each_node 5 echo 'a b')", programs={"srun": 'printf "%s\\n" "$@"'})
    assert done.out.splitlines() == [*words, "a b"]


@pytest.mark.parametrize(("step", "code"), [("exit 3", 3), ("exec sleep 600", 124), ("exit 0", 0)])
def test_step_on_each_node_ends_at_time_limit(bash, step, code):
    assert bash("run_on_nodes 1 true", programs={"srun": step}).code == code


# regression: nothing ended a step that a signal followed closely, and the node worked until the time limit;
# and a signal took effect only when `$(timeout 60 mpirun --version)` had returned
@pytest.mark.parametrize(
    ("step", "code"),
    [
        # timeout forwards none while it forks
        ("sleep 0.1; kill -TERM $SCRIPT; exec sleep 600", "run_on_nodes 600 true"),
        ("exec sleep 600", "set -o functrace; {early}; run_on_nodes 600 true"),
        ("exec sleep 600", "set -o functrace; {early}; capture_program_output 600 srun"),
        ("sleep 0.1; kill -TERM $SCRIPT; exec sleep 600", "check_mpi srun"),
    ],
)
def test_signal_ends_running_step(bash, step, code):
    early = "trap '[[ $BASH_COMMAND != wait_limited* ]] || { sleep 0.2; kill -TERM $$; }' DEBUG"
    code = f"export SCRIPT=$$; catch_signals; {code.replace('{early}', early)}; echo no"
    ended = bash(code, programs={"srun": step})
    assert_dies(ended, "stopped-early", code=75)
    assert ended.out == ""


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("run_limited 5 sh -c 'echo said; exit 4' || echo $?", "said\n4\n"),
        ('capture_program_output 5 echo "a  b"; echo "$output"', "a  b\n"),
        ('capture_program_output 5 bash -c "echo part; exit 3" || echo "$? $output"', "3 part\n"),
        ('SLIPWAY_PREFLIGHT_SECONDS=1; capture_program_output 1 sleep 20 || echo "$?<$output>"', "124<>\n"),
        ('sh -c "exit 4" & wait_limited $! || echo "$? <$step_may_run>"', "4 <>\n"),
        # inside salloc the terminal is not a step's input
        ('echo typed | { capture_program_output 5 cat; echo "<$output>"; }', "<>\n"),
    ],
)
def test_step_output_and_exit_code_are_captured(bash, place, code, out):
    assert bash(code) == (0, out, "")
    assert list((place / "disk").iterdir()) == []


def test_killed_step_is_repeated_once(bash):
    kill = "attempt=1 SLIPWAY_MAX_RESTARTS=1; capture_program_output 5 sh -c 'echo part; kill -KILL $$'"
    code, out, err = bash(f'{kill} || echo "$? $output"; retry_killed_step || echo no')
    assert (code, out) == (0, "137 part\nno\n")
    assert (slugs(err), numbers(messages(err)[0].text)) == (["step-repeated"], [1])


# regression: the first node's server, a step under srun, stayed ended, and the preflight found none
@pytest.mark.parametrize(
    ("server", "out"),
    [
        ("first_node_is_probed=1 server=7", "ended\nfound\n"),
        ("first_node_is_probed=1", "ended\n"),
        ("server=7", "ended\n"),
    ],
)
def test_server_on_first_node_restarts_before_repeated_step(bash, server, out):
    ended = "cancel_leftover_steps() { echo ended; }; find_master_address() { echo found; }; "
    ended += "attempt=1 code=137 step_timed_out=''; "
    assert bash(f"{ended}{server}; retry_killed_step")[:2] == (0, out)


# regression: a pipe was read after the command had ended, until nothing held it open
@pytest.mark.parametrize(
    ("code", "out"),
    [
        (
            (
                "capture_program_output 5 head --bytes=200000 /dev/zero; "
                "capture_program_output 5 sh -c 'yes | head -n 100000'; echo ${#output}"
            ),
            "65535\n",
        ),
        ("capture_program_output 5 sh -c 'sleep 15 & echo $! said'; kill ${output% *}; echo ${output#* }", "said\n"),
    ],
)
def test_capture_limits_output_and_ignores_background_process(bash, code, out):
    assert bash(code, limit=10)[:2] == (0, out)


def test_ranks_do_not_inherit_descriptor_of_program_output(bash):
    count = "ls /proc/$$/fd | wc -l"
    out = bash(f'before=$({count}); capture_program_output 5 echo a; [ "$({count})" = "$before" ] && echo closed').out
    assert out == "closed\n"


class TestAnswer:
    """Of a Python helper, which writes its words to a file."""

    SHOW = """ && printf '<%s>' "${#answer[@]}" "${answer[@]}" || echo "$?$step_failure" """

    def test_container_output_is_not_part_of_answer(self, bash):
        leaves = 'answer "$2" "${@:3}"; sleep 15 2>/dev/null & echo $! >pid; echo 7'
        python = {"python3": f"{ANSWER}head --bytes=200000 /dev/zero; {leaves}"}
        words = """run_for_answer 5 x.py 'a  b' '' $'c\nd' end >out"""
        done = bash(f'{words}{self.SHOW}; kill $(cat pid); ls "$log_dir"', limit=10, programs=python)
        assert done.out == "<4><a  b><><c\nd><end>"

    @pytest.mark.parametrize(
        "left", ["", "5\\0a\\0end\\0", "5\\0a\\0end\\0b\\0en", "nodes[$(id)]\\0end\\0", "end\\0", "\\0"]
    )
    def test_truncated_answer_is_refused(self, bash, left):
        python = {"python3": f"printf '{left}' >\"$2\""}
        code, out, err = bash("run_for_answer 5 x.py a end b" + self.SHOW, programs=python)
        assert (code, out[:7], err) == (0, "1: x.py", "")
        assert bash(f"printf '{left}' >left; read_answer left || echo no").out == "no\n"

    def test_error_of_failed_helper_is_printed(self, bash):
        done = bash("run_for_answer 5 x.py a end b" + self.SHOW, programs={"python3": "echo why >&2; exit 3"})
        assert done == (0, "3: see above\n", "why\n")


START = """start_server 5 x.py 'a b' end >/dev/null; printf '<%s>' "${answer[@]}"; pid=$server; stop_server; """


@pytest.mark.parametrize(
    ("python", "code", "out"),
    [
        (
            ANSWER + 'answer "$2" "${@:3}"; echo; exec sleep 600 >/dev/null 2>&1',
            START + 'wait $pid 2>/dev/null || echo $?; ls "$log_dir"',
            "<a b><end>137\n",
        ),
        ("echo 5; exit 3", 'start_server 5 x.py || echo "$step_failure"; stop_server', "5\n: see above\n"),
    ],
)
def test_server_runs_until_stopped(bash, python, code, out):
    assert bash(code, programs={"python3": python}) == (0, out, "")


TRAPS = "trap 'echo usr1' USR1; trap 'echo \"hup '\\''\"' HUP; trap '' INT; trap - TERM; "


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("kill -HUP $$; kill -INT $$; kill -TERM $$; kill -USR1 $$", (-signal.SIGTERM, "held\nhup '\n")),
        ("kill -HUP $$; kill -INT $$; kill -USR1 $$", (0, "held\nhup '\nusr1\nlives\n")),
    ],
)
def test_deferred_signals_are_delivered_on_release(bash, code, ended):
    assert bash(f"{TRAPS}defer_signals; {code}; echo held; deliver_signals; echo lives")[:2] == ended


@pytest.mark.parametrize("launcher", ["srun", pytest.param("mpirun", marks=pytest.mark.slow), "ssh", "local"])
@pytest.mark.parametrize(
    ("step", "named"),  # values in the message of its failure
    [
        ("run_step_on_nodes 0 sh -c 'exit 3'", [3]),
        ("run_step_on_nodes 0 sleep 20", [124, 1]),
        ("run_step_on_nodes 2 sleep 1.2", []),
        ("! SECONDS=7 || ! explain_failure 137 3600 6 || (exit 137)", [137]),  # killed before its limit
    ],
)
def test_step_failure_mentions_preflight_seconds_only_after_timeout(bash, launcher, step, named):
    programs = {"ssh": "exec bash", "mpirun": 'while [[ $1 == -* ]]; do shift 2; done; exec "$@"'}
    code = f'launcher={launcher} SLIPWAY_PREFLIGHT_SECONDS=1; {step} || echo "$?$step_failure"'
    out = bash(code, scheduler="local" if launcher == "local" else "slurm", programs=programs).out
    # of mpirun, which is started with SIGTERM blocked
    assert numbers(out) == ([137, 1] if (launcher, named) == ("mpirun", [124, 1]) else named)
    assert ("SLIPWAY_PREFLIGHT_SECONDS" in out) == (named == [124, 1])


@pytest.mark.parametrize(
    ("call", "limit", "slug"),
    [
        ("make_scratch", 5, "cannot-write"),
        ("SLIPWAY_STAGE=1; stage_to_local_disk", 3600, "staging-failed"),
        ("SLIPWAY_STAGE=1 SLIPWAY_PREFLIGHT_SECONDS=7200; stage_to_local_disk", 7200, "staging-failed"),
        (
            "mkdir build; ln -s /bin/true build/setup; USE_CONTAINER=0 SLIPWAY_VENV=local; build_local_venv",
            3600,
            "build-failed",
        ),
        ("program=(-m trainer c.toml); preflight", 5, "node-not-ready"),
        ("choose_port", 60, "no-free-port"),
        ("check_mpi mpirun --version", 60, "no-mpi"),
        ("SLIPWAY_PREFLIGHT_SECONDS=300; choose_port", 300, "no-free-port"),
        ("mkdir -p venv/bin; ln -s /bin/true venv/bin/python; check_dask", 120, "no-environment"),
    ],
)
def test_timed_out_step_error_mentions_preflight_seconds(bash, place, call, limit, slug):
    timeout = {"timeout": 'echo "$2" >>limit; exit 124'}
    # the clock of a step whose time is up
    clock = "touch i.sif; scratch_id=1; wait_limited() { wait $1 || SECONDS=$((SECONDS + 7200)); return 124; }"
    scheduler = "dask" if "check_dask" in call else "slurm"
    done = bash(f"{clock}; {call}", scheduler=scheduler, programs=timeout)
    assert (done.code, (place / "limit").read_text().split()[0]) == (1 if "choose_port" in call else 78, str(limit))
    assert_error(done.err, slug, f" {limit} ", "SLIPWAY_PREFLIGHT_SECONDS")


TREE = 'bash -c "sleep 51 & sleep 51; :"'


@pytest.mark.parametrize(
    ("code", "out"),
    [
        (
            "trap 'echo t' USR1; (sleep 0.2; kill -USR1 $$; sleep 0.3) & wait_for_process $!; ! kill -0 $! 2>/dev/null",
            "t\n",
        ),
        ("sleep 54 & step_may_run=1; terminate_step; wait $! || echo $?", "143\n"),
        ("true & step_may_run=''; terminate_step; wait $! || echo $?", ""),
        (f'{TREE} & sleep 0.3; kill_tree $!; wait $! || echo $?; pgrep -f "^sleep 51" || echo none', "137\nnone\n"),
    ],
)
def test_step_processes_are_awaited_and_killed(bash, code, out):
    assert bash(code)[:2] == (0, out)
