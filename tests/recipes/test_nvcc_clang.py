"""Translation of Horovod's nvcc options into Clang's, and of Clang's fatbinary options for CUDA 12 into CUDA 13's."""

import os
import shutil
import subprocess

import pytest

from support import ROOT


@pytest.fixture
def home(tmp_path):
    """Return a CUDA_HOME whose programs, and a Clang 0 on PATH, print their names and arguments, one per line."""
    folder = tmp_path / "cuda" / "bin"
    folder.mkdir(parents=True)
    for name in ("nvcc", "fatbinary"):
        shutil.copy(ROOT / "containers" / "install" / f"{name}-clang.sh", folder / name)
    for name in ("ptxas", "fatbinary-13", "clang++-0"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
    return folder.parent


def said(home, program, *words):
    env = {"PATH": f"{home}/bin:{os.defpath}", "CUDA_CLANG": "clang-0"}
    done = subprocess.run([home / "bin" / program, *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_nvcc_gencode_gives_sass_per_architecture_and_last_ptx(home):
    words = ["-gencode", "arch=compute_70,code=sm_70", "-gencode", 'arch=compute_90,code="sm_90,compute_90"']
    assert said(
        home, "nvcc", "--cuda-gpu-arch=sm_52", "-O3", "-Xcompiler", "-fPIC", *words, "-x", "cuda", "a b.cu"
    ) == [
        "clang++-0",
        f"--cuda-path={home}",
        "-Wno-unknown-cuda-version",
        "--no-cuda-include-ptx=all",
        "--cuda-gpu-arch=sm_70",
        "--cuda-gpu-arch=sm_90",
        "--cuda-include-ptx=sm_90",
        "-O3",
        "-fPIC",
        "-x",
        "cuda",
        "a b.cu",
    ]


def test_nvcc_keeps_cmake_architecture_without_gencode(home):
    assert "--cuda-gpu-arch=sm_52" in said(home, "nvcc", "--cuda-gpu-arch=sm_52", "-v", "CMakeCUDACompilerId.cu")


def test_nvcc_version_prints_versions_of_clang_and_ptxas(home):
    assert said(home, "nvcc", "--version") == ["clang++-0", "--version", "ptxas", "--version"]


def test_fatbinary_image_options_are_translated_for_cuda_13(home):
    words = ["-64", "--create", "out", "--image=profile=sm_90a,file=a,b.o", "--image=profile=compute_90,file=c.s"]
    assert said(home, "fatbinary", *words) == [
        "fatbinary-13",
        "--compress-mode=none",
        "-64",
        "--create",
        "out",
        "--image3=kind=elf,sm=90a,file=a,b.o",
        "--image3=kind=ptx,sm=90,file=c.s",
    ]
