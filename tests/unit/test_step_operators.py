"""Operators, copies and host synchronizations of a training step beside those of its model, loss and optimizer."""

import itertools
from collections import Counter
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from slipway.base.environment import read_environment
from slipway.base.stop import Reason, StopRequest
from slipway.dist.communicator import Alone
from slipway.dist.torch_distributed import TorchCommunicator
from trainer.config.settings import DataConfig, Launch, ModelConfig, RunConfig, Settings, TrainConfig
from trainer.data.training_batches import TrainingBatches
from trainer.model import initial_model
from trainer.optim.optimizers import build_optimizer
from trainer.parallel.ddp import NO_BUFFER_SYNC, DDPStrategy
from trainer.parallel.single import SingleStrategy
from trainer.train import run

CPU = torch.device("cpu")
SHAPE, CLASSES, BATCH, STEPS = (3, 32, 32), 10, 8, 8
COPIES = {"_to_copy", "copy_", "clone", "_foreach_copy_"}
SYNCHRONIZATIONS = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal"}
"""Operators for which the host waits for the device."""


class Counts(NamedTuple):
    """Numbers of operators."""

    operators: int
    """All operators, including the other two."""
    copies: int
    synchronizations: int


BESIDE_MODEL = Counts(operators=7, copies=0, synchronizations=0)
"""Ceilings of a step: normalization (3), scale of the loss (2, one of them backward), sum of the losses (2)."""
OF_VOTE = Counts(operators=2, copies=0, synchronizations=1)
"""Ceilings of a step that ends with a vote, beside one without: the sum is read and set to zero."""


class Recorder(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counts_of(names):
    copies, synchronizations = (sum(names[name] for name in some) for some in (COPIES, SYNCHRONIZATIONS))
    return Counts(names.total(), copies, synchronizations)


def exceeded(names, ceilings):
    """Return ``names`` if one of their counts is above its ceiling."""
    return names if any(count > ceiling for count, ceiling in zip(counts_of(names), ceilings, strict=True)) else {}


def settings_of(arch, folder=None, **model):
    return Settings(
        data=DataConfig(
            dataset="synthetic", synthetic_shape=SHAPE, synthetic_samples=2 * BATCH * STEPS, synthetic_classes=CLASSES
        ),
        model=ModelConfig(arch=arch, channels_last=False, **model),
        train=TrainConfig(max_steps=STEPS, epochs=1, batch_size=BATCH, amp="none"),
        run=RunConfig(log_interval=1000, figures=False),
        launch=Launch(device="cpu", threads=1, output_dir=str(folder)),
    )


def plain_step(arch, *, ddp):
    """Return the operators by name of a step in plain torch: the model, its loss and its optimizer on a float batch."""
    settings = settings_of(arch)
    model = initial_model(settings, shape=SHAPE, classes=CLASSES)
    optimizer = build_optimizer(settings.optim, model.parameters())
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, **NO_BUFFER_SYNC) if ddp else model
    images, labels = torch.rand(BATCH, *SHAPE), torch.arange(BATCH) % CLASSES
    for _ in range(3):  # the first one allocates the optimizer's state and lays out DDP's buckets
        with Recorder() as recorder:
            F.cross_entropy(replica(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.names


def trainer_steps(settings, comm, strategy, monkeypatch):
    """Return the operators by name of each step of a run, from the batch in host memory to the return of the vote."""
    recorder, before = Recorder(), []
    of_epoch = TrainingBatches.of_epoch

    def read_ahead(*args, **options):
        for batch in list(
            of_epoch(*args, **options)
        ):  # not counted: a data set may read its samples in other processes
            before.append(recorder.names.copy())
            yield batch

    monkeypatch.setattr(TrainingBatches, "of_epoch", read_ahead)
    monkeypatch.setattr("slipway.run.agreement.VOTE_INTERVAL", 1e9)  # votes after steps 1, 3, 7: on any machine
    with recorder:
        assert run(settings, comm, strategy, StopRequest(), read_environment({})) == Reason.NONE
    return [after - earlier for earlier, after in itertools.pairwise(before)]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("backend", ["single", "ddp"])
@pytest.mark.parametrize("arch", ["mnist-cnn", "resnet18"])
def test_step_adds_few_operators_to_its_model(arch, backend, tmp_path, monkeypatch, table):
    settings, ddp = settings_of(arch, tmp_path / "run"), backend == "ddp"
    comm = TorchCommunicator(None, CPU, local_rank=0) if ddp else Alone(CPU)
    steps = trainer_steps(settings, comm, (DDPStrategy if ddp else SingleStrategy)(settings), monkeypatch)
    plain = plain_step(arch, ddp=ddp)
    step, with_vote = steps[4], steps[6]
    rows = {"plain torch": plain, "trainer": step, "trainer, with a vote": with_vote}
    title = f"a step of {arch}, {backend}"
    table(title, [["", *Counts._fields], *([name, *counts_of(names)] for name, names in rows.items())])
    assert steps[3] == step == steps[5]
    assert exceeded(step - plain, BESIDE_MODEL) == {}
    assert exceeded(with_vote - step, OF_VOTE) == {}


def test_ceilings_detect_copy_and_synchronization():
    with Recorder() as recorder:
        torch.ones(1).double().item()
    assert exceeded(recorder.names, BESIDE_MODEL) == recorder.names
    assert counts_of(recorder.names) == Counts(operators=3, copies=1, synchronizations=1)
