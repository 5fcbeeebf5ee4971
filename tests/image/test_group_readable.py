"""A site with group-readable run folders: another member of the group reads one user's job."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT, status

GROUP = 4711
"""The project's group, of which both are members besides their own."""
COLLEAGUE = ("setpriv", "--reuid=65533", "--regid=65533", f"--groups={GROUP}")
CLOSED = ("(", "-not", "-readable", "-o", "-type", "d", "-not", "-executable", ")")
"""Files and folders that find(1)'s user cannot read or enter."""


@pytest.fixture
def project(user):
    """Return a folder of the project's group, in which new files get that group."""
    folder = user.home / "project"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def script(user) -> Path:
    """Return ddp.sh of such a site, with the library inside: the user cannot read this clone."""
    path = user.home / "group.sh"
    words = ["render", "ddp-local", "--site", "laptop", "--set", "group_readable=true", "--standalone"]
    subprocess.run([sys.executable, "-m", "jobgen", *words, "--output", path], check=True, cwd=ROOT)
    shutil.copy(ROOT / "configs" / "digits.toml", user.home)
    (user.home / "digits.toml").chmod(0o600)
    for name in ("group.sh", "digits.toml"):
        os.chown(user.home / name, 65534, 65534)
    return path


def colleague(*words: str) -> str:
    return subprocess.run([*COLLEAGUE, *words], text=True, stdout=subprocess.PIPE, check=True).stdout


# The folder above it there, or made by the script.
@pytest.mark.parametrize(("where", "umask"), [("", "022"), ("runs/mine", "002"), ("runs/mine", "077")])
def test_group_can_read_but_not_write_run_folder(user, project, script, where, umask):
    disk = user.home / "disk"
    disk.mkdir(exist_ok=True)
    disk.chmod(0o1777)
    flags = ["--epochs", "1", "--tensorboard", "--arch", "mlp", "--record-samples"]
    run = project / where / "run"
    env = user.environment() | {
        "PATH": f"{Path(user.apptainer).parent}:{user.environment()['PATH']}",
        "USE_CONTAINER": "1",
        "SLIPWAY_IMAGE": user.image,
        "SLIPWAY_CONFIG": str(user.home / "digits.toml"),
        "SLIPWAY_RUN_DIR": str(run),
        "SLIPWAY_LOCAL_DISK": str(disk),
        "SLIPWAY_DEVICE": "cpu",
    }
    prefix = [word if word != "--clear-groups" else f"--groups={GROUP}" for word in user.prefix]
    done = subprocess.run(
        [*prefix, "bash", "-c", f'umask {umask}; exec timeout 200 bash "$@"', "-", script, *flags],
        cwd=user.home,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert status(run)["state"] == "done"
    assert colleague("find", str(project), *CLOSED) == ""
    assert colleague("find", str(project), "-mindepth", "1", "-not", "-type", "l", "-writable") == ""
    assert colleague("find", str(project), "-name", "model.safetensors") != ""
    for name in ("checkpoints/latest/model.safetensors", "figures/curves.png", "logs/1/stderr.log", "metrics.jsonl"):
        assert colleague("sha256sum", str(run / name)).split()[1] == str(run / name)
    assert {path.stat().st_gid for path in run.rglob("*")} == {GROUP}
    assert stat.S_IMODE(run.stat().st_mode) == 0o2750
