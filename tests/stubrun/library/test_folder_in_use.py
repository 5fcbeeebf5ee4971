"""A run folder is refused while another job may still train there; the scheduler's answers about that job."""

import time

import pytest

from bash_library import assert_dies, assert_ended
from messages import assert_warning

SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
RUNNING = "echo JobState=RUNNING X=y"
OVER = "echo JobState=COMPLETED X=y"
TORN = '[ ! -e asked ] || exit 1; touch asked; echo "    job_state = R"; echo JobState=RUNNING X=y'
"""A scheduler that stops answering."""
WAIT = "sleep() { SECONDS=$((SECONDS + 70)); }; "


def qstat(known):
    """Return a stub that reports a running job if the condition holds."""
    return f'if {known}; then echo "    job_state = R"; else echo "Unknown Job Id"; exit 153; fi'


@pytest.mark.parametrize(
    ("scheduler", "said", "job", "over"),
    [
        ("slurm", RUNNING, "99_1", False),
        ("slurm", OVER, "99_1", True),
        ("slurm", UNKNOWN, "99_1", True),
        # regression: no answer from the scheduler was taken for "unknown job"
        ("slurm", SILENT, "99_1", False),
        ("pbs", "echo 'qstat: cannot connect to server head (errno=15010)' >&2; exit 171", "99", False),
        # regression: queried as 99[1, without the closing bracket
        ("pbs", qstat('[ "$2" = "99[1]" ]'), "99_1", False),
        ("pbs", qstat('[ "$2" = 99 ]'), "99", False),
        ("pbs", qstat("false"), "99", True),
        # in containers all scripts may have the same number: this script's, or another program's
        ("local", "", "x-$$", True),
        ("local", "", "x-1", True),
        ("local", "", "x-999999999", True),
    ],
)
def test_job_has_ended_by_scheduler_answer(bash, scheduler, said, job, over):
    programs = {"scontrol": said, "qstat": said}
    assert bash(f"job_has_ended {job} && echo over", scheduler=scheduler, programs=programs).out == "over\n" * over


def test_local_job_with_running_script_has_not_ended(bash):
    runs = "bash -c 'while :; do sleep 0.1; done' run/job.sh & "
    # until then it is a fork of this shell, whose command line holds all of this
    runs += """until [ "$(tr '\\0' ' ' <"/proc/$!/cmdline" | head -c 9)" = "bash -c w" ]; do :; done; """
    assert bash(f"{runs}! job_has_ended x-$! || echo over; kill $!", scheduler="local").out == ""


@pytest.mark.parametrize(("number", "over"), [("4711", True), ("471", False)])
def test_own_job_under_array_task_id_counts_as_ended(bash, number, over):
    said = {"scontrol": 'echo "JobId=4711 ArrayJobId=4700 ArrayTaskId=3 JobState=RUNNING X=y"'}
    assert bash("job_has_ended 4700_3 && echo over", SLURM_JOB_ID=number, programs=said).out == "over\n" * over


JOB = 'mkdir --parents run/logs/1; echo "{}" >run/logs/1/job; '
LATER = "for n in 3 10; do mkdir run/logs/$n; echo slurm 10$n >run/logs/$n/job; done; attempt=11; "
"""Jobs of later attempts, and this one's."""


@pytest.mark.parametrize(
    ("job", "later", "said", "refused"),
    [
        ("slurm 99", "", RUNNING, True),
        ("slurm 99", "", OVER, False),
        *[(job, "", RUNNING, False) for job in ("slurm 4711", "slurm", "")],
        # regression: the query was only for the last attempt's job
        ("slurm 99", LATER, f'[ "${{!#}}" = 99 ] || {{ {OVER}; exit; }}; {RUNNING}', True),
        ("slurm 99", LATER, OVER, False),
    ],
)
def test_only_another_running_job_blocks_run(bash, place, job, later, said, refused):  # noqa: PLR0917 -- fixtures
    done = bash(f"{JOB.format(job)}{later}refuse_concurrent_run", programs={"scontrol": said})
    assert_ended(done, "folder-in-use" if refused else "", "99", place / "run")


# regression: both checked before either had recorded itself, and both trained
def test_later_of_two_concurrent_attempts_is_refused(bash, place):
    other = f"last_attempt() {{ {JOB.format('slurm 99')}echo 0; }}; rmdir run/logs/2; run_dir=run; open_run_folder"
    assert_dies(bash(f"log_dir=; {other}", programs={"scontrol": RUNNING}), "folder-in-use", "99", place / "run")
    assert [path.name for path in (place / "run" / "logs").iterdir()] == ["1"]


# regression: no warning that two may train in one folder
def test_job_of_unknown_state_gives_one_warning(bash, place):
    silent = {"scontrol": "exit 1"}
    code, out, err = bash(f"{JOB.format('slurm 99')}log_dir=; refuse_concurrent_run", programs=silent)
    assert (code, out) == (0, "")
    assert_warning(err, "folder-in-use", 99, place / "run")
    assert bash("refuse_concurrent_run") == (0, "", "")  # already reported
    code = "echo n1 77 5 >run/logs/1/process; echo ended 75 >>run/logs/1/process; log_dir=; refuse_concurrent_run"
    assert bash(code) == (
        0, "", ""
    )  # fmt: skip


def test_attempt_records_owner_and_script_end(bash, place):
    code = "cluster=near; begin_attempt 3; has_recorded_end 3 || echo lives; "
    code += "read_attempt_owner 3; is_own_job && echo own; "
    code += "cluster=far; is_foreign_job && echo foreign; record_script_end 7; has_recorded_end 3 && echo over; "
    code += "foreign_job_has_ended 1 x || echo $?; (refuse_unverifiable_attempt 3) || echo $?; "
    code += "log_dir=; record_script_end 7"
    assert bash(code, scheduler="pbs")[:2] == (0, "lives\nown\nforeign\nover\n2\n78\n")
    assert not (place / "run" / "logs" / "3").exists()


# regression: a job of another cluster, unknown to the scheduler, counted as ended
@pytest.mark.parametrize(
    ("job", "given", "said", "values"),  # the last: of the error, or None
    [
        *[
            (job, "", "exit 1", [job.split()[1], "ended", "logs/1/process"])
            for job in ("slurm 99 far", "slurm 4711 far", "pbs 99 head")
        ],
        *[(job, "echo ended >>run/logs/1/process; ", "exit 1", None) for job in ("slurm 99 far", "pbs 99 head")],
        *[
            ("pbs 99 head", f"echo {verdict} >run/verdict.1; ", "exit 1", None)
            for verdict in ("done 9 trained", "out-of-time 9 time-limit", "stopped 9 user", "stopped 9 signal")
        ],
        # its script may start the ranks again
        ("pbs 99 head", "echo stopped 9 launcher >run/verdict.1; ", "exit 1", ["ended"]),
        ("pbs 99 head", "echo >run/verdict.1; ", "exit 1", ["ended"]),
        # regression: `sbatch` in a shell that does not know its cluster took all jobs for foreign
        ("slurm 99 far", "cluster=; ", f'case "$*" in *--clusters*) exit 1 ;; esac; {OVER}', None),
        # Slurm may know the other cluster
        ("slurm 99 far", "", RUNNING, ["99"]),
        ("slurm 99 far", "", UNKNOWN, None),
        # regression: after one query without an answer, a job that had just run counted as unknown
        ("slurm 99 far", f"touch run/logs/1/code; {WAIT}", TORN, ["99"]),
    ],
)
def test_job_of_another_cluster_blocks_run_until_end_is_recorded(bash, place, job, given, said, values):  # noqa: PLR0917 -- fixtures
    if said == "exit 1":
        said = f'case "$*" in *--clusters=far*) exit 1 ;; esac; {UNKNOWN}'
    begin = f"{JOB.format(job)}echo elsewhere 77 5 >run/logs/1/process; log_dir=; cluster=near; "
    done = bash(f"{begin}{given}refuse_concurrent_run", programs={"scontrol": said})
    assert_ended(done, "folder-in-use" if values else "", place / "run", *(values or []))
    assert ("/logs/1/process" in done.err) == ("ended" in (values or []))  # otherwise there is no message: it runs


@pytest.mark.parametrize(
    ("process", "interactive", "code"),
    [
        ('"$HOSTNAME $(process_of $$)"', "1", 0),  # this one
        ('"$HOSTNAME $(process_of $PPID)"', "1", 1),
        ('"$HOSTNAME $(process_of $PPID)"', "", 1),
        ('"$HOSTNAME ${PPID} 1"', "1", 0),  # its PID now belongs to another process
        ('"elsewhere $(process_of $PPID)"', "1", 3),
        ('"elsewhere 1 1" "ended 75"', "1", 0),
        ('"elsewhere $(process_of $PPID)"', "", 0),  # requeued onto another node
        ('""', "1", 0),
    ],
)
def test_attempt_has_ended_by_recorded_process(bash, process, interactive, code):
    begin = f"interactive={interactive} log_dir=; begin_attempt 1; printf '%s\n' {process} >run/logs/1/process; "
    assert bash(f"{begin}code=0; attempt_has_ended 1 || code=$?; echo $code") == (0, f"{code}\n", "")


# regression: the next rung of a sweep was refused while the previous job still cleaned up
@pytest.mark.parametrize(
    "handed_on", [r"1 99_1\n1 4711\n' >run/requeues", "0' >run/logs/1/code", "done 1' >run/verdict.1"]
)
class TestEndingJob:
    """A job of the folder that has passed its run on, or has finished training."""

    BEGIN = JOB.format("pbs 99_1") + "printf '"

    def test_new_job_waits_for_end_of_ending_job(self, bash, handed_on):
        began = time.monotonic()
        said = {"qstat": 'echo "    job_state = $([ -e asked ] && echo X || echo E)"; touch asked'}
        assert bash(f"{self.BEGIN}{handed_on}; refuse_concurrent_run", scheduler="pbs", programs=said) == (0, "", "")
        assert time.monotonic() - began > 2

    # regression: a server that stopped answering made the running job unknown
    @pytest.mark.parametrize("said", ['echo "    job_state = R"', TORN], ids=["runs", "grows silent"])
    def test_wait_for_ending_job_is_limited(self, bash, place, handed_on, said):
        done = bash(f"{self.BEGIN}{handed_on}; {WAIT}refuse_concurrent_run", scheduler="pbs", programs={"qstat": said})
        if "verdict" in handed_on and said == TORN:  # by which the job has recorded its end
            assert done.code == 0
        else:
            assert_dies(done, "folder-in-use", "99_1", place / "run")


def test_running_launch_in_same_allocation_is_refused(bash, place):
    """A launch that still runs is named; this attempt's number is released."""
    begin = f"{JOB.format('slurm 4711')}"
    begin += 'interactive=1; echo "$HOSTNAME 77 5" >run/logs/1/process; read_attempt_owner 1; '
    start = f"{begin} SLIPWAY_LAUNCH=4711.none.1.77.9 sleep 60 & left=$!; "
    start += 'until processes_left 1 | grep .; do :; done; echo "$left"; kill "$left"; wait; processes_left 1'
    found, left = bash(start).out.split()
    assert found == left
    assert_dies(
        bash(begin.replace("mkdir run/logs/1; ", "") + "refuse_running_attempt 1"), "folder-in-use", "job 4711 "
    )
    assert [path.name for path in (place / "run" / "logs").iterdir()] == ["1"]
