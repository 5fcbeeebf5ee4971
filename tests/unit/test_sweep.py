"""jobgen sweep: which trials there are, what is submitted of them, and how far they are."""

import fcntl
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.errors import JobgenError, UsageError
from jobgen.flags import load_schema
from jobgen.queues import tasks_of
from jobgen.sweeps.axes import divide, drawn, grid
from jobgen.sweeps.record import read_sweep

LR = ("--set", "optim.lr=0.1,0.01")
TWO = (*LR, "--set", "train.batch_size=64,128")


def sweep(capsys, *words, spec="ddp", site="example", code=0, output="sweep"):
    assert main(["sweep", spec, "--site", site, "--output", output, *words]) == code
    return capsys.readouterr()


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
    """Leave what the job of a trial leaves."""
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


def state(login_node, number, *rows):
    """Let the scheduler say of the tasks of an array, (indices, state), what they do."""
    (login_node / f"{number}.state").write_text(
        "".join(
            f"JobId={number}{place} ArrayJobId={number} ArrayTaskId={indices} JobState={state} Reason=Priority "
            "RunTime=00:00:05 TimeLimit=01:00:00 NodeList=node1\n"
            for place, (indices, state) in enumerate(rows)
        )
    )


class TestTrials:
    def test_a_grid_has_every_combination_the_last_key_varying_fastest(self):
        assert grid(axes_of("optim.lr=0.1,0.01", "train.batch_size=64,128", "model.arch=mlp")) == [
            {"optim.lr": lr, "train.batch_size": batch, "model.arch": "mlp"}
            for lr in ("0.1", "0.01")
            for batch in ("64", "128")
        ]

    def test_a_value_twice_is_one(self):
        assert len(grid(axes_of("optim.lr=0.1,0.1"))) == 1

    def test_a_value_with_a_comma_stands_in_quotes(self):
        assert grid(axes_of('model.split="features.4,features.6",auto')) == [
            {"model.split": "features.4,features.6"},
            {"model.split": "auto"},
        ]

    def test_what_is_drawn_is_the_same_each_time_and_in_its_range(self):
        axes = axes_of("optim.lr=log:1e-4:1e-1", "optim.label_smoothing=uniform:0:0.5", "model.arch=mlp,mnist-cnn")
        found = drawn(axes, count=200, seed=3)
        assert drawn(axes, count=200, seed=3) == found
        assert drawn(axes, count=20, seed=3) == found[:20]
        assert drawn(axes, count=200, seed=4) != found
        rates = [float(values["optim.lr"]) for values in found]
        assert 1e-4 <= min(rates) < 2e-4
        assert 5e-2 < max(rates) <= 1e-1
        assert 40 < sum(rate < 1e-3 for rate in rates) < 95  # a third, as it is logarithmic
        assert all(len(values["optim.lr"].replace("0.", "").lstrip("0").partition("e")[0]) <= 5 for values in found)
        assert {values["model.arch"] for values in found} == {"mlp", "mnist-cnn"}

    def test_the_first_draws_are_these(self):
        axes = axes_of("optim.lr=log:1e-4:1e-1", "optim.step_epochs=uniform:1:4")
        assert drawn(axes, count=3, seed=0) == [
            {"optim.lr": "0.03414", "optim.step_epochs": "4"},
            {"optim.lr": "0.001827", "optim.step_epochs": "2"},
            {"optim.lr": "0.003418", "optim.step_epochs": "2"},
        ]

    def test_whole_numbers_are_drawn_evenly(self):
        found = drawn(axes_of("optim.step_epochs=uniform:1:4", "optim.lr=log:1:2"), count=400, seed=0)
        counts = [sum(values["optim.step_epochs"] == text for values in found) for text in "1234"]
        assert sum(counts) == 400
        assert min(counts) > 75

    def test_rounding_leaves_no_range(self):
        found = drawn(axes_of("optim.lr=uniform:0.123451:0.123459"), count=1, seed=0)
        assert 0.123451 <= float(found[0]["optim.lr"]) <= 0.123459

    def test_no_trial_is_drawn_twice(self):
        axes = axes_of("model.arch=mlp,mnist-cnn", "optim.momentum=0.8,0.9")
        assert len({tuple(values.values()) for values in drawn(axes, count=4, seed=0)}) == 4
        with pytest.raises(UsageError, match="--random 5: there are only 4 different trials"):
            drawn(axes, count=5, seed=0)

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("optim.learning_rate=1", "the trainer's configuration has no such key. Did you mean 'optim.lr'?"),
            ("train.batchsize=1", "no such key. Did you mean 'train.batch_size'?"),
            ("train.lr=1", "no such key. Did you mean 'optim.lr'?"),
            ("lr=1", "no setting of the job. Did you mean 'optim.lr'?"),
            ("optim.lr", "write KEY=VALUE"),
            ("optim.lr=", "--lr is ''"),
            ("optim.lr=0.1,-1", "it must be a number, above 0"),
            ("optim.lr=nan", "it must be a number"),
            ("optim.optimizer=adam,adammw", "did you mean 'adamw'?"),
            ("train.epochs=1.5", "it must be a whole number"),
            ("data.flip=yes", "'yes' must be true or false"),
            ("model.channels_last=yes", "'yes' must be true or false or auto"),
            ("data.synthetic_shape=1", "it takes 3 values, and cannot be varied"),
            ("launch.threads=1,2", "[launch] is of one attempt"),
            ("optim.lr=log:0:1", "a logarithmic range begins above 0"),
            ("optim.lr=uniform:0:1", "it must be a number, above 0"),
            ("optim.lr=log:1:x", "of two numbers, the lower one first"),
            ("optim.lr=log:1:0.1", "of two numbers, the lower one first"),
            ("optim.lr=uniform:1:inf", "of two numbers, the lower one first"),
            ("train.epochs=uniform:1:2.5", "is a whole number: so are the ends"),
            ("optim.optimizer=log:1:2", "only a number has a range"),
            ("data.flip=uniform:0:1", "only a number has a range"),
            ("--lr=1", "SLIPWAY_SCRIPT is not set"),
            ("model.arch=a\nb", "line break or control character"),
            ('model.split="a', "unexpected end of data"),
        ],
    )
    def test_what_cannot_be_is_refused(self, setting, said):
        with pytest.raises(JobgenError) as caught:
            divide([setting], load_schema(), script=False)
        assert said in str(caught.value)

    def test_a_key_stands_once(self):
        with pytest.raises(UsageError, match=r"optim\.lr: it is set twice"):
            axes_of("optim.lr=1", "optim.lr=2")

    def test_settings_of_the_job_are_not_varied(self):
        settings = ["minutes=30", "options.partition=a", "env.A=1", "optim.lr=1"]
        assert divide(settings, load_schema(), script=False)[0] == settings[:3]

    def test_tables_of_a_script_are_its_flags(self):
        assert grid(axes_of("--lr=1,2", script=True)) == [{"--lr": "1"}, {"--lr": "2"}]
        with pytest.raises(UsageError, match="only the trainer has this key"):
            axes_of("optim.lr=1", script=True)
        with pytest.raises(UsageError, match="no name of a flag"):
            axes_of("--=1", script=True)


class TestSubmission:
    def test_a_dry_run_shows_the_trials_and_writes_nothing(self, login_node, capsys):
        said = sweep(capsys, *TWO, "--seeds", "2", "--dry-run", "--set", "minutes=30").out.splitlines()
        assert len(said) == 1 + 8 + 2
        assert said[1].split() == ["000", "missing", "-", "lr=0.1", "batch_size=64", "seed=0", "not", "submitted"]
        assert said[-2] == "8 trial(s): 8 missing"
        assert said[-1] == "8 of 8 trial(s) to submit: at most 64.0 core-hours, 16.0 GPU-hours, in one attempt each"
        assert not Path("sweep").exists()
        assert (login_node / "number").read_text() == "100"

    def test_it_is_one_array_and_each_task_is_a_trial(self, login_node, capsys):
        said = sweep(capsys, *TWO, "--seeds", "2", "--at-once", "3", "--", "--epochs", "3").out
        assert said.splitlines()[-1] == "job 101: 8 trial(s)"
        script = (login_node / "101.script").read_text()
        assert "#SBATCH --array=0-7%3                         # a task each; at most 3 at once\n" in script
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

    def test_its_job_script_is_the_one_of_jobgen_submit(self, login_node, capsys):
        sweep(capsys, *LR, "--set", "minutes=30")
        assert main(["submit", "ddp", "--site", "example", "--set", "minutes=30"]) == 0
        assert Path("sweep", "submissions", "1", "job.sh").read_text() == (login_node / "102.script").read_text()
        assert Path("sweep", "submissions", "1", "array.sh").read_text() == (login_node / "101.script").read_text()

    def test_an_index_that_was_not_submitted_starts_nothing(self, login_node, capsys):
        sweep(capsys, *LR)
        with pytest.raises(subprocess.CalledProcessError) as caught:
            started(login_node, 101, 2)
        assert caught.value.returncode == 78

    @pytest.mark.parametrize("folder", ["with spaces", "it's", "a$HOME`id`;#"])
    def test_odd_characters_reach_the_trainer_as_they_are(self, login_node, capsys, folder):
        odd = ["it's", "$(touch executed)", "`id`", 'say "hi"', "a  b", "*", "é", "\\", ""]
        texts = [f'"{text}"'.replace('"hi"', '""hi""') for text in odd]
        sweep(capsys, "--set", f"model.weights={','.join(texts)}", "--", "--data-dir", "a 'b", output=folder)
        for index, text in enumerate(odd):
            run, arguments = started(login_node, 101, index, output=folder)
            assert run == str(Path(folder, f"{index:03}").absolute())
            assert arguments == ["--data-dir", "a 'b", f"--weights={text}"]
        assert not Path("executed").exists()

    def test_switches(self, login_node, capsys):
        sweep(capsys, "--set", "data.flip=true,false", "--set", "model.channels_last=auto,true,false")
        assert [started(login_node, 101, task)[1] for task in (0, 4, 5)] == [
            ["--flip", "--channels-last=auto"],
            ["--no-flip", "--channels-last"],
            ["--no-flip", "--no-channels-last"],
        ]

    def test_a_single_trial_is_no_array(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")  # submitted from inside a task
        sweep(capsys, "--set", "optim.lr=0.1")
        assert "--array" not in (login_node / "101.script").read_text()
        assert trials()[0]["job"] == "101"
        assert started(login_node, 101, 7)[1] == ["--lr=0.1"]

    def test_a_run_folder_of_the_environment_is_not_that_of_the_trials(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_RUN_DIR", "elsewhere")
        sweep(capsys, *LR)
        assert "SLIPWAY_RUN_DIR=" not in (login_node / "101.environment").read_text()

    @pytest.mark.parametrize(("site", "directive"), [("pbs", "-J 0-1%2"), ("torque", "-t 0-1%2")])
    def test_pbs(self, login_node, capsys, site, directive):
        (Path(".venv") / "bin").mkdir(parents=True)
        assert sweep(capsys, *LR, "--at-once", "2", site=site).out.splitlines()[-1] == "job 101[].head: 2 trial(s)"
        script = (login_node / "101.script").read_text()
        assert f"# a task each; at most 2 at once\n#PBS {directive}\n" in script
        assert [trial["job"] for trial in trials()] == ["101_0", "101_1"]
        index = "PBS_ARRAYID" if site == "torque" else "PBS_ARRAY_INDEX"
        assert started(login_node, 101, 1, index=index)[1] == ["--lr=0.01"]
        assert "SLIPWAY_ARGS" not in (login_node / "101.environment").read_text()
        assert main(["sweep", "ddp", "--site", site, "--output", "one", "--set", "optim.lr=1"]) == 0
        assert trials("one")[0]["job"] == "102.head"
        assert f"#PBS {directive[:2]} " not in (login_node / "102.script").read_text()

    def test_openpbs_takes_no_array_that_may_not_be_run_again(self, login_node, capsys):
        sweep(capsys, *LR, "--set", "resume=none", site="pbs")
        assert "#PBS -N ddp -j oe -r y\n" in (login_node / "101.script").read_text()
        assert "#PBS -N ddp -j oe -r n\n" in Path("sweep", "submissions", "1", "job.sh").read_text()

    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_a_scheduler_takes_so_many_tasks_at_most(self, login_node, capsys, site):
        (login_node / "config.state").write_text("MailProg = /bin/true\nMaxArraySize            = 100\n")
        ranges = ("--set", "optim.lr=log:1e-4:1", "--random")
        said = sweep(capsys, *ranges, "101", "--limit", "9999", site=site, code=78).err
        assert "101 trials are one array, and" in said
        assert "takes at most 100 tasks in one here" in said
        assert not Path("sweep").exists()
        sweep(capsys, *ranges, "100", "--limit", "9999", site=site)

    def test_a_script_of_ones_own(self, login_node, capsys, monkeypatch):
        Path("mine.py").touch()
        monkeypatch.setenv("SLIPWAY_SCRIPT", "mine.py")
        flags = ["--set", "--lr=0.1,-1", "--set=--name=a b"]
        assert "needs the flag that sets its seed: --seed-flag" in sweep(capsys, *flags, "--seeds", "2", code=2).err
        assert "--rungs needs the trainer" in sweep(capsys, *flags, "--rungs", "1,2", code=2).err
        sweep(capsys, *flags, "--seeds", "2", "--seed-flag", "--my-seed", "--", "--mine")
        assert started(login_node, 101, 3)[1] == ["--mine", "--lr=-1", "--name=a b", "--my-seed=1"]

    def test_what_the_scheduler_refuses_is_submitted_the_next_time(self, login_node, capsys, monkeypatch):
        monkeypatch.setenv("REFUSED", "101")
        assert "the scheduler does not take the trials, see above" in sweep(capsys, *LR, code=78).err
        assert [trial["job"] for trial in trials()] == [None, None]
        assert list(Path("sweep", "submissions").iterdir()) == []
        sweep(capsys, *LR)
        assert [trial["job"] for trial in trials()] == ["102_0", "102_1"]

    # once: two at a time, from cron and by hand, submitted the same trials
    def test_two_at_a_time_do_not_submit_the_same(self, login_node, capsys, monkeypatch):
        Path("sweep").mkdir()
        with Path("sweep/.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "another command submits runs of" in sweep(capsys, *LR, code=78).err
        assert not Path("sweep/sweep.json").exists()
        monkeypatch.setattr("jobgen.sweeps.command.ask", lambda *_, **__: Path("sweep/sweep.json").write_text("{}"))
        assert "another command has submitted runs of" in sweep(capsys, *LR, code=78).err
        assert not [*login_node.glob("*.script")]

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
    def test_a_lock_that_is_none(self, login_node, capsys, make):
        Path("sweep").mkdir()
        make("sweep/.lock")
        code = 78 if make is os.mkdir else 0
        assert ("cannot write" in sweep(capsys, *LR, code=code).err) == bool(code)

    @pytest.mark.parametrize(
        ("answer", "job"), [("", None), ("welcome", None), ("note\n101", "101_0"), ("101;cluster\nBye!", "101_0")]
    )
    def test_an_answer_without_a_number_is_no_refusal(self, login_node, capsys, monkeypatch, answer, job):
        sbatch = login_node / "sbatch"
        sbatch.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\n")
        sbatch.chmod(0o755)
        monkeypatch.setenv("PATH", f"{login_node}:{os.environ['PATH']}")
        said = sweep(capsys, *LR, code=0 if job else 78)
        assert ("took a job and named no number" in said.err) == (job is None)
        assert trials()[0]["job"] == job
        assert Path("sweep/submissions/1/job.sh").exists(), "the scheduler may start it"

    def test_a_large_sweep_asks(self, login_node, capsys):
        assert "add --yes" in sweep(capsys, *TWO, "--limit", "1", code=2).err
        assert not Path("sweep").exists()
        sweep(capsys, *TWO, "--limit", "1", "--yes")
        assert (login_node / "number").read_text() == "101\n"


@pytest.mark.usefixtures("login_node")
class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "nothing varies"),
            (["--set", "minutes=30"], "nothing varies"),
            (["--set", "optim.lr=log:1e-4:1"], "a range is drawn from: add --random N"),
            ([*LR, "--", "--lr", "1"], "optim.lr is set behind -- for all trials, and varied by --set"),
            ([*LR, "--seeds", "2", "--", "--seed", "1"], "--seeds sets --seed, and so do you"),
            ([*LR, "--set", "train.seed=1,2", "--seeds", "2"], "--seeds sets --seed, and so do you"),
            ([*LR, "--seed-flag", "--seed"], "SLIPWAY_SCRIPT is not set"),
            ([*LR, "--rungs", "2"], "name two epochs or more"),
            ([*LR, "--rungs", "6,2"], "name two epochs or more, each above the one before"),
            ([*LR, "--rungs", "2,6", "--keep", "1"], "--keep 1 would keep all"),
            ([*LR, "--rungs", "2,6", "--", "--epochs", "9"], "train.epochs: with --rungs the last rung is"),
            ([*LR, "--rungs", "2,6", "--", "--max_steps", "9"], "train.max_steps: with --rungs the last rung is"),
            ([*LR, "--set", "train.batch_size=8,16", "--", "--batch_size", "9"], "train.batch_size is set behind --"),
            (["--set", "train.epochs=1,2", "--rungs", "2,6"], "train.epochs: with --rungs the last rung is"),
            ([*LR, "--set", "nodes=1,2"], "nodes is '1,2': it must be a whole number"),
            ([*LR, "--", "--epoch", "2"], "unknown flag --epoch"),
            ([*LR, "--output", "a\nb"], "line break or control character"),
            ([*LR, "--output", "\udcff"], "is not UTF-8"),
        ],
    )
    def test_before_anything_is_written(self, capsys, words, said):
        assert main(["sweep", "ddp", "--site", "example", "--output", "sweep", *words]) in {2, 78}
        assert said in capsys.readouterr().err
        assert not Path("sweep").exists()

    @pytest.mark.parametrize("spec", ["image_build", "selftest"])
    def test_what_trains_nothing(self, capsys, spec):
        assert f"{spec} trains nothing" in sweep(capsys, *LR, spec=spec, code=2).err

    def test_one_machine(self, capsys):
        assert "a sweep needs a scheduler" in sweep(capsys, *LR, spec="ddp-local", site="laptop", code=78).err

    @pytest.mark.parametrize("made", ["file", "folder"])
    def test_a_folder_of_somebody_else(self, capsys, made):
        if made == "file":
            Path("sweep").write_text("mine")
        else:
            Path("sweep", "mine").mkdir(parents=True)
        assert "sweep is there, and holds no sweep.json: name another --output" in sweep(capsys, *LR, code=78).err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--set", "train.batch_size=1,2"], "keys ['optim.lr'], not ['train.batch_size']"),
            ([*LR, "--seeds", "2"], "seeds 1, not 2"),
            ([*LR, "--rungs", "1,2"], "rungs [], not [1, 2]"),
        ],
    )
    def test_another_sweep(self, capsys, words, said):
        sweep(capsys, *LR)
        assert said in sweep(capsys, *words, code=78).err

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"schema": 2, "kind": "sweep"}', '{"schema": 1, "kind": "study"}']
    )
    def test_a_file_that_cannot_be_read(self, capsys, text):
        Path("sweep").mkdir()
        Path("sweep", "sweep.json").write_text(text)
        assert "sweep.json is not what `jobgen sweep` of this version writes" in sweep(capsys, *LR, code=78).err

    def test_a_run_outside_of_the_sweep(self, capsys):
        sweep(capsys, *LR)
        path = Path("sweep", "sweep.json")
        path.write_text(path.read_text().replace('"run": "000"', '"run": "../000"'))
        assert "the run '../000' is no folder beside it" in sweep(capsys, *LR, code=78).err


class TestRunAgain:
    def test_only_what_is_missing_or_has_failed_is_submitted(self, login_node, capsys):
        sweep(capsys, *TWO)
        end("000", "101_0", accuracy=0.9)
        end("001", "101_1", accuracy=0.5, verdict="failed 46 training diverged")
        state(login_node, 101, ("2-3%2", "PENDING"))
        words = ("--set", "optim.lr=0.1,0.01,0.001", TWO[2], TWO[3])
        said = sweep(capsys, *words).out
        assert "6 trial(s): 1 done, 2 waiting, 1 failed, 2 missing; best: 000" in said
        assert "3 of 6 trial(s) to submit" in said
        assert [trial["job"] for trial in trials()] == ["101_0", "102_0", "101_2", "101_3", "102_1", "102_2"]
        assert started(login_node, 102, 0, submission=2) == (
            str(Path("sweep", "001").absolute()),
            ["--lr=0.1", "--batch-size=128"],
        )
        assert read_sweep(Path("sweep")).content().axes["optim.lr"] == "0.1,0.01,0.001"

    def test_trials_that_are_not_asked_for_any_more_stay(self, login_node, capsys):
        sweep(capsys, *LR)
        state(login_node, 101, ("0-1", "RUNNING"))
        assert "0 of 1 trial(s) to submit" in sweep(capsys, "--set", "optim.lr=0.01").out
        assert len(trials()) == 2

    def test_more_can_be_drawn(self, login_node, capsys):
        ranges = ("--set", "optim.lr=log:1e-4:1", "--random")
        sweep(capsys, *ranges, "3")
        before = trials()
        state(login_node, 101, ("0-2", "RUNNING"))
        assert "2 of 5 trial(s) to submit" in sweep(capsys, *ranges, "5").out
        assert trials()[:3] == before
        assert [trial["job"] for trial in trials()[3:]] == ["102_0", "102_1"]

    def test_a_task_that_waits_or_that_the_scheduler_has_forgotten(self, login_node, capsys):
        sweep(capsys, *LR)
        state(login_node, 101, ("1", "PENDING"))
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        said = capsys.readouterr().out
        assert "failed   " in said
        assert "job 101_0 is gone; no rank has started training" in said
        assert "job 101_1 PENDING because of Priority" in said

    def test_pbs_is_asked_for_all_tasks_at_once(self, login_node, capsys):
        sweep(capsys, *LR, site="pbs")
        (login_node / "101[].qstat").write_text(
            "Job Id: 101[].head\n    job_state = B\n\nJob Id: 101[0].head\n    job_state = X\n\n"
            "Job Id: 101[1].head\n    job_state = Q\n    comment = Not Running\n"
        )
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        said = capsys.readouterr().out
        assert "job 101_1 Q Not Running" in said
        assert said.splitlines()[-1] == "2 trial(s): 1 waiting, 1 failed"


class TestStatus:
    def test_the_best_comes_first(self, login_node, capsys):
        sweep(capsys, "--set", "optim.lr=1,2,3,4")
        for task, accuracy in ((0, 0.5), (1, 0.9), (3, 0.7)):
            end(f"00{task}", f"101_{task}", accuracy=accuracy)
        state(login_node, 101, ("2", "RUNNING"))
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        *rows, summary = capsys.readouterr().out.splitlines()[1:]
        assert [[re.split("  +", row)[place] for place in (0, 3)] + [row.split()[1]] for row in rows[:3]] == [
            ["001", "0.9", "done"],
            ["003", "0.7", "done"],
            ["000", "0.5", "done"],
        ]
        assert rows[3].startswith("002    running  ")
        assert summary == "4 trial(s): 3 done, 1 running; best: 001 (lr=2), accuracy 0.9"

    def test_of_a_loss_less_is_better_and_seeds_are_averaged(self, login_node, capsys):
        sweep(capsys, *LR, "--seeds", "2", "--metric", "loss")
        for task, accuracy in enumerate((0.9, 0.3, 0.7, 0.6)):
            end(f"00{task}", f"101_{task}", accuracy=accuracy)
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        said = capsys.readouterr().out
        assert said.splitlines()[-1] == "4 trial(s): 4 done; best: 002, 003 (lr=0.01), mean of 2 loss 0.35"
        assert json.loads(Path("sweep", "sweep.json").read_text())["goal"] == "min"

    # once: a trial without an evaluation was compared by its training loss
    def test_training_and_validation_are_not_compared(self, login_node, capsys):
        sweep(capsys, *LR, "--metric", "loss")
        end("000", "101_0", accuracy=0.5)
        end("001", "101_1")
        with Path("sweep/001/metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "train", "step": 1, "loss": 0.01}) + "\n")
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        assert "best: 000 (lr=0.1), loss 0.5" in capsys.readouterr().out
        Path("sweep/000/metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "loss": 0.02}) + "\n")
        assert main(["status", "sweep"]) == 0
        assert "best: 001 (lr=0.01), loss 0.01" in capsys.readouterr().out

    # once: cancel wrote STOP into the folder of the sweep, and ended nothing
    @pytest.mark.parametrize("words", [["cancel"], ["logs"], ["logs", "--follow"]])
    def test_what_is_of_one_run_is_refused(self, login_node, capsys, words):
        sweep(capsys, *LR)
        before = sorted(Path("sweep").iterdir())
        assert main([*words, "sweep"]) == 78
        assert "sweep holds many runs: name one of its run folders" in capsys.readouterr().err
        assert sorted(Path("sweep").iterdir()) == before

    def test_numbers_that_are_none_are_passed_over(self, login_node, capsys):
        sweep(capsys, *LR)
        end("000", "101_0")
        lines = ['{"accuracy": NaN}', '{"accuracy": true}', '{"accuracy": "a"}', '["accuracy"]', '{"accuracy": 0.5']
        Path("sweep", "000", "metrics.jsonl").write_text("\n".join([*lines, '{"accuracy": 0.25}', ""]))
        capsys.readouterr()
        assert main(["status", "sweep"]) == 0
        assert "accuracy 0.25" in capsys.readouterr().out


class TestRungs:
    WORDS = ("--set", "optim.lr=1,2,3,4,5,6", "--rungs", "2,6,18", "--keep", "2")

    def test_the_best_go_on_once_all_have_ended(self, login_node, capsys):
        sweep(capsys, *self.WORDS)
        assert started(login_node, 101, 0)[1] == ["--lr=1", "--epochs=18", "--stop-epoch=2"]
        for task in range(5):
            end(f"00{task}", f"101_{task}", accuracy=task / 10)
        state(login_node, 101, ("5", "RUNNING"))
        said = sweep(capsys, *self.WORDS).out
        assert "rung 1 of 3, epoch 2: 1 of 6 trial(s) have not ended" in said
        assert "0 of 6 trial(s) to submit" in said
        end("005", "101_5", accuracy=0.25)
        said = sweep(capsys, *self.WORDS).out
        assert "rung 1 of 3, epoch 2: ended; the best 3 of 6 point(s) go on to epoch 6" in said
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
        assert "rung 2 of 3, epoch 6: 3 of 3 trial(s) have not ended" in sweep(capsys, *self.WORDS).out
        for task, name in enumerate(("004", "003", "005")):
            end(name, f"102_{task}", accuracy=0.9 - task / 10, attempt=2)
        said = sweep(capsys, *self.WORDS).out
        assert "the best 1 of 3 point(s) go on to epoch 18" in said
        assert trials()[4]["job"] == "103"
        end("004", "103", accuracy=0.95, attempt=3)
        said = sweep(capsys, *self.WORDS).out
        assert "rung 3 of 3, epoch 18: all trials have ended, and there is no further rung" in said
        assert "0 of 6 trial(s) to submit" in said

    def test_what_crashed_is_submitted_again_and_what_diverged_is_last(self, login_node, capsys):
        sweep(capsys, *self.WORDS)
        end("000", "101_0", accuracy=0.99, verdict="failed 3 the loss is nan")
        end("001", "101_1", verdict="")
        for task in range(2, 6):
            end(f"00{task}", f"101_{task}", accuracy=task / 10)
        said = sweep(capsys, *self.WORDS).out
        assert "1 of 6 trial(s) have not ended" in said
        assert trials()[1]["job"] == "102"
        end("001", "102", accuracy=0.4, attempt=2)
        sweep(capsys, *self.WORDS)
        assert [trial["name"] for trial in trials() if trial["rung"] == 1] == ["001", "004", "005"]

    def test_seeds_go_on_together(self, login_node, capsys):
        words = ("--set", "optim.lr=1,2", "--rungs", "2,6", "--keep", "2", "--seeds", "2")
        sweep(capsys, *words)
        for task, accuracy in enumerate((0.9, 0.1, 0.6, 0.5)):
            end(f"00{task}", f"101_{task}", accuracy=accuracy)
        assert "the best 1 of 2 point(s) go on" in sweep(capsys, *words).out
        assert [trial["name"] for trial in trials() if trial["rung"] == 1] == ["002", "003"]
        assert started(login_node, 102, 1, submission=2)[1] == ["--lr=2", "--seed=1", "--epochs=6", "--stop-epoch=6"]

    def test_without_the_metric_none_goes_on(self, login_node, capsys):
        words = (*LR, "--rungs", "2,6", "--metric", "acuracy")
        sweep(capsys, *words)
        for task in range(2):
            end(f"00{task}", f"101_{task}", accuracy=0.5)
        assert "no trial has a acuracy, so none goes on" in sweep(capsys, *words).out
        assert "the best 1 of 2 point(s) go on to epoch 6" in sweep(capsys, *LR, "--rungs", "2,6").out

    @pytest.mark.usefixtures("login_node")
    def test_trials_cannot_be_added(self, capsys):
        sweep(capsys, *LR, "--rungs", "2,6")
        said = sweep(capsys, "--set", "optim.lr=0.1,0.01,1", "--rungs", "2,6", code=78).err
        assert "holds a sweep over other values, and rungs compare all trials" in said


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
def test_the_tasks_that_a_scheduler_names(text, tasks):
    assert [str(task) for task in tasks_of(text)] == tasks


def test_a_chained_job_of_a_trial_is_asked_for(login_node, capsys):
    sweep(capsys, *LR, site="pbs")
    end("000", "101_0", verdict="out-of-time 46 time-limit")
    Path("sweep", "000", "logs", "1", "job").write_text("pbs 101_0\n")
    Path("sweep", "000", "requeues").write_text("1 101_0\n1 150\n")
    (login_node / "150.qstat").write_text("Job Id: 150.head\n    job_state = Q\n    comment = Not Running\n")
    (login_node / "101[].qstat").write_text("Job Id: 101[1].head\n    job_state = R\n")
    said = sweep(capsys, *LR, site="pbs").out
    assert "0 of 2 trial(s) to submit" in said
    assert "2 trial(s): 1 running, 1 waiting" in said
