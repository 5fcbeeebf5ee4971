"""A job with --compile that resumes with an empty cache, as on another node, compiles no kernel again."""

import shutil
import socket

import pytest

from messages import assert_error, slugs
from support import ROOT, train, weights

TOLERANCE = 1e-4
"""Tolerance between weights of compiled and eager float32 steps after two epochs."""
FLAGS = ["--compile", "--arch", "mlp", "--epochs", "2", "--no-figures", "--amp", "none"]


@pytest.mark.prove
def test_resumed_run_reuses_compiled_kernels_of_run_folder(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/$COMPILED_BY.calls"\nexec c++ "$@"\n')
    compiler.chmod(0o755)

    def run(name, *flags, cache, attempt):
        """Train with the cache ``name`` and return the compiler calls that generated code."""
        env = {"CXX": str(compiler), "COMPILED_BY": name, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"cache.{cache}")}
        env["TRAINER_ATTEMPT"] = attempt
        train("spawn", 2, tmp_path / name, *FLAGS, *flags, imports=True, **env)  # CXX is read by an import
        calls = tmp_path / f"{name}.calls"
        return [call for call in calls.read_text().splitlines() if "-shared" in call] if calls.exists() else []

    assert run("here", "--stop-epoch", "1", cache="here", attempt="1")
    assert list((tmp_path / "here" / "compiled").iterdir())
    shutil.copytree(tmp_path / "here", tmp_path / "there", symlinks=True)
    run("here", "--resume", "auto", cache="here", attempt="2")
    assert not run("there", "--resume", "auto", cache="there", attempt="2")
    first, second = (weights(tmp_path / name / "checkpoints" / "latest") for name in ("here", "there"))
    assert all(first[name].equal(second[name]) for name in first)
    train("forked", 2, tmp_path / "eager", *FLAGS, "--no-compile")
    eager = weights(tmp_path / "eager" / "checkpoints" / "latest")
    difference = max(float((first[name] - eager[name]).abs().max()) for name in first)
    assert difference < TOLERANCE


@pytest.mark.parametrize(("arch", "compiles"), [("mlp", True), ("opted_out:Model", False)])
def test_warning_if_nothing_of_model_is_compiled(arch, compiles, tmp_path):
    (tmp_path / "opted_out.py").write_text(
        "import torch\n\n\n"
        "class Model(torch.nn.Linear):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(64, classes)\n\n"
        "    @torch.compiler.disable\n"
        "    def forward(self, images):\n"
        "        return super().forward(images.flatten(1))\n"
    )
    flags = ["--compile", "--arch", arch, "--max-steps", "2", "--no-figures", "--amp", "none"]
    said = train("single", 1, tmp_path / "run", *flags, PYTHONPATH=f"{ROOT}/src:{tmp_path}")
    assert ("nothing-compiled" in slugs(said)) != compiles


def test_compile_without_compiler_is_refused_before_training(tmp_path):
    flags = ["--compile", "--arch", "mlp", "--max-steps", "2", "--no-figures"]
    said = train("spawn", 2, tmp_path / "run", *flags, code=78, imports=True, CXX="no-such-compiler")
    assert_error(said, "no-compiler", "--compile", "'no-such-compiler'", socket.gethostname())
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
