"""The model and what changes it: one optimiser step, seen the same way under every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from slipway.communicator import Communicator
from slipway.position import Position
from slipway.third_party_errors import too_few_for_batch_norm
from trainer.config import Config
from trainer.data.loader import NO_LABEL, Batch
from trainer.device import cuts_of
from trainer.errors import TrainerError
from trainer.models import Shape, build_model
from trainer.optim import LearningRate, build_optimizer, gradient_scaler, set_learning_rate
from trainer.seeds import ModuleSeeder, Seeder, StepSeeder
from trainer.split.balance import choose_cuts, images_of_a_micro_batch
from trainer.split.pipeline import Pipeline
from trainer.split.replicas import Replicas
from trainer.strategies import Strategy

AMP_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """A model, its replica among the ranks, and its optimiser."""

    def __init__(
        self,
        config: Config,
        comm: Communicator,
        strategy: Strategy,
        *,
        shape: Shape,
        classes: int,
        mean_std: tuple[Tensor, Tensor],
        samples_per_epoch: int,
        devices: Sequence[torch.device] = (),
    ) -> None:
        """Build the model for images of ``shape`` and join it with the other ranks'; ``devices`` are its stages'."""
        train = config.train
        self.comm, self.strategy = comm, Replicas(strategy) if config.model.split else strategy
        self.dtype = getattr(torch, train.dtype)
        self._layout = torch.channels_last if config.model.channels_last else torch.contiguous_format
        self._clip = config.optim.clip_grad
        self._label_smoothing = config.optim.label_smoothing
        self._amp = AMP_TYPES[train.amp]
        self._mean, self._std = ((255 * value).to(comm.device, self.dtype).view(1, -1, 1, 1) for value in mean_std)

        torch.manual_seed(train.seed)
        model = build_model(config.model, shape=shape, classes=classes)
        # A model that is split may not fit one device as a whole.
        self.model = model.to(None if config.model.split else comm.device, self.dtype).to(memory_format=self._layout)  # type: ignore[call-overload]
        self._pipeline: Pipeline | None = None
        if config.model.split:
            cuts = cuts_of(config)
            if not cuts:
                images = self.prepare_images(images_of_a_micro_batch(train, shape, ranks=comm.world.size))
                cuts = choose_cuts(self.model, images, devices, comm)
            self._pipeline = Pipeline(self.model, cuts, devices)
        self._schedule = config.model.pipeline
        if config.model.compile:
            self.model.compile()  # in place: the names in checkpoints stay those of the bare model
        self.scaler = gradient_scaler(comm.device, train.amp)
        self._learning_rate = LearningRate(config.optim, epochs=train.epochs, world_size=comm.world.size)
        self._samples_per_epoch = samples_per_epoch
        self.data = {"training samples": samples_per_epoch, "classes": classes, "image shape": list(shape)}
        """What a checkpoint says of the data: another set would be another run."""
        self.rate = 0.0
        """The learning rate of the step under way or just taken."""
        self._step = 0
        self._micros: list[Batch] = []
        """Those of the step under way, as far as they have come."""
        self.replica, self.optimizer = self.strategy.prepare(
            comm, self.model, build_optimizer(config.optim, self.model.parameters()), self._warm_up(shape)
        )
        self.ema: AveragedModel | None = None
        if decay := config.model.ema_decay:
            self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self._evaluated = self._pipeline
        if self.ema and self._pipeline:
            self._evaluated = Pipeline(self.ema.module, cuts, devices)
        self._seed = train.seed
        self._seeder: Seeder | None = None
        self.use_randomness(StepSeeder.version if config.model.compile else ModuleSeeder.version)
        self.loss = torch.zeros((), dtype=torch.float64, device=comm.device)
        """Sum of the losses of this rank's samples since it was last set to zero."""
        self.bad = 0
        """Images among them that could not be read."""

    def _warm_up(self, shape: Shape) -> Callable[[nn.Module], None]:
        """Return the pass that Strategy.prepare may want, for images of ``shape``."""

        def warm_up(replica: nn.Module) -> None:
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            images = torch.zeros(2, *shape, dtype=torch.uint8)
            with self._autocast():
                replica(self.prepare_images(images)).float().sum().backward()
            self.model.zero_grad(set_to_none=True)
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)

        return warm_up

    @property
    def randomness(self) -> int:
        """Which random numbers layers draw: a version, which a resumed run keeps."""
        assert self._seeder
        return self._seeder.version

    def use_randomness(self, version: int) -> None:
        """Let layers draw the random numbers of a ``version``."""
        if self._seeder:
            self._seeder.close()
        rank = self.comm.world.rank
        if version == StepSeeder.version:
            self._seeder = StepSeeder(self.comm.device, seed=self._seed, rank=rank)
        else:
            self._seeder = ModuleSeeder(self.model, seed=self._seed, rank=rank)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.comm.device.type, dtype=self._amp, enabled=self._amp is not None)

    def prepare_images(self, images: Tensor) -> Tensor:
        """Return uint8 images [n, c, h, w] as normalised floats on the device."""
        images = images.to(self.comm.device, non_blocking=True)
        return images.to(self.dtype, memory_format=self._layout).sub_(self._mean).div_(self._std)

    def start_step(self, position: Position, *, step_samples: int) -> None:
        """Set what depends on the position alone: dropout by the step, the learning rate by the epochs behind.

        ``step_samples``: that this step will consume, over all ranks.
        """
        begin = position.epoch + position.samples / self._samples_per_epoch
        self.rate = self._learning_rate.at(begin, begin + step_samples / self._samples_per_epoch)
        set_learning_rate(self.optimizer, self.rate)
        self._step = position.step

    def backward(self, batch: Batch) -> None:
        """Add the gradients of one micro-batch; a pipeline waits for the last one of the step, and then adds all."""
        self._micros.append(batch)
        number = len(self._micros) - 1
        if self._pipeline is None:
            reduction = nullcontext() if batch.micro.last else self.strategy.no_sync(self.replica)
            with reduction:
                with self._forward(number):
                    logits = self.replica(self.prepare_images(batch.images))
                self._loss(number, logits).backward()
        elif batch.micro.last:
            inputs = [partial(self.prepare_images, micro.images) for micro in self._micros]
            self._pipeline.train(inputs, self._loss, schedule=self._schedule, forward=self._forward)
        if batch.micro.last:
            self._micros.clear()

    def _loss(self, number: int, logits: Tensor) -> Tensor:
        """Return what is to be differentiated of a micro-batch, given its logits, and count its loss.

        That is the sum over this rank's samples over the samples of the whole step, times the world size, which the
        mean over ranks takes out again: so every sample weighs the same however they are spread.
        """
        batch = self._micros[number]
        loss = F.cross_entropy(
            logits.to(self.dtype),
            batch.labels.to(logits.device, non_blocking=True),
            reduction="sum",
            ignore_index=NO_LABEL,
            label_smoothing=self._label_smoothing,
        )
        self.loss += loss.detach().to(self.comm.device, non_blocking=True)
        self.bad += batch.bad
        scaled: Tensor = self.scaler.scale(loss * (self.comm.world.size / batch.micro.step_samples))
        return scaled

    @contextmanager
    def _forward(self, number: int) -> Iterator[None]:
        """Let a forward pass of a micro-batch draw its random numbers, and compute in the types of --amp."""
        assert self._seeder
        self._seeder.begin(self._step, number)
        try:
            with self._autocast():
                yield
        except ValueError as error:
            if not too_few_for_batch_norm(error):
                raise
            samples = len(self._micros[number].labels)
            raise TrainerError(
                f"batch norm cannot look at a micro-batch of {samples} sample: choose a --batch-size that "
                "leaves each rank and micro-step two, also in the last step of an epoch, or a model without it."
            ) from error

    def step(self) -> None:
        """Take the optimiser step that the gradients ask for."""
        with self.strategy.synchronized_gradients(self.optimizer):
            if self._clip:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        if self.ema:
            self.ema.update_parameters(self.model)

    @property
    def evaluated(self) -> nn.Module:
        """The bare model to evaluate: the moving average where there is one."""
        return self.ema.module if self.ema else self.model

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return what ``evaluated`` says of uint8 images [n, c, h, w]: [n, classes]."""
        with self._autocast():
            logits: Tensor = (self._evaluated or self.evaluated)(self.prepare_images(images))
        return logits.to(self.comm.device, self.dtype)

    def share_buffers(self) -> None:
        """Give all ranks rank 0's batch norm statistics, the ones that checkpoints hold."""
        self.comm.broadcast(list(self.evaluated.buffers()))

    def require_finite(self) -> None:
        """Raise a TrainerError if a weight is not a number; all ranks hold the same weights and so agree."""
        norms = torch._foreach_norm(list(self.model.parameters()))  # noqa: SLF001 -- one host sync for all of them
        if not torch.stack([norm.to(self.comm.device) for norm in norms]).isfinite().all():
            raise TrainerError(
                "the weights are no longer finite: training diverged and is not saved. "
                "Resume with a lower --lr, with --clip-grad, or with --amp none."
            )
