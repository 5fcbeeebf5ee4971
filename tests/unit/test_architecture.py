"""Which module may know of what."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from trainer.config import DATASET_NAMES, OptimizerName, ScheduleName
from trainer.data import DATASETS
from trainer.optim import OPTIMIZERS, SCHEDULES

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainer"
MODULES = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}


def names_in(text):
    """Return every dotted name that ``text`` imports or spells out."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.Attribute():
                names.add(ast.unparse(node))
    return names


def users_of(package):
    """Return the modules that name ``package`` or something in it."""
    return {
        module
        for module, text in MODULES.items()
        if any(f"{name}.".startswith(f"{package}.") for name in names_in(text))
    }


def test_there_is_something_to_look_at():
    assert {"__main__.py", "run.py", "loop.py", "backends/ddp.py"} <= MODULES.keys()
    assert "torch.distributed.init_process_group" in names_in("import torch\ntorch.distributed.init_process_group()")
    assert "torch.distributed" in names_in("from torch import distributed as dist")


def test_only_backends_know_of_process_groups():
    beyond = {module for module in users_of("torch.distributed") if module.split("/")[0] not in {"backends", "doctor"}}
    assert beyond == set()
    assert users_of("torch.nn.parallel") <= {"backends/ddp.py"}


def test_only_one_module_knows_of_horovod():
    assert users_of("horovod") == {"backends/horovod.py"}


def test_the_trainer_and_the_job_generator_do_not_know_of_each_other():
    assert users_of("jobgen") == set()


@pytest.mark.parametrize(("scheduler", "modules"), [("SLURM_", {"world.py"}), ("PBS_", set())])
def test_no_scheduler_is_named_but_to_refuse_ranks_that_nobody_named(scheduler, modules):
    assert {module for module, text in MODULES.items() if scheduler in text} == modules


def test_torchvision_is_imported_in_one_place():
    assert users_of("torchvision") == {"torchvision_on_cpu.py"}


def test_nothing_is_pickled():
    for package in ("pickle", "torch.save", "dill", "joblib"):
        assert users_of(package) == set(), package


@pytest.mark.parametrize("module", ["__main__", "cli", "errors", "schema", "stop", "spawn"])
def test_what_answers_before_training_loads_no_torch(module):
    code = f"import sys, trainer.{module}; print({{'torch', 'numpy', 'torchvision', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded == "set()\n"


@pytest.mark.parametrize(
    ("registry", "names"),
    [(DATASETS, DATASET_NAMES), (OPTIMIZERS, get_args(OptimizerName)), (SCHEDULES, get_args(ScheduleName))],
)
def test_what_may_be_configured_is_what_there_is(registry, names):
    assert list(registry) == list(names)
