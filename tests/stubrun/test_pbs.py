"""PBS: arguments, the time limit, chains; and the launcher ssh, as in sites/torque."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from messages import assert_error, assert_warning, slugs
from stubs import DONE, GONE, OUT_OF_TIME, SCRIPTS, changed_library, launches_of, payload_of, read_env


def until_gone(pids):
    """Return which of these processes still run after a while, and kill them."""
    deadline = time.monotonic() + GONE / 3
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


RECORD = """\
Job Id: 4711.head
    Job_Name = mine
    job_state = R
    queue = long
    Account_Name = my project
    Error_Path = head:/home/user/ddp.e4711
    group_list = hpc
    Join_Path = n
    Keep_Files = oed
    Mail_Points = abe
    Mail_Users = user@example.org,
\tother@example.org
    Output_Path = head:/home/user/logs/4711.head.OU
    Priority = 0
    Rerunable = False
    Resource_List.filesystems = home,eagle
    Resource_List.mem = 128gb
    Resource_List.ncpus = 32
    Resource_List.nodect = 2
    Resource_List.place = scatter:excl
    Resource_List.qcat = of_the_site
    Resource_List.select = 2:ncpus=16:ngpus=2:mem=64gb:mpiprocs=2:ompthreads=8:
\tgpu_type=a100
    Resource_List.walltime = 12:00:00
    Variable_List = PBS_O_HOME=/home/user,
\tPBS_O_QUEUE=long
    Submit_arguments = -l walltime=12:00:00 -l select=2:ncpus=16:ngpus=2:mem=64
\tgb:mpiprocs=2:ompthreads=8:gpu_type=a100,filesystems=home,eagle -q long ddp.pbs
    project = physics
"""
"""Job record in OpenPBS's format: lines of 80 characters, broken after commas or anywhere."""
GIVEN = [
    "-q long",
    "-N mine",
    "-A my project",
    "-W group_list=hpc",
    "-j n",
    "-k oed",
    "-m abe",
    "-M user@example.org,other@example.org",
    "-o head:/home/user/logs/",
    "-r n",
    '-l filesystems="home,eagle"',
    "-l place=scatter:excl",
    "-l select=2:ncpus=16:ngpus=2:mem=64gb:mpiprocs=2:ompthreads=8:gpu_type=a100",
    "-l walltime=12:00:00",
    "-P physics",
]
"""The same as options of qsub, without the server's counters and the site's additions."""


class TestArguments:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("--name 'a  b' --epochs 2 *", ["--name", "a  b", "--epochs", "2", "*"]),
            ("--tags a,b --lr 1e-3", ["--tags", "a,b", "--lr", "1e-3"]),
            ("--name 'it'\"'\"'s $(id)'", ["--name", "it's $(id)"]),
            ("--name '' --epochs 2", ["--name", "", "--epochs", "2"]),
            ("--a\n--b", ["--a", "--b"]),
            # regression: xargs quotes differently from a shell, $(...) drops line breaks, no words are one empty word
            ('--name "say \\"hi\\""', ["--name", 'say "hi"']),
            ("--epochs 2 --name ''", ["--epochs", "2", "--name", ""]),
            ("  ", []),
            ("$(touch executed) `touch executed`", ["$(touch", "executed)", "`touch", "executed`"]),
            ("; touch executed", [";", "touch", "executed"]),
            ("--a\\;touch executed", ["--a;touch", "executed"]),
        ],
    )
    def test_slipway_args_are_split_with_shell_quoting_and_not_executed(self, project, text, words):
        ended = project.run("ddp.pbs", SLIPWAY_ARGS=text, **DONE)
        assert ended.code == 0, ended
        found = payload_of(ended)
        assert found[found.index("auto") + 1 :] == words
        assert not (project.folder / "executed").exists()

    @pytest.mark.parametrize("text", ["--name 'a", '--name "a', "it's"])
    def test_unclosed_quote_is_refused(self, project, text):
        ended = project.run("ddp.pbs", SLIPWAY_ARGS=text)
        assert ended.code == 78
        assert_error(ended.err, "unclosed-quote", "SLIPWAY_ARGS")


class TestAllocation:
    def test_array_task_names_have_no_brackets(self, project):
        ended = project.run("ddp.pbs", PBS_JOBID="12[1].head", PBS_ARRAY_INDEX="1", SLIPWAY_RUN_DIR=None, **DONE)
        assert (ended.code, ended.env["TRAINER_JOB_ID"], ended.env["PBS_ARRAY_INDEX"]) == (0, "12_1", "1")
        assert (project.folder / "runs" / "ddp-12_1").is_dir()
        # of the task from which it was submitted
        assert "PBS_ARRAY_INDEX" not in project.run("ddp.pbs", PBS_ARRAY_INDEX="1", **DONE).env

    @pytest.mark.parametrize("broken", ["exit 1", "echo nonsense; exit 0", "exit 0", "exec sleep 60"])
    def test_failed_or_hung_qstat_gives_only_warning(self, project, broken):
        lib = changed_library(project, "pbs.bash", "ANSWER_SECONDS=20", "ANSWER_SECONDS=1")
        script = project.spool / "ddp.pbs"
        script.write_text((SCRIPTS / "ddp.pbs").read_text().replace("timeout 20 qstat", "timeout 1 qstat"))
        script.chmod(0o755)
        ended = project.run(script, SLIPWAY_LIB=str(lib), STUB_ON_QSTAT=broken, **DONE)
        assert ended.code == 0
        if "nonsense" not in broken:
            assert_warning(ended.err, "scheduler-silent", "qstat")


# regression: the banner of an image's entry point became the first argument, and was written into job.sh
@pytest.mark.parametrize("script", ["ddp.pbs", "horovod.pbs"])
def test_output_of_image_is_not_an_argument(project, script):
    banner = 'printf "== CUDA ==\\n\\0banner\\0"'
    ended = project.run(script, "--epochs", "a b", STUB_ON_APPTAINER=banner, **DONE)
    assert (ended.code, ended.notes) == (0, [])
    words = payload_of(ended)
    assert words[words.index("--resume") :][-2:] == ["--epochs", "a b"]
    assert "banner" not in " ".join(words) + (ended.run_dir / "job.sh").read_text()
    assert {path.name for path in (ended.run_dir / "logs" / "1").iterdir()} & {"answer", "arguments", "server"} == set()


class TestTimeLimit:
    def test_ranks_are_stopped_before_time_limit(self, project):
        wait = 'until [ -e "$RUN_DIR/STOP" ]; do sleep 0.05; done'
        lib = changed_library(project, "pbs.bash", "ANSWER_SECONDS=20", "ANSWER_SECONDS=1")
        env = {"SLIPWAY_LIB": str(lib), "STUB_WALLTIME": "00:02:04", "STUB_ON_TRAIN": wait}
        job = project.start("ddp.pbs", **env, **OUT_OF_TIME)
        ended = job.end(30)
        assert ended.code == 75
        assert (ended.run_dir / "STOP").read_text() == "time-limit 4711/1\n"
        assert len(ended.of("qsub")) == 1
        assert job.left() == {}

    def test_cancelled_job_writes_user_stop_request(self, project):
        wait = 'touch "$STUB_LOG.up"; until [ -e "$RUN_DIR/STOP" ]; do sleep 0.05; done'
        job = project.start("ddp.pbs", STUB_ON_TRAIN=wait, STUB_VERDICT="stopped 9 user")
        job.until(project.up)
        (job.run_dir / "STOP").unlink(missing_ok=True)
        job.process.send_signal(signal.SIGTERM)
        ended = job.end(20)
        assert (ended.code, ended.of("qsub")) == (75, [])
        assert (ended.run_dir / "STOP").read_text() == "user\n"
        assert job.left() == {}


class TestChain:
    def test_next_job_runs_job_sh_with_environment_of_first(self, project):
        own = {"SLIPWAY_DATA": "my data", "SLIPWAY_RUN_DIR": str(project.folder / "run"), "MINE": "a\nb"}
        ended = project.run("ddp.pbs", "--epochs", "9", **own, **OUT_OF_TIME)
        assert ended.code == 75
        assert ended.notes[-1].endswith(" 4712")
        words = ended.of("qsub")[0]
        assert (words[1:3], words[-1]) == (["-W", "depend=afterany:4711.head"], str(ended.run_dir / "job.sh"))
        env = read_env(Path(f"{project.log}.qsub"))
        own = {"RUN_DIR", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "DATA", "TRAINER_ATTEMPT"}
        assert env.keys() & own == set()
        assert (env["MINE"], env["PYTHONPATH"]) == ("a\nb", "/somewhere")
        assert (ended.run_dir / "requeues").read_text() == "1 4711\n1 4712\n"
        nothing = {"SLIPWAY_RUN_DIR": None, "USE_CONTAINER": None, "SLIPWAY_ARGS": None, "PBS_JOBID": "4712.head"}
        second = project.run(ended.run_dir / "job.sh", **nothing, **OUT_OF_TIME)
        assert (second.code, second.env["TRAINER_ATTEMPT"]) == (75, "2")
        assert second.env["DATA"] == str(project.folder / "my data")
        assert payload_of(second)[-2:] == ["--epochs", "9"]
        assert second.requeues == [2, 10]

    def test_next_job_does_not_depend_on_array_task(self, project):
        ended = project.run("ddp.pbs", PBS_JOBID="4711[3].head", **OUT_OF_TIME)
        (words,) = ended.of("qsub")
        assert "-W" not in words
        assert (ended.run_dir / "requeues").read_text() == "1 4711_3\n1 4712\n"

    # regression: it had the walltime, queue and account of the script's directives
    def test_next_job_has_qsub_options_of_current_job(self, project, tmp_path):
        path = tmp_path / "qstat"
        path.write_text(RECORD)
        ended = project.run("ddp.pbs", STUB_ON_QSTAT=f'[ "$2" = "$PBS_JOBID" ] && cat "{path}"; exit', **OUT_OF_TIME)
        (words,) = ended.of("qsub")
        assert [*zip(words[3:-1:2], words[4:-1:2], strict=True)] == [tuple(row.split(" ", 1)) for row in GIVEN]

    @pytest.mark.parametrize(("kind", "queue"), [("Route", "prod"), ("Execution", "gpu"), ("", "gpu")])
    def test_next_job_uses_routing_queue_of_submission(self, project, kind, queue):
        route = f'[ "$1 ${{!#}}" != "-Q prod" ] || {{ echo "    queue_type = {kind}"; exit; }}'
        ended = project.run("ddp.pbs", STUB_ON_QSTAT=route, PBS_O_QUEUE="prod", **OUT_OF_TIME)
        (words,) = ended.of("qsub")
        assert words[words.index("-q") + 1] == queue

    def test_job_requeues_itself_if_site_allows_qrerun(self, project):
        script = project.render("ddp", "pbs", "resume=requeue")
        ended = project.run(script, **OUT_OF_TIME)
        assert (ended.code, ended.of("qrerun")) == (75, [["qrerun", "4711.head"]])
        ended = project.run(script, STUB_REQUEUE="1", **OUT_OF_TIME)
        assert (ended.code, ended.continuation_words[0]) == (75, "qsub")


class TestSsh:
    """Only one node's arguments: the stub starts nothing on the other."""

    @pytest.fixture
    def script(self, project):
        return lambda spec, *settings: project.render(spec, "torque", "modules=[]", "gpus_per_node=2", *settings)

    def test_ssh_node_gets_rank_folder_and_environment(self, project, script):
        ended = project.run(script("ddp"), "--epochs", "a b", STRANGE="a\n'b", **DONE)
        assert (ended.code, ended.notes) == (0, [])
        assert payload_of(ended)[-2:] == ["--epochs", "a b"]
        expected = {"PET_NODE_RANK": "1", "PWD": str(project.folder), "STRANGE": "a\n'b"}
        assert {name: ended.env[name] for name in expected} == expected
        assert "SSH_CLIENT" not in ended.env
        for words in ended.of("ssh"):  # where `ps` would show them
            assert [word for word in words if "STRANGE" in word or "epochs" in word] == []

    def test_ranks_are_numbered_across_nodes(self, project, script):
        ended = project.run(script("horovod-gloo"), **DONE)
        assert ended.code == 0
        assert (ended.env["HOROVOD_CROSS_RANK"], ended.env["HOROVOD_RANK"] in {"2", "3"}) == ("1", True)

    def test_failure_on_node_sets_exit_code(self, project, script):
        assert project.run(script("ddp"), STUB_PREFLIGHT="78").code == 78
        assert project.run(script("ddp"), SLIPWAY_SCRIPT="my train.py", STUB_CODE="7").code == 7

    def test_remote_shell_setting_is_not_executed(self, project, script):
        ended = project.run(script("ddp", "remote_shell=ssh -o X; touch executed $(touch executed)"), **DONE)
        assert not (project.folder / "executed").exists()
        words = ended.of("ssh")[0]
        assert words[: words.index("bash")][1:-1] == ["-o", "X;", "touch", "executed", "$(touch", "executed)"]

    REMOTE = """while [[ $1 == -* ]]; do shift 2; done
        [ "$1" = node2 ] || exit 0
        exec {there}> >(exec setsid --wait env --ignore-environment PATH=/usr/bin:/bin bash)
        remote=$!
        cat <&0 >&$there &
        exec {there}>&-
        code=0
        wait $remote || code=$?
        kill $!
        exit $code"""
    """A process on the node is not a child of the job; its standard input shows whether this side lives."""

    # regression: a process with another process group than the remote shell, or deaf to SIGTERM, survived
    @pytest.mark.parametrize(("spec", "rank"), [("horovod-gloo", "bash"), ("ddp", "setsid bash")])
    def test_rank_that_ignores_sigterm_ends_if_job_is_killed(self, project, script, spec, rank):
        deaf = f"""exec {rank} -c 'trap "" TERM; echo $$ >>"$STUB_LOG.ranks"; touch "$STUB_LOG.up"; sleep 100'"""
        lib = changed_library(project, "nodes.bash", "GUARD_SECONDS=30", "GUARD_SECONDS=1")
        job = project.start(script(spec), SLIPWAY_LIB=str(lib), STUB_ON_SSH=self.REMOTE, STUB_ON_TRAIN=deaf)
        job.until(project.up)
        job.kill()
        assert until_gone(map(int, Path(f"{project.log}.ranks").read_text().split())) == []

    # regression: the next attempt began while the ranks of a dead launcher still held their GPUs
    def test_ranks_of_dead_launcher_end_before_next_attempt(self, project, script):
        first = """if [ "$TRAINER_ATTEMPT" != 1 ]; then
            ! grep --quiet sleep "/proc/$(cat "$STUB_LOG.ranks")/cmdline" || exit 3
            return 0
        fi
        setsid bash -c 'trap "" TERM; echo $$ >"$STUB_LOG.ranks"; exec sleep 100' >/dev/null 2>&1 &
        until [ -s "$STUB_LOG.ranks" ]; do sleep 0.05; done
        kill -KILL $$"""
        lib = changed_library(project, "nodes.bash", "GUARD_SECONDS=30", "GUARD_SECONDS=1")
        (project.spool / "nodes").write_text("node2\n")
        env = {"SLIPWAY_LIB": str(lib), "STUB_ON_SSH": self.REMOTE, "STUB_ON_TRAIN": first, "SLIPWAY_MAX_RESTARTS": "1"}
        ended = project.run(script("single"), **env, **DONE)
        assert (ended.code, len(launches_of(ended))) == (0, 2), ended
        assert until_gone(map(int, Path(f"{project.log}.ranks").read_text().split())) == []

    def test_job_cancelled_in_preflight_leaves_no_remote_processes(self, project, script):
        job = project.start(script("ddp"), STUB_ON_PREFLIGHT='touch "$STUB_LOG.up"; exec sleep 100')
        job.until(project.up)
        job.process.send_signal(signal.SIGTERM)
        assert job.end(20).code == 75
        assert job.left() == {}


# regression: attempt 2 of the old run, with its configuration
def test_new_job_with_reused_job_id_is_refused(project):
    env = {"SLIPWAY_RUN_DIR": None, **DONE}
    first = project.run("ddp.pbs", STUB_RUNS="1", **env)
    folder = project.folder / "runs" / "ddp-4711"
    assert (first.code, (folder / "job.sh").exists()) == (0, True)
    project.run("ddp.pbs", STUB_RUNS="1", **env).assert_refused("folder-holds-run", folder)
    again = project.run("ddp.pbs", STUB_RUNS="2", **env)
    assert (again.code, again.env["TRAINER_ATTEMPT"]) == (0, "2")
    # regression: a job that PBS ran again was refused if qstat was silent
    silent = {"STUB_ON_QSTAT": "exit 1", **env}
    again = project.run("ddp.pbs", **silent)
    assert (again.code, again.env["TRAINER_ATTEMPT"]) == (0, "3")
    (folder / "logs").rename(project.folder / "logs")  # as if to another disk
    (folder / "logs").symlink_to(project.folder / "logs")
    again = project.run("ddp.pbs", **silent)
    assert (again.code, again.env["TRAINER_ATTEMPT"]) == (0, "4")
    a_month_ago = time.time() - 31 * 86400
    for number in "1234":
        os.utime(folder / "logs" / number / "job", (a_month_ago, a_month_ago))
    assert slugs(project.run("ddp.pbs", **silent).err) == ["scheduler-silent", "folder-holds-run"]
    for job in ("pbs 4711 other", "pbs 471 head"):
        (folder / "logs" / "4" / "job").write_text(f"{job}\n")
        assert slugs(project.run("ddp.pbs", **silent).err)[-1] == "folder-holds-run"
