"""Continuing a run in another job: by a requeue or a chain, up to the limit, in the first environment."""

import pytest

from messages import slugs

AGAIN = 'resubmit() { next_job=4712; }; continue_run chain 9; echo "still here"'


@pytest.mark.parametrize(
    ("code", "ended", "requeues", "said"),
    [
        (AGAIN, (75, ""), "1 4711\n1 4712\n", ["requeued"]),
        # up to the limit
        (f"echo 3 4711 >run/requeues; {AGAIN}", (0, "still here\n"), "3 4711\n", ["no-requeue"]),
        ("resubmit() { return 1; }; continue_run chain 9; echo on", (0, "on\n"), "1 4711\n",
         ["requeued", "no-requeue"]),
        ("ln -s /dev/full run/requeues; continue_run chain 9; echo on", (0, "on\n"), None, ["no-requeue"]),
        ("cancelled=1; resubmit() { exit 99; }; continue_run requeue 9; echo on", (0, "on\n"), None, []),
    ],
    ids=["the next job is counted", "as often as allowed", "refused", "full disk", "cancelled"],
)  # fmt: skip
def test_continue_run_counts_requeues_up_to_limit(bash, place, code, ended, requeues, said):  # noqa: PLR0917 -- fixtures
    done = bash(code)
    assert (done[:2], slugs(done.err)) == (ended, said)
    assert requeues is None or (place / "run" / "requeues").read_text() == requeues


def test_requeue_count_is_last_number_of_own_job(bash):
    assert bash("printf '%s\n' '2 9' '08 4711' '3 4711' '9 x' >run/requeues; count_requeues").out == "3\n"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("catch_early_sigterm", 0),
        ("sigterm_at=''; catch_early_sigterm", 0),
        ("sigterm_at=3; catch_early_sigterm", 75),
        ("sigterm_at=3 restarted=1; catch_early_sigterm", 0),
        ("sigterm_at=''; catch_early_sigterm; kill -TERM $$", 75),
    ],
)
def test_sigterm_before_library_was_sourced_ends_job(bash, code, ended):
    assert bash(code).code == ended


def test_set_taken_names_lists_conflicting_user_variables(bash):
    show = 'declare -F set_taken_names >/dev/null; echo "${scratch-none} $theirs ${taken_names[*]}"'
    code = f'scratch=/x theirs=1 bash -c \'script_name=x lib=$1; . "$lib/job.bash"; {show}\' - "$lib"'
    assert bash(code)[1] == "none 1 scratch\n"


@pytest.mark.parametrize(
    ("code", "env", "stray"),
    [
        ("restarted=1 sigterm_at=59", {}, True),
        ("restarted=1 sigterm_at=59", {"STATE": "COMPLETING"}, False),
        ("restarted=1 sigterm_at=59", {"PREEMPTED": "2026-01-31T12:00:00"}, False),
        ("restarted= sigterm_at=9", {}, False),
        ("restarted=1 sigterm_at=", {}, False),
        ("restarted=1 sigterm_at=60", {}, False),
        ("restarted=1 sigterm_at=9; attempt_has_session() { :; }", {}, False),
        ("restarted=1 sigterm_at=59", {"scheduler": "pbs"}, False),
    ],
)
def test_stray_sigterm_is_recognized_by_time_and_job_state(bash, code, env, stray):
    """Slurm's SIGTERM for the job that lost a node may reach the requeued one."""
    scontrol = {"scontrol": 'echo "JobId=1 JobState=${STATE:-RUNNING} PreemptTime=${PREEMPTED:-None} R=x"'}
    assert bash(f"{code}; signal_is_stray", programs=scontrol, **env).code == (0 if stray else 1)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (
            (
                "continue_run() { echo $1; }; requeue_after_stray_sigterm; "
                "SLIPWAY_MAX_REQUEUES=0; requeue_after_stray_sigterm"
            ),
            (0, "requeue\n"),
        ),
        ("signal_is_stray() { return 1; }; handle_stop_before_launch", (75, "")),
    ],
)
def test_job_is_requeued_after_stray_sigterm(bash, code, ended):
    assert bash(code)[:2] == ended


SAVED = "mkdir run/checkpoints; ln --symbolic step_00000009 run/checkpoints/latest; "


@pytest.mark.parametrize(
    ("code", "nothing"),
    [("first_step=9", "yes"), ("first_step=8", "no"), ("first_step=9 SLIPWAY_SCRIPT=x", "no")],
)
def test_attempt_saved_nothing_compares_latest_checkpoint(bash, code, nothing):
    assert bash(f"{SAVED}{code}; attempt_saved_nothing && echo yes || echo no").out == f"{nothing}\n"


@pytest.mark.parametrize(
    ("given", "gained"),
    [
        ("first_step=8; step=9", True),
        ("first_step=9", False),
        ("SLIPWAY_SCRIPT=x; step=7", True),
        ("SLIPWAY_SCRIPT=x; step=0", False),
        ("SLIPWAY_SCRIPT=x; step=", False),
        ("SLIPWAY_SCRIPT=x; step=x; first_step=0", False),
        ("SLIPWAY_SCRIPT=x; first_step=9; step=10; touch run/status.json", False),
        ("SLIPWAY_SCRIPT=x; first_step=8; step=0; touch run/status.json", True),
    ],
)
def test_only_attempt_with_progress_is_continued(bash, given, gained):
    calls = f"{SAVED}{given}; continue_run() {{ echo $1; }}; continue_after_progress chain; "
    calls += "attempt_made_progress && echo yes || :"
    done = bash(calls)
    assert (done.code, done.out, slugs(done.err)) == (0, "chain\nyes\n" * gained, ["no-requeue"] * (not gained))
    deaths = f"rm -r run/checkpoints; {SAVED}{given}; plan_requeue_after_death {{}}; echo ${{{{requeue_reason:+yes}}}}"
    done = bash(deaths.format(0))
    assert (done.out, slugs(done.err)) == ("yes\n" if gained else "\n", ["no-restart"] * (not gained))
    assert bash(deaths.format(1))[1:] == ("yes\n", "")


REQUEUE = {
    "scontrol": 'case $1 in requeue) echo "$*" >>asked; exit "${STUB:-0}" ;; '
    '*) [ -n "${STATE-RUNNING}" ] || exit 1; echo "JobId=1 JobState=${STATE-RUNNING} R=x" ;; esac'
}


@pytest.mark.parametrize(
    ("code", "env", "out", "asked"),
    [
        ("resubmit requeue", {}, "4711\n", "requeue 4711\n"),
        ("resubmit requeue", {"STUB": "1"}, "no\n", "requeue 4711\n"),
        ("resubmit requeue", {"STATE": "CANCELLED"}, "no\n", ""),
        ("resubmit requeue", {"STATE": ""}, "no\n", ""),  # no answer
        ("next_job=$(job_field JobState)", {}, "RUNNING\n", ""),
    ],
)
def test_slurm_requeues_only_running_job(bash, code, env, out, asked):
    code = f'touch asked; {code} && echo "$next_job" || echo no; cat asked'
    assert bash(code, programs=REQUEUE, **env).out == out + asked


@pytest.mark.parametrize(
    ("scheduler", "code", "begins"),
    [
        ("slurm", 'sbatch() { echo "$2"; }; eval "$(continue_command)"', "/"),
        ("pbs", "continue_command", "qsub "),
        ("local", "resubmit none || echo no; continue_command", "no\nbash "),
    ],
)
def test_continue_command_of_each_scheduler(bash, place, scheduler, code, begins):
    out = bash(code, scheduler=scheduler).out
    assert out.startswith(begins)
    assert scheduler != "slurm" or out == f"{place}/run/job.sh\n"


def test_export_pair_exports_value_without_evaluation(bash, place):
    pairs = """export_pair 'A=b=$(touch executed)'; export_pair 'f%%=() { :; }'; export_pair 'UID=1'; """
    code, out, _ = bash(f"{pairs} env | grep -E '^(A|f%|UID)'")
    assert (code, out) == (0, "A=b=$(touch executed)\n")
    assert not (place / "executed").exists()


def test_restore_environment_resets_changed_variables(bash):
    change = "NEW=1; export NEW; OLD=changed; unset HOME; export OMP_NUM_THREADS=7; "
    show = "(restore_environment; env | sort | grep -E '^(NEW|OLD|HOME|OMP_NUM_THREADS|STRANGE)=')"
    code, out, err = bash(change + show, OLD="a 'b'\tc", STRANGE="$(id)", SHELLOPTS="braceexpand", **{"a b": "x"})
    assert code == 0, err
    assert [line.split("=")[0] for line in out.splitlines()] == ["HOME", "OLD", "STRANGE"]
    assert "OLD=a 'b'\tc" in out


def test_pbs_chains_job_with_environment_of_first_job(bash, place):
    programs = {
        "qstat": "echo '    queue = gpu'",
        "qsub": 'printf "%s\\n" "$@" >asked; env >env; echo 4712.head.x',
    }
    run = 'export_to_ranks MASTER_PORT=1; resubmit chain && echo "$next_job"; grep --count MASTER_PORT env || :'
    assert bash(run, scheduler="pbs", PBS_JOBID="1.h", programs=programs).out == "4712\n0\n"
    assert (place / "asked").read_text() == f"-W\ndepend=afterany:1.h\n-q\ngpu\n{place}/run/job.sh\n"


@pytest.mark.parametrize(
    ("method", "program", "out"),
    [("chain", "exit 1", "no\n"), ("requeue", "exit 1", "no\n"), ("requeue", 'echo "$*"', "1.h\n")],
)
def test_resubmit_fails_if_qsub_or_qrerun_fails(bash, method, program, out):
    programs = {"qstat": "echo '    queue = gpu'", "qsub": program, "qrerun": program}
    assert bash(f"resubmit {method} || echo no", scheduler="pbs", PBS_JOBID="1.h", programs=programs).out == out


TORQUE = r"""
    queue = batch
    Error_Path = head:/home/a/x.e12
    Resource_List.mem = 8gb
    Resource_List.neednodes = 2:ppn=4
    Resource_List.nodect = 2
    Resource_List.nodes = 2:ppn=4
    submit_args = -l nodes=2:ppn=4 -lmem=8gb x.pbs"""
OPTIONS = "options_of_job; echo ${options[*]}"
ASKED = "set +e; queue_of_submission; for name in mem me walltime nodect; do is_requested $name; echo $?; done"


@pytest.mark.parametrize(
    ("code", "more", "out"),
    [
        (OPTIONS, "", "-q batch -l mem=8gb -l nodes=2:ppn=4\n"),
        (
            OPTIONS,
            "\n    Resource_List.place = scatter\n    Resource_List.select = 2:ncpus=4",
            "-q batch -l mem=8gb -l nodes=2:ppn=4\n",
        ),
        (ASKED, "", "batch\n0\n1\n0\n1\n"),
    ],
)
def test_submission_options_are_read_from_torque_record(bash, code, more, out):
    record = TORQUE.removeprefix("\n") + more
    assert bash(f"job_record=$1 PBS_JOBID=12.head; {code}", record, scheduler="pbs").out == out


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("x.o12", ""),
        ("x.o12-3", ""),
        ("x.o123", "h:/d/x.o123"),
        ("log", "h:/d/log"),
        ("12[3].h.OU", "h:/d/"),
        ("x.^array_index^", ""),
        ("", "h:/d/"),
    ],
)
def test_log_path_of_pbs_job_omits_default_file_name(bash, name, path):
    assert bash('log_path "$1"', f"h:/d/{name}", scheduler="pbs", PBS_JOBID="12[3].h").out == f"{path}\n"
