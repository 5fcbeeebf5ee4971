"""Which module may know of what."""

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

from trainer.config import DATASET_NAMES, OptimizerName, ScheduleName
from trainer.data import DATASETS
from trainer.optim import OPTIMIZERS, SCHEDULES

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = {
    str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8")
    for package in ("jobgen", "slipway", "trainer")
    for path in (SOURCE / package).rglob("*.py")
}
JOBGEN = {module: text for module, text in MODULES.items() if module.startswith("jobgen/")}
LAYERS = [
    "__main__",
    "cli",
    "completion",
    "explain",
    "detect",
    "follow",
    "tasks",
    "sweeps",
    "studies",
    "interactive",
    "submit",
    "faults",
    "runsets",
    "finding",
    "runs",
    "account",
    "scripts",
    "flags",
    "load",
    "render",
    "header",
    "standalone",
    "launch",
    "owners",
    "resolve",
    "settings",
    "containers",
    "launchers",
    "schedulers",
    "queues",
    "registry",
    "model",
    "datafile",
    "data",
    "template",
    "shell",
    "errors",
    "__init__",
]
"""Modules and packages of jobgen: each may import those below it."""
LEAVES = {"errors", "flags", "goodput", "gpu", "layout", "parser", "reading", "slugs"}
"""What jobgen reads of slipway: without torch, and on the old Python of a login node."""
LIGHT = sorted(
    LEAVES | {"environment", "files", "lock", "position", "runfolder", "status", "stop", "third_party_errors", "world"}
)
"""Modules of slipway that need no torch."""


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


def test_the_sources_and_their_imports_are_found():
    assert {"jobgen/cli.py", "slipway/lock.py", "trainer/loop.py", "trainer/strategies/ddp.py"} <= MODULES.keys()
    assert "torch.distributed.init_process_group" in names_in("import torch\ntorch.distributed.init_process_group()")
    renamed = "from torch import distributed as dist"
    assert "torch.distributed" in names_in(renamed)


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (
            ["torch.distributed"],
            {
                "slipway/communicator/adopt.py",
                "slipway/communicator/torch_distributed.py",
                "trainer/selftest/measure.py",
            },
        ),
        (
            ["torch.nn.parallel"],
            {
                "slipway/data_parallel.py",  # which buffers a wrapper broadcasts
                "slipway/wrappers.py",  # which unwraps what a script has wrapped
                "trainer/strategies/ddp.py",
            },
        ),
        (["horovod"], {"slipway/communicator/horovod.py", "trainer/strategies/horovod.py"}),
        (
            ["os.environ", "os.getenv"],  # each program reads it once
            {
                *("jobgen/finding.py", "jobgen/submit.py"),
                "jobgen/scripts.py",  # where sites are
                "jobgen/detect/__init__.py",  # of the login node
                "jobgen/queues/__init__.py",  # hands it on to the scheduler's command
                "slipway/opening.py",  # of a user's script
                *("trainer/__main__.py", "trainer/preflight.py", "trainer/trained/evaluate.py"),
                "trainer/dask/worker.py",  # hands it on to what it runs
                "trainer/spawn.py",  # hands it on to the ranks
            },
        ),
        (["torchvision"], {"trainer/torchvision_on_cpu.py"}),
        (["pickle", "dill", "joblib"], set()),
        (["torch.save"], {"slipway/export.py"}),  # for people who ask for a .pt file
    ],
)
def test_only_these_modules_use(names, modules):
    assert set().union(*map(users_of, names)) == modules


def test_packages_import_downwards_only():
    assert {module for module in users_of("jobgen") if not module.startswith("jobgen/")} == set()
    assert {module for module in users_of("trainer") if not module.startswith("trainer/")} == set()
    of_slipway = set()
    for text in JOBGEN.values():
        of_slipway |= {name.split(".")[1] for name in names_in(text) if name.startswith("slipway.")}
    assert of_slipway == LEAVES


@pytest.mark.parametrize(("scheduler", "modules"), [("SLURM_", {"slipway/environment.py"}), ("PBS_", set())])
def test_only_the_environment_knows_variables_of_slurm(scheduler, modules):
    ours = MODULES.keys() - JOBGEN.keys() - {"slipway/layout.py"}
    assert {module for module in ours if scheduler in MODULES[module]} == modules


def test_texts_of_foreign_errors_are_looked_into_in_one_place():
    for module, text in MODULES.items():
        if not module.startswith("jobgen/") and module != "slipway/third_party_errors.py":
            assert "in str(error)" not in text, module


def test_one_module_says_who_rank_0_is():
    assert {module for module, text in MODULES.items() if re.search(r"rank == 0", text)} == {"slipway/world.py"}


@pytest.mark.parametrize(
    "module",
    ["slipway.__main__"]
    + [f"trainer.{name}" for name in ("__main__", "cli", "commands", "errors", "schema", "spawn", "usage")]
    + [f"slipway.{name}" for name in LIGHT],
)
def test_what_answers_before_training_loads_no_torch(module):
    code = f"import sys, {module}; print({{'torch', 'numpy', 'torchvision', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded == "set()\n"


@pytest.mark.parametrize(
    ("registry", "names"),
    [(DATASETS, DATASET_NAMES), (OPTIMIZERS, get_args(OptimizerName)), (SCHEDULES, get_args(ScheduleName))],
)
def test_what_may_be_configured_is_what_there_is(registry, names):
    assert list(registry) == list(names)


class TestJobgen:
    def test_imports_go_down_the_layers(self):
        for module, text in JOBGEN.items():
            layer = LAYERS.index(module.split("/")[1].removesuffix(".py"))
            used = {name.split(".")[1] for name in imports_in(text) if name.startswith("jobgen.")}
            assert {name for name in used if LAYERS.index(name) < layer} == set(), module

    def test_no_imports_form_a_cycle(self):
        files = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in JOBGEN}
        graph = {}
        for name, module in files.items():
            found = imports_in(MODULES[module])
            graph[name] = {source if source in files else source.rpartition(".")[0] for source in found}
        assert "jobgen.queues" in graph["jobgen.queues.slurm"]
        list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError

    def test_only_schedulers_name_their_variables(self):
        for path in (SOURCE / "jobgen").rglob("*.*"):
            if path.suffix in {".py", ".bash"} and ("SLURM_" in path.read_text() or "PBS_" in path.read_text()):
                assert {"schedulers", "queues", "slurm", "pbs"} & set(path.parts), path

    def test_only_the_standard_library_and_a_validator_are_imported_in_the_syntax_of_python_3_9(self):
        allowed = sys.stdlib_module_names | {"jobgen", "slipway", "msgspec", "tomli", "__future__"}
        for module, text in JOBGEN.items():
            ast.parse(text, feature_version=(3, 9))
            assert {name.split(".")[0] for name in imports_in(text)} <= allowed, module

    @pytest.mark.parametrize(
        ("code", "modules", "expected"),
        [
            ("", {"torch", "msgspec", "tomllib", "subprocess", "json", "argparse"}, ["argparse"]),  # of --help
            (
                "jobgen.cli.main(['render', 'ddp', '--site', 'example', '--output', '/dev/null'])",
                {"torch", "numpy", "subprocess", "json", "tempfile", "difflib", "slipway.flags", "tomllib"},
                ["tomllib"],
            ),
        ],
    )
    @pytest.mark.usefixtures("in_the_project")
    def test_a_command_loads_no_more_than_it_needs(self, code, modules, expected):
        env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        code = f"import sys, jobgen.cli\n{code}\nprint(*sorted({modules} & set(sys.modules)))"
        assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env).split() == expected
