"""How a run is continued in another job: by a requeue or a chain, as often as allowed, in the first environment."""

import subprocess

import pytest

from messages import slugs

AGAIN = 'again() { next_job=4712; }; continue_run chain 9; echo "still here"'


class TestContinueRun:
    def test_the_next_job_is_counted(self, bash, place):
        assert bash(AGAIN).code == 75
        assert (place / "run" / "requeues").read_text() == "1 4711\n1 4712\n"

    def test_as_often_as_allowed(self, bash, place):
        (place / "run").mkdir()
        (place / "run" / "requeues").write_text("2 9\n08 4711\n3 4711\n9 x\n")
        assert bash("requeues_of_job").out == "3\n"
        assert bash(AGAIN)[:2] == (0, "still here\n")

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("again() { return 1; }; continue_run chain 9; echo on", ["requeued", "no-requeue"]),
            ("ln -s /dev/full run/requeues; continue_run chain 9; echo on", ["no-requeue"]),
            ("cancelled=1; again() { exit 99; }; continue_run requeue 9; echo on", []),
        ],
        ids=["refused", "full disk", "cancelled"],
    )
    def test_a_job_that_is_not_continued(self, bash, code, said):
        done = bash(f"SLIPWAY_MAX_REQUEUES=9; {code}")
        assert (done.code, done.out, slugs(done.err)) == (0, "on\n", said)


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
def test_sigterm_before_the_library_was_read(bash, code, ended):
    assert bash(code).code == ended


def test_take_names(bash):
    show = 'declare -F take_names >/dev/null; echo "${scratch-none} $theirs ${taken_names[*]}"'
    code = f'scratch=/x theirs=1 bash -c \'script_name=x lib=$1; . "$lib/job.bash"; {show}\' - "$lib"'
    assert bash(code)[1] == "none 1 scratch\n"


class TestStraySignal:
    """Slurm's SIGTERM for the job that lost a node may reach the requeued one."""

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
        ],
    )
    def test_it_is_known_by_its_moment(self, bash, stub, code, env, stray):
        stub("scontrol", 'echo "JobId=1 JobState=${STATE:-RUNNING} PreemptTime=${PREEMPTED:-None} R=x"')
        assert bash(f"{code}; signal_is_stray", **env).code == (0 if stray else 1)

    def test_under_pbs_there_is_none(self, bash):
        assert bash("signal_is_stray", scheduler="pbs").code == 1

    def test_a_job_that_it_reached_is_requeued(self, bash):
        code = "continue_run() { echo $1; }; continue_stray; SLIPWAY_MAX_REQUEUES=0; continue_stray"
        assert bash(code).out == "requeue\n"
        assert bash("signal_is_stray() { return 1; }; stopped_before_launch").code == 75


@pytest.mark.parametrize(
    ("code", "nothing"),
    [("first_step=9", "yes"), ("first_step=8", "no"), ("first_step=9 SLIPWAY_SCRIPT=x", "no")],
)
def test_saved_nothing(bash, place, code, nothing):
    (place / "run" / "checkpoints").mkdir(parents=True)
    (place / "run" / "checkpoints" / "latest").symlink_to("step_00000009")
    assert bash(f"{code}; saved_nothing && echo yes || echo no").out == f"{nothing}\n"


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
def test_gained_step_continue_gained_and_continue_after_death(bash, place, given, gained):
    (place / "run" / "checkpoints").mkdir(parents=True)
    (place / "run" / "checkpoints" / "latest").symlink_to("step_00000009")
    calls = "continue_run() { echo $1; }; continue_gained chain; gained_step && echo yes || :"
    code, out, err = bash(f"{given}; {calls}")
    assert (code, out, slugs(err)) == (0, *(("chain\nyes\n", []) if gained else ("", ["no-requeue"])))
    out, err = bash(f"{given}; continue_after_death 0; echo ${{go_on:+yes}}")[1:]
    assert (out, slugs(err)) == (("yes\n", []) if gained else ("\n", ["no-restart"]))
    assert bash(f"{given}; continue_after_death 1; echo ${{go_on:+yes}}")[1:] == ("yes\n", "")


class TestAgainBySlurm:
    @pytest.fixture(autouse=True)
    def scontrol(self, stub):
        stub(
            "scontrol",
            'case $1 in requeue) echo "$*" >>asked; exit "${STUB:-0}" ;; '
            '*) [ -n "${STATE-RUNNING}" ] || exit 1; echo "JobId=1 JobState=${STATE-RUNNING} R=x" ;; esac',
        )

    @pytest.mark.parametrize(
        ("env", "out", "asked"),
        [
            ({}, "4711\n", "requeue 4711\n"),
            ({"STUB": "1"}, "no\n", "requeue 4711\n"),
            ({"STATE": "CANCELLED"}, "no\n", None),
            ({"STATE": ""}, "no\n", None),  # no answer
        ],
    )
    def test_a_job_that_runs_is_requeued(self, bash, place, env, out, asked):
        assert bash('again requeue && echo "$next_job" || echo no', **env).out == out
        assert ((place / "asked").read_text() if (place / "asked").exists() else None) == asked

    def test_a_field_of_the_job(self, bash):
        assert bash("job_field JobState").out == "RUNNING\n"

    def test_the_command_that_continues_the_run(self, bash, place):
        code = f'sbatch() {{ echo "$2"; }}; {bash("continue_command").out}'
        assert subprocess.check_output(["bash", "-c", code], text=True) == f"{place}/run/job.sh\n"


def test_export_pair(bash, place):
    pairs = """export_pair 'A=b=$(touch executed)'; export_pair 'f%%=() { :; }'; export_pair 'UID=1'; """
    code, out, _ = bash(f"{pairs} env | grep -E '^(A|f%|UID)'")
    assert (code, out) == (0, "A=b=$(touch executed)\n")
    assert not (place / "executed").exists()


def test_restore_environment(bash):
    change = "NEW=1; export NEW; OLD=changed; unset HOME; export OMP_NUM_THREADS=7; "
    show = "(restore_environment; env | sort | grep -E '^(NEW|OLD|HOME|OMP_NUM_THREADS|STRANGE)=')"
    code, out, err = bash(change + show, OLD="a 'b'\tc", STRANGE="$(id)", SHELLOPTS="braceexpand", **{"a b": "x"})
    assert code == 0, err
    assert [line.split("=")[0] for line in out.splitlines()] == ["HOME", "OLD", "STRANGE"]
    assert "OLD=a 'b'\tc" in out


class TestAgainByPbs:
    ENV = {"scheduler": "pbs", "PBS_JOBID": "1.h"}

    @pytest.fixture(autouse=True)
    def qstat(self, stub):
        stub("qstat", "echo '    queue = gpu'")

    def test_a_chain_in_the_environment_of_the_first_job(self, bash, stub, place):
        stub("qsub", 'printf "%s\\n" "$@" >asked; env >env; echo 4712.head.x')
        run = 'export_variables MASTER_PORT=1; again chain && echo "$next_job"; grep --count MASTER_PORT env || :'
        assert bash(run, **self.ENV).out == "4712\n0\n"
        assert (place / "asked").read_text() == f"-W\ndepend=afterany:1.h\n-q\ngpu\n{place}/run/job.sh\n"

    @pytest.mark.parametrize(
        ("method", "program", "out"),
        [("chain", "exit 1", "no\n"), ("requeue", "exit 1", "no\n"), ("requeue", 'echo "$*"', "1.h\n")],
    )
    def test_whether_the_server_takes_it(self, bash, stub, method, program, out):
        stub("qsub", program)
        stub("qrerun", program)
        assert bash(f"again {method} || echo no", **self.ENV).out == out


@pytest.mark.parametrize(
    ("scheduler", "code", "begins"),
    [("pbs", "continue_command", "qsub "), ("local", "again none || echo no; continue_command", "no\nbash ")],
)
def test_the_command_that_continues_the_run_without_slurm(bash, scheduler, code, begins):
    assert bash(code, scheduler=scheduler).out.startswith(begins)


class TestRecordOfTorque:
    """What a job of PBS was submitted with, for the next one."""

    LINES = ["queue = batch", "Error_Path = head:/home/a/x.e12", *[f"Resource_List.{text}" for text in (
        "mem = 8gb", "neednodes = 2:ppn=4", "nodect = 2", "nodes = 2:ppn=4")], "submit_args = -l nodes=2:ppn=4 -lmem=8gb x.pbs"]  # fmt: skip
    RECORD = "\n".join(f"    {line}" for line in LINES)

    @pytest.mark.parametrize("made", ["", "\n    Resource_List.place = scatter\n    Resource_List.select = 2:ncpus=4"])
    def test_options_of_the_next_job(self, bash, made):
        code = "job_record=$1 PBS_JOBID=12.head; options_of_job; echo ${options[*]}"
        assert bash(code, self.RECORD + made, scheduler="pbs").out == "-q batch -l mem=8gb -l nodes=2:ppn=4\n"

    def test_what_was_asked_for(self, bash):
        code = "set +e; job_record=$1; queue_of_submission; "
        code += "for name in mem me walltime nodect; do is_asked_for $name; echo $?; done"
        assert bash(code, self.RECORD, scheduler="pbs").out == "batch\n0\n1\n0\n1\n"


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
def test_log_path_of_a_job_of_pbs(bash, name, path):
    assert bash('log_path "$1"', f"h:/d/{name}", scheduler="pbs", PBS_JOBID="12[3].h").out == f"{path}\n"
