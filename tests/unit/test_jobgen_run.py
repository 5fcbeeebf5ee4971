"""jobgen run and jobgen.Job: what a job is made of, and what is refused before it enters a queue."""

import inspect
import os
import re
import sys
import time
from pathlib import Path

import pytest

from jobgen import Job
from jobgen.cli import main
from jobgen.jobs.run_files import RunFiles
from jobgen.run.limits import clock, minutes_of
from jobgen.run.program import program_of
from jobgen.run.source import read_source
from messages import assert_error, assert_warning, refused, slugs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("login_node")
SITE = """
name = "mine"
gpus_per_node = 4
cpus_per_gpu = 8
shared = ["/"]
mem = "400G"
[options]
partition = "gpu"
account = "example"
"""


@pytest.fixture(autouse=True)
def folder(login_node):
    """Return the working directory: a clone with an image, a site of nodes with four GPUs, and a script."""
    Path("mine.toml").write_text(SITE)
    Path("my_train.py").write_text("import torch.distributed\n")
    return login_node


def run(capsys, *words, code=0):
    assert main(["run", *words]) == code
    return capsys.readouterr()


def submitted(folder, capsys, *words, site="mine.toml"):
    """Return the script that ``jobgen run`` submits, and the environment of the command."""
    out, _ = run(capsys, "my_train.py", "--site", site, *words)
    number = out.split()[-1].partition(".")[0]
    assert number == (folder / "number").read_text().strip()
    return (folder / f"{number}.script").read_text(), (folder / f"{number}.environment").read_text()


def directives(script):
    """Return the options of a script's #SBATCH lines."""
    return dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=?(\S*)", script))


def given(script):
    """Return the settings that a submission has written into its script."""
    return dict(re.findall(r"(?m)^given (\w+) '?(.*?)'?(?: \\)?$", script))


class TestLimits:
    @pytest.mark.parametrize(
        ("text", "minutes"),
        [
            ("90", 90),
            ("90:30", 91),
            ("4:00:00", 240),
            ("0:00:01", 1),
            ("1-0", 1440),
            ("2-12:30", 3630),
            ("1-00:00:01", 1441),
        ],
    )
    def test_formats_of_slurm(self, text, minutes):
        assert minutes_of(text) == minutes

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("4h", ["4:00:00"]),
            ("90min", ["1:30:00"]),
            ("1d12h", ["1-12:00:00"]),
            ("30 m", ["00:30:00"]),
            ("", []),
            ("x", []),
            ("-5", []),
            ("1:2:3:4", []),
            ("1-2:3:4:5", []),
            ("٤", []),
            ("0", []),
            ("9999999999999999", []),
        ],
    )
    def test_other_formats_are_refused(self, text, values):
        with refused("bad-flag-value", *values, code=2):
            minutes_of(text)

    @pytest.mark.parametrize(("minutes", "text"), [(5, "00:05:00"), (240, "4:00:00"), (1500, "1-01:00:00")])
    def test_clock_is_read_back(self, minutes, text):
        assert (clock(minutes), minutes_of(clock(minutes))) == (text, minutes)


class TestProgram:
    @pytest.mark.parametrize(
        ("words", "kind", "name"),
        [
            ({"path": "my_train.py"}, "script", "my_train"),
            ({"path": "configs/digits.toml"}, "configuration", "digits"),
            ({"module": "package.train"}, "module", "package.train"),
        ],
    )
    def test_kinds(self, words, kind, name):
        program = program_of(**words)
        assert (program.kind, program.name) == (kind, name)

    @pytest.mark.parametrize(
        ("file", "name"),
        [("my train (2).py", "my-train-2"), ("-x-.py", "x"), ("é.py", "train"), ("a" * 90 + ".py", "a" * 64)],
    )
    def test_name_is_valid_for_a_job(self, file, name):
        Path(file).touch()
        assert program_of(file).name == name

    @pytest.mark.parametrize("name", ["my_train-101", "101"])
    def test_name_or_number_of_a_run_is_recognized(self, name):
        Path("runs", "my_train-101").mkdir(parents=True)
        Path("runs", "my_train-101", "job.sh").touch()
        with refused("no-script", "runs/my_train-101"):
            program_of(name)

    @pytest.mark.parametrize(
        ("words", "slug"),
        [
            ({}, "bad-program"),
            ({"path": "my_train.py", "module": "x"}, "bad-program"),
            ({"module": "../x"}, "bad-program"),
            ({"path": "missing.py"}, "no-script"),
            ({"path": "missing.toml"}, "no-script"),
            ({"path": "missing"}, "no-script"),
            ({"path": "slipway.sif"}, "bad-program"),
            ({"path": "configs"}, "bad-program"),
            ({"path": "a\0b.py"}, "no-script"),
        ],
    )
    def test_others_are_refused(self, words, slug):
        with refused(slug):
            program_of(**words)


class TestRequest:
    def test_flags_become_directives_and_settings(self, folder, capsys):
        given_flags = {
            "nodes": 2, "gpus-per-node": 2, "gpu-type": "a100", "cpus-per-task": 6, "mem": "64G", "time": "4:00:00",
            "partition": "short", "account": 123, "qos": "high", "array": "0-3", "name": "mine", "spares": 1,
            "data": "configs", "image": "other.sif",
        }  # fmt: skip
        words = [f"--{flag}={value}" for flag, value in given_flags.items()]
        Path("other.sif").touch()
        words += ["--env", "GREETING=it's 1", "--", "--lr", "0.1"]
        script, environment = submitted(folder, capsys, *words)
        found = directives(script)
        expected = {
            "job-name": "mine", "nodes": "3", "gpus-per-node": "a100:2", "cpus-per-task": "12", "mem": "65536M",
            "time": "04:00:00", "partition": "short", "account": "123", "qos": "high", "array": "0-3",
        }  # fmt: skip
        assert {name: found.get(name) for name in expected} == expected
        settings = given(script)
        assert settings["SLIPWAY_SCRIPT"] == "my_train.py"
        assert settings["SLIPWAY_DATA"] == "configs"
        assert settings["SLIPWAY_IMAGE"] == "other.sif"
        assert "GREETING=it's 1" in environment.splitlines()
        assert "GREETING" in settings
        assert (folder / "101.arguments").read_text().splitlines()[2:] == ["--lr", "0.1"]

    def test_defaults_are_one_node_with_all_its_gpus(self, folder, capsys):
        found = directives(submitted(folder, capsys)[0])
        assert (found["nodes"], found["gpus-per-node"], found["job-name"]) == ("1", "4", "my_train")

    def test_one_process_gets_all_gpus(self, folder, capsys):
        words = ["--backend", "single", "--gpus-per-node", "2", "--cpus-per-task", "6"]
        found = directives(submitted(folder, capsys, *words)[0])
        assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == ("1", "1", "2")
        assert found["cpus-per-task"] == "6"

    def test_ranks_with_two_gpus_each(self, folder, capsys):
        words = ["--gpus-per-node", "4", "--set", "devices_per_rank=2", "--cpus-per-task", "4", "--backend", "horovod"]
        found = directives(submitted(folder, capsys, *words)[0])
        assert (found["ntasks-per-node"], found["gpus-per-node"], found["cpus-per-task"]) == ("2", "4", "4")

    def test_horovod_starts_each_rank(self, folder, capsys):
        script, _ = submitted(folder, capsys, "--backend", "horovod", "--gpus-per-node", "2")
        assert directives(script)["ntasks-per-node"] == "2"
        assert given(script)["BACKEND"] == "horovod"

    def test_module(self, folder, capsys):
        out, _ = run(capsys, "-m", "package.train", "--site", "mine.toml")
        assert out.split() == ["101"]
        assert "-m package.train" in given((folder / "101.script").read_text())["SLIPWAY_SCRIPT"]

    def test_configuration_wins_over_a_script_in_the_environment(self, folder, capsys, setenv):
        setenv(SLIPWAY_SCRIPT="my_train.py")
        run(capsys, "configs/digits.toml", "--site", "mine.toml")
        settings = given((folder / "101.script").read_text())
        assert settings["SLIPWAY_CONFIG"] == "configs/digits.toml"
        assert "SLIPWAY_SCRIPT" not in settings

    @pytest.mark.parametrize("value", ["true", "7", "1e3", "a b", 'with "quotes"', "=", "é"])
    def test_texts_stay_texts(self, folder, capsys, value):
        """A setting is read as TOML: ``true`` would be an option without a value."""
        _, environment = submitted(folder, capsys, "--env", f"X={value}")
        assert f"X={value}" in environment.splitlines()
        if value.isalnum() and value.isascii():
            assert directives(submitted(folder, capsys, "--account", value)[0])["account"] == value

    def test_pbs(self, folder, capsys):
        Path("pbs.toml").write_text(f'scheduler = "pbs"{SITE}'.replace("partition", "q").replace("account", "A"))
        words = "--queue short --account me --array 0-3 --nodes 2 --gpus-per-node 2 --mem 10G -- --lr 0.1"
        script, _ = submitted(folder, capsys, *words.split(), site="pbs.toml")
        text = " ".join(re.findall(r"(?m)^#PBS (.*)$", script))
        for part in ("-q short", "-A me", "-J 0-3", "-r y", "2:ncpus=16:ngpus=2:mem=10240mb:mpiprocs=2"):
            assert part in text
        assert given(script)["SLIPWAY_ARGS"] == "--lr 0.1"

    def test_dry_run_submits_nothing(self, folder, capsys):
        out, err = run(capsys, "my_train.py", "--site", "mine.toml", "--dry-run", "--time", "30")
        assert directives(out)["time"] == "00:30:00"
        assert (folder / "number").read_text() == "100"
        assert "sbatch" in err

    def test_dry_run_shows_no_script_at_a_terminal(self, capsys, monkeypatch):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        out, err = run(capsys, "my_train.py", "--site", "mine.toml", "--dry-run")
        assert out == ""
        assert "jobgen: SLIPWAY_" in err

    def test_dry_run_returns_the_first_error(self, capsys):
        Path("slipway.sif").unlink()
        out, _ = run(capsys, "my_train.py", "--site", "mine.toml", "--dry-run", "--image", "slipway.sif", code=78)
        assert out == ""

    def test_from_python(self, folder):
        run = Job("my_train.py", "--lr", "0.1", nodes=2, gpus_per_node=4, time="4:00:00", site="mine.toml").submit()
        assert run.name == "101"
        assert directives((folder / "101.script").read_text())["nodes"] == "2"
        assert (folder / "101.arguments").read_text().splitlines()[2:] == ["--lr", "0.1"]

    def test_environment_instead_of_the_image(self, folder, capsys, setenv):
        """The active environment, if there is no image; a Python that does not answer is not asked again."""
        Path("slipway.sif").unlink()
        python = Path("env", "bin", "python")
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
        setenv(VIRTUAL_ENV=str(Path("env").resolve()))
        settings = given(submitted(folder, capsys)[0])
        assert (settings["USE_CONTAINER"], settings["SLIPWAY_VENV"]) == ("0", str(Path("env").resolve()))

    def test_continued_run(self, folder, capsys):
        """The header of its job.sh has spec and site; flags change the resources; the program stays."""
        script, _ = submitted(folder, capsys, "--nodes", "2", "--time", "30", "--account", "me")
        run_folder = Path("runs", "my_train-101")
        run_folder.mkdir(parents=True)
        (run_folder / "job.sh").write_text(f"{script}\nrestore_setting SLIPWAY_SCRIPT my_train.py\n")
        run(capsys, str(run_folder), "--time", "8:00:00", "--", "--own-flag")
        again = (folder / "102.script").read_text()
        found = directives(again)
        expected = {"nodes": "2", "time": "08:00:00", "account": "me", "job-name": "my_train"}
        assert {name: found[name] for name in expected} == expected
        assert given(again)["SLIPWAY_RUN_DIR"] == str(run_folder.resolve())
        run(capsys, str(run_folder), "--nodes", "1")
        assert directives((folder / "103.script").read_text())["nodes"] == "1"

    @pytest.fixture
    def begun(self, folder, capsys):
        """Return a function that begins a run with flags and returns its folder, as after the end of its job."""

        def begin(*words):
            script, _ = submitted(folder, capsys, *words)
            number = (folder / "number").read_text().strip()
            path = Path("runs", f"my_train-{number}").resolve()
            path.mkdir(parents=True)
            kept = f"kept_folder={Path.cwd()}\nrestore_setting SLIPWAY_SCRIPT my_train.py\n"
            (path / "job.sh").write_text(f"{script}\n{kept}")
            return path

        return begin

    def test_continued_run_shows_the_arguments_that_it_keeps(self, begun):
        path = begun()
        kept = """[ $# -gt 0 ] || [ -n "${SLIPWAY_ARGS:-}" ] || set -- '--lr' '0.1' 'two words'\n"""
        with (path / "job.sh").open("a") as file:
            file.write(kept)
        shown = [line.split(maxsplit=1)[1] for line in Job(path).plan().lines() if line.startswith("program")]
        assert shown == ["my_train.py --lr 0.1 'two words'"]
        shown = [line.split(maxsplit=1)[1] for line in Job(path, "--x").plan().lines() if line.startswith("program")]
        assert shown == ["my_train.py --x"]

    def test_job_that_is_ending_is_waited_for(self, folder, begun, capsys, monkeypatch):
        """After `jobgen cancel`: the ranks have saved, and Slurm completes the job."""
        monkeypatch.setattr("jobgen.run.earlier_run.POLL", 0.01)
        path = begun()
        (path / "logs" / "1").mkdir(parents=True)
        (path / "logs" / "1" / "job").write_text("slurm 101\n")
        (path / "verdict.1").write_text("stopped 40 signal\n")
        row = "101|COMPLETING|None|node1|0:09|1:00:00|2026-11-24T08:02:00|/x|my_train|x.job"
        answers = folder / "answers"
        answers.write_text("0")
        squeue = folder / "bin" / "squeue"
        squeue.write_text(f'#!/bin/bash\nn=$(<{answers}); echo $((n + 1)) >{answers}; [ $n -gt 2 ] || echo "{row}"\n')
        squeue.chmod(0o755)
        run(capsys, str(path))
        assert int(answers.read_text()) > 3

    def test_continued_run_gets_the_ranks_of_its_new_gpus(self, folder, begun, capsys):
        """Its job.sh has the old number as a default."""
        path = begun("--gpus-per-node", "4")
        run(capsys, str(path), "--gpus-per-node", "2")
        again = (folder / "102.script").read_text()
        assert directives(again)["gpus-per-node"] == "2"
        assert given(again)["SLIPWAY_RANKS_PER_NODE"] == "2"

    def test_continued_run_gets_the_named_image(self, folder, begun, capsys):
        """Also the one that is its site's default: its job.sh may keep another."""
        run(capsys, str(begun()), "--image", "slipway.sif")
        found = given((folder / "102.script").read_text())
        assert (found["USE_CONTAINER"], found["SLIPWAY_IMAGE"]) == ("1", "slipway.sif")

    def test_continued_task_of_an_array_is_one_job(self, folder, begun, capsys):
        run(capsys, str(begun("--array", "0-3")))
        assert "array" not in directives((folder / "102.script").read_text())

    def test_settings_of_the_shell_do_not_replace_those_of_a_run(self, folder, begun, capsys, setenv):
        path = begun()
        setenv(SLIPWAY_DATA="/usr", USE_CONTAINER="0", SLIPWAY_VENV="/x", SLIPWAY_SCRIPT="other.py", SLIPWAY_STAGE="1")
        run(capsys, str(path))
        names = {"SLIPWAY_SCRIPT", "SLIPWAY_RUN_DIR", "SLIPWAY_LIB"}
        assert set(given((folder / "102.script").read_text())) == names
        assert "SLIPWAY_DATA=/usr" not in (folder / "102.environment").read_text().splitlines()

    def test_run_continues_from_another_folder(self, folder, begun, capsys, monkeypatch):
        """The relative path of its site starts at its first folder; another file may have that name here."""
        path = begun()
        Path("elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        Path("mine.toml").write_text(SITE.replace('partition = "gpu"', 'partition = "other"'))
        run(capsys, str(path))
        assert directives((folder / "102.script").read_text())["partition"] == "gpu"

    @pytest.mark.parametrize("words", ["--site mine.toml", "--backend ddp", "--name x", "--array 0-3", "--spares 1"])
    def test_what_a_run_keeps_is_refused(self, begun, words):
        path = begun()
        flag, value = words[2:].split()
        with refused("flag-conflict", f"--{flag}", code=2):
            Job(path, **{flag: int(value) if flag == "spares" else value}).plan()

    def test_folder_of_a_run_in_the_shell_is_not_taken_by_another_program(self, begun, setenv):
        setenv(SLIPWAY_RUN_DIR=str(begun()))
        with refused("flag-conflict", "SLIPWAY_RUN_DIR", code=2):
            Job("my_train.py", site="mine.toml").plan()

    def test_flags_win_over_settings_of_the_shell(self, folder, capsys, setenv):
        setenv(SLIPWAY_SPARES="1", SLIPWAY_RANKS_PER_NODE="1")
        script, _ = submitted(folder, capsys, "--spares", "0", "--nodes", "2", "--gpus-per-node", "2")
        assert directives(script)["nodes"] == "2"
        assert "SLIPWAY_RANKS_PER_NODE" not in given(script)

    def test_value_that_bash_has_quoted_is_read(self, folder):
        Path("job.sh").write_text("restore_setting SLIPWAY_SCRIPT $'/x/t\\303\\251 st.py'\n")
        assert RunFiles(Path()).kept_setting("SLIPWAY_SCRIPT") == "/x/té st.py"

    def test_run_that_trains_now_is_refused(self):
        Path("run").mkdir()
        Path("run", "job.sh").touch()
        Path("run", "lock").touch()  # a heartbeat
        with refused("folder-in-use", "run"):
            Job("run").plan()

    def test_variables_of_sbatch_do_not_replace_what_is_shown(self, folder, capsys, setenv):
        """sbatch prefers them to the directives of a script."""
        setenv(SBATCH_PARTITION="other", SBATCH_TIMELIMIT="9", SBATCH_ARRAY_INX="0-9", SBATCH_RESERVATION="lab")
        out, err = run(capsys, "my_train.py", "--site", "mine.toml")
        environment = (folder / f"{out.strip()}.environment").read_text()
        assert re.findall(r"SBATCH_\w+", environment) == ["SBATCH_RESERVATION"]
        assert_warning(err, "ignored-variable", "SBATCH_ARRAY_INX", "SBATCH_PARTITION", "SBATCH_TIMELIMIT")

    def test_options_of_the_site_are_shown(self, folder):
        Path("mine.toml").write_text(f'{SITE}time = "9:00:00"\n')
        lines = Job("my_train.py", site="mine.toml").plan().lines()
        assert [line for line in lines if line.startswith("time") and "9:00:00" in line]

    def test_run_folder_that_others_can_write_is_refused(self, begun):
        path = begun()
        path.chmod(0o777)
        with refused("writable-by-others", str(path)):
            Job(path).plan()

    def test_values_of_other_types(self, folder):
        run = Job(Path("my_train.py"), "--lr", 0.1, time=90, env={"OMP_NUM_THREADS": 2}, site="mine.toml").submit()
        script = (folder / f"{run.name}.script").read_text()
        assert (directives(script)["time"], given(script)["OMP_NUM_THREADS"]) == ("01:30:00", "2")
        assert (folder / f"{run.name}.arguments").read_text().splitlines()[2:] == ["--lr", "0.1"]

    def test_run_of_another_user(self, monkeypatch):
        Path("run").mkdir()
        Path("run", "job.sh").touch()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with refused("foreign-run", "run", code=78):
            Job("run").plan()

    def test_job_that_the_scheduler_refuses(self, setenv, capsys):
        setenv(REFUSED="101")
        with refused("submission-refused", code=78):
            Job("my_train.py", site="mine.toml").submit()
        out, err = run(capsys, "my_train.py", "--site", "mine.toml", "--set", "name=x", code=0)
        assert (out.split(), "error" in err) == (["102"], False)


MISUSES = [
    ("missing.py", "no-script", 78),
    ("slipway.sif", "bad-program", 2),
    ("my_train.py --time 4h", "bad-flag-value", 2),
    ("my_train.py --time 0", "bad-flag-value", 2),
    ("my_train.py --time 3", "time-too-short", 78),
    ("my_train.py --gpus-per-node 0", "bad-flag-value", 2),
    ("my_train.py --gpus-per-node 8", "too-few-gpus", 78),
    ("my_train.py --gpus-per-node x", "bad-arguments", 2),
    ("my_train.py --nodes 0", "bad-value", 78),
    ("my_train.py --nodes -1", "bad-value", 78),
    ("my_train.py --gpus 8", "bad-arguments", 2),
    ("my_train.py --gres=gpu:4", "bad-arguments", 2),
    ("my_train.py --lr 0.1", "bad-arguments", 2),
    ("my_train.py second.py", "bad-arguments", 2),
    ("my_train.py -m package.train", "bad-program", 2),
    ("--nodes 2", "bad-program", 2),
    ("my_train.py --backend nccl", "bad-flag-value", 2),
    ("my_train.py --backend single --nodes 2", "conflicting-settings", 78),
    ("my_train.py --image slipway.sif --venv .venv", "flag-conflict", 2),
    ("my_train.py --image missing.sif", "no-image", 78),
    ("my_train.py --venv missing", "no-environment", 78),
    ("my_train.py --conda missing", "no-environment", 78),
    ("my_train.py --data missing", "no-data", 78),
    ("my_train.py --env X", "bad-flag-value", 2),
    ("my_train.py --env 1=2", "bad-flag-value", 2),
    ("my_train.py --env PATH=/x", "bad-flag-value", 2),
    ("my_train.py --env SLIPWAY_SCRIPT=x.py", "bad-flag-value", 2),
    ("my_train.py --env USE_CONTAINER=1", "bad-flag-value", 2),
    ("my_train.py --env SLIPWAY_RUN_DIR=x", "bad-flag-value", 2),
    ("my_train.py --follow --array 0-3", "flag-conflict", 2),
    ("my_train.py --nodes 2 --set nodes=1", "flag-conflict", 2),
    ("my_train.py --partition gpu --set options.partition=cpu", "flag-conflict", 2),
    ("my_train.py --backend ddp --set backend=horovod", "flag-conflict", 2),
    ("my_train.py --nodes 2 --set options.nodes=5", "flag-conflict", 2),
    ("my_train.py --set options.time=9:00:00", "flag-conflict", 2),
    ("my_train.py --set options.no-requeue=true", "flag-conflict", 2),
    ('my_train.py --set options={partition="b"}', "bad-flag-value", 2),
    ("my_train.py --venv .venv --set venv=other", "flag-conflict", 2),
    ("my_train.py --backend single --gpus-per-node 2 --cpus-per-task 3", "bad-flag-value", 2),
    ("my_train.py --gpus-per-node 3 --set devices_per_rank=2", "bad-flag-value", 2),
    ("my_train.py --mem lots", "bad-value", 78),
    ("my_train.py --cpus-per-task 0", "bad-value", 78),
    ("my_train.py --name ../x", "bad-value", 78),
    ("my_train.py --set nodez=2", "unknown-key", 78),
    ("my_train.py --site nowhere", "unknown-name", 78),
    ("configs/digits.toml -- --lrr 1", "unknown-flag", 2),
]


@pytest.mark.parametrize(("words", "slug", "code"), MISUSES)
def test_misuse_is_refused_before_the_queue(folder, capsys, words, slug, code):
    site = [] if "--site" in words else ["--site", "mine.toml"]
    words, dashes, arguments = words.partition(" -- ")
    try:
        found = main(["run", *words.split(), *site, *(["--", *arguments.split()] if dashes else [])])
    except SystemExit as end:
        found = end.code
    out, err = capsys.readouterr()
    assert_error(err, slug)
    assert (found, out) == (code, "")
    assert (folder / "number").read_text() == "100"


def test_help_lists_each_argument_of_the_class(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    names = set(inspect.signature(Job).parameters) - {"program", "arguments", "module", "settings"}
    assert [name for name in names if f"--{name.replace('_', '-')} " not in text] == []


class TestSource:
    """What the text of a script tells: whether its ranks train together, whether it can continue."""

    @pytest.mark.parametrize(
        ("text", "parallel", "session"),
        [
            ("import torch\n", False, False),
            ("from torch.nn.parallel import DistributedDataParallel\n", True, False),
            ("from slipway import Session\nimport torch.distributed as dist\n", True, True),
            ("import lightning\n", True, False),
            ("import helper\n", None, None),  # a module next to it
            ("from .helper import main\n", None, None),
            ("from package.train import main\nimport slipway\n", None, True),
        ],
    )
    def test_facts(self, text, parallel, session):
        Path("helper.py").touch()
        Path("package").mkdir()
        Path("my_train.py").write_text(text)
        assert read_source(Path("my_train.py")) == (parallel, session)

    def test_script_without_process_group_causes_a_warning_for_several_ranks(self, capsys):
        Path("my_train.py").write_text("import torch\n")
        _, err = run(capsys, "my_train.py", "--site", "mine.toml", "--dry-run", "--nodes", "2")
        assert slugs(err) == ["no-process-group"]
        _, err = run(capsys, "my_train.py", "--site", "mine.toml", "--dry-run", "--gpus-per-node", "1")
        assert slugs(err) == []

    def test_run_without_a_session_starts_over(self, folder, capsys):
        script, _ = submitted(folder, capsys)
        attempt = Path("runs", "my_train-101", "logs", "1")
        attempt.mkdir(parents=True)
        (attempt / "code").write_text("143\n")
        (attempt.parents[1] / "job.sh").write_text(f"{script}\nrestore_setting SLIPWAY_SCRIPT my_train.py\n")
        _, err = run(capsys, "runs/my_train-101")
        assert "starts-over" in slugs(err)


class TestThisMachine:
    """A site without a scheduler."""

    @pytest.fixture
    def local(self, setenv):
        """Write a script and a site of one machine; return the words that select this environment and two ranks."""
        Path("here.toml").write_text('name = "here"\nscheduler = "local"\nresume = "none"\ncontainer = "none"\n')
        setenv(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin", SLIPWAY_DEVICE="cpu", OMP_NUM_THREADS="1")
        Path("my_train.py").write_text(
            "import os, sys\n"
            "import torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "words = dist.get_rank(), dist.get_world_size(), sys.argv[1:], os.environ['GREETING']\n"
            "os.write(1, b'rank %d %d %a %a\\n' % words)  # in one piece: both ranks write to one log\n"
            "dist.destroy_process_group()\n"
        )
        return {"venv": sys.prefix, "gpus_per_node": 2, "env": {"GREETING": "hello"}, "site": "here.toml"}

    def test_ranks_start_here_in_the_background(self, local):
        run = Job("my_train.py", "--lr", "0.1", **local).submit()
        assert run.wait(timeout=120) == "done"
        log = run.folder.with_name(f"{run.folder.name}.log").read_text()
        assert sorted(re.findall(r"rank (\d) (\d) (\[.*\]) '(\w+)'", log)) == [
            (rank, "2", "['--lr', '0.1']", "hello") for rank in "01"
        ]

    def test_job_that_fails_before_its_ranks_start_has_ended(self, local):
        """Its run folder has no end of an attempt."""
        local["env"] = {"SLIPWAY_DEVICE": "cuda"}
        assert Job("my_train.py", **local).submit().wait(timeout=60) == "failed"

    def test_running_job_is_not_started_again_and_both_end_by_cancel(self, local):
        Path("my_train.py").write_text("import time, torch.distributed\ntime.sleep(600)\n")
        first = Job("my_train.py", **local).submit()
        log = first.folder.with_name(f"{first.folder.name}.log")
        before = time.monotonic()
        while first.state != "started" and time.monotonic() < before + 60:
            time.sleep(0.1)
        second = Job("my_train.py", **local).submit()
        assert second.folder != first.folder
        for job in (second, first):  # the second has only just started
            job.cancel()
            assert job.wait(timeout=60) == "failed"
        assert "command not found" not in log.read_text()

    def test_flags_of_a_scheduler_have_no_effect(self, local, capsys):
        words = ["my_train.py", "--site", "here.toml", "--venv", sys.prefix, "--dry-run"]
        ignored = ["time", "partition", "account", "mem", "gpu-type"]
        _, err = run(capsys, *words, *(f"--{flag}={'4:00:00' if flag == 'time' else '1G'}" for flag in ignored))
        assert slugs(err) == ["ignored-flag"]
        assert_warning(err, "ignored-flag", *(f"--{flag}" for flag in ignored))

    def test_several_nodes_are_refused(self, local):
        with refused("no-scheduler", code=78):
            Job("my_train.py", nodes=2, **local).plan()


class TestDefaultSite:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path, setenv):
        """Set a home folder without sites."""
        (tmp_path / "home").mkdir()
        setenv(HOME=str(tmp_path / "home"), XDG_CONFIG_HOME=str(tmp_path / "home" / ".config"))
        return tmp_path / "home"

    def test_variable_names_the_site(self, folder, capsys, setenv):
        setenv(SLIPWAY_SITE=str(Path("mine.toml").resolve()))
        run(capsys, "my_train.py")
        assert directives((folder / "101.script").read_text())["partition"] == "gpu"
        assert Job("my_train.py").submit().name == "102"

    def test_saved_default(self, folder, home, capsys):
        sites = home / ".config" / "slipway" / "sites"
        sites.mkdir(parents=True)
        (sites / "default.toml").write_text(SITE)
        run(capsys, "my_train.py")
        assert directives((folder / "101.script").read_text())["account"] == "example"

    def test_first_run_without_a_terminal_saves_and_submits_nothing(self, folder, home, capsys):
        _, err = run(capsys, "my_train.py", code=78)
        assert_error(err, "site-not-saved", "jobgen site --detect --save")
        assert not list(home.rglob("*.toml"))
        assert (folder / "number").read_text() == "100"

    def test_from_python_nothing_is_asked(self):
        with refused("no-site", "jobgen site --detect --save", code=78):
            Job("my_train.py").submit()
