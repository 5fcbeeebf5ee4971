"""jobgen shell on a real Slurm and a real OpenPBS: a command on a node, and a shell at a terminal."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from clusters import AS_ROOT, LIBRARY, Cluster
from support import ROOT

SETTINGS = {"USE_CONTAINER": "0", "SLIPWAY_VENV": sys.prefix, "SLIPWAY_LIB": str(LIBRARY), **AS_ROOT}


def shell(
    cluster: Cluster,
    folder: Path,
    *words: str,
    site: str = "example",
    typed: str | None = None,
    stays: int = 0,
    **env: str,
) -> str:
    """Run `jobgen shell` on the head in ``folder``, and return the output and the exit code.

    Where something is ``typed``, at a terminal (script(1)) that ``stays`` open for so many seconds.
    """
    site = str(ROOT / "jobscripts" / "sites" / f"{site}.toml")
    command = shlex.join([sys.executable, "-m", "jobgen", "shell", "--site", site, *words])
    if typed is not None:
        typing = f"{{ printf %s {shlex.quote(typed)}; sleep {stays}; }}"
        command = f"{typing} | script --quiet --return --command {shlex.quote(command)} /dev/null"
    line = f'cd "$1"; {command} 2>&1; echo "ended with $?"'
    said = cluster.run("bash", "-c", line, "-", str(folder), **{**SETTINGS, **env})
    assert not list(folder.glob(".jobgen*"))
    return said


@pytest.mark.parametrize(("settings", "gpus"), [([], "1: 0\n"), (["--set", "device=cpu"], "0: ")], ids=["GPU", "CPU"])
def test_shell_runs_command_on_node_and_returns_its_exit_code(cluster, tmp_path, settings, gpus):
    words = ("sh", "-c", 'echo "$(hostname) has $GPUS_PER_NODE: $CUDA_VISIBLE_DEVICES"; echo "$OUT"; exit 7')
    said = shell(cluster, tmp_path, *settings, "--", *words, OUT="of the user")
    assert f"\nnode1 has {gpus}" in said
    assert "\nof the user\n" in said
    assert said.endswith("ended with 7\n")


def test_interactive_shell_trains_and_starts_job_steps(cluster, tmp_path, config):
    train = f"torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 -m trainer {config(1)} --device cpu"
    typed = f"{train} --output-dir run\necho here: $(srun --overlap hostname </dev/null) $((40 + 2))\nexit 5\n"
    said = shell(cluster, tmp_path, typed=typed, OMP_NUM_THREADS="1")
    assert "here: node1 42" in said
    assert (tmp_path / "run" / "verdict.1").read_text().startswith("done "), said
    assert said.endswith("ended with 5\n"), said


def test_shell_in_image_has_binds_of_job(cluster, tmp_path, image):
    data = tmp_path / "my data, so: named"
    data.mkdir()
    (data / "file").touch()
    words = ("sh", "-c", 'ls "$DATA"; echo "$APPTAINER_NAME"; python -c "import torch; print(torch.ones(2).sum())"')
    said = shell(cluster, tmp_path, "--", *words, **image, SLIPWAY_DATA=str(data), SLIPWAY_DEVICE="cpu")
    assert f"\nfile\n{Path(image['SLIPWAY_IMAGE']).name}\ntensor(2.)\n" in said


@pytest.mark.prove
@pytest.mark.usefixtures("openpbs")
def test_shell_on_openpbs_runs_command_and_terminal(cluster):
    folder = cluster.folder / "shell"
    folder.mkdir()
    env = {"PATH": f"/opt/pbs/bin:{os.environ['PATH']}"}
    words = ("--set", "options.A=false", "--set", "cpus_per_gpu=2")
    said = shell(cluster, folder, *words, "--", "hostname", site="pbs", typed="", stays=10, **env)
    assert re.search(r"\nnode[12]\n", said), said
    said = shell(
        cluster, folder, *words, site="pbs", typed="echo $GPUS_PER_NODE GPU, $((40 + 2))\nexit\n", stays=10, **env
    )
    assert "1 GPU, 42" in said
