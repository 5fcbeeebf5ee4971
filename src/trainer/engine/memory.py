"""Estimate of the device memory that a rank needs, computed without allocating it.

A training step runs on tensors without data (torch's FakeTensorMode) and counts the bytes of live tensors. The estimate
leaves out the CUDA context, the workspaces of CUDA libraries, and the allocator's rounding.
"""

from __future__ import annotations

import copy
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from trainer.config.errors import ConfigError
from trainer.config.plugin import reason_of
from trainer.config.settings import Config
from trainer.data.training_batches import global_batch_size, micro_batch_size
from trainer.model import Shape
from trainer.model.memory_meter import Meter
from trainer.model.normalise import memory_layout
from trainer.model.recompute import recompute_blocks
from trainer.optim.amp import autocast
from trainer.optim.optimizers import state_copies
from trainer.parallel.device import CPU
from trainer.parallel.stages.pipeline import Pipeline

log = logging.getLogger(__name__)
PERIODS = 2
"""Micro-batches per stage, in 1F1B, that reach the most live micro-batches: after that the order repeats."""


@dataclass(frozen=True)
class StageMemory:
    """Memory that a pipeline stage or a whole model needs, in bytes."""

    parameters: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    average: int
    """The moving average of --ema-decay."""
    activations: int
    """All other live tensors at the peak of a training step: those kept for the backward pass and temporary ones."""
    evaluation: int
    """The same for an evaluation, which needs no gradients."""

    @property
    def total(self) -> int:
        """Bytes needed at the peak."""
        steady = self.parameters + self.optimizer + self.average
        return steady + max(self.gradients + self.activations, self.evaluation)


class _Step:
    """Training step on tensors without data (trainer.parallel.stages.pipeline.Passes); micro-batches are numbers."""

    def __init__(self, config: Config, shape: Shape, samples: int) -> None:
        """Train on ``samples`` images of ``shape`` in each micro-batch."""
        self._config, self._shape, self._samples = config, shape, samples
        self._dtype = getattr(torch, config.train.dtype)

    def images(self, samples: int) -> Tensor:
        """Return images of ``train.dtype`` [samples, c, h, w]."""
        images = torch.empty(samples, *self._shape, dtype=torch.uint8)
        return images.to(self._dtype, memory_format=memory_layout(self._config.model))

    def prepare(self, micro: int) -> Tensor:  # noqa: ARG002 -- all are the same
        """Return the images of a micro-batch."""
        return self.images(self._samples)

    def forward(self, micro: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the autocast context of --amp."""
        return autocast(self._config.train.amp, CPU)

    def loss(self, micro: int, logits: Tensor) -> Tensor:  # noqa: ARG002
        """Return the cross-entropy of the logits with arbitrary labels."""
        return F.cross_entropy(logits.to(self._dtype), torch.empty(len(logits), dtype=torch.int64))


def memory_of(model: nn.Module, config: Config, *, cuts: Sequence[str], shape: Shape, ranks: int) -> list[StageMemory]:
    """Return the memory that each stage of ``model`` needs on one of ``ranks``; a model without cuts is one stage.

    Args:
        model: on the CPU, for images of ``shape``; not changed.
        config: the experiment.
        cuts: submodules before which stages begin.
        shape: channels, height, width.
        ranks: among which a step's samples are spread.

    Raises:
        ConfigError: if the model cannot be computed without data.
    """
    batch_size, micro_steps = global_batch_size(config.train, ranks), config.train.grad_accum_steps
    count = min(micro_steps, -(-batch_size // ranks))
    if config.model.pipeline == "1f1b" or not cuts:
        count = min(count, PERIODS * (len(cuts) + 1))
    step = _Step(config, shape, micro_batch_size(config.train, ranks))
    fake = FakeTensorMode()
    with FakeCopyMode(fake):
        model = copy.deepcopy(model)
    try:
        with fake:
            pipeline = Pipeline(model, cuts, [CPU] * (len(cuts) + 1), schedule=config.model.pipeline)
            if config.model.recompute:
                recompute_blocks(model, cuts, replay=nullcontext)
            evaluation = _evaluation(pipeline, step, config.train.val_batch_size)
            activations = _training(pipeline, step, count)
    except ConfigError:
        raise
    except Exception as error:  # a user-defined forward may do anything with its tensors
        why = reason_of(error)
        raise ConfigError(
            "memory-unknown", f"--memory: cannot run {type(model).__name__} on tensors without data: {why}"
        ) from error
    found = []
    for number, stage in enumerate(pipeline.stages):
        parameters = _bytes([*stage.parameters(), *stage.buffers()])
        gradients = _bytes(parameter for parameter in stage.parameters() if parameter.requires_grad)
        found.append(
            StageMemory(
                parameters=parameters,
                gradients=gradients,
                optimizer=state_copies(config.optim) * gradients,
                average=parameters if config.model.ema_decay else 0,
                activations=activations[number],
                evaluation=evaluation[number],
            )
        )
    return found


def report(
    stages: Sequence[StageMemory],
    devices: Sequence[torch.device],
    *,
    local_ranks: int,
    resident: Mapping[torch.device, int],
) -> None:
    """Log the memory that each of ``stages`` needs on its entry in ``devices``.

    Args:
        stages: memory of each stage.
        devices: device of each stage.
        local_ranks: number of ranks that share the node.
        resident: bytes of data sets on each device.

    Raises:
        ConfigError: if a device has less memory than its stages need.
    """
    needed: dict[torch.device, int] = defaultdict(int, resident)
    for number, (stage, device) in enumerate(zip(stages, devices, strict=True)):
        needed[device] += stage.total
        log.info(
            "memory of %s on %s: parameters %s, gradients %s, optimizer %s, moving average %s; activations %s, in "
            "evaluation %s",
            f"stage {number}" if len(stages) > 1 else "a rank",
            device,
            *(_megabytes(value) for value in (stage.parameters, stage.gradients, stage.optimizer, stage.average)),
            _megabytes(stage.activations),
            _megabytes(stage.evaluation),
        )
    for device, size in resident.items():
        if size:
            log.info("data sets on %s: %s (--device-memory-fraction)", device, _megabytes(size))
    for device, need in needed.items():
        has = _capacity(device, local_ranks)
        log.info("%s: a rank needs %s of %s", device, _megabytes(need), _megabytes(has))
        if need > has:
            raise ConfigError(
                "out-of-memory",
                f"{device} has {_megabytes(has)} for a rank, which needs {_megabytes(need)}: use more "
                "--grad-accum-steps, a smaller --batch-size or --val-batch-size, --amp bf16, --recompute, or pipeline "
                "stages (docs/howto/split.md).",
            )


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn a failed device allocation into a one-line error that is not retried, because a retry would fail again.

    Raises:
        ConfigError: on this rank, if an allocation fails.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            "out-of-memory",
            f"{said} `trainer --dry-run --memory` prints the memory that a rank needs (docs/howto/split.md).",
        ) from error


def report_peaks(devices: Iterable[torch.device]) -> None:
    """Log the peak memory that PyTorch's tensors have used on each GPU so far."""
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            log.info("%s: %s allocated at the peak", device, _megabytes(torch.cuda.max_memory_allocated(device)))


def _capacity(device: torch.device, local_ranks: int) -> int:
    """Return the bytes of ``device`` that a rank may use: a whole GPU, or on the CPU its share of the node's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    total = re.search(r"MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    assert total
    return 1024 * int(total[1]) // local_ranks


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _training(pipeline: Pipeline, step: _Step, count: int) -> dict[int, int]:
    meter = Meter(_tensors(pipeline))
    for stage in pipeline.stages:
        for parameter in filter(lambda own: own.requires_grad, stage.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda owner: meter.forget(owner.grad))
    with meter:
        pipeline.train(iter(range(count)), count, step, measure=lambda unit: meter.at(unit.stage))
    return meter.peak


def _evaluation(pipeline: Pipeline, step: _Step, samples: int) -> dict[int, int]:
    meter = Meter(_tensors(pipeline))
    with meter, torch.no_grad(), step.forward(0):
        found = step.images(samples)
        for number, stage in enumerate(pipeline.stages):
            with meter.at(number):
                found = stage(found.clone())
    return meter.peak


def _tensors(pipeline: Pipeline) -> list[Tensor]:
    return [tensor for stage in pipeline.stages for tensor in (*stage.parameters(), *stage.buffers())]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
