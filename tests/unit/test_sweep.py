"""jobgen sweep: its trials, their submission and their status."""

import errno
import fcntl
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from jobgen.base.queue import tasks_of
from jobgen.batch.sweep.axes import divide, drawn, grid
from jobgen.batch.sweep.record import Sweep
from jobgen.cli import main
from jobgen.jobs.trainer_flags import load_schema
from messages import assert_error, refused
from slipway.base.slugs import SLUGS

LR = ("--set", "optim.lr=0.1,0.01")
TWO = (*LR, "--set", "train.batch_size=64,128")


def sweep(capsys, *words, spec="ddp", site="example", code=0, output="sweep"):
    assert main(["sweep", spec, "--site", site, "--output", output, *words]) == code
    return capsys.readouterr()


def refuses(capsys, slug, *values, words=(), code=78, **job):
    """Assert that nothing is submitted for this reason."""
    assert_error(sweep(capsys, *words, code=code, **job).err, slug, *values)


def numbers(text, start):
    """Return the numbers in the only output line that matches ``start``."""
    (line,) = [line for line in text.splitlines() if re.match(start, line)]
    return [float(number) if "." in number else int(number) for number in re.findall(r"[\d.]*\d", line)]


def to_submit(text):
    """Return how many trials are submitted, and of how many."""
    return tuple(numbers(text, r"\d+ of \d+ ")[:2])


def counts(text):
    """Return the last line before the best trial: the number of trials per state."""
    (line,) = [line for line in text.splitlines() if re.match(r"\d+ trial\(s\): ", line)]
    return {state: int(count) for count, state in re.findall(r"(\d+) (\w+)\b(?!\()", line.partition(";")[0])}


def status(capsys, *words):
    assert main(["status", *words, "sweep"]) == 0
    return capsys.readouterr().out


def trials(output="sweep"):
    return json.loads(Path(output, "sweep.json").read_text())["trials"]


def axes_of(*settings, script=False):
    return divide(list(settings), load_schema(), script=script)[1]


def started(login_node, number, task, *, submission=1, output="sweep", index="SLURM_ARRAY_TASK_ID"):
    """Return the run folder and the arguments with which a task starts the job script."""
    Path(output, "submissions", str(submission), "job.sh").write_text(
        'printf "%s\\0" "$SLIPWAY_RUN_DIR" "$@"\n', encoding="utf-8"
    )
    environment = {"PATH": "/usr/bin:/bin", index: str(task)}
    words = ["bash", str(login_node / f"{number}.script")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    run, *arguments = done.stdout.split("\0")[:-1]
    return run, arguments


def end(name, job, *, accuracy=None, verdict="done 46 complete", attempt=1, output="sweep"):
    """Leave the files of a trial's finished job."""
    run = Path(output, name)
    logs = run / "logs" / str(attempt)
    logs.mkdir(parents=True)
    (logs / "job").write_text(f"slurm {job}\n")
    (logs / "code").write_text("0\n" if verdict else "1\n")
    if verdict:
        (run / f"verdict.{attempt}").write_text(verdict + "\n")
    with (run / "metrics.jsonl").open("a") as file:
        for value in [] if accuracy is None else [accuracy - 0.1, accuracy, accuracy - 0.05]:
            file.write(json.dumps({"kind": "train", "step": 1, "loss": 0.1}) + "\n")
            file.write(json.dumps({"kind": "validation", "step": 1, "loss": 1 - value, "accuracy": value}) + "\n")


def end_all(accuracies, *, job):
    """Leave the files of a job's finished tasks, from trial 000 on."""
    for task, accuracy in enumerate(accuracies):
        end(f"00{task}", f"{job}_{task}", accuracy=accuracy)


def state(login_node, number, *rows):
    """Let the scheduler report these states of the tasks of an array, as (indices, state)."""
    (login_node / f"{number}.state").write_text(
        "".join(
            f"JobId={number}{place} ArrayJobId={number} ArrayTaskId={indices} JobState={state} Reason=Priority "
            "RunTime=00:00:05 TimeLimit=01:00:00 NodeList=node1\n"
            for place, (indices, state) in enumerate(rows)
        )
    )


class TestTrials:
    @pytest.mark.parametrize(
        ("settings", "script", "trials"),
        [
            (
                ["optim.lr=0.1,0.01", "train.batch_size=64,128", "model.arch=mlp"],  # the last key varies fastest
                False,
                [
                    {"optim.lr": "0.1", "train.batch_size": "64", "model.arch": "mlp"},
                    {"optim.lr": "0.1", "train.batch_size": "128", "model.arch": "mlp"},
                    {"optim.lr": "0.01", "train.batch_size": "64", "model.arch": "mlp"},
                    {"optim.lr": "0.01", "train.batch_size": "128", "model.arch": "mlp"},
                ],
            ),
            (["optim.lr=0.1,0.1"], False, [{"optim.lr": "0.1"}]),
            (
                ['model.split="features.4,features.6",auto'],
                False,
                [{"model.split": "features.4,features.6"}, {"model.split": "auto"}],
            ),
            (["--lr=1,2"], True, [{"--lr": "1"}, {"--lr": "2"}]),
        ],
    )
    def test_grid_has_every_combination(self, settings, script, trials):
        assert grid(axes_of(*settings, script=script)) == trials

    def test_random_draws_are_reproducible_and_in_range(self):
        axes = axes_of("optim.lr=log:1e-4:1e-1", "optim.label_smoothing=uniform:0:0.5", "model.arch=mlp,mnist-cnn")
        found = drawn(axes, count=200, seed=3)
        assert drawn(axes, count=200, seed=3) == found
        assert drawn(axes, count=20, seed=3) == found[:20]
        assert drawn(axes, count=200, seed=4) != found
        rates = [float(values["optim.lr"]) for values in found]
        assert 1e-4 <= min(rates) < 2e-4
        assert 5e-2 < max(rates) <= 1e-1
        assert 40 < sum(rate < 1e-3 for rate in rates) < 95  # a third, because the scale is logarithmic
        assert all(len(values["optim.lr"].replace("0.", "").lstrip("0").partition("e")[0]) <= 5 for values in found)
        assert {values["model.arch"] for values in found} == {"mlp", "mnist-cnn"}

    def test_random_draws_match_recorded_values(self):
        axes = axes_of("optim.lr=log:1e-4:1e-1", "optim.step_epochs=uniform:1:4")
        assert drawn(axes, count=3, seed=0) == [
            {"optim.lr": "0.03414", "optim.step_epochs": "4"},
            {"optim.lr": "0.001827", "optim.step_epochs": "2"},
            {"optim.lr": "0.003418", "optim.step_epochs": "2"},
        ]

    def test_integers_are_drawn_uniformly(self):
        found = drawn(axes_of("optim.step_epochs=uniform:1:4", "optim.lr=log:1:2"), count=400, seed=0)
        counts = [sum(values["optim.step_epochs"] == text for values in found) for text in "1234"]
        assert sum(counts) == 400
        assert min(counts) > 75

    def test_rounded_draws_stay_in_range(self):
        found = drawn(axes_of("optim.lr=uniform:0.123451:0.123459"), count=1, seed=0)
        assert 0.123451 <= float(found[0]["optim.lr"]) <= 0.123459

    def test_no_trial_is_drawn_twice(self):
        axes = axes_of("model.arch=mlp,mnist-cnn", "optim.momentum=0.8,0.9")
        assert len({tuple(values.values()) for values in drawn(axes, count=4, seed=0)}) == 4
        with refused("bad-axis", "--random 5", " 4 ", code=2):
            drawn(axes, count=5, seed=0)

    @pytest.mark.parametrize(
        ("setting", "values"),
        [
            ("optim.learning_rate=1", ["'optim.lr'"]),
            ("train.batchsize=1", ["'train.batch_size'"]),
            ("train.lr=1", ["'optim.lr'"]),
            ("lr=1", ["'optim.lr'"]),
            ("optim.lr", ["KEY=VALUE"]),
            ("optim.lr=", ["--lr ", " ''"]),
            ("optim.lr=0.1,-1", ["--lr ", "'-1'", " 0."]),
            ("optim.lr=nan", ["--lr ", "'nan'"]),
            ("optim.optimizer=adam,adammw", ["--optimizer ", "'adammw'", "'adamw'"]),
            ("train.epochs=1.5", ["--epochs ", "'1.5'"]),
            ("data.flip=yes", ["'yes'", "true", "false"]),
            ("model.channels_last=yes", ["'yes'", "true", "false", "auto"]),
            ("data.synthetic_shape=1", [" 3 "]),
            ("launch.threads=1,2", ["[launch]", "--"]),
            ("optim.lr=log:0:1", [" 0."]),
            ("optim.lr=uniform:0:1", ["--lr ", "'0'"]),
            ("optim.lr=log:1:x", ["log:LOW:HIGH"]),
            ("optim.lr=log:1:0.1", ["log:LOW:HIGH"]),
            ("optim.lr=uniform:1:inf", ["uniform:LOW:HIGH"]),
            ("train.epochs=uniform:1:2.5", ["train.epochs "]),
            ("optim.optimizer=log:1:2", []),
            ("data.flip=uniform:0:1", []),
            ("--lr=1", ["SLIPWAY_SCRIPT"]),
            ('model.split="a', []),
            ("optim.lr=1 optim.lr=2", [" optim.lr:"]),
        ],
    )
    def test_invalid_axis_is_refused(self, setting, values):
        with refused("bad-axis", f" {setting.partition('=')[0]}", *values, code=2):
            axes_of(*setting.split(" "))

    @pytest.mark.parametrize(("setting", "values"), [("optim.lr=1", ["SLIPWAY_SCRIPT", "--flag"]), ("--=1", [])])
    def test_invalid_axis_of_user_script_is_refused(self, setting, values):
        with refused("bad-axis", f" {setting.partition('=')[0]}:", *values, code=2):
            axes_of(setting, script=True)

    def test_line_break_in_axis_value_is_refused(self):
        with refused("bad-path", r"'a\nb'"):
            axes_of("model.arch=a\nb")

    def test_job_settings_are_not_taken_as_axes(self):
        settings = ["minutes=30", "options.partition=a", "env.A=1", "optim.lr=1"]
        assert divide(settings, load_schema(), script=False)[0] == settings[:3]


class TestSubmission:
    def test_dry_run_prints_trials_and_writes_nothing(self, login_node, capsys):
        said = sweep(capsys, *TWO, "--seeds", "2", "--dry-run", "--set", "minutes=30").out.splitlines()
        assert len(said) == 1 + 8 + 2
        assert said[1].split()[:6] == ["000", "missing", "-", "lr=0.1", "batch_size=64", "seed=0"]
        assert counts(said[-2]) == {"missing": 8}
        assert to_submit(said[-1]) == (8, 8)
        assert dict(re.findall(r"([\d.]+) (\w+)-hours", said[-1])) == {"64.0": "core", "16.0": "GPU"}
        assert not Path("sweep").exists()
        assert (login_node / "number").read_text() == "100"

    def test_sweep_is_submitted_as_array_with_task_per_trial(self, login_node, capsys):
        said = sweep(capsys, *TWO, "--seeds", "2", "--at-once", "3", "--", "--epochs", "3").out
        assert numbers(said, "job ") == [101, 8]
        script = (login_node / "101.script").read_text()
        assert "#SBATCH --array=0-7%3 " in script
        assert "#SBATCH --nodes=2 " in script
        found = json.loads(Path("sweep", "sweep.json").read_text())
        entry = found.pop("trials")[5]
        assert found == {
            "schema": 1,
            "kind": "sweep",
            "scheduler": "slurm",
            "metric": "accuracy",
            "goal": "max",
            "seeds": 2,
            "rungs": [],
            "axes": {"optim.lr": "0.1,0.01", "train.batch_size": "64,128"},
        }
        assert entry.pop("submitted").startswith("20")
        assert list(entry.items()) == [
            ("name", "005"),
            ("run", "005"),
            ("values", {"optim.lr": "0.01", "train.batch_size": "64"}),
            ("seed", 1),
            ("rung", 0),
            ("job", "101_5"),
        ]
        run, arguments = started(login_node, 101, 5)
        assert run == str(Path("sweep", "005").absolute())
        assert arguments == ["--epochs", "3", "--lr=0.01", "--batch-size=64", "--seed=1"]

    def test_job_script_equals_that_of_jobgen_submit(self, login_node, capsys):
        sweep(capsys, *LR, "--set", "minutes=30")
        assert main(["submit", "ddp", "--site", "example", "--set", "minutes=30"]) == 0
        assert Path("sweep", "submissions", "1", "job.sh").read_text() == (login_node / "102.script").read_text()
        assert Path("sweep", "submissions", "1", "array.sh").read_text() == (login_node / "101.script").read_text()

    def test_task_index_outside_of_array_exits_with_78(self, login_node, capsys):
        sweep(capsys, *LR)
        with pytest.raises(subprocess.CalledProcessError) as caught:
            started(login_node, 101, 2)
        assert caught.value.returncode == 78

    # regression: under umask 002 the group could replace job.sh, which each task runs
    def test_scripts_writable_by_others_are_refused(self, login_node, capsys):
        before = os.umask(0)
        try:
            sweep(capsys, *LR)
        finally:
            os.umask(before)
        folders = [Path("sweep"), Path("sweep", "submissions"), Path("sweep", "submissions", "1")]
        for path in (*folders, *folders[-1].iterdir()):
            mode = path.stat().st_mode
            assert mode & 0o022 == 0
        for path in (*folders, folders[-1] / "job.sh"):
            mode = path.stat().st_mode
            path.chmod(mode | 0o022)
            with pytest.raises(subprocess.CalledProcessError) as caught:
                started(login_node, 101, 1)
            assert caught.value.returncode == 78
            assert_error(caught.value.stderr, "writable-by-others", path)
            path.chmod(mode)
        Path("shared").mkdir()
        Path("shared").chmod(0o777)
        refuses(capsys, "writable-by-others", Path("shared").absolute(), words=LR, output="shared")

    # regression: with SBATCH_EXPORT=NONE every task refused the folder, as array.sh lacked the setting
    @pytest.mark.parametrize("parts", [LR, ("--set", "optim.lr=1")])
    def test_trusted_folder_setting_reaches_tasks(self, login_node, capsys, monkeypatch, parts):
        folder = Path("a $HOME 'disk'", "sweep")
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", str(folder.parent.absolute()))
        sweep(capsys, *parts, output=str(folder))
        assert started(login_node, 101, 0, output=folder)[0] == str(folder.absolute() / "000")

    @pytest.mark.parametrize("folder", ["with spaces", "it's", "a$HOME`id`;#"])
    def test_special_characters_reach_trainer_unchanged(self, login_node, capsys, folder):
        odd = ["it's", "$(touch executed)", "`id`", 'say "hi"', "a  b", "*", "é", "\\", ""]
        texts = [f'"{text}"'.replace('"hi"', '""hi""') for text in odd]
        sweep(capsys, "--set", f"model.weights={','.join(texts)}", "--", "--data-dir", "a 'b", output=folder)
        for index, text in enumerate(odd):
            run, arguments = started(login_node, 101, index, output=folder)
            assert run == str(Path(folder, f"{index:03}").absolute())
            assert arguments == ["--data-dir", "a 'b", f"--weights={text}"]
        assert not Path("executed").exists()

    def test_boolean_axes_become_on_and_off_flags(self, login_node, capsys):
        sweep(capsys, "--set", "data.flip=true,false", "--set", "model.channels_last=auto,true,false")
        assert [started(login_node, 101, task)[1] for task in (0, 4, 5)] == [
            ["--flip", "--channels-last=auto"],
            ["--no-flip", "--channels-last"],
            ["--no-flip", "--no-channels-last"],
        ]

    def test_single_trial_is_submitted_without_array(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")  # submitted from within a task
        sweep(capsys, "--set", "optim.lr=0.1")
        assert "--array" not in (login_node / "101.script").read_text()
        assert trials()[0]["job"] == "101"
        assert started(login_node, 101, 7)[1] == ["--lr=0.1"]

    def test_run_dir_from_environment_is_not_passed_to_trials(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_RUN_DIR", "elsewhere")
        sweep(capsys, *LR)
        assert "SLIPWAY_RUN_DIR=" not in (login_node / "101.environment").read_text()

    @pytest.mark.parametrize(("site", "directive"), [("pbs", "-J 0-1%2"), ("torque", "-t 0-1%2")])
    def test_sweep_is_submitted_as_pbs_array(self, login_node, capsys, site, directive):
        (Path(".venv") / "bin").mkdir(parents=True)
        assert sweep(capsys, *LR, "--at-once", "2", site=site).out.splitlines()[-1].startswith("job 101[].head: 2 ")
        script = (login_node / "101.script").read_text()
        assert f"\n#PBS {directive}\n" in script
        assert [trial["job"] for trial in trials()] == ["101_0", "101_1"]
        index = "PBS_ARRAYID" if site == "torque" else "PBS_ARRAY_INDEX"
        assert started(login_node, 101, 1, index=index)[1] == ["--lr=0.01"]
        assert "SLIPWAY_ARGS" not in (login_node / "101.environment").read_text()
        assert main(["sweep", "ddp", "--site", site, "--output", "one", "--set", "optim.lr=1"]) == 0
        assert trials("one")[0]["job"] == "102.head"
        assert f"#PBS {directive[:2]} " not in (login_node / "102.script").read_text()

    def test_openpbs_array_is_always_rerunnable(self, login_node, capsys):
        sweep(capsys, *LR, "--set", "resume=none", site="pbs")
        assert "#PBS -N ddp -j oe -r y\n" in (login_node / "101.script").read_text()
        assert "#PBS -N ddp -j oe -r n\n" in Path("sweep", "submissions", "1", "job.sh").read_text()

    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_more_trials_than_array_limit_are_refused(self, login_node, capsys, site):
        (login_node / "config.state").write_text("MailProg = /bin/true\nMaxArraySize            = 100\n")
        ranges = ("--set", "optim.lr=log:1e-4:1", "--random")
        words = [*ranges, "101", "--limit", "9999"]
        refuses(capsys, "too-many-trials", "101", "pbs" if site == "pbs" else "slurm", " 100 ", words=words, site=site)
        assert not Path("sweep").exists()
        sweep(capsys, *ranges, "100", "--limit", "9999", site=site)

    def test_user_script_trials_get_flags_and_seed(self, login_node, capsys, monkeypatch):
        Path("mine.py").touch()
        monkeypatch.setenv("SLIPWAY_SCRIPT", "mine.py")
        flags = ["--set", "--lr=0.1,-1", "--set=--name=a b"]
        refuses(capsys, "missing-argument", "--seeds", "--seed-flag", words=[*flags, "--seeds", "2"], code=2)
        refuses(capsys, "flag-conflict", "--rungs", words=[*flags, "--rungs", "1,2"], code=2)
        sweep(capsys, *flags, "--seeds", "2", "--seed-flag", "--my-seed", "--", "--mine")
        assert started(login_node, 101, 3)[1] == ["--mine", "--lr=-1", "--name=a b", "--my-seed=1"]

    def test_rejected_trials_are_submitted_on_next_call(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("REFUSED", "101")
        refuses(capsys, "submission-refused", words=LR)
        assert [trial["job"] for trial in trials()] == [None, None]
        assert list(Path("sweep", "submissions").iterdir()) == []
        sweep(capsys, *LR)
        assert [trial["job"] for trial in trials()] == ["102_0", "102_1"]

    # regression: two concurrent commands, from cron and manual, submitted the same trials
    def test_concurrent_sweep_commands_are_refused(self, login_node, capsys, monkeypatch):
        Path("sweep").mkdir()
        with Path("sweep/.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refuses(capsys, "folder-in-use", Path("sweep").absolute(), words=LR)
        assert not Path("sweep/sweep.json").exists()
        monkeypatch.setattr(
            "jobgen.batch.sweep.command.confirm", lambda *_, **__: Path("sweep/sweep.json").write_text("{}")
        )
        refuses(capsys, "folder-in-use", Path("sweep").absolute(), words=LR)
        assert not [*login_node.glob("*.script")]

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
    def test_lock_path_that_is_folder_or_fifo_does_not_hang(self, login_node, capsys, make):
        Path("sweep").mkdir()
        make("sweep/.lock")
        if make is os.mkdir:
            refuses(capsys, "cannot-write", Path("sweep/.lock").absolute(), os.strerror(errno.EISDIR), words=LR)
        else:
            sweep(capsys, *LR)

    @pytest.mark.parametrize(
        ("answer", "job"), [("", None), ("welcome", None), ("note\n101", "101_0"), ("101;cluster\nBye!", "101_0")]
    )
    def test_job_number_is_parsed_from_sbatch_output_or_error_raised(
        self, login_node, capsys, monkeypatch, answer, job
    ):
        sbatch = login_node / "sbatch"
        sbatch.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\n")
        sbatch.chmod(0o755)
        monkeypatch.setenv("PATH", f"{login_node}:{os.environ['PATH']}")
        if job:
            sweep(capsys, *LR)
        else:
            refuses(capsys, "no-job-number", repr(f"{answer}\n"), words=LR)
        assert trials()[0]["job"] == job
        assert Path("sweep/submissions/1/job.sh").exists(), "the scheduler may start it"


@pytest.mark.usefixtures("login_node")
class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "slug", "values"),
        [
            ([], "nothing-to-vary", ["--set", "--seeds"]),
            (["--set", "minutes=30"], "nothing-to-vary", ["--set", "--seeds"]),
            (["--set", "optim.lr=log:1e-4:1"], "bad-axis", [" optim.lr=log:1e-4:1", "--random"]),
            ([*LR, "--", "--lr", "1"], "flag-conflict", ["optim.lr ", "--set"]),
            ([*LR, "--seeds", "2", "--", "--seed", "1"], "flag-conflict", ["--seeds ", "--seed,"]),
            ([*LR, "--set", "train.seed=1,2", "--seeds", "2"], "flag-conflict", ["--seeds ", "--seed,"]),
            ([*LR, "--seed-flag", "--seed"], "flag-conflict", ["--seed-flag", "SLIPWAY_SCRIPT"]),
            ([*LR, "--rungs", "2"], "bad-rungs", ["--rungs 2:"]),
            ([*LR, "--rungs", "6,2"], "bad-rungs", ["--rungs 6,2:"]),
            ([*LR, "--rungs", "2,6", "--keep", "1"], "bad-rungs", ["--keep 1 ", " 2 "]),
            ([*LR, "--rungs", "2,6", "--", "--epochs", "9"], "flag-conflict", ["train.epochs", "--rungs"]),
            ([*LR, "--rungs", "2,6", "--", "--max_steps", "9"], "flag-conflict", ["train.max_steps", "--rungs"]),
            (
                [*LR, "--set", "train.batch_size=8,16", "--", "--batch_size", "9"],
                "flag-conflict",
                ["train.batch_size", "--set"],
            ),
            (["--set", "train.epochs=1,2", "--rungs", "2,6"], "flag-conflict", ["train.epochs", "--rungs"]),
            ([*LR, "--set", "nodes=1,2"], "bad-value", [" nodes=1,2: nodes ", "'1,2'"]),
            ([*LR, "--", "--epoch", "2"], "unknown-flag", ["--epoch;", "--epochs"]),
            ([*LR, "--output", "a\nb"], "bad-path", [r"a\nb'"]),
            ([*LR, "--output", "\udcff"], "bad-path", [r"\udcff'", "UTF-8"]),
        ],
    )
    def test_invalid_options_are_refused_before_any_write(self, capsys, words, slug, values):
        assert main(["sweep", "ddp", "--site", "example", "--output", "sweep", *words]) == SLUGS[slug].exit_code
        assert_error(capsys.readouterr().err, slug, *values)
        assert not Path("sweep").exists()

    def test_site_without_scheduler_is_refused(self, capsys):
        refuses(capsys, "no-scheduler", "local", words=LR, spec="ddp-local", site="laptop")

    @pytest.mark.parametrize(
        ("words", "values"),
        [
            (["--set", "train.batch_size=1,2"], ["['optim.lr']", "['train.batch_size']"]),
            ([*LR, "--seeds", "2"], ["seeds 1,", " 2)"]),
            ([*LR, "--rungs", "1,2"], ["rungs [],", " [1, 2])"]),
        ],
    )
    def test_folder_of_different_sweep_is_refused(self, capsys, words, values):
        sweep(capsys, *LR)
        refuses(capsys, "different-study", "sweep ", *values, "--output", words=words)


class TestRepeatedSweep:
    def test_only_missing_and_failed_trials_are_submitted(self, login_node, capsys):
        sweep(capsys, *TWO)
        end("000", "101_0", accuracy=0.9)
        end("001", "101_1", accuracy=0.5, verdict="failed 46 diverged: the loss")
        state(login_node, 101, ("2-3%2", "PENDING"))
        words = ("--set", "optim.lr=0.1,0.01,0.001", TWO[2], TWO[3])
        said = sweep(capsys, *words).out
        assert counts(said) == {"done": 1, "waiting": 2, "failed": 1, "missing": 2}
        assert "; best: 000 " in said
        assert to_submit(said) == (3, 6)
        assert [trial["job"] for trial in trials()] == ["101_0", "102_0", "101_2", "101_3", "102_1", "102_2"]
        assert started(login_node, 102, 0, submission=2) == (
            str(Path("sweep", "001").absolute()),
            ["--lr=0.1", "--batch-size=128"],
        )
        assert Sweep.read(Path("sweep")).content().axes["optim.lr"] == "0.1,0.01,0.001"

    def test_trials_no_longer_requested_are_kept(self, login_node, capsys):
        sweep(capsys, *LR)
        state(login_node, 101, ("0-1", "RUNNING"))
        assert to_submit(sweep(capsys, "--set", "optim.lr=0.01").out) == (0, 1)
        assert len(trials()) == 2

    def test_more_random_trials_can_be_added(self, login_node, capsys):
        ranges = ("--set", "optim.lr=log:1e-4:1", "--random")
        sweep(capsys, *ranges, "3")
        before = trials()
        state(login_node, 101, ("0-2", "RUNNING"))
        assert to_submit(sweep(capsys, *ranges, "5").out) == (2, 5)
        assert trials()[:3] == before
        assert [trial["job"] for trial in trials()[3:]] == ["102_0", "102_1"]

    def test_task_unknown_to_scheduler_counts_as_failed(self, login_node, capsys):
        sweep(capsys, *LR)
        state(login_node, 101, ("1", "PENDING"))
        _, first, second, summary = status(capsys).splitlines()
        assert first.split()[:2] == ["000", "failed"]
        assert "job 101_0 " in first
        assert second.split()[:2] == ["001", "waiting"]
        assert "job 101_1 PENDING " in second
        assert "Priority" in second
        assert counts(summary) == {"waiting": 1, "failed": 1}
        found = json.loads(status(capsys, "--json"))
        assert [Path(run["path"]).name for run in found] == ["000", "001"]
        assert [(run["state"], run["slug"], run["attempt"], run["step"]) for run in found] == [
            ("failed", "", 0, 0),
            ("waiting", "", 0, 0),
        ]
        assert found[0]["line"] in first
        assert found[1]["line"] in second

    def test_pbs_task_states_are_read_from_one_query(self, login_node, capsys):
        sweep(capsys, *LR, site="pbs")
        (login_node / "101[].qstat").write_text(
            "Job Id: 101[].head\n    job_state = B\n\nJob Id: 101[0].head\n    job_state = X\n\n"
            "Job Id: 101[1].head\n    job_state = Q\n    comment = Not Running\n"
        )
        said = status(capsys)
        assert "job 101_1 Q Not Running" in said
        assert counts(said) == {"waiting": 1, "failed": 1}


class TestStatus:
    def test_status_lists_best_trial_first(self, login_node, capsys):
        sweep(capsys, "--set", "optim.lr=1,2,3,4")
        for task, accuracy in ((0, 0.5), (1, 0.9), (3, 0.7)):
            end(f"00{task}", f"101_{task}", accuracy=accuracy)
        state(login_node, 101, ("2", "RUNNING"))
        *rows, summary = status(capsys).splitlines()[1:]
        assert [[re.split("  +", row)[place] for place in (0, 3)] + [row.split()[1]] for row in rows[:3]] == [
            ["001", "0.9", "done"],
            ["003", "0.7", "done"],
            ["000", "0.5", "done"],
        ]
        assert rows[3].startswith("002    running  ")
        assert counts(summary) == {"done": 3, "running": 1}
        assert summary.endswith("; best: 001 (lr=2), accuracy 0.9")

    def test_lowest_mean_loss_over_seeds_is_best(self, login_node, capsys):
        sweep(capsys, *LR, "--seeds", "2", "--metric", "loss")
        end_all([0.9, 0.3, 0.7, 0.6], job=101)
        said = status(capsys)
        assert counts(said) == {"done": 4}
        assert "; best: 002, 003 (lr=0.01), " in said
        assert said.endswith(" 2 loss 0.35\n")
        assert json.loads(Path("sweep", "sweep.json").read_text())["goal"] == "min"

    # regression: a trial without an evaluation was compared by its training loss
    def test_training_metrics_are_not_compared_with_validation(self, login_node, capsys):
        sweep(capsys, *LR, "--metric", "loss")
        end("000", "101_0", accuracy=0.5)
        end("001", "101_1")
        with Path("sweep/001/metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "train", "step": 1, "loss": 0.01}) + "\n")
        assert "best: 000 (lr=0.1), loss 0.5" in status(capsys)
        Path("sweep/000/metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "loss": 0.02}) + "\n")
        assert "best: 001 (lr=0.01), loss 0.01" in status(capsys)

    # regression: cancel wrote STOP into the sweep's folder and ended nothing
    @pytest.mark.parametrize("words", [["cancel"], ["logs"], ["logs", "--follow"]])
    def test_cancel_and_logs_refuse_sweep_folder(self, login_node, capsys, words):
        sweep(capsys, *LR)
        before = sorted(Path("sweep").iterdir())
        assert main([*words, "sweep"]) == 78
        assert_error(capsys.readouterr().err, "several-runs", "sweep ")
        assert sorted(Path("sweep").iterdir()) == before

    def test_metrics_that_are_not_numbers_are_ignored(self, login_node, capsys):
        sweep(capsys, *LR)
        end("000", "101_0")
        lines = ['{"accuracy": NaN}', '{"accuracy": true}', '{"accuracy": "a"}', '["accuracy"]', '{"accuracy": 0.5']
        Path("sweep", "000", "metrics.jsonl").write_text("\n".join([*lines, '{"accuracy": 0.25}', ""]))
        assert "accuracy 0.25" in status(capsys)


class TestRungs:
    WORDS = ("--set", "optim.lr=1,2,3,4,5,6", "--rungs", "2,6,18", "--keep", "2")

    def test_best_trials_are_promoted_once_all_have_ended(self, login_node, capsys):
        sweep(capsys, *self.WORDS)
        assert started(login_node, 101, 0)[1] == ["--lr=1", "--epochs=18", "--stop-epoch=2"]
        end_all([0, 0.1, 0.2, 0.3, 0.4], job=101)
        state(login_node, 101, ("5", "RUNNING"))
        said = sweep(capsys, *self.WORDS).out
        assert numbers(said, "rung") == [1, 3, 2, 1, 6]  # rung 1 of 3, epoch 2: one of 6 has not ended
        assert to_submit(said) == (0, 6)
        end("005", "101_5", accuracy=0.25)
        said = sweep(capsys, *self.WORDS).out
        assert numbers(said, "rung") == [1, 3, 2, 3, 6, 6]  # the best 3 of 6 continue to epoch 6
        assert [(trial["name"], trial["rung"], trial["job"]) for trial in trials()] == [
            ("000", 0, "101_0"),
            ("001", 0, "101_1"),
            ("002", 0, "101_2"),
            ("003", 1, "102_1"),
            ("004", 1, "102_0"),
            ("005", 1, "102_2"),
        ]
        assert started(login_node, 102, 0, submission=2) == (
            str(Path("sweep", "004").absolute()),
            ["--lr=5", "--epochs=18", "--stop-epoch=6"],
        )
        state(login_node, 102, ("0-2", "PENDING"))
        assert numbers(sweep(capsys, *self.WORDS).out, "rung") == [2, 3, 6, 3, 3]
        for task, name in enumerate(("004", "003", "005")):
            end(name, f"102_{task}", accuracy=0.9 - task / 10, attempt=2)
        said = sweep(capsys, *self.WORDS).out
        assert numbers(said, "rung") == [2, 3, 6, 1, 3, 18]
        assert trials()[4]["job"] == "103"
        end("004", "103", accuracy=0.95, attempt=3)
        said = sweep(capsys, *self.WORDS).out
        assert numbers(said, "rung") == [3, 3, 18]
        assert to_submit(said) == (0, 6)

    def test_crashed_trial_is_resubmitted_and_diverged_ranked_last(self, login_node, capsys):
        sweep(capsys, *self.WORDS)
        end("000", "101_0", accuracy=0.99, verdict="failed 3 diverged: the loss")
        end("001", "101_1", verdict="")
        for task in range(2, 6):
            end(f"00{task}", f"101_{task}", accuracy=task / 10)
        said = sweep(capsys, *self.WORDS).out
        assert numbers(said, "rung") == [1, 3, 2, 1, 6]
        assert trials()[1]["job"] == "102"
        end("001", "102", accuracy=0.4, attempt=2)
        sweep(capsys, *self.WORDS)
        assert [trial["name"] for trial in trials() if trial["rung"] == 1] == ["001", "004", "005"]

    def test_seeds_of_same_values_are_promoted_together(self, login_node, capsys):
        words = ("--set", "optim.lr=1,2", "--rungs", "2,6", "--keep", "2", "--seeds", "2")
        sweep(capsys, *words)
        end_all([0.9, 0.1, 0.6, 0.5], job=101)
        assert numbers(sweep(capsys, *words).out, "rung") == [1, 2, 2, 1, 2, 6]
        assert [trial["name"] for trial in trials() if trial["rung"] == 1] == ["002", "003"]
        assert started(login_node, 102, 1, submission=2)[1] == ["--lr=2", "--seed=1", "--epochs=6", "--stop-epoch=6"]

    def test_no_trial_is_promoted_without_metric(self, login_node, capsys):
        words = (*LR, "--rungs", "2,6", "--metric", "acuracy")
        sweep(capsys, *words)
        end_all([0.5, 0.5], job=101)
        said = sweep(capsys, *words).out
        assert numbers(said, "rung") == [1, 2, 2]
        assert " acuracy" in said.partition("\nrung")[2].partition("\n")[0]
        assert numbers(sweep(capsys, *LR, "--rungs", "2,6").out, "rung") == [1, 2, 2, 1, 2, 6]

    @pytest.mark.usefixtures("login_node")
    def test_trials_cannot_be_added_to_sweep_with_rungs(self, capsys):
        sweep(capsys, *LR, "--rungs", "2,6")
        words = ["--set", "optim.lr=0.1,0.01,1", "--rungs", "2,6"]
        refuses(capsys, "different-study", "sweep ", "--output", words=words)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("4711", ["4711"]),
        ("4711_3", ["4711_3"]),
        ("12[3].head", ["12_3"]),
        ("4711_2-4%2", ["4711_2", "4711_3", "4711_4"]),
        ("4711_[1,5-9:2,12%3]", ["4711_1", "4711_5", "4711_7", "4711_9", "4711_12"]),
        ("4711_1,3-...", ["4711_1"]),
        ("nonsense", []),
    ],
)
def test_task_numbers_are_parsed_from_scheduler_output(text, tasks):
    assert [str(task) for task in tasks_of(text)] == tasks


def test_state_of_requeued_job_of_trial_is_queried(login_node, capsys):
    sweep(capsys, *LR, site="pbs")
    end("000", "101_0", verdict="out-of-time 46 time-limit")
    Path("sweep", "000", "logs", "1", "job").write_text("pbs 101_0\n")
    Path("sweep", "000", "requeues").write_text("1 101_0\n1 150\n")
    (login_node / "150.qstat").write_text("Job Id: 150.head\n    job_state = Q\n    comment = Not Running\n")
    (login_node / "101[].qstat").write_text("Job Id: 101[1].head\n    job_state = R\n")
    said = sweep(capsys, *LR, site="pbs").out
    assert to_submit(said) == (0, 2)
    assert counts(said) == {"running": 1, "waiting": 1}
