"""jobgen shell: by which command a node is asked for, what runs there, and what is refused."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from messages import assert_error

ROOT = Path(__file__).resolve().parents[2]
RUN = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD/words"
while [ "$1" != bash ]; do shift; done
"$@"
"""
"""An srun on a node of one GPU, which runs what it is given."""


@pytest.fixture(autouse=True)
def clone(tmp_path, monkeypatch):
    """Return a clone with an image, the working directory, on a login node whose srun records its words."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("jobscripts", "configs", "build"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "slipway.sif").touch()
    (tmp_path / "bin").mkdir()
    for name in ("srun", "qsub"):
        (tmp_path / "bin" / name).write_text(RUN)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path))
    for name in list(os.environ):
        if name.startswith(("SLIPWAY_", "SLURM")) or name in {"USE_CONTAINER", "BACKEND"}:
            monkeypatch.delenv(name)
    return folder


def shown(capsys, *words, site="example"):
    """Return the script and the command of a dry run."""
    assert main(["shell", "--site", site, "--dry-run", *words]) == 0
    out, err = capsys.readouterr()
    return out, err.splitlines()[-1].rpartition(": ")[2]


def at_terminal(monkeypatch):
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)


class TestCommand:
    def test_slurm(self, capsys):
        assert shown(capsys)[1] == (
            "srun --job-name=shell --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=4 --time=01:00:00 "
            "--partition=gpu --account=example --export=ALL --overlap bash SCRIPT"
        )

    def test_at_a_terminal_srun_makes_one_on_the_node(self, capsys, monkeypatch):
        at_terminal(monkeypatch)
        assert shown(capsys)[1].endswith(" --overlap --pty bash SCRIPT")

    def test_the_site_and_set_say_what_is_asked_for(self, capsys):
        settings = ["--set", "minutes=240", "--set", "devices_per_rank=2", "--set", "gpu_request=gres"]
        settings += ["--set", "options.qos=now", "--set", "directives=[\"--comment='a b'\"]", "--set", "mem=100G"]
        words = shlex.split(shown(capsys, *settings)[1])
        asked = {"--time=04:00:00", "--gres=gpu:2", "--qos=now", "--comment=a b", "--mem=102400M", "--cpus-per-task=8"}
        assert asked <= {*words}

    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_a_quote_that_is_not_closed_is_named(self, capsys, monkeypatch, site):
        at_terminal(monkeypatch)
        assert main(["shell", "--site", site, "--dry-run", "--set", 'directives=["--comment=\'a"]']) == 78
        err = capsys.readouterr().err
        assert_error(err, "unclosed-quote", f" {site}: directives", '"--comment=\'a"')
        assert err.count("\n") == 1

    def test_on_cpus_no_gpu_is_asked_for(self, capsys):
        command = shown(capsys, "--set", "device=cpu")[1]
        assert "--partition=cpu" in command
        assert "gpu" not in command

    def test_what_only_sbatch_knows_is_left_out(self, capsys):
        command = shown(capsys, "--set", "options.output=x", "--set", "options.array=1-3")[1]
        for option in ("--output", "--array", "--signal", "--requeue", "--open-mode"):
            assert option not in command

    def test_openpbs(self, capsys, monkeypatch):
        at_terminal(monkeypatch)
        assert shown(capsys, site="pbs")[1] == (
            "qsub -I -V -N shell -l select=1:ncpus=4:ngpus=1:mpiprocs=1:ompthreads=4 -l place=scatter "
            "-l walltime=01:00:00 -q gpu -A example -- /bin/bash SCRIPT"
        )

    def test_torque(self, capsys, monkeypatch):
        at_terminal(monkeypatch)
        command = shown(capsys, site="torque")[1]
        assert command.startswith("qsub -I -V -N shell -l nodes=1:ppn=")
        assert command.endswith(" -x SCRIPT")

    def test_pbs_needs_a_terminal(self, capsys):
        assert main(["shell", "--site", "pbs", "--dry-run"]) == 78
        assert_error(capsys.readouterr().err, "no-terminal", "qsub")

    def test_without_a_scheduler_it_is_this_machine(self, capsys):
        assert shown(capsys, site="laptop")[1] == "bash SCRIPT"


class TestScript:
    def test_it_runs_the_command_with_its_words_as_they_are(self, capsys):
        text = shown(capsys, "--", "python", "-c", "print('a  b', \"$x\")")[0]
        call = next(line for line in text.splitlines() if line.startswith("run_command "))
        assert shlex.split(call, comments=True)[1:] == ["python", "-c", "print('a  b', \"$x\")"]

    def test_it_holds_the_settings(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_DATA", "jobscripts")
        assert "\ngiven SLIPWAY_DATA jobscripts\n" in shown(capsys)[0]

    def test_it_runs_and_is_removed(self, capfd, clone, tmp_path, monkeypatch):
        for name, value in {
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "node1",
            "SLURM_JOB_CPUS_PER_NODE": "8",
            "SLURM_GPUS_ON_NODE": "1",
            "SLURMD_NODENAME": "node1",
            "SLIPWAY_LOCAL_DISK": str(tmp_path),
            "USE_CONTAINER": "0",
            "SLIPWAY_VENV": "modules",
            "RUN_DIR": str(tmp_path / "its user's"),
        }.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\necho node1\n")
        (tmp_path / "bin" / "scontrol").chmod(0o755)
        settings = ["--set", 'modules=["x"]', "--set", "purge_modules=false"]
        monkeypatch.setenv("BASH_FUNC_module%%", "() { :; }")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # as build/test sets it
        handlers = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
        assert main(["shell", "--site", "example", *settings, "--", "sh", "-c", "env; exit 7"]) == 7
        assert handlers == [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
        out, err = capfd.readouterr()
        lines = out.splitlines()
        assert {"OMP_NUM_THREADS=8", "GPUS_PER_NODE=1", f"RUN_DIR={tmp_path}/its user's"} <= {*lines}
        assert not any(line.startswith("TRAINER_") for line in lines)
        assert "1 GPU " in err
        assert "8 cores" in err
        assert sorted(path.name for path in clone.iterdir()) == [
            "build",
            "configs",
            "jobscripts",
            "runs",
            "slipway.sif",
        ]
        assert list(tmp_path.glob("slipway-*")) == []

    # once: what people wrote in a session was not writable for their group
    def test_the_session_has_the_umask_of_its_user_and_the_script_has_not(self, tmp_path):
        look = '#!/bin/sh\numask >"$RECORD/umask"; ls -l .jobgen-shell-*/shell >"$RECORD/script"\n'
        (tmp_path / "bin" / "srun").write_text(look)
        before = os.umask(0o002)
        try:
            assert main(["shell", "--site", "example"]) == 0
        finally:
            os.umask(before)
        assert int((tmp_path / "umask").read_text(), 8) == 0o002
        assert (tmp_path / "script").read_text().startswith("-rw-r--r--")

    def test_a_signal_to_it_ends_the_command_and_leaves_nothing(self, clone, tmp_path):
        (tmp_path / "bin" / "srun").write_text("#!/bin/sh\ntouch $RECORD/here\nexec sleep 60\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "jobgen", "shell", "--site", "example"], stderr=subprocess.PIPE
        )
        while not (tmp_path / "here").exists():
            assert process.poll() is None, process.stderr.read()
        process.terminate()
        assert process.wait(300) == 143
        assert not any(path.name.startswith(".jobgen") for path in clone.iterdir())

    def test_a_signal_while_the_command_starts_reaches_it(self, clone, tmp_path, monkeypatch):
        start = subprocess.Popen

        def start_under_a_signal(command, **options):
            process = start(command, **options)
            if command[0] == "srun":
                os.kill(os.getpid(), signal.SIGTERM)
            return process

        (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexec sleep 60\n")
        monkeypatch.setattr(subprocess, "Popen", start_under_a_signal)
        assert main(["shell", "--site", "example"]) == 143
        assert not any(path.name.startswith(".jobgen") for path in clone.iterdir())


class TestRefused:
    def test_no_image(self, capsys, clone):
        (clone / "slipway.sif").unlink()
        for dry in ([], ["--dry-run"]):
            assert main(["shell", "--site", "example", *dry]) == 78
            assert_error(capsys.readouterr().err, "no-image", "SLIPWAY_IMAGE: slipway.sif ")

    def test_no_scheduler_here(self, capsys, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        for dry in ([], ["--dry-run"]):
            assert main(["shell", "--site", "example", *dry]) == 78
            assert_error(capsys.readouterr().err, "no-scheduler-command", "srun", "--dry-run")

    def test_a_folder_that_cannot_be_written(self, capsys, clone, monkeypatch):
        monkeypatch.setenv("SLIPWAY_IMAGE", str(clone / "slipway.sif"))
        monkeypatch.setenv("SLIPWAY_SITES", str(ROOT / "jobscripts" / "sites"))
        monkeypatch.chdir("/proc")
        assert main(["shell", "--site", "example"]) == 78
        assert_error(capsys.readouterr().err, "cannot-write", "/proc", os.strerror(errno.ENOENT))

    @pytest.mark.parametrize("command", ["render", "submit"])
    def test_it_is_no_job(self, capsys, command):
        assert main([command, "shell", "--site", "example"]) == 78
        command = "`jobgen shell --site jobscripts/sites/example.toml`"
        assert_error(capsys.readouterr().err, "not-a-job", "shell ", command)
