"""One machine without a scheduler: ranks and device of ddp.sh, and its exit code, by GPUs, driver and torch.

The counting program runs for real, with a stub of libcuda. The torch for CPUs is the real one of the tests'
environment; those for GPUs are stubs (tests/standins).
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from messages import assert_names, slugs
from slipway.base.gpu import Gpus
from stubs import DONE, SCRIPTS, changed_library

DRIVERS = {470: "11040", 535: "12020", 580: "13000"}
"""Too old for every variant, for cuda12 alone, and for both; with the CUDA version of each."""
FEW, NONE = ((78, "", "", slug) for slug in ("too-few-gpus", "no-gpu"))
BROKEN, UNFIT = ((78, "", "", slug, "broken-gpu") for slug in ("broken-gpu", "gpu-mismatch"))


def machine(libcuda, gpus, torch="13.2", driver=580, **env):
    """Return the variables of a machine with these GPUs and a torch for "cpu", "rocm" or a version of CUDA."""
    shown = {"STANDIN_CUDA": " ".join([DRIVERS[driver], *["80"] * gpus]), "LD_LIBRARY_PATH": str(libcuda)}
    return shown | ({} if torch == "cpu" else {"STANDIN_TORCH": torch}) | env


def plan_of(ended):
    """Return exit code, ranks, their GPUs, and the GPU total of the script's line, or the slug."""
    if not ended.of("torchrun"):
        return (ended.code, "", "", *slugs(ended.err))
    line = re.search(r"(?m)^\S+: (\d+ [^:]*\branks? [^:]*(CPU|GPU)[^:]*):", ended.err)
    _, *taken = re.findall(r"\d+", line[1])
    assert bool(taken) == (line[2] == "GPU"), line
    return (ended.code, ended.env["TRAINER_WORLD_SIZE"], ended.env["GPUS_PER_NODE"], " of ".join(taken) or "CPU")


def expected(gpus, driver, torch):
    """Return what a user expects of a machine."""
    if gpus == 0 or torch == "cpu":
        return (0, "2", "0", "CPU")
    if DRIVERS[driver][:2] < torch[:2]:
        return UNFIT
    return (0, str(gpus), str(gpus), f"{gpus} of {gpus}")


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("torch", ["cpu", "12.8", "13.2"])
def test_ranks_and_device_by_gpus_driver_and_torch(project, libcuda, table, driver, torch):
    rows = []
    for gpus in (0, 1, 2, 8)[: 2 if torch == "cpu" else 4]:  # importing the real torch takes seconds
        ended = project.run("ddp.sh", **machine(libcuda, gpus, torch, driver), **DONE)
        found = plan_of(ended)
        assert found == expected(gpus, driver, torch), ended
        said = [line.partition(": ")[2] for line in ended.err.splitlines() if re.search(r"\branks? |count_gpus", line)]
        assert len(said) == 1, ended
        assert [*(ended.run_dir / "lib" / "__pycache__").iterdir()] == []  # later attempts run that library
        rows.append((f"driver {driver}", f"{gpus} GPUs", f"torch for {torch}", *found[:4], said[0]))
    table("ddp.sh: exit code, ranks, GPUs taken, device, line", rows)


@pytest.mark.parametrize(
    ("gpus", "settings", "plan"),
    [
        (8, {"SLIPWAY_RANKS_PER_NODE": "3"}, (0, "3", "3", "3 of 8")),
        (2, {"SLIPWAY_RANKS_PER_NODE": "3"}, FEW),
        (0, {"SLIPWAY_RANKS_PER_NODE": "3"}, (0, "3", "0", "CPU")),
        (2, {"SLIPWAY_RANKS_PER_NODE": "3", "SLIPWAY_DEVICE": "cpu"}, (0, "3", "0", "CPU")),
        (2, {"SLIPWAY_DEVICE": "cuda"}, (0, "2", "2", "2 of 2")),
        (0, {"SLIPWAY_DEVICE": "cuda"}, NONE),
        (8, {"SLIPWAY_DEVICES_PER_RANK": "3"}, (0, "2", "6", "6 of 8")),
        (2, {"SLIPWAY_DEVICES_PER_RANK": "3"}, FEW),
        (1, {"STANDIN_INIT": "802"}, BROKEN),  # a driver that does not start
        (1, {"STANDIN_INIT": "802", "STANDIN_TORCH": ""}, (0, "2", "0", "CPU")),  # and torch does not need it
        (1, {"STANDIN_INIT": "802", "SLIPWAY_DEVICE": "cpu"}, (0, "2", "0", "CPU")),
        (2, {"STANDIN_TORCH_FAULT": "out of memory"}, BROKEN),
        (2, {"STANDIN_TORCH": "rocm"}, (0, "2", "2", "2 of 2")),
        (1, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, (0, "1", "1", "1 of 1")),  # a process sees one slice
        (1, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b", "SLIPWAY_RANKS_PER_NODE": "2"}, FEW),
        (1, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b", "STANDIN_TORCH": ""}, (0, "2", "0", "CPU")),
    ],
)  # fmt: skip
def test_settings_override_gpu_count_and_excess_ranks_are_refused(project, libcuda, gpus, settings, plan):
    ended = project.run("ddp.sh", **machine(libcuda, gpus, **settings), **DONE)
    assert plan_of(ended) == plan, ended
    if plan[0] == 78:
        assert "SLIPWAY_DEVICE=cpu" in "".join(ended.notes[-2:])
        assert not any("trainer.launch.preflight" in words for words in ended.calls)
        assert list((project.folder / "disk").iterdir()) == []


@pytest.mark.parametrize("place", [{"USE_CONTAINER": "0"}, {"SLIPWAY_SCRIPT": "my train.py"}])
def test_venv_and_user_script_get_same_ranks(project, libcuda, place):
    ended = project.run("ddp.sh", **machine(libcuda, 2), **place, **DONE)
    assert plan_of(ended) == (0, "2", "2", "2 of 2"), ended
    assert bool(ended.of("apptainer")) == ("USE_CONTAINER" not in place)
    assert plan_of(project.run("ddp.sh", SLIPWAY_RANKS_PER_NODE="3", **machine(libcuda, 2), **place)) == FEW
    assert plan_of(project.run("ddp.sh", **machine(libcuda, 2, driver=535), **place)) == UNFIT


def test_horovod_gets_same_ranks(project, libcuda):
    ended = project.run("ddp.sh", BACKEND="horovod", **machine(libcuda, 8), **DONE)
    assert (ended.code, ended.env["TRAINER_WORLD_SIZE"], ended.env["GPUS_PER_NODE"]) == (0, "8", "8")


def test_gpus_are_counted_in_image_despite_its_output(project, libcuda):
    ended = project.run(
        "ddp.sh", STUB_ON_APPTAINER="echo an image; echo slipway-gpus 5 of an image", **machine(libcuda, 2), **DONE
    )
    assert plan_of(ended)[:3] == (0, "2", "2")
    [counted] = [words for words in ended.of("apptainer") if any("count_gpus.py" in word for word in words)]
    assert "--nv" in counted
    assert str(project.folder / "slipway.sif") in counted


def test_hung_driver_ends_job(project, libcuda):
    library = changed_library(project, "local.bash", "run_for_answer 60 ", "run_for_answer 1 ")
    ended = project.run(
        "ddp.sh", SLIPWAY_LIB=str(library), SLIPWAY_PREFLIGHT_SECONDS="1", **machine(libcuda, 1, STANDIN_INIT="hang")
    )
    ended.assert_refused("broken-gpu", "1 s", "SLIPWAY_DEVICE=cpu")
    assert project.started[-1].left() == {}


def test_resumed_run_counts_gpus_again_and_keeps_settings(project, libcuda):
    first = project.run("ddp.sh", **machine(libcuda, 8), **DONE)
    job = first.run_dir / "job.sh"
    assert "restore_setting SLIPWAY_RANKS_PER_NODE" not in job.read_text()
    for gpus, ranks in ((2, "2"), (0, "2"), (1, "1")):
        again = project.run(job, SLIPWAY_RUN_DIR=str(first.run_dir), **machine(libcuda, gpus), **DONE)
        assert plan_of(again)[:2] == (0, ranks), again
    first = project.run("ddp.sh", SLIPWAY_RANKS_PER_NODE="4", **machine(libcuda, 8), **DONE)
    job, of = first.run_dir / "job.sh", {"SLIPWAY_RUN_DIR": str(first.run_dir), **DONE}
    assert plan_of(project.run(job, **of, **machine(libcuda, 8)))[:2] == (0, "4")
    assert plan_of(project.run(job, **of, **machine(libcuda, 2))) == FEW
    assert plan_of(project.run(job, **of, **machine(libcuda, 2), SLIPWAY_RANKS_PER_NODE="2"))[:2] == (0, "2")


@pytest.fixture
def count_gpus(monkeypatch):
    """Return the module count_gpus."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("count_gpus", SCRIPTS / "lib" / "count_gpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_of(cuda=None, hip=None, count=0):
    version = SimpleNamespace(cuda=cuda, hip=hip)
    return SimpleNamespace(__version__="9", version=version, cuda=SimpleNamespace(device_count=lambda: count))


@pytest.mark.parametrize(
    ("gpus", "torch", "count", "values"),
    [
        (None, torch_of(hip="7.0", count=4), 4, ["torch 9"]),
        (None, torch_of(hip="7.0"), 0, ["torch 9", "GPU"]),
        (None, torch_of(cuda="13.2"), 0, ["torch 9", "GPU"]),  # AMD's GPUs alone
        (None, torch_of(), 0, ["torch 9", "CPU"]),
        (Gpus((13, 0), [(8, 0)] * 3), torch_of(cuda="13.2", count=3), 3, ["torch 9"]),
        (Gpus((13, 0), [(8, 0)] * 3), torch_of(), 0, ["torch 9", "CPU", " 8.0 ", "(VARIANT=cuda)"]),
        (Gpus((11, 4), [(8, 0)] * 3), torch_of(), 0, ["torch 9", "CPU", " 525 "]),
        (Gpus((13, 0), [], "x (802)"), torch_of(), 0, ["torch 9", "CPU", "x (802)"]),
        (Gpus((13, 0), [(8, 0)] * 3), None, 3, ["torch"]),  # TensorFlow's, under Horovod
        (None, None, 0, ["torch"]),
    ],
)
def test_gpu_count_by_driver_and_torch_build(count_gpus, gpus, torch, count, values):
    found, said = count_gpus.count(gpus, torch)
    assert found == count
    assert_names(said, *values)


def test_torch_is_imported_only_if_driver_or_kfd_exists(count_gpus, monkeypatch, tmp_path):
    answer = tmp_path / "answer"
    monkeypatch.setattr(sys, "argv", ["count_gpus.py", str(answer)])
    monkeypatch.setattr(count_gpus, "find_gpus", lambda: None)
    monkeypatch.setattr(count_gpus, "AMD", tmp_path / "kfd")
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    assert count_gpus.main() == 0
    assert re.fullmatch(r"4\0000\0.+\0end\0", answer.read_text())
    monkeypatch.setitem(sys.modules, "torch", torch_of(hip="7.0", count=4))
    (tmp_path / "kfd").touch()
    assert count_gpus.main() == 0
    assert answer.read_text() == "4\0004\0torch 9\0end\0"


TRAIN = """#!/bin/bash
[ "$1" != room ] || exec build/setup.real "$@"
printf '{"VARIANT": "%s", "VENV": "%s"}' "$VARIANT" "$VENV" >setup.json
"""
RUN = """#!/bin/bash
printf '{"SLIPWAY_VENV": "%s", "SLIPWAY_IMAGE": "%s"}' "${SLIPWAY_VENV-}" "${SLIPWAY_IMAGE-}" >run.json
"""


@pytest.fixture
def train(tree, tmp_path, libcuda):
    """Return a function that runs build/train in a copy of this checkout, on a stub machine.

    It returns the exit code, the VARIANT and VENV that reach build/setup, SLIPWAY_VENV of ddp.sh, and standard error.
    Setup and training are stubs; the real build/setup checks the free disk space.
    """
    (tree / "build" / "setup").rename(tree / "build" / "setup.real")
    for path, text in ((tree / "build" / "setup", TRAIN), (tree / "jobscripts" / "ddp.sh", RUN)):
        path.write_text(text)
        path.chmod(0o755)
    df = tmp_path / "bin" / "df"
    df.parent.mkdir()
    df.write_text('#!/bin/sh\nprintf "Avail\\n%s\\n" "$FREE_MB"\n')
    df.chmod(0o755)

    def train(gpus, driver=580, *, free_mb=50_000, made_for=None, **env):
        shutil.rmtree(tree / ".venv", ignore_errors=True)
        if made_for:
            (tree / ".venv").mkdir()
            (tree / ".venv" / ".setup-variant").write_text(f"{made_for}\n")
        shown = {"STANDIN_CUDA": " ".join([DRIVERS[driver], *["80"] * gpus])}
        base = {"PATH": f"{df.parent}:/usr/bin:/bin", "PYTHON": sys.executable, "FREE_MB": str(free_mb)}
        done = subprocess.run(
            [tree / "build" / "train"],
            env={**base, "LD_LIBRARY_PATH": str(libcuda), **shown, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        found = {}
        for name in ("setup", "run"):
            found |= json.loads((tree / f"{name}.json").read_text())
        return done.returncode, found["VARIANT"], found["VENV"], found["SLIPWAY_VENV"], done.stderr

    train.tree = tree
    return train


def test_make_train_selects_variant_for_driver(train, table):
    rows = []
    chosen = {470: ("", ""), 535: ("cuda12", ".venv-cuda12"), 580: ("cuda", ".venv-cuda")}
    for driver in DRIVERS:
        for gpus in (0, 1, 2, 8):
            code, variant, venv, trained_in, err = train(gpus, driver)
            assert (code, variant, venv) == (0, *(chosen[driver] if gpus else ("", "")))
            assert trained_in == venv
            assert len(err.splitlines()) == bool(gpus), err
            rows.append((f"driver {driver}", f"{gpus} GPUs", code, variant or "unset", venv or ".venv", err.strip()))
        if driver == 470:
            assert " 525 " in train(1, driver)[-1]
    table("make train: exit code, VARIANT, environment, line", rows)


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"free_mb": 9_000}, ("", "")),  # a quarter of BUILD_SPACE_MB is 10,000
        ({"made_for": "cpu"}, ("cuda", ".venv-cuda")),
        ({"made_for": "cuda"}, ("cuda", ".venv")),
        ({"made_for": "cuda12"}, ("cuda", ".venv-cuda")),
        ({"VARIANT": "cpu"}, ("cpu", ".venv")),
        ({"VARIANT": "cuda12"}, ("cuda12", ".venv-cuda12")),
        ({"VARIANT": "cuda12", "made_for": "cuda12"}, ("cuda12", ".venv")),
        ({"VARIANT": "cuda12", "VENV": "other"}, ("cuda12", "other")),
        ({"VENV": "other"}, ("", "other")),
        ({"SLIPWAY_VENV": "mine"}, ("", "")),
        ({"WHEELHOUSE": "wheels"}, ("", "")),
        ({"SLIPWAY_IMAGE": "some.sif"}, ("", "")),
        ({"SLIPWAY_IMAGE": "some.sif", "USE_CONTAINER": "0"}, ("cuda", ".venv-cuda")),
        ({"STANDIN_INIT": "802"}, ("", "")),
        ({"PYTHON": "nothing"}, ("", "")),
    ],
)
def test_make_train_keeps_user_settings(train, env, found):
    code, variant, venv, trained_in, err = train(1, **env)
    assert (code, variant, venv) == (0, *found), err
    assert trained_in == env.get("SLIPWAY_VENV", venv)
    if "free_mb" in env:
        assert re.search(r"\b9000 MB .*\b10000 MB .*VARIANT=cuda make train", err)
    assert ("(802)" in err) == ("STANDIN_INIT" in env)


def test_make_train_selects_no_variant_with_image(train):
    (train.tree / "slipway.sif").touch()
    assert train(1)[1:4] == ("", "", "")


def test_make_train_skips_disk_check_for_existing_venv(train):
    real = train.tree / "build" / "setup.real"
    real.write_text(real.read_text().replace('if ! is_done base "$base_key"', 'mark_done base "$base_key"\nif false'))
    real.write_text(real.read_text().replace('if ! is_done project "$project_key"', "if false"))
    (train.tree / ".venv-cuda").mkdir()
    (train.tree / ".venv-cuda" / ".setup-variant").write_text("cuda\n")
    words = [real, "train"]
    env = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "VARIANT": "cuda", "VENV": ".venv-cuda"}
    subprocess.run(words, env=env, check=True)
    assert train(1, free_mb=1)[1:3] == ("cuda", ".venv-cuda")
