"""The learner: a model, its optimizer, and one training step, the same for every strategy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from slipway.base.third_party_errors import too_few_for_batch_norm, unused_parameters
from slipway.checkpoint.header import Position
from slipway.dist.communicator import Communicator
from slipway.dist.compare_ranks import differences
from trainer.config.errors import ConfigError, TrainerError
from trainer.config.plugin import SEPARATOR
from trainer.config.settings import Config
from trainer.data.loader import NO_LABEL, Batch
from trainer.engine.layer_seeding import ModuleSeeder, Seeder, StepSeeder, seeder_of
from trainer.engine.profiler import BACKWARD, FORWARD, UPDATE, profiled
from trainer.model import Shape
from trainer.model.compilation import compile_in_place, require_compiler
from trainer.model.normalise import Normalise
from trainer.model.recompute import recompute_blocks
from trainer.optim.amp import autocast, gradient_scaler, skip_on_all_devices
from trainer.optim.optimizers import LearningRate, build_optimizer, set_learning_rate
from trainer.parallel.stages.pipeline import Measure, Pipeline
from trainer.parallel.stages.stages_strategy import StagesStrategy
from trainer.parallel.stages.timeline import Timeline
from trainer.parallel.strategy import Strategy


class Learner:
    """A model, its wrapped replica on this rank, and its optimizer."""

    def __init__(
        self,
        config: Config,
        comm: Communicator,
        strategy: Strategy,
        model: nn.Module,
        *,
        shape: Shape,
        classes: int,
        normalise: Normalise,
        samples_per_epoch: int,
        cuts: Sequence[str] = (),
        devices: Sequence[torch.device] = (),
    ) -> None:
        """Move ``model`` to its devices, and connect it to the other ranks' replicas.

        Args:
            config: the experiment.
            comm: this rank's communicator.
            strategy: how ranks train together.
            model: on the CPU, for images of ``shape``.
            shape: channels, height, width.
            classes: number of classes.
            normalise: for this rank's device.
            samples_per_epoch: over all ranks.
            cuts: submodules before which ``model`` is cut into stages.
            devices: of the stages, if there are cuts.
        """
        train = config.train
        self.comm, self.strategy = comm, StagesStrategy(strategy.name) if cuts else strategy
        self.normalise = normalise
        self._amp, self._clip = train.amp, config.optim.clip_grad
        self._label_smoothing = config.optim.label_smoothing
        self.model = model
        self.pipeline: Pipeline | None = None
        if cuts:
            self.pipeline = Pipeline(model, cuts, devices, schedule=config.model.pipeline)
        else:
            model.to(comm.device)
        if config.model.compile:
            require_compiler(comm)
            compile_in_place(model)
        self.scaler = gradient_scaler(comm.device, train.amp)
        self._learning_rate = LearningRate(config.optim, epochs=train.epochs, world_size=comm.world.size)
        self._samples_per_epoch = samples_per_epoch
        self.data = {"training samples": samples_per_epoch, "classes": classes, "image shape": list(shape)}
        """Facts of the data for checkpoints: other data would make another run."""
        self.rate = 0.0
        """The learning rate of the current or last step."""
        self._step = 0
        self.replica, self.optimizer = self.strategy.prepare(
            comm, model, build_optimizer(config.optim, model.parameters()), partial(self._warm_up, shape)
        )
        if self.pipeline and self.scaler.is_enabled():
            skip_on_all_devices(self.optimizer)
        self.ema: AveragedModel | None = None
        if decay := config.model.ema_decay:
            self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self._evaluated_pipeline = self.pipeline.of(self.evaluated) if self.pipeline else None
        if config.model.recompute:  # last, because copies and stages need the plain model
            recompute_blocks(model, cuts, replay=self._replay)
        self._seed, self._user_defined = train.seed, SEPARATOR in config.model.arch
        self._seeder = self._seeder_of(StepSeeder.version if config.model.compile else ModuleSeeder.version)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=comm.device)
        """Sum of the losses of this rank's samples since it was last set to zero."""
        self.bad = 0
        """Number of those samples whose image could not be read."""
        self.timeline: Timeline | None = None
        """Times of the pipeline's passes in the last measured step of this attempt."""
        self._steps = 0

    def _warm_up(self, shape: Shape, replica: nn.Module) -> None:
        """Run a forward and a backward pass on images of ``shape`` for Strategy.prepare, and leave no trace of it."""
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        images = torch.zeros(2, *shape, dtype=torch.uint8)
        with autocast(self._amp, self.comm.device):
            replica(self.normalise(images)).float().sum().backward()
        self.model.zero_grad(set_to_none=True)
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)

    @property
    def randomness(self) -> int:
        """Version of the random numbers that layers draw; a resumed run keeps it."""
        return self._seeder.version

    def use_randomness(self, version: int) -> None:
        """Make layers draw the random numbers of ``version``."""
        self._seeder.close()
        self._seeder = self._seeder_of(version)

    def _seeder_of(self, version: int) -> Seeder:
        return seeder_of(
            version,
            self.model,
            self.comm.device,
            seed=self._seed,
            rank=self.comm.world.rank,
            user_defined=self._user_defined,
        )

    def _replay(self) -> AbstractContextManager[None]:
        return self._seeder.replay()  # of the seeder in use then

    def start_step(self, position: Position, *, step_samples: int) -> None:
        """Set the state that depends on the position alone: dropout's seed (step) and the learning rate (epoch).

        ``step_samples``: samples that this step consumes, over all ranks.
        """
        begin = position.epoch + position.samples / self._samples_per_epoch
        self.rate = self._learning_rate.at(begin, begin + step_samples / self._samples_per_epoch)
        set_learning_rate(self.optimizer, self.rate)
        self._step = position.step

    def backward(self, batches: Iterable[Batch], *, count: int) -> None:
        """Accumulate the gradients of a step's ``count`` micro-batches, which are read one by one."""
        if self.pipeline:
            self.pipeline.train(iter(batches), count, self, measure=self._step_timer())
            return
        for batch in batches:
            with nullcontext() if batch.micro.last else self.strategy.no_sync(self.replica):
                images = self.prepare(batch)
                with profiled(FORWARD), self.forward(batch):
                    logits = self.replica(images)
                loss = self.loss(batch, logits)
                with profiled(BACKWARD):
                    loss.backward()

    def _step_timer(self) -> Measure | None:
        """Return the timer for this step's passes, in steps 1, 2, 4, 8 ... of an attempt; otherwise None."""
        assert self.pipeline
        self._steps += 1
        if self._steps & (self._steps - 1):
            return None
        self.timeline = Timeline(self.pipeline.devices)
        return self.timeline.measure

    def prepare(self, batch: Batch) -> Tensor:
        """Return the images of a micro-batch as floats on the device."""
        return self.normalise(batch.images)

    @contextmanager
    def forward(self, batch: Batch) -> Iterator[None]:
        """Return the context of a micro-batch's forward pass: its random numbers, and the autocast of --amp."""
        self._seeder.begin(self._step, batch.micro.number)
        try:
            with autocast(self._amp, self.comm.device):
                yield
        except (ValueError, RuntimeError) as error:
            if unused_parameters(error):
                raise ConfigError(
                    "unused-parameters",
                    "some of the model's parameters took no part in the last step, and DistributedDataParallel waits "
                    "for their gradients: set --find-unused-parameters for such a model.",
                ) from error
            if not too_few_for_batch_norm(error):
                raise
            raise TrainerError(
                "batch-too-small",
                f"batch norm cannot train on a micro-batch of {len(batch.labels)} sample: choose a --batch-size that "
                "gives each rank at least two samples per micro-batch, also in an epoch's last step, or a model "
                "without batch norm.",
            ) from error

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return the loss of a micro-batch to differentiate, given its logits, and add to ``loss_sum``.

        The result is the sum over this rank's samples, divided by the samples of the whole step, times the world size.
        The mean over ranks cancels the world size, so each sample has the same weight on any number of ranks.
        """
        loss = F.cross_entropy(
            logits.to(self.normalise.dtype),
            batch.labels.to(logits.device, non_blocking=True),
            reduction="sum",
            ignore_index=NO_LABEL,
            label_smoothing=self._label_smoothing,
        )
        self.loss_sum += loss.detach().to(self.comm.device, non_blocking=True)
        self.bad += batch.bad
        scaled: Tensor = self.scaler.scale(loss * (self.comm.world.size / batch.micro.step_samples))
        return scaled

    def step(self) -> None:
        """Take an optimizer step with the accumulated gradients, and update the moving average."""
        with profiled(UPDATE), self.strategy.synchronized_gradients(self.optimizer):
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
        """The unwrapped model to evaluate: the moving average if there is one."""
        return self.ema.module if self.ema else self.model

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits of ``evaluated`` for uint8 images [n, c, h, w]: [n, classes]."""
        with autocast(self._amp, self.comm.device):
            logits: Tensor = (self._evaluated_pipeline or self.evaluated)(self.normalise(images))
        return logits.to(self.comm.device, self.normalise.dtype)

    def sync_buffers(self) -> None:
        """Broadcast rank 0's batch norm statistics, which checkpoints hold, to all ranks."""
        self.comm.broadcast(list(self.evaluated.buffers()))

    def require_equal_replicas(self) -> None:
        """Raise a TrainerError, on all ranks, if their weights, averages or optimizer states differ.

        Buffers are not compared: each rank has its own batch norm statistics, and rank 0's are saved.
        """
        tensors = {name: parameter.data for name, parameter in self.model.named_parameters()}
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        for parameter, state in self.optimizer.state.items():
            tensors |= {f"{key} of {names[parameter]}": value for key, value in state.items() if torch.is_tensor(value)}
        if self.ema:
            tensors |= {f"average of {name}": value.data for name, value in self.ema.module.named_parameters()}
        if differing := differences(self.comm, tensors):
            raise TrainerError(
                "replicas-differ",
                f"the replicas are no longer equal: {differing}. Memory or a GPU is faulty there, the nodes differ, or "
                "an operation is not deterministic. The trainer does not save this state: exclude that node, and "
                "resume from the last checkpoint.",
                raised_on_all_ranks=True,
            )

    def require_finite(self) -> None:
        """Raise a TrainerError if a weight is not finite; all ranks hold the same weights, so all raise it."""
        norms = torch._foreach_norm(list(self.model.parameters()))  # noqa: SLF001 -- one host sync for all of them
        if not torch.stack([norm.to(self.comm.device) for norm in norms]).isfinite().all():
            raise TrainerError(
                "diverged",
                "the weights are no longer finite: training has diverged, and this state is not saved. "
                "Resume with a lower --lr, with --clip-grad, or with --amp none.",
            )
