"""Properties of an image, checked as root and as an ordinary user."""

import errno
import json
import os
import re
import signal
import subprocess
from pathlib import Path

from messages import assert_names
from support import ROOT

MOST_MB = {"cpu": 440, "cuda": 3200, "cuda12": 4400}
"""Limit that reveals unneeded packages."""


def test_smoke_test_passes_in_image(root, variant, pinned):
    before = sum(os.times()[2:4])
    done = root.run("exec", root.image, "/opt/slipway/containers/smoke.sh", variant, limit=280)
    assert done.returncode == 0, done.stderr
    operations = [pinned["HOROVOD_GPU_OPERATIONS"]] if "HOROVOD_GPU_OPERATIONS" in pinned else []
    assert re.search(rf"(?m)^smoke: Horovod .*{' '.join(['PyTorch MPI Gloo', *operations])}$", done.stdout)
    assert re.search(r"(?m)^smoke: .*\b2 ranks\b", done.stdout)
    assert sum(os.times()[2:4]) - before < 60  # of computing, so on two cores 30 with nothing else to do


def test_smoke_test_of_wrong_variant_gives_one_line_error(root, variant):
    other = "cuda" if variant == "cpu" else "cpu"
    done = root.run("exec", root.image, "/opt/slipway/containers/smoke.sh", other)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert_names(done.stderr, "smoke: ", f" {variant} ", f" {other} ", f"VARIANT={other}")


def test_image_is_read_only(anyone):
    done = anyone.run("exec", anyone.image, "touch", "/opt/slipway/mark")
    assert done.returncode == 1
    assert any(os.strerror(number) in done.stderr for number in (errno.EROFS, errno.EACCES))


def test_packages_in_home_folder_are_ignored(anyone):
    package = anyone.home / ".local" / "lib" / "python3.11" / "site-packages" / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('torch of ~/.local')\n")
    home = ("--home", str(anyone.home))
    done = anyone.run("exec", *home, anyone.image, "python", "-c", "import torch; print(torch.__file__)")
    assert done.stdout.startswith("/opt/venv/"), done.stdout + done.stderr


def test_image_sets_no_nccl_openmp_or_mpi_variables(root):
    done = root.run("exec", "--cleanenv", root.image, "env")
    names = {line.split("=")[0] for line in done.stdout.splitlines()}
    prefixes = ("NCCL_", "OMP_", "OMPI_", "MKL_", "GLOO_", "UCX_", "HOROVOD_")
    assert not {name for name in names if name.startswith(prefixes)}
    assert "PYTHONNOUSERSITE" in names


def test_entry_point_passes_arguments_and_exit_code(anyone):
    hostile = ["two words", "a'; echo foo", '"$HOME"', "line\nbreak", "", "--help"]
    # --no-eval: Apptainer's own run script of an image from Docker has a shell expand the arguments.
    done = anyone.run(
        "run", "--no-eval", anyone.image, "python", "-c", "import sys; print(sys.argv[1:]); sys.exit(37)", *hostile
    )
    assert done.returncode == 37
    assert done.stdout.strip() == str(hostile)


def test_entry_point_passes_signals(anyone):
    script = "trap 'exit 41' TERM; echo ready; while :; do sleep 0.1; done"
    words = anyone.words("run", anyone.image, "bash", "-c", script)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=anyone.environment(), cwd=anyone.home
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 41


def test_image_has_labels_and_help_text(root, variant, pinned):
    done = root.run("inspect", "--json", "--labels", "--helpfile", root.image)
    attributes = json.loads(done.stdout)["data"]["attributes"]
    labels = attributes["labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["slipway.variant"] == variant
    for name in ("torch", "cuda", "horovod"):
        assert labels[f"slipway.{name}"] == pinned[f"{name.upper()}_VERSION"], name
    revision = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    assert len(labels["org.opencontainers.image.revision"].removesuffix("-dirty")) == len(revision)
    if "docker" not in Path(root.image).stem:  # only a definition file has a help text
        assert "apptainer run --nv slipway.sif" in attributes["helpfile"]


def test_bill_of_materials_lists_runtime_but_no_build_packages(root, table):
    inside = root.run("exec", root.image, "cat", "/opt/slipway/sbom.cdx.json").stdout
    components = json.loads(inside)["components"]
    names = {component["name"] for component in components}
    assert {"torch", "horovod", "mpi4py", "slipway-hpc", "openmpi-bin", "libibverbs1", "numactl"} <= names
    assert len(names & {"clang-19", "cmake", "hatchling", "libllvm19", "libopenmpi-dev", "make", "nvidia-nvvm"}) == 0, (
        "left behind by a build"
    )
    assert Path(root.image).with_suffix(".cdx.json").read_text() == inside
    kinds = [component["purl"].split("/")[0] for component in components]
    table(
        "bill of materials",
        [("image", "Debian", "Python"), (Path(root.image).name, kinds.count("pkg:deb"), kinds.count("pkg:pypi"))],
    )


def test_image_size_is_below_limit(root, variant, table):
    size = Path(root.image).stat().st_size / 1e6
    done = root.run(
        "exec", root.image, "sh", "-c", "du -sm /opt/venv/lib/python*/site-packages/* /usr/lib/* /usr/include /usr/bin"
    )
    rows = sorted((line.split("\t") for line in done.stdout.splitlines()), key=lambda row: -int(row[0]))
    table(f"{Path(root.image).name}: {size:.0f} MB compressed; unpacked, MB", rows[:16])
    assert size <= MOST_MB[variant]


def test_bound_sources_replace_sources_of_image(root, tmp_path):
    sources = tmp_path / "src"
    subprocess.check_call(["cp", "-R", ROOT / "src", sources])
    (sources / "trainer" / "__init__.py").write_text("MARK = 'of this folder'\n")
    words = [ROOT / "build" / "run", root.image, "python", "-c", "import trainer; print(trainer.MARK)"]
    done = subprocess.run(
        words, env=root.environment() | {"SRC": str(sources)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "of this folder\n"
