"""Fixtures: Bash with the library and stubs of the programs that it calls."""

import subprocess

import pytest

from bash_library import LIB, SRUN, START, Done
from stubs import HOSTILE


@pytest.fixture
def stub(tmp_path):
    """Return a function that puts a Bash stub on PATH; srun, which runs commands here, is one."""

    def stub(name, code):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)

    stub("srun", SRUN)
    return stub


@pytest.fixture
def place(tmp_path):
    """Return a folder with a hostile name, in which the functions are called."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    return folder


@pytest.fixture
def bash(place, stub, tmp_path):
    """Return a function that runs Bash with the library and these stub programs."""

    def bash(code, *arguments, scheduler="slurm", runtime="apptainer", lib=LIB, limit=300, programs=None, **env):
        for name, text in (programs or {}).items():
            stub(name, text)
        root_may = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            ["bash", "-c", START.format(scheduler=scheduler, runtime=runtime, lib=lib) + code, "x", *arguments],
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), **root_may, **env},
            cwd=place,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=limit,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return bash
