"""Fixtures for tables in the test summary and for image builds, and CI's ban on skips."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support import ROOT

TABLE = "table"


@pytest.fixture
def table(record_property) -> Callable[[str, Sequence[Sequence[object]]], None]:
    """Return a function that prints a title and rows in the test summary."""

    def show(title: str, rows: Sequence[Sequence[object]]) -> None:
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        record_property(TABLE, "\n".join([title, *lines]))

    return show


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    for name, text in [found for report in reports for found in report.user_properties]:
        if name == TABLE:
            terminalreporter.write_line(f"\n{text}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Turn a skip into a failure if SLIPWAY_FORBID_SKIPS is set: in CI, a missing tool is a fault of the setup."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("SLIPWAY_FORBID_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and SLIPWAY_FORBID_SKIPS is set: {report.longrepr}"


@pytest.fixture
def tree(tmp_path) -> Path:
    """Return a modifiable copy of the files that image builds read and write."""
    copy = tmp_path / "tree"
    for name in ("build", "configs", "containers", "jobscripts", "src"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", "apptainer.def", "LICENSE", "Makefile", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def stubs(tree) -> Path:
    """Return the tree with empty install scripts and an empty smoke test, so that recipes take seconds."""
    for script in [*tree.glob("containers/install/[0-9]*.sh"), tree / "containers" / "smoke.sh"]:
        script.write_text("#!/bin/bash\n")
    return tree


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory) -> Path:
    """Return the folder of the stub of NVIDIA's libcuda, for LD_LIBRARY_PATH."""
    folder = tmp_path_factory.mktemp("libcuda")
    source = ROOT / "tests" / "unit" / "libcuda.c"
    subprocess.check_call(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source])
    return folder


@pytest.fixture(scope="session")
def base() -> str:
    """Return the name of the base image in buildah's storage; `make image` put it there."""
    if os.getuid() != 0:
        pytest.skip("mmdebstrap and buildah's mounts need root")
    return subprocess.check_output([ROOT / "build/base", "localhost/none:1", "bookworm"], text=True).strip()


@pytest.fixture(scope="session")
def base_archive(base, tmp_path_factory) -> str:
    """Return that base as a value of BASE_IMAGE, for builds with a separate SCRATCH."""
    archive = f"docker-archive:{tmp_path_factory.mktemp('base')}/base.tar"
    subprocess.check_call([ROOT / "build/buildah", "push", "--quiet", base, f"{archive}:{base}"])
    return archive
