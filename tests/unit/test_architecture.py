"""Allowed imports: which module may import or name which package."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from trainer.config.settings import DATASET_NAMES, OptimizerName, ScheduleName
from trainer.data.sets import DATASETS
from trainer.optim.optimizers import OPTIMIZERS, SCHEDULES

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = {
    str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8")
    for package in ("jobgen", "slipway", "trainer")
    for path in (SOURCE / package).rglob("*.py")
    if "templates" not in path.parts
}
JOBGEN = {module: text for module, text in MODULES.items() if module.startswith("jobgen/")}
ROOMS = {
    "jobgen": """
        __main__ cli new run follow batch jobs render detect resolve launchers schedulers runtimes
        base""",
    "slipway": """
        session lightning script checks capture state run data __main__ checkpoint rng report dist base""",
    "trainer": """
        evaluate __main__ launch train loop trainer_program selftest results build engine parallel data optim model
        config""",
}
"""The layers of each package: each imports only those after it."""
LIGHT = sorted(module.removesuffix(".py").replace("/", ".") for module in MODULES if module.startswith("slipway/base/"))
"""Modules of slipway that load no torch."""

DRY_RUN = ["run", "configs/digits.toml", "--site", "example", "--venv", sys.prefix, "--dry-run"]


def imports_in(text):
    """Return every dotted name that ``text`` imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def names_in(text):
    """Return every dotted name that ``text`` imports or spells out."""
    spelled = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    return imports_in(text) | spelled


def users_of(package):
    """Return the modules that name ``package`` or something in it."""
    return {
        module
        for module, text in MODULES.items()
        if any(f"{name}.".startswith(f"{package}.") for name in names_in(text))
    }


def test_modules_and_their_imports_are_collected():
    expected = {"jobgen/cli/__init__.py", "slipway/run/lock.py", "trainer/train.py", "trainer/parallel/ddp.py"}
    assert expected <= MODULES.keys()
    assert "torch.distributed.init_process_group" in names_in("import torch\ntorch.distributed.init_process_group()")
    renamed = "from torch import distributed as dist"
    assert "torch.distributed" in names_in(renamed)


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (
            ["torch.distributed"],
            {
                "slipway/checkpoint/shards.py",  # which part of a DTensor a rank holds
                "slipway/dist/existing_group.py",
                "slipway/dist/torch_distributed.py",
                "slipway/state/clipping.py",  # norms of DTensors
                "trainer/selftest/measure.py",
            },
        ),
        (
            ["torch.nn.parallel"],
            {
                "slipway/capture/data_parallel.py",  # which buffers a wrapper broadcasts
                "slipway/state/wrappers.py",  # which removes a script's wrappers
                "trainer/parallel/ddp.py",
            },
        ),
        (["horovod"], {"slipway/dist/horovod.py", "trainer/parallel/horovod.py"}),
        (
            ["os.environ", "os.getenv"],  # each program reads it once
            {
                *("jobgen/follow/lookup.py", "jobgen/jobs/submit.py"),
                "jobgen/render/files.py",  # where sites are
                "jobgen/detect/__init__.py",  # of the login node
                "jobgen/base/queue.py",  # passes it to the scheduler's command
                "slipway/script/opening.py",  # of a user's script
                *("trainer/__main__.py", "trainer/launch/preflight.py", "trainer/evaluate/command.py"),
                "trainer/launch/dask/worker.py",  # passes it to its child processes
                "trainer/launch/spawn.py",  # passes it to the ranks
            },
        ),
        (["torchvision"], {"trainer/model/torchvision_on_cpu.py"}),
        (["pickle", "dill", "joblib"], set()),
        (["torch.save"], {"slipway/checkpoint/export.py"}),  # for users who request a .pt file
    ],
)
def test_restricted_packages_are_used_only_by_listed_modules(names, modules):
    assert set().union(*map(users_of, names)) == modules


def test_packages_import_only_lower_packages():
    assert {module for module in users_of("jobgen") if not module.startswith("jobgen/")} == set()
    assert {module for module in users_of("trainer") if not module.startswith("trainer/")} == set()
    used = {name for text in JOBGEN.values() for name in names_in(text) if name.startswith("slipway.")}
    assert {name.split(".")[1] for name in used} == {"base"}


@pytest.mark.parametrize("package", ROOMS)
def test_subpackages_import_only_lower_layers(package):
    rooms = ROOMS[package].split()
    ours = {module.split("/")[1].removesuffix(".py"): module for module in MODULES if module.startswith(f"{package}/")}
    assert ours.keys() - {"__init__"} == set(rooms)
    for module, text in MODULES.items():
        room = module.split("/")[1].removesuffix(".py")
        if module.startswith(f"{package}/") and room != "__init__":
            used = {name.split(".")[1] for name in imports_in(text) if name.startswith(f"{package}.")} & set(rooms)
            assert {name for name in used if rooms.index(name) < rooms.index(room)} == set(), module


@pytest.mark.parametrize(("scheduler", "modules"), [("SLURM_", {"slipway/base/environment.py"}), ("PBS_", set())])
def test_scheduler_variables_are_read_only_in_environment_module(scheduler, modules):
    ours = MODULES.keys() - JOBGEN.keys() - {"slipway/base/contract.py"}
    assert {module for module in ours if scheduler in MODULES[module]} == modules


def test_third_party_error_texts_are_parsed_in_one_module():
    for module, text in MODULES.items():
        if not module.startswith("jobgen/") and module != "slipway/base/third_party_errors.py":
            assert "in str(error)" not in text, module


def test_rank_is_compared_with_0_in_one_module():
    assert {module for module, text in MODULES.items() if re.search(r"rank == 0", text)} == {
        "slipway/base/environment.py"
    }


@pytest.mark.parametrize(
    "module",
    ["slipway.__main__"]
    + [f"trainer.config.{name}" for name in ("cli", "commands", "errors", "schema", "usage")]
    + [f"slipway.run.{name}" for name in ("cause", "goodput_clock", "lock", "status")]
    + ["trainer.__main__", "trainer.launch.spawn", *LIGHT],
)
def test_modules_used_before_training_do_not_import_torch(module):
    code = f"import sys, {module}; print({{'torch', 'numpy', 'torchvision', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded == "set()\n"


@pytest.mark.parametrize(
    ("registry", "names"),
    [(DATASETS, DATASET_NAMES), (OPTIMIZERS, get_args(OptimizerName)), (SCHEDULES, get_args(ScheduleName))],
)
def test_configuration_names_match_registries(registry, names):
    assert list(registry) == list(names)


class TestJobgen:
    def test_imports_form_no_cycle(self):
        files = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in JOBGEN}
        graph = {}
        for name, module in files.items():
            found = imports_in(MODULES[module])
            graph[name] = {source if source in files else source.rpartition(".")[0] for source in found}
        assert "jobgen.base.queue" in graph["jobgen.schedulers.slurm"]
        list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError

    def test_scheduler_variables_are_used_only_by_scheduler_modules(self):
        for path in (SOURCE / "jobgen").rglob("*.*"):
            if path.suffix in {".py", ".bash"} and ("SLURM_" in path.read_text() or "PBS_" in path.read_text()):
                assert {"schedulers", "queues", "slurm", "pbs"} & set(path.parts), path

    def test_python_3_9_syntax_and_only_stdlib_and_validator_imports(self):
        allowed = sys.stdlib_module_names | {"jobgen", "slipway", "msgspec", "tomli", "__future__"}
        base = {module: text for module, text in MODULES.items() if module.startswith("slipway/base/")}
        for module, text in (JOBGEN | base).items():
            ast.parse(text, feature_version=(3, 9))
            assert {name.split(".")[0] for name in imports_in(text)} <= allowed, module

    @pytest.mark.parametrize(
        ("code", "modules", "expected"),
        [
            ("", {"torch", "msgspec", "tomllib", "subprocess", "json", "argparse"}, ["argparse"]),  # of --help
            (
                "jobgen.cli.main(['render', 'ddp', '--site', 'example', '--output', '/dev/null'])",
                {"torch", "numpy", "subprocess", "json", "tempfile", "difflib", "slipway.base.flags", "tomllib"},
                ["tomllib"],
            ),
            (
                f"jobgen.cli.main({DRY_RUN})",
                {"torch", "subprocess", "logging", "ctypes", "json", "tempfile", "jobgen.follow"},
                ["subprocess"],
            ),
        ],
    )
    @pytest.mark.usefixtures("in_the_project")
    def test_command_imports_only_required_modules(self, code, modules, expected):
        env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        code = f"import sys, jobgen.cli\n{code}\nprint(*sorted({modules} & set(sys.modules)))"
        out = subprocess.check_output([sys.executable, "-c", code], text=True, env=env)
        assert out.splitlines()[-1].split() == expected
