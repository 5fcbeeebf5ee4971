"""The preflight: what it checks on a node, and its messages."""

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainer
from messages import assert_error, messages, refused
from slipway.run.lock import Lock
from trainer.launch import preflight
from trainer.parallel import device


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    def answer(*flags):
        output = [] if "--output-dir" in flags else ["--output-dir", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["preflight", *output, "--device", "cpu", *flags])
        return preflight.main(), capsys.readouterr().err

    return answer


@pytest.fixture
def refusal(answer):
    """Return a function that asserts that the preflight reports one error, and returns its text."""

    def refusal(flags, slug, *values, code=78):
        found, said = answer(*flags)
        assert (found, said.count("\n")) == (code, 1)
        assert said.startswith(f"trainer: {socket.gethostname()}: ")
        assert_error(said, slug, *values)
        return messages(said)[0].text

    return refusal


def test_healthy_node_prints_nothing_and_leaves_no_files(answer, tmp_path):
    assert answer() == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_refused(refusal, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name in {"tqdm", "tomli_w"} else name)
    refusal([], "missing-package", f"({sys.executable})", "tomli_w, tqdm", "`make image`")


def test_checked_packages_are_those_that_trainer_imports():
    source = Path(trainer.__file__).parent
    training = [path for path in source.rglob("*.py") if path.parent.name != "dask"]  # of no rank
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in training]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    foreign = (
        {name.split(".")[0] for name in imported}
        - sys.stdlib_module_names
        - {"slipway", "trainer", "horovod", "mpi4py", "simplejpeg"}  # the last three may be absent
    )
    assert foreign | {"safetensors"} == set(preflight.NEEDED)  # in which slipway saves


@pytest.mark.parametrize(
    ("flags", "code", "slug", "values"),
    [
        ("--output-dir {}/nowhere", 78, "cannot-write", ["--output-dir", "/nowhere", "No such file"]),
        ("--dataset imagefolder --data-dir {}/nowhere", 78, "data-unreadable", ["--data-dir", "/nowhere"]),
        ("{}/wrong.toml", 78, "unknown-key", ["/wrong.toml", "'epoch'", "'epochs'"]),
        ("--learning-rate 0.1", 2, "unknown-flag", ["--learning-rate", "--lr"]),
        ("--epochs many", 2, "bad-flag-value", ["--epochs", "'many'", "1"]),
    ],
)
def test_unusable_flags_paths_and_config_give_one_line_error(refusal, tmp_path, flags, code, slug, values):  # noqa: PLR0917
    (tmp_path / "wrong.toml").write_text("[train]\nepoch = 3\n")
    refusal(flags.format(tmp_path).split(), slug, *values, code=code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_cuda_without_gpu_is_refused(refusal):
    refusal(["--device", "cuda"], "no-gpu", "--device cuda", "SLIPWAY_DEVICE=cpu")


def test_broken_gpu_is_refused(refusal, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: unknown error\nand more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "zeros", broken)
    refusal(["--device", "auto"], "broken-gpu", "GPU 0", "CUDA error: unknown error", "nvidia-smi")


def test_run_folder_of_other_run_is_refused(answer, refusal, tmp_path, monkeypatch):
    owner = Lock(tmp_path, job_id="4711", attempt=1)
    owner.acquire()
    try:
        refusal([], "folder-in-use", tmp_path, os.getpid(), "4711")
        monkeypatch.setenv("TRAINER_JOB_ID", "4711")  # the same job, requeued
        monkeypatch.setenv("TRAINER_ATTEMPT", "2")
        assert answer() == (0, "")
        monkeypatch.setenv("TRAINER_ATTEMPT", "second")
        refusal([], "bad-rank-variables", "TRAINER_ATTEMPT='second'")
    finally:
        owner.release()


class TestGpuCount:
    """GPUs of a node compared with what its ranks need."""

    SPLIT = ("--split", "conv2", "--arch", "mnist-cnn")

    @pytest.fixture
    def node(self, monkeypatch):
        """Return a function that gives this node GPUs and a plan of its job."""

        def node(count, **env):
            for name in ("RANKS_PER_NODE", "BOUND_GPUS"):
                monkeypatch.setenv(f"TRAINER_{name}", env.get(name, ""))
            monkeypatch.setattr(device, "check_gpus", lambda: None)
            monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
            monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)

        return node

    @pytest.mark.parametrize(
        ("count", "flags", "env"),
        [
            (4, SPLIT, {"RANKS_PER_NODE": "2"}),
            (4, (), {"RANKS_PER_NODE": "4"}),
            (4, ("--devices-per-rank", "4", *SPLIT), {"RANKS_PER_NODE": "1"}),
            (2, SPLIT, {}),  # started manually, without a plan
            (1, (*SPLIT, "--stage-devices", "cuda:0,cpu"), {"RANKS_PER_NODE": "2"}),
            # bound ranks: this process may see all GPUs of the node, or one of them
            (4, SPLIT, {"RANKS_PER_NODE": "2", "BOUND_GPUS": "2"}),
            (1, SPLIT, {"RANKS_PER_NODE": "2", "BOUND_GPUS": "2"}),
            (1, (), {"RANKS_PER_NODE": "4"}),  # a site that binds GPUs without declaring it
        ],
    )
    def test_node_with_enough_gpus_is_accepted(self, node, answer, count, flags, env):
        node(count, **env)
        assert answer("--device", "cuda", *flags) == (0, "")

    @pytest.mark.parametrize(
        ("count", "flags", "env", "numbers", "settings"),
        [  # the first is ddp.job with one rank per GPU
            (4, SPLIT, {"RANKS_PER_NODE": "4"}, [4, 2, 8, 4, 2], ["DEVICES_PER_RANK=2", "RANKS_PER_NODE"]),
            (1, SPLIT, {"RANKS_PER_NODE": "1"}, [1, 2, 2, 1, 2], ["DEVICES_PER_RANK=2"]),
            (2, (), {"RANKS_PER_NODE": "3"}, [3, 1, 3, 2], ["RANKS_PER_NODE=2"]),
            (4, SPLIT, {"RANKS_PER_NODE": "4", "BOUND_GPUS": "1"}, [2, 1], ["DEVICES_PER_RANK=2"]),
            (0, SPLIT, {"RANKS_PER_NODE": "1"}, [], ["DEVICE=cpu"]),
        ],
    )
    def test_too_few_gpus_are_refused(self, node, refusal, count, flags, env, numbers, settings):  # noqa: PLR0917 -- fixtures
        node(count, **env)
        slug = "too-few-gpus" if count else "no-gpu"
        said = refusal(["--device", "cuda", *flags], slug, *(f"SLIPWAY_{each}" for each in settings))
        assert re.findall(r"(?<!\S)\d+", said) == list(map(str, numbers))


def test_torch_is_not_imported_for_device_cpu(tmp_path):
    code = (
        "import sys; from trainer.launch import preflight; sys.exit(preflight.main() or 9 * ('torch' in sys.modules))"
    )
    words = [sys.executable, "-c", code, "--device", "cpu", "--output-dir", str(tmp_path), "--split", "conv2"]
    assert subprocess.run(words, check=False).returncode == 0


SRUN_LISTS = "MPI plugin types are...\n\tnone\n\t"
PMIX = "pmix\nspecific pmix plugin versions available: pmix_v4"


class TestMPI:
    """The nodes' MPI compared with the one of this environment."""

    @pytest.fixture(autouse=True)
    def inside(self, monkeypatch):
        mpi = pytest.importorskip("mpi4py.MPI", reason="no MPI library here")
        monkeypatch.setattr(
            mpi, "Get_library_version", lambda: "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\0"
        )

    @pytest.mark.parametrize(
        ("outside", "pmix"),
        [
            ("", ""),
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...", "4.2.2"),
            ("mpirun (Open MPI) 4.0.3", ""),
            (SRUN_LISTS + PMIX, ""),
        ],
    )
    def test_compatible_mpi_is_accepted(self, outside, pmix):
        preflight.check_mpi(outside, pmix)

    @pytest.mark.parametrize(
        ("outside", "pmix", "named"),
        [
            ("mpirun (Open MPI) 5.0.11", "", "mpirun (Open MPI) 5.0.11"),
            ("HYDRA build details:\n  Version: 4.1", "", "HYDRA build details"),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "", "Intel(R) MPI Library"),
            (f"{SRUN_LISTS}pmi2", "", "none pmi2"),
            ("mpirun (Open MPI) 4.1.4", "1.2.5", "1.2.5"),
        ],
    )
    def test_incompatible_mpi_is_refused_and_horovod_gloo_suggested(self, outside, pmix, named):
        with refused("mpi-mismatch", "Open MPI v4.1.4", named, "horovod-gloo"):
            preflight.check_mpi(outside, pmix)
