"""The scripts that the documented commands render for a tutorial request what the tutorial's own scripts do."""

import re
import shlex
import shutil
import subprocess

import pytest

from jobgen.cli import main
from readme import COMMANDS, ROOT


@pytest.fixture
def rendered(tmp_path, monkeypatch):
    """Return a function that runs the only documented command that begins so, and returns its script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobscripts" / "sites").mkdir(parents=True)
    shutil.copy(ROOT / "jobscripts" / "sites" / "example.toml", "jobscripts/sites/mine.toml")

    def rendered(begin, *more):
        (words,) = [shlex.split(command) for command in COMMANDS if command.startswith(begin)]
        assert main([*words[1:], *more]) == 0
        return (tmp_path / words[-1]).read_text()

    return rendered


def requested(script):
    """Return the options of a script's directives."""
    return dict(re.findall(r"(?m)^#SBATCH --([\w-]+)=?(\S*)", script))


class TestModelParallel:
    SPLIT = "jobgen render split --site mine --set nodes=1 "
    CPU = "jobgen render cpu --site mine --set venv=local "

    def test_split_script_requests_resources_of_gpu_tutorial(self, rendered):
        found = requested(rendered(self.SPLIT, "--set", "options.output=%N-%j.out"))
        expected = {"nodes": "1", "ntasks-per-node": "1", "gpus-per-node": "2", "cpus-per-task": "12"}
        expected |= {"mem": "32000M", "time": "03:00:00", "output": "%N-%j.out", "account": "example"}
        assert expected.items() <= found.items()

    def test_cpu_script_requests_resources_of_cpu_tutorial(self, rendered):
        found = requested(rendered(self.CPU))
        expected = {"nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "12", "mem": "16G", "time": "05:00:00"}
        assert (expected | {"account": "example"}).items() <= found.items()
        assert not [name for name in found if "gpu" in name or name == "gres"]

    def test_cpu_script_creates_environment_on_slurm_tmpdir(self, rendered):
        script = rendered(self.CPU)
        assert '\n: "${SLIPWAY_VENV:=local}"' in script
        (line,) = re.findall(r'(?m)^: "\$\{SLIPWAY_LOCAL_DISK:=.*$', script)
        show = ["bash", "-c", f'{line}\nprintf %s "$SLIPWAY_LOCAL_DISK"']
        assert subprocess.check_output(show, env={"SLURM_TMPDIR": "/my disk/4711"}, text=True) == "/my disk/4711"
