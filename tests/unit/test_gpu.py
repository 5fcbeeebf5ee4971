"""Driver and GPUs, read from a stub of libcuda, and the recommended build variant."""

import re
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from jobgen.jobs import precheck
from jobgen.runtimes import container_of
from messages import assert_error, assert_names, assert_warning, refused
from slipway.base.gpu import (
    VARIANTS,
    Gpus,
    advice,
    find_gpus,
    fits,
    mismatch,
    query_driver_in_child,
    query_gpus_in_child,
)
from support import ROOT, pins
from trainer.parallel import device as gpu

DRIVERS = {470: "11040", 525: "12000", 535: "12020", 570: "12080", 580: "13000"}
"""The newest CUDA of each branch, in the form of cuDriverGetVersion (NVIDIA, CUDA Toolkit Release Notes)."""
CUDA = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
CUDA12 = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.fixture
def machine(libcuda, monkeypatch):
    """Return a function that gives this machine a driver and GPUs, and returns what a child process finds."""

    def machine(cuda, *capabilities, timeout=20):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libcuda))
        monkeypatch.setenv("STANDIN_CUDA", " ".join((cuda, *capabilities)))
        return query_gpus_in_child(timeout)

    return machine


def named(said):
    """Return the variant that a piece of advice names, or the required driver branch; None if neither helps."""
    variant, driver = re.search(r"VARIANT=(\w+)", said), re.search(r"\b(\d{3})\b", said)
    return variant[1] if variant else int(driver[1]) if driver else None


def test_variant_advice_matches_documentation_table():
    page = (ROOT / "docs" / "howto" / "which-image.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\d{3}) \((\d+)\.(\d+)\) \| (.*) \|$", page)
    assert {int(row[0]): f"{1000 * int(row[1]) + 10 * int(row[2])}" for row in rows} == DRIVERS
    columns = [[(6, 1)], [(7, 0)], [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0)], [(10, 0), (12, 0)]]
    for _, major, minor, cells in rows:
        for cell, capabilities in zip(cells.split(" | "), columns, strict=True):
            for capability in capabilities:
                found = named(advice(Gpus((int(major), int(minor)), [capability])))
                words = {str: f"`{found}`", int: f"a newer driver, {found}", type(None): "none"}
                assert cell == words[type(found)], (major, minor, capability)


@pytest.mark.parametrize(
    ("cuda", "capabilities", "built", "architectures", "values"),
    [
        ("13000", ["80"], "13.0", CUDA, []),
        ("12020", ["80"], "12.8", CUDA12, []),  # minor versions are compatible
        ("13000", ["70"], "12.8", CUDA12, []),  # newer drivers run older CUDA
        ("12020", ["80"], "13.0", [], ["12.2", "13.0", "VARIANT=cuda12"]),
        ("13000", ["70"], "13.0", CUDA, ["7.0", "sm_75", "VARIANT=cuda12"]),
        ("13000", ["89"], "13.0", CUDA, []),  # sm_86 has the same major version
        ("13000", ["103"], "13.0", ["sm_90", "compute_90"], []),  # compiled from PTX when it is loaded
        ("13000", ["100"], "13.0", ["sm_90a", "compute_90a"], ["10.0", "sm_90a"]),
        ("13000", ["103"], "13.0", ["sm_100f"], []),  # of the same family
        ("13000", ["80", "61"], "13.0", CUDA, ["6.1", "sm_75", "CUDA_VISIBLE_DEVICES"]),
        ("13000", ["110"], "13.0", CUDA, ["11.0", "sm_75"]),
        ("12020", ["80"], "12.8", ["sm_next"], []),  # an architecture of a later version may fit
    ],
)  # fmt: skip
def test_torch_build_that_mismatches_gpus_is_detected(machine, cuda, capabilities, built, architectures, values):  # noqa: PLR0917 -- fixtures
    said = mismatch(machine(cuda, *capabilities), built, architectures)
    assert bool(said) == bool(values)
    assert_names(said, *values)


def test_unknown_variant_is_assumed_to_fit(machine):
    assert fits("rocm", machine("12020", "80"))


def test_missing_driver_or_gpu_is_reported_as_none(machine):
    for library in ("libnone.so.1", "libm.so.6", "/dev/null"):
        assert find_gpus(library) is None
    assert machine("13000") is None


@pytest.mark.parametrize(
    ("driver", "built", "opens", "architectures", "slug", "values"),
    [
        ((13, 0), "13.2", True, CUDA, "", []),
        ((12, 2), "13.0", True, CUDA, "gpu-mismatch", ["13.0", "VARIANT=cuda12", "--device cpu"]),
        ((13, 0), "13.2", True, ["sm_90"], "gpu-mismatch", ["8.0", "sm_90", "VARIANT=cuda)"]),
        ((13, 0), "13.2", False, [], "broken-gpu", ["8.0", "13.0", "no memory;"]),
    ],
)
def test_trainer_refuses_gpus_that_torch_cannot_use(  # noqa: PLR0917 -- parameters of a test
    monkeypatch, driver, built, opens, architectures, slug, values
):
    def init():
        if not opens:
            raise RuntimeError("no memory.\nand more")

    monkeypatch.setattr("torch.version.cuda", built)
    monkeypatch.setattr(gpu, "find_gpus", lambda: Gpus(driver, [(8, 0)]))
    monkeypatch.setattr("torch.cuda.init", init)
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: architectures)
    with refused(slug, *values, code=78) if slug else nullcontext():
        gpu.check_gpus()


def test_submit_warns_and_suggests_variant_for_local_gpus(machine, capsys):
    machine("12020", "70", "80")
    precheck._warn_of_gpu_mismatch(lambda: "cuda12")
    precheck._warn_of_gpu_mismatch(lambda: "of a site")
    assert capsys.readouterr().err == ""
    precheck._warn_of_gpu_mismatch(lambda: "cuda")
    err = capsys.readouterr().err
    assert_warning(err, "gpu-mismatch", "cuda ", "7.0, 8.0", "12.2", "VARIANT=cuda12")
    assert err.count("\n") == 1


def test_submit_reads_variant_from_image_labels(tmp_path, monkeypatch):
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho slipway.torch: 2.15.0\necho slipway.variant: cuda\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert precheck._variant_of("some.sif", container_of("apptainer")) == "cuda"
    monkeypatch.setenv("PATH", "/nowhere")
    assert precheck._variant_of("some.sif", container_of("apptainer")) == ""
    assert precheck._variant_of("some.sif", container_of("podman")) == ""


def test_variant_table_matches_pins_and_docs():
    folder = ROOT / "containers" / "pins"
    assert VARIANTS.keys() == {path.stem for path in folder.glob("*.env") if "CUDA_COMPILER" in pins(path.stem)}
    for name, needs in VARIANTS.items():
        pinned = pins(name)
        assert needs.cuda == (int(pinned["CUDA_VERSION"].split(".")[0]), 0)
        assert needs.architectures[0] == f"sm_{pinned['HOROVOD_BUILD_CUDA_CC_LIST'].split(',')[0]}"
        page = (ROOT / "docs" / "reference" / "image.md").read_text(encoding="utf-8")
        printed = re.search(rf"(?m)^\| `{name}` \| [\d.]+ \| sm_([\d, ]+) \|", page)
        assert [f"sm_{number}" for number in printed[1].split(", ")] == list(needs.architectures)


def test_hanging_driver_query_times_out(machine, monkeypatch):
    monkeypatch.setenv("STANDIN_INIT", "hang")
    began = time.monotonic()
    assert machine("13000", "80", timeout=2) is None
    assert time.monotonic() - began < 300
    assert query_driver_in_child(timeout=2) == Gpus((0, 0), [], "no answer within 2 s")
    monkeypatch.setattr("slipway.base.gpu.sys.executable", str(ROOT / "tests" / "unit" / "nothing"))
    assert query_gpus_in_child() is None


@pytest.mark.parametrize("number", ["2", "auto"])
def test_too_old_driver_is_reported_once_before_ranks_start(machine, tmp_path, number):
    machine("12020", "80", "80")
    program = "import torch; torch.version.cuda = '13.0'; from trainer.__main__ import main; raise SystemExit(main())"
    words = [sys.executable, "-c", program, "--nproc-per-node", number, "--output-dir", tmp_path / "run"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 78
    assert done.stderr.startswith("trainer: ")
    assert_error(done.stderr, "gpu-mismatch", "12.2", "13.0", "VARIANT=cuda12")
    assert done.stderr.count("\n") == 1


def test_failing_driver_is_reported_as_broken_gpu(machine, monkeypatch, libcuda):
    monkeypatch.setenv("STANDIN_INIT", "802")
    assert machine("13000", "80") is None  # a login node's driver does not matter to a job
    gpus = find_gpus(str(libcuda / "libcuda.so.1"))
    fault = "system not yet initialized (802)"
    assert gpus == Gpus((13, 0), [], fault)
    monkeypatch.setattr("torch.version.cuda", "13.2")
    monkeypatch.setattr(gpu, "find_gpus", lambda: gpus)
    with refused("broken-gpu", fault, "--device cpu", code=78):
        gpu.check_gpus()
    monkeypatch.setenv("STANDIN_INIT", "100")
    assert find_gpus(str(libcuda / "libcuda.so.1")).fault == ""
