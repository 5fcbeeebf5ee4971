"""jobgen shell: the command that requests a node, the program that runs there, and refusals."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from messages import assert_error, assert_names, messages

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "jobscripts" / "lib"
RUN = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD/words"
while [ "$1" != bash ]; do shift; done
"$@"
"""
"""An srun on a node with one GPU, which runs its arguments."""
SRUN = (
    "srun --job-name=shell --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=4 --time=01:00:00 "
    "--partition=gpu --account=example --export=ALL --overlap"
)
QSUB = (
    "qsub -I -V -N shell -l select=1:ncpus=4:ngpus=1:mpiprocs=1:ompthreads=4 -l place=scatter -l walltime=01:00:00 "
    "-q gpu -A example"
)


@pytest.fixture(autouse=True)
def clone(login_node, monkeypatch):
    """Return a clone with an image as working directory, on a login node whose srun records its arguments."""
    for name in ("srun", "qsub"):
        write_program(login_node / "bin" / name, RUN)
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)
    return login_node / "clone"


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def shown(capsys, *words, site="example"):
    """Return the script and the command of a dry run."""
    assert main(["shell", "--site", site, "--dry-run", *words]) == 0
    out, err = capsys.readouterr()
    return out, err.splitlines()[-1].rpartition(": ")[2]


def at_terminal(monkeypatch):
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def refused(capsys, slug, *values, words=(), site="example"):
    """Assert that no session starts because of this error; return standard error."""
    assert main(["shell", "--site", site, *words]) == 78
    err = capsys.readouterr().err
    assert_error(err, slug, *values)
    return err


class TestCommand:
    @pytest.mark.parametrize(
        ("site", "terminal", "command"),
        [
            ("example", False, f"{SRUN} bash SCRIPT"),
            ("example", True, f"{SRUN} --pty bash SCRIPT"),  # srun makes a terminal on the node
            ("pbs", True, f"{QSUB} -- /bin/bash SCRIPT"),
            ("torque", True, "qsub -I -V -N shell -l nodes=1:ppn=8:gpus=1 -l walltime=01:00:00 -q batch -x SCRIPT"),
            ("laptop", False, "bash SCRIPT"),
        ],
    )
    def test_interactive_command_of_each_site(self, capsys, monkeypatch, site, terminal, command):
        if terminal:
            at_terminal(monkeypatch)
        assert shown(capsys, site=site)[1] == command

    def test_request_follows_site_and_settings(self, capsys):
        settings = ["--set", "minutes=240", "--set", "devices_per_rank=2", "--set", "gpu_request=gres"]
        settings += ["--set", "options.qos=now", "--set", "directives=[\"--comment='a b'\"]", "--set", "mem=100G"]
        words = shlex.split(shown(capsys, *settings)[1])
        asked = {"--time=04:00:00", "--gres=gpu:2", "--qos=now", "--comment=a b", "--mem=102400M", "--cpus-per-task=8"}
        assert asked <= {*words}

    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_unclosed_quote_in_directives_is_refused(self, capsys, monkeypatch, site):
        at_terminal(monkeypatch)
        words = ["--dry-run", "--set", 'directives=["--comment=\'a"]']
        err = refused(capsys, "unclosed-quote", f" {site}: directives", '"--comment=\'a"', words=words, site=site)
        assert err.count("\n") == 1

    def test_cpu_session_requests_no_gpu(self, capsys):
        command = shown(capsys, "--set", "device=cpu")[1]
        assert "--partition=cpu" in command
        assert "gpu" not in command

    def test_sbatch_only_options_are_omitted(self, capsys):
        command = shown(capsys, "--set", "options.output=x", "--set", "options.array=1-3")[1]
        assert not re.search("--(output|array|signal|requeue|open-mode)", command)


class TestScript:
    def test_script_runs_command_with_arguments_unchanged(self, capsys):
        text = shown(capsys, "--", "python", "-c", "print('a  b', \"$x\")")[0]
        call = next(line for line in text.splitlines() if line.startswith("run_command "))
        assert shlex.split(call, comments=True)[1:] == ["python", "-c", "print('a  b', \"$x\")"]

    def test_script_contains_given_settings(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_DATA", "jobscripts")
        assert "\ngiven SLIPWAY_DATA jobscripts\n" in shown(capsys)[0]

    # regression: outside a clone, the script looked for the library's files in /
    @pytest.mark.parametrize("place", ["clone", "elsewhere"])
    def test_script_runs_and_is_removed_afterwards(self, capfd, place, tmp_path, setenv, monkeypatch):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        setenv(
            SLURM_JOB_ID="4711",
            SLURM_JOB_NODELIST="node1",
            SLURM_JOB_CPUS_PER_NODE="8",
            SLURM_GPUS_ON_NODE="1",
            SLURMD_NODENAME="node1",
            SLIPWAY_LOCAL_DISK=str(tmp_path),
            USE_CONTAINER="0",
            SLIPWAY_VENV="modules",
            RUN_DIR=str(tmp_path / "its user's"),
        )
        write_program(tmp_path / "bin" / "scontrol", "#!/bin/sh\necho node1\n")
        settings = ["--set", 'modules=["x"]', "--set", "purge_modules=false"]
        monkeypatch.setenv("BASH_FUNC_module%%", "() { :; }")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # as build/test sets it
        before = {path.name for path in folder.iterdir()}
        handlers = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
        assert main(["shell", "--site", "example", *settings, "--", "sh", "-c", "env; exit 7"]) == 7
        assert handlers == [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
        out, err = capfd.readouterr()
        lines = out.splitlines()
        assert {"OMP_NUM_THREADS=8", "GPUS_PER_NODE=1", f"RUN_DIR={tmp_path}/its user's"} <= {*lines}
        assert not any(line.startswith("TRAINER_") for line in lines)
        assert_names(err, "1 GPU ", "8 cores")
        assert [message.slug for message in messages(err)] == ["scheduler-silent"]
        assert {path.name for path in folder.iterdir()} == before | {"runs"}
        assert list(tmp_path.glob("slipway-*")) == []

    def test_library_beside_script_cannot_be_changed_by_the_group(self, tmp_path, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        monkeypatch.setenv("USE_CONTAINER", "0")
        monkeypatch.setenv("SLIPWAY_VENV", "modules")
        (tmp_path / "bin" / "srun").write_text('#!/bin/sh\nls -ln .jobgen-shell-*/lib >"$RECORD/files"\n')
        assert main(["shell", "--site", "example", "--set", 'modules=["x"]']) == 0
        rows = [line.split() for line in (tmp_path / "files").read_text().splitlines()[1:]]
        assert {row[-1] for row in rows} == {path.name for path in LIB.iterdir() if path.is_file()}
        assert {row[0].rstrip(".") for row in rows} == {"-rw-------"}

    # regression: files that users wrote in a session were not group-writable
    def test_session_keeps_user_umask_but_script_is_not_group_writable(self, tmp_path):
        look = '#!/bin/sh\numask >"$RECORD/umask"; ls -l .jobgen-shell-*/shell >"$RECORD/script"\n'
        (tmp_path / "bin" / "srun").write_text(look)
        before = os.umask(0o002)
        try:
            assert main(["shell", "--site", "example"]) == 0
        finally:
            os.umask(before)
        assert int((tmp_path / "umask").read_text(), 8) == 0o002
        assert (tmp_path / "script").read_text().startswith("-rw-r--r--")

    def test_signal_ends_command_and_removes_script(self, clone, tmp_path):
        (tmp_path / "bin" / "srun").write_text("#!/bin/sh\ntouch $RECORD/here\nexec sleep 60\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "jobgen", "shell", "--site", "example"], stderr=subprocess.PIPE
        )
        while not (tmp_path / "here").exists():
            assert process.poll() is None, process.stderr.read()
        process.terminate()
        assert process.wait(300) == 143
        assert not any(path.name.startswith(".jobgen") for path in clone.iterdir())

    def test_signal_during_start_reaches_command(self, clone, tmp_path, monkeypatch):
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


class TestRefusals:
    @pytest.mark.parametrize("dry", [[], ["--dry-run"]])
    def test_missing_image_is_refused(self, capsys, clone, dry):
        (clone / "slipway.sif").unlink()
        refused(capsys, "no-image", "SLIPWAY_IMAGE: slipway.sif ", words=dry)

    @pytest.mark.parametrize("dry", [[], ["--dry-run"]])
    def test_missing_scheduler_command_is_refused(self, capsys, monkeypatch, dry):
        monkeypatch.setenv("PATH", "/nowhere")
        refused(capsys, "no-scheduler-command", "srun", "--dry-run", words=dry)

    def test_pbs_session_without_terminal_is_refused(self, capsys):
        refused(capsys, "no-terminal", "qsub", words=["--dry-run"], site="pbs")

    def test_unwritable_working_directory_is_refused(self, capsys, clone, setenv, monkeypatch):
        setenv(SLIPWAY_IMAGE=str(clone / "slipway.sif"), SLIPWAY_SITES=str(ROOT / "jobscripts" / "sites"))
        monkeypatch.chdir("/proc")
        refused(capsys, "cannot-write", "/proc", os.strerror(errno.ENOENT))

    # regression: two of them ran the command three times on the first node
    @pytest.mark.parametrize(
        ("site", "settings", "values"),
        [
            ("example", ["nodes=3"], ["nodes = 3", "salloc", "`jobgen run SCRIPT --nodes N --dry-run >FILE`"]),
            ("example", ["backend=ddp", "nodes=3"], ["nodes = 3", "backend = 'ddp'"]),
            ("example", ["backend=ddp"], ["backend = 'ddp'"]),
            ("example", ["spares=1"], ["spares = 1"]),
            ("example", ["options.nodes=3"], ["options.nodes = 3"]),
            ("example", ["options.nodes='1-3'"], ["options.nodes = '1-3'"]),
            ("example", ["options.ntasks=4"], ["options.ntasks = 4"]),
            ("pbs", ["nodes=3"], ["nodes = 3", "`bash FILE` inside qsub -I"]),
            ("pbs", ["options.select='3:ncpus=8'"], ["options.select = '3:ncpus=8'"]),
            ("pbs", ["options.select='1:ncpus=8+ncpus=4'"], ["options.select = '1:ncpus=8+ncpus=4'"]),
            ("torque", ["options.nodes='node-5+node-6'"], ["options.nodes = 'node-5+node-6'"]),
            ("laptop", ["nodes=2"], ["nodes = 2"]),
        ],
    )
    def test_several_nodes_or_ranks_are_refused(self, capsys, site, settings, values):
        words = [word for setting in settings for word in ("--set", setting)]
        err = refused(capsys, "too-many-nodes", "`jobgen shell`", *values, words=words, site=site)
        assert ("jobgen run" in err) == (site != "laptop")

    @pytest.mark.parametrize(
        ("site", "setting"),
        [
            ("example", "nodes=1"),
            ("example", "options.nodes=1"),
            ("example", "options.nodes=1-1"),
            ("pbs", "options.select='1:ncpus=8:ngpus=2'"),
            ("torque", "options.nodes='node-5:ppn=8'"),
        ],
    )
    def test_one_node_is_accepted(self, capsys, monkeypatch, site, setting):
        at_terminal(monkeypatch)
        shown(capsys, "--set", setting, site=site)

    @pytest.mark.parametrize("command", ["render", "submit"])
    def test_rendering_or_submitting_shell_spec_is_refused(self, capsys, command):
        assert main([command, "shell", "--site", "example"]) == 78
        command = "`jobgen shell --site jobscripts/sites/example.toml`"
        assert_error(capsys.readouterr().err, "not-a-job", "shell ", command)
