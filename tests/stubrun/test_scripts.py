"""The committed scripts, run by Bash with programs that record their words: what they start, and how they end."""

import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobgen.cli import main

ROOT = Path(__file__).resolve().parents[2]
STUBS = Path(__file__).parent / "bin"
HOROVOD = ["horovod-gloo.job", "horovod.job", "horovod-srun.job"]
SLURM = ["ddp.job", "ddp-ranks.job", "ddp-mpirun.job", *HOROVOD, "single.job", "cpu.job", "check.job"]
PBS = ["ddp.pbs", "horovod.pbs"]
ALL = [*SLURM, *PBS, "ddp.sh"]


@dataclass
class Ended:
    code: int
    err: str
    calls: list[list[str]]
    env: dict[str, str]
    run_dir: Path

    def of(self, name):
        return [words for words in self.calls if words[0] == name]


@pytest.fixture(params=["plain", "a b 'c' \"d\", e:f"])
def place(request, tmp_path):
    """Return a project whose path, at the second time, is as hostile as file systems allow."""
    folder = tmp_path / request.param
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "digits.toml").touch()
    (folder / "slipway.sif").touch()
    (folder / ".venv").mkdir()
    shutil.copytree(STUBS, folder / ".venv" / "bin", symlinks=True)
    (folder / "my data").mkdir()
    (folder / "my train.py").touch()
    (folder / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")
    return folder


@pytest.fixture
def run(place):
    def run(script, *arguments, attempt=1, **env):
        log = place / "calls"
        log.unlink(missing_ok=True)
        fixed = {
            "PATH": f"{STUBS}:/usr/bin:/bin",
            "STUB_LOG": str(log),
            "RUN_DIR": str(place / "run"),
            "LOCAL_DISK": str(place),
            "PYTHONPATH": "/somewhere",
        }
        slurm = {
            "SLURM_SUBMIT_DIR": str(place),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_GPUS_ON_NODE": "2",
            "SLURM_RESTART_COUNT": str(attempt - 1),
        }
        pbs = {
            "PBS_O_WORKDIR": str(place),
            "PBS_JOBID": "4711.head",
            "PBS_NODEFILE": str(place / "nodes"),
            "NCPUS": "8",
            "STUB_RUNS": str(attempt),
            "TRAIN_ARGS": shlex.join(arguments),
        }
        path = ROOT / "jobscripts" / script
        done = subprocess.run(
            [path] if path.suffix == ".pbs" else [path, *arguments],
            cwd="/" if path.suffix == ".pbs" else place,
            env={**fixed, **(pbs if path.suffix == ".pbs" else slurm), "USE_CONTAINER": "1", **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        calls = log.read_text().split("\036\0")[:-1] if log.exists() else []
        seen = Path(f"{log}.env")
        variables = dict(item.split("=", 1) for item in seen.read_text().split("\0") if item) if seen.exists() else {}
        return Ended(done.returncode, done.stderr, [call.split("\0")[:-1] for call in calls], variables, place / "run")

    return run


def status(state, *, attempt=1, reason="", requeue=False):
    fields = {"attempt": attempt, "state": state, "reason": reason, "start_step": 3, "step": 9, "requeue": requeue}
    return json.dumps(fields)


DONE = {"STUB_STATUS": status("done")}


def pasted(said, command):
    """Return the words and the environment that ``command`` gets when what a script said is pasted into a shell."""
    script = f'{command}() {{ printf "%s\\0" "$@" --; env --null; }}; {said.partition("to continue: ")[2]}'
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True, check=True
    )
    words, _, env = done.stdout.partition("\0--\0")
    return words.split("\0"), set(env.split("\0"))


OUT_OF_TIME = {"STUB_STATUS": status("stopped", reason="time-limit", requeue=True)}


def payload_of(ended):
    """Return the words of the innermost process that trains."""
    trains = [words for words in ended.of("torchrun") + ended.of("python") if "--output-dir" in words]
    return next(words for words in trains if "trainer.preflight" not in words)


@pytest.mark.parametrize("script", ALL)
class TestLaunch:
    def test_it_ends_well(self, run, script):
        ended = run(script, **DONE)
        assert (ended.code, ended.err) == (0, "")

    def test_the_trainer_gets_the_arguments_behind_its_own(self, run, script, place):
        words = payload_of(run(script, "--epochs", "a b", **DONE))
        assert words[words.index("trainer") - 1] == "-m"
        assert words[words.index("trainer") + 1] == str(place / "configs" / "digits.toml")
        assert words[words.index("--output-dir") + 1] == str(place / "run")
        assert words[-2:] == ["--epochs", "a b"]

    def test_without_container_a_prefix_is_gone_and_nothing_else(self, run, script):
        inside, outside = run(script, **DONE), run(script, USE_CONTAINER="0", **DONE)
        words = [[word for word in payload_of(ended) if "--rdzv-" not in word] for ended in (inside, outside)]
        assert words[0] == words[1]
        assert outside.of("apptainer") == []
        starts = [words for words in inside.of("srun") + inside.of("mpirun") if "rm" not in words]
        assert starts != [] or script == "ddp.sh"

    def test_paths_are_the_same_inside(self, run, script, place):
        launch = run(script, DATA=str(place / "my data"), **DONE).of("apptainer")[-1]
        mounts = [launch[number + 1] for number, word in enumerate(launch) if word == "--mount"]
        for path in (place, place / "run", place / "my data", place / "configs" / "digits.toml"):
            quoted = str(path).replace('"', '""')
            assert f'type=bind,"source={quoted}","destination={quoted}"' in mounts
        assert f"--pwd={place}" in launch
        assert str(place / "slipway.sif") in launch

    def test_ranks_see_the_plan_and_no_foreign_python(self, run, script):
        env = run(script, attempt=3, STUB_STATUS=status("done", attempt=3 if script != "ddp.sh" else 1)).env
        ranks = {"single.job": 2, "ddp.sh": 2}.get(script, 4)
        assert env["TRAINER_WORLD_SIZE"] == str(ranks)
        assert env["TRAINER_ATTEMPT"] == ("1" if script == "ddp.sh" else "3")
        assert env["PYTHONNOUSERSITE"] == "1"
        assert "PYTHONPATH" not in env

    def test_a_script_of_ones_own_runs_in_its_place(self, run, script, place):
        ended = run(script, "--lr", "1", TRAIN_SCRIPT="my train.py", STUB_CODE="7")
        assert ended.code == 7
        last = (ended.of("torchrun") or [words for words in ended.of("python") if "-c" not in words])[-1]
        assert last[-3:] == [str(place / "my train.py"), "--lr", "1"]

    def test_the_gpus_are_asked_for_unless_the_device_is_a_cpu(self, run, script):
        for device in ("cuda", "cpu"):
            assert ("--nv" in run(script, DEVICE=device, **DONE).of("apptainer")[-1]) == (device == "cuda")

    def test_what_made_the_run_is_kept_in_its_folder(self, run, script):
        copy = run(script, **DONE).run_dir / "job.sh"
        assert copy.read_bytes() == (ROOT / "jobscripts" / script).read_bytes()

    def test_the_status_of_the_attempt_before_is_moved_aside(self, run, script, place):
        (place / "run").mkdir()
        (place / "run" / "status.json").write_text(status("done"))
        ended = run(script)
        assert ended.code == 1
        assert f"{script}: failed: crashed, exit code 0" in ended.err
        assert (place / "run" / "status.previous.json").read_text() == status("done")

    def test_a_switch_that_is_neither_is_refused(self, run, script):
        ended = run(script, USE_CONTAINER="yes")
        assert (ended.code, f"{script}: USE_CONTAINER is yes: set it to 0 or 1\n") == (78, ended.err)

    def test_staged_files_are_used_and_removed(self, run, script, place):
        (place / "my data" / "x").write_text("x")
        (place / "my data").chmod(0o555)  # shared data often are
        ended = run(script, STAGE="1", DATA="my data", **DONE)
        assert (ended.code, ended.err) == (0, "")
        words = payload_of(ended)
        staged = Path(words[words.index("--data-dir") + 1])
        assert staged.name == "my data"
        assert staged.parent.parent == place
        assert not staged.parent.exists()


@pytest.mark.parametrize("script", ALL)
class TestRefusals:
    @pytest.mark.parametrize("name", ["IMAGE", "CONFIG", "DATA", "TRAIN_SCRIPT", "LOCAL_DISK"])
    def test_what_is_missing_is_named(self, run, script, place, name):
        ended = run(script, **{name: "missing" if name != "LOCAL_DISK" else str(place / "missing")})
        assert ended.code == 78
        assert f"{script}: {place}/missing is missing" in ended.err

    def test_a_missing_environment_is_named(self, run, script, place):
        ended = run(script, USE_CONTAINER="0", VENV="missing")
        assert (ended.code, f"{place}/missing/bin/python is missing" in ended.err) == (78, True)

    def test_a_folder_that_cannot_be_written_is_named(self, run, script, place):
        ended = run(script, RUN_DIR=str(place / "slipway.sif" / "run"))
        assert (ended.code, "set OUTPUT to a folder of all nodes" in ended.err) == (78, True)

    def test_a_line_break_in_a_path_is_refused(self, run, script):
        ended = run(script, DATA="a\nb")
        assert (ended.code, f"{script}: DATA holds a line break: rename it\n") == (78, ended.err)

    def test_a_node_that_is_not_ready_ends_it_before_the_launch(self, run, script):
        ended = run(script, STUB_PREFLIGHT="78", **DONE)
        assert (ended.code, "not every node was ready" in ended.err) == (78, True)
        assert ended.of("torchrun") == []


@pytest.mark.parametrize("script", SLURM)
class TestEnds:
    def test_out_of_time_it_requeues_itself(self, run, script):
        ended = run(script, **OUT_OF_TIME)
        assert ended.code == 75
        assert ended.of("scontrol")[-1] == ["scontrol", "requeue", "4711"]
        assert ended.calls[-1][0] == "scontrol"
        assert f"{script}: out of time at step 9, requeueing; restart 1 of at most 10\n" in ended.err

    def test_a_task_of_an_array_by_its_own_number(self, run, script):
        ended = run(script, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3", **OUT_OF_TIME)
        assert ended.of("scontrol")[-1] == ["scontrol", "requeue", "4700_3"]

    def test_as_often_as_allowed(self, run, script):
        ended = run(script, attempt=3, MAX_REQUEUES="2", STUB_STATUS=status("stopped", attempt=3, requeue=True))
        assert ended.code == 75
        assert ["scontrol", "requeue", "4711"] not in ended.calls
        assert "to continue: USE_CONTAINER=1 " in ended.err

    @pytest.mark.parametrize(
        "said",
        [
            status("stopped", reason="time-limit"),  # no step gained
            status("stopped", reason="user"),
            status("stopped", reason="signal"),
            status("stopped", attempt=2, reason="time-limit", requeue=True),  # of another attempt
            status("failed", reason="the loss is nan"),
            status("running"),
            "",
        ],
    )
    def test_nothing_else_is_requeued(self, run, script, said):
        ended = run(script, STUB_STATUS=said)
        assert ended.code != 0
        assert ["scontrol", "requeue", "4711"] not in ended.calls

    def test_where_requeueing_is_refused_the_way_on_is_told(self, run, script, place):
        ended = run(script, "--epochs", "9", STUB_REQUEUE="1", **OUT_OF_TIME)
        assert ended.code == 75
        words, env = pasted(ended.err, "sbatch")
        assert words == ["--nodes=2", str(place / "run" / "job.sh"), "--epochs", "9"]
        assert {f"RUN_DIR={place}/run", f"CONFIG={place}/configs/digits.toml", "USE_CONTAINER=1"} <= env

    def test_the_cause_of_a_failure_is_told_in_one_line(self, run, script):
        ended = run(script, STUB_ERROR="trainer: the data are gone", STUB_CODE="1")
        assert (ended.code, ended.err.splitlines()[-1]) == (1, f"{script}: failed: trainer: the data are gone")


PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def test_each_rank_is_named_where_srun_starts_it(run):
    env = run("ddp-ranks.job", **DONE).env
    assert {name: env[name] for name in PLACE} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "24711",
    }


def test_a_warning_of_a_taken_port_is_no_reason_to_train_again(run):
    ended = run("ddp.job", STUB_ERROR="warning: Address already in use", **DONE)
    assert (ended.code, len(ended.of("torchrun"))) == (0, 1)
    own = run("ddp.job", STUB_ERROR="warning: Address already in use", TRAIN_SCRIPT="my train.py")
    assert (own.code, len(own.of("torchrun"))) == (0, 1)


def test_a_port_that_cannot_be_tested_is_told(run):
    ended = run("ddp.job", STUB_PORT_TEST="FATAL: container creation failed")
    assert (ended.code, "FATAL: container creation failed" in ended.err) == (1, True)
    assert ended.of("torchrun") == []


def test_a_port_that_is_taken_is_followed_by_the_next(run):
    ended = run("ddp.job", STUB_PORTS="2", **DONE)
    assert ended.code == 0
    points = [word for words in ended.of("torchrun") for word in words if word.startswith("--rdzv-endpoint=")]
    assert points == [f"--rdzv-endpoint=node1:{port}" for port in (24711, 24712, 24713)]


def test_only_the_check_tests_itself_in_the_place_of_training(run):
    found = {script: "--self-test" in payload_of(run(script, **DONE)) for script in ALL}
    assert [script for script, tests in found.items() if tests] == ["check.job"]


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_a_head_node_that_only_knows_itself_is_refused(run, address):
    ended = run("ddp.job", STUB_ADDRESS=address)
    assert (ended.code, f"node1 resolves to {address} here" in ended.err) == (78, True)


def test_the_number_of_ranks_follows_the_gpus_of_the_job(run):
    for given, ranks in (
        ({"SLURM_GPUS_ON_NODE": "4"}, "4"),
        ({"GPUS_PER_NODE": "3"}, "3"),
        ({"RANKS_PER_NODE": "1"}, "1"),
    ):
        assert f"--nproc-per-node={ranks}" in payload_of(run("ddp.job", **given, **DONE))


class TestHorovod:
    def test_ranks_are_numbered_and_meet_at_the_server_on_the_head_node(self, run):
        ended = run("horovod-gloo.job", **DONE)
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
        assert [ended.env[f"HOROVOD_{name}"] for name in names] == ["1", "4", "1", "2", "0", "2", "0"]
        assert ended.env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
        assert ended.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "54321"
        server = next(words for words in ended.of("python") if "RendezvousHTTPServer" in words[2])
        assert server[3:] == ["10.0.0.1", "2", "2"]

    def test_over_mpi_ranks_are_told_nothing_but_what_the_preflight_compares(self, run):
        env = run("horovod.job", **DONE).env
        assert env["TRAINER_MPI"] == "mpirun (Open MPI) 4.1.4"
        assert [name for name in env if name.startswith("HOROVOD_") or name == "RANK"] == []

    def test_slurm_is_asked_for_its_pmix(self, run):
        ended = run("horovod-srun.job", **DONE)
        assert ended.env["TRAINER_MPI"] == "MPI plugin types are pmix"
        assert "--mpi=pmix" in next(
            words for words in ended.of("srun") if "--mpi=list" not in words and "trainer" in words
        )


class TestMpirun:
    def test_every_variable_is_handed_over_by_name(self, run):
        words = run("ddp-mpirun.job", STRANGE="a\n;b", **DONE).of("mpirun")[-1]
        named = {words[number + 1] for number, word in enumerate(words) if word == "-x"}
        assert {"STRANGE", "MASTER_ADDR", "MASTER_PORT", "PATH", "OMP_NUM_THREADS", "TRAINER_WORLD_SIZE"} <= named
        assert [name for name in named if name.startswith("SLURM_")] == []

    def test_ranks_get_more_than_a_second_to_save(self, run):
        env = run("ddp-mpirun.job", **DONE).env
        assert env["OMPI_MCA_odls_base_sigkill_timeout"] == "15"
        assert env["PRTE_MCA_prte_launch_agent"] == "env --block-signal=TERM prted"


class TestPBS:
    def test_arguments_come_by_a_variable_quoted_as_in_a_shell(self, run):
        assert payload_of(run("ddp.pbs", TRAIN_ARGS="--name 'a  b' --epochs 2 *", **DONE))[-5:] == [
            *("--name", "a  b", "--epochs", "2", "*")
        ]

    def test_out_of_time_it_is_continued_by_a_job_with_the_same_settings(self, run, place):
        ended = run("ddp.pbs", "--epochs", "9", DATA="my data", **OUT_OF_TIME)
        assert ended.code == 75
        assert ended.err.endswith("continued by job 4712.head; restart 1 of at most 10\n")
        words = ended.of("qsub")[0]
        assert words[1:] == ["-V", "-W", "depend=afterany:4711.head", str(place / "run" / "job.sh")]
        assert (place / "calls.qsub").read_text().split("\0")[:-1] == ["RESTARTS=1", "DATA=my data"]

    def test_as_often_as_allowed_and_then_the_way_on_is_told(self, run, place):
        ended = run(
            "ddp.pbs",
            "--epochs",
            "9",
            RESTARTS="2",
            MAX_REQUEUES="2",
            STUB_STATUS=status("stopped", attempt=3, requeue=True),
        )
        assert (ended.code, ended.of("qsub")) == (75, [])
        words, env = pasted(ended.err, "qsub")
        assert words == ["-V", str(place / "run" / "job.sh")]
        assert {f"RUN_DIR={place / 'run'}", "TRAIN_ARGS=--epochs 9", "RESTARTS=0"} <= env

    def test_where_submitting_is_refused_the_way_on_is_told(self, run):
        ended = run("ddp.pbs", STUB_REQUEUE="1", **OUT_OF_TIME)
        assert (ended.code, " RESTARTS=0 qsub " in ended.err) == (75, True)

    def test_short_of_the_limit_it_asks_the_ranks_to_stop(self, run, place):
        ended = run("ddp.pbs", STUB_WALLTIME="00:01:59", STUB_SLEEP="1", **DONE)
        assert ended.code == 0
        assert (place / "run" / "STOP").read_text() == "time-limit 4711/1\n"


class TestSsh:
    """One node's words: the stub starts nothing on the other."""

    @pytest.fixture
    def script(self, tmp_path):
        def script(spec):
            path = tmp_path / f"{spec}.pbs"
            words = ["render", spec, "--site", "torque", "--set", "modules=[]", "--set", "gpus_per_node=2"]
            assert main([*words, "--output", str(path)]) == 0
            return path

        return script

    @pytest.fixture(autouse=True)
    def in_the_project(self, monkeypatch):
        monkeypatch.chdir(ROOT)

    def test_a_node_gets_its_number_its_folder_and_the_environment(self, run, script, place):
        ended = run(script("ddp"), "--epochs", "a b", STRANGE="a\n'b", **DONE)
        assert (ended.code, ended.err) == (0, "")
        assert "--rdzv-backend=static" in payload_of(ended)
        assert payload_of(ended)[-2:] == ["--epochs", "a b"]
        assert {name: ended.env[name] for name in ("PET_NODE_RANK", "PWD", "STRANGE")} == {
            "PET_NODE_RANK": "1",
            "PWD": str(place),
            "STRANGE": "a\n'b",
        }
        assert "SSH_CLIENT" not in ended.env

    def test_ranks_are_numbered_across_the_nodes(self, run, script):
        ended = run(script("horovod-gloo"), **DONE)
        assert ended.code == 0
        assert (ended.env["HOROVOD_CROSS_RANK"], ended.env["HOROVOD_RANK"] in {"2", "3"}) == ("1", True)

    def test_a_node_that_fails_is_noticed(self, run, script):
        assert run(script("ddp"), STUB_PREFLIGHT="78").code == 78
        assert run(script("ddp"), TRAIN_SCRIPT="my train.py", STUB_CODE="7").code == 7
