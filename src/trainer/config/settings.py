"""The whole configuration: what can be set, in which unit, and its default.

Each field is a key of its TOML section and, under the same name, a flag (``cli.py``). Field names are unique over all
sections. An option that may be absent is None here; files and flags switch it off by 0 or "", as its text says.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, lt=1)]
PositiveShare = Annotated[float, Meta(gt=0, lt=1)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
"""As large as torch and numpy both take."""

DATASET_NAMES = ("digits", "mnist", "cifar10", "imagefolder", "synthetic")
PLUGIN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""package.module:factory, of somebody's own (``plugin.py``)."""
DatasetName = Annotated[
    str, Meta(pattern=f"^({'|'.join(DATASET_NAMES)}|{PLUGIN})$", examples=[*DATASET_NAMES, "package.module:factory"])
]
Steps = Annotated[
    str,
    Meta(
        pattern=r"^(start|[1-9]\d{0,8}(-[1-9]\d{0,8})?)?$",
        examples=["a number, as 10", "a range, as 10-14", "start", '""'],
    ),
]
Ranks = Annotated[str, Meta(pattern=r"^(all|\d{1,6}(,\d{1,6})*)$", examples=["all", "numbers of ranks, as 0,3"])]
OptimizerName = Literal["sgd", "adadelta", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]
BackendName = Literal["auto", "single", "ddp", "horovod"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where images come from and how they are prepared."""

    dataset: DatasetName = "digits"
    """digits comes with the trainer, mnist and cifar10 are torchvision's files, imagefolder has a folder a class;
    package.module:factory is your own, a function of this section that returns Splits."""
    data_dir: str = "data"
    """Folder that holds the data set; of imagefolder also a ZIP archive of one (trainer pack)."""
    download: bool = False
    """Fetch mnist or cifar10 into data-dir if it is not there."""
    image_size: AtLeast1 = 224
    """Edge of the square that imagefolder images are brought to, in pixels."""
    resize: Literal["crop", "squash"] = "crop"
    """How: crop takes the central square, of 7/8 of the shorter edge; squash the whole image, at another aspect."""
    normalise: bool = True
    """Normalise imagefolder images by the mean and deviation of ImageNet; else the model takes values from 0 to 1."""
    val_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the samples held out for validation, stratified by class, where the data set has no part for it."""
    split_seed: Seed = 0
    """Seed of that split."""
    crop_padding: AtLeast0 = 0
    """Augmentation of sets in memory: pad each side by so many pixels, then crop at random; 0: none."""
    resized_crop: bool = False
    """Augmentation of imagefolder: a random part, 8-100 % of the area, whatever resize says."""
    flip: bool = False
    """Augmentation: mirror half of the training images left to right."""
    workers: AtLeast0 = 2
    """Processes of each rank that decode images (imagefolder), as many again for validation; other sets use none."""
    bad_image_share: Share = 0.01
    """Stop when more images could not be decoded, as a share of the training part in an epoch, or of the validation
    part."""
    decoder: Literal["auto", "pil", "simplejpeg"] = "auto"
    """What decodes JPEG files of imagefolder for training; pil decodes all other images, and all for validation. auto:
    simplejpeg, which takes three fifths of the time, where it is installed. A resumed run keeps what it began with."""
    max_image_pixels: AtLeast1 = 89478485
    """An imagefolder image of more pixels counts as one that cannot be decoded: a pixel takes 4 bytes of memory; by
    default the number above which PIL warns."""
    synthetic_shape: tuple[AtLeast1, AtLeast1, AtLeast1] = (3, 224, 224)
    """Channels, height and width of synthetic images."""
    synthetic_samples: AtLeast1 = 4096
    """Number of synthetic training images."""
    synthetic_classes: AtLeast1 = 1000
    """Number of classes of synthetic images."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained."""

    arch: str = "mnist-cnn"
    """mnist-cnn, mlp, or any torchvision classification model by its name there (resnet18, vit_b_16, ...);
    package.module:factory is your own, a function of (channels, height, width) and classes."""
    weights: str | None = None
    """Local file (.safetensors, or a .pt of tensors) to start from; "" starts from random weights."""
    channels_last: bool | Literal["auto"] = "auto"
    """Keep images and convolutions in NHWC order; auto: where amp is not none, except with horovod and in models of
    your own; a resumed run keeps what it began with."""
    compile: bool = False
    """Compile the model with torch.compile; needs a C++ compiler where it runs.
    Jobs keep what was compiled in the run folder."""
    sync_bn: bool = False
    """Batch norm over the samples of all ranks instead of each rank's own (ddp on GPUs)."""
    find_unused_parameters: bool = False
    """Train a model of which some steps leave parameters out (ddp, at some cost in speed; horovod always can)."""
    split: str | None = None
    """Cut the model into stages before these submodules, as features.4,features.6, each stage on a device of its own;
    the micro-batches of grad-accum-steps pass through them as a pipeline; auto: measure, and cut so that the slowest
    stage is as fast as possible; "": one stage."""
    recompute: bool = False
    """Activation checkpointing: keep the input of each block alone (of a residual block, of a transformer's layer), and
    compute the rest again in the backward pass: less memory, a third more computation, the same result."""
    pipeline: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of the passes of a split model: 1f1b keeps fewer activations, gpipe goes forward with all first."""
    ema_decay: PositiveShare | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated; 0: none."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How weights are updated."""

    optimizer: OptimizerName = "adamw"
    """Update rule."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply lr by 1, by the world size, or by its square root."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    weight_decay: NonNegative = 0.0
    """L2 penalty (sgd, adadelta, adam) or decoupled decay (adamw)."""
    decay_norm_bias: bool = True
    """Let weight-decay act on the parameters of normalisation layers, and on biases, too."""
    schedule: ScheduleName = "cosine"
    """Learning rate after the warm-up: constant, times gamma every step-epochs, or half a cosine down to 0."""
    gamma: Positive = 0.7
    """Factor of the step schedule."""
    step_epochs: AtLeast1 = 1
    """Period of the step schedule, in epochs."""
    warmup_epochs: NonNegative = 0.0
    """Epochs over which lr rises linearly from 0."""
    clip_grad: Positive | None = None
    """Largest global 2-norm of the gradients; larger ones are scaled down to it; 0: no clipping."""
    label_smoothing: Share = 0.0
    """Share of each target spread evenly over all classes."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how much at once, how precisely."""

    epochs: AtLeast1 = 14
    """Passes over the training set."""
    max_steps: AtLeast1 | None = None
    """End after so many optimiser steps, in mid-epoch if need be; 0: no limit."""
    batch_size: AtLeast1 = 64
    """Samples of one optimiser step over all ranks and micro-steps."""
    batch_size_per_rank: AtLeast1 | None = None
    """Samples of one optimiser step on each rank: the other way to say batch-size; 0: unused."""
    val_batch_size: AtLeast1 = 1000
    """Samples that a rank evaluates at once."""
    grad_accum_steps: AtLeast1 = 1
    """Micro-steps that an optimiser step is divided into to save memory."""
    amp: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """Mixed precision: autocast to this type (fp16 with loss scaling); auto: bf16 where the devices of
    all ranks multiply it, except in models of your own; a resumed run keeps what it began with."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and optimiser state."""
    seed: Seed = 0
    """Seed of weights, order of samples, augmentation and dropout."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run records of itself."""

    log_interval: AtLeast1 = 10
    """Steps between two records of training loss and rate."""
    checkpoint_interval: AtLeast1 | None = None
    """Steps between two checkpoints within an epoch; each epoch ends with one in any case; 0: only that."""
    keep: AtLeast1 = 3
    """Newest checkpoints kept, besides the one with the best validation accuracy."""
    tensorboard: bool = False
    """Also write the metrics as TensorBoard events."""
    figures: bool = True
    """Draw the learning curves and the confusion matrix at the end."""
    record_samples: bool = False
    """Write the ids of the samples of each step to logs/samples.rank<N>.jsonl, to audit what was trained on."""
    fp16_compression: bool = False
    """horovod: send gradients as 16-bit floats."""
    verify_replicas: AtLeast1 | None = None
    """Compare the weights and the optimiser's state of all ranks every so many steps, and before each checkpoint, and
    end the run if they differ, naming the rank: its memory or its GPU is faulty; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where and how one attempt runs; never saved with the run."""

    backend: BackendName = "auto"
    """auto: ddp where RANK is set (torchrun, a job script), else one process."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: a GPU where there is one."""
    devices_per_rank: AtLeast1 | None = None
    """GPUs that each rank takes for the stages of a split model; 0: one for each stage."""
    stage_devices: str | None = None
    """The device of each stage, as cuda:0,cpu, the same on all ranks; "": GPUs that follow each other."""
    dist_backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """Communication library of ddp; auto: nccl on GPUs, gloo on CPUs."""
    init_method: str = "env://"
    """Where the ranks of ddp meet: env:// (MASTER_ADDR, MASTER_PORT) or file:///shared/new-file-for-each-attempt."""
    collective_timeout: AtLeast1 = 600
    """Seconds that ranks wait for each other: to join, in an operation, and while rank 0 saves or draws."""
    nproc_per_node: AtLeast1 | Literal["auto"] | None = None
    """Start so many ddp ranks on this machine, without torchrun; auto: as many as it has GPUs for; 0: this process is
    the only rank it starts."""
    threads: AtLeast1 | None = None
    """CPU threads a rank computes with; 0: OMP_NUM_THREADS, else an even share of the CPUs it may use."""
    stop_epoch: AtLeast1 | None = None
    """End the attempt behind this epoch of the run, whose schedules stay those of all epochs; a later attempt goes on;
    0: at the end."""
    selftest: bool = False
    """Do not train: let each rank tell where and how fast it is, and end with what is wrong, if anything is."""
    profile: Steps | None = None
    """Record these optimiser steps, as 10-14, counted from 1 in this attempt: into profile/ a trace of each rank, and
    into the log and the report where the time went; start: the seconds up to the first step, by part; "": none."""
    profile_ranks: Ranks = "0"
    """Ranks that do so, as 0,3; all."""
    dry_run: bool = False
    """Take one optimiser step, evaluate one batch, and write nothing into output-dir, but the figure of a split model's
    schedule: a quick check of all parts."""
    memory: bool = False
    """With dry-run: first compute, without a GPU, how much memory a rank needs, and end with 78 if its devices have
    less."""
    output_dir: str | None = None
    """The run folder; "": a new one, runs/<dataset>-<arch>-<date and time>."""
    resume: str | None = None
    """auto: continue from the newest valid checkpoint of output-dir, if any; or the path of a checkpoint or a run."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment: what a run is saved with, and reproduced from."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """All that files and flags may set: an experiment, and one launch of it."""

    launch: Launch = field(default_factory=Launch)


ALTERNATIVES = (("train", "batch_size", "batch_size_per_rank"),)
"""Keys of a section of which only one may be set; the first one has a default."""


def experiment(config: Config) -> dict[str, dict[str, Any]]:
    """Return the experiment as the tables of a CONFIG.toml, without what is switched off."""
    tables = {}
    for part in fields(Config):
        keys = asdict(getattr(config, part.name))
        tables[part.name] = {key: value for key, value in keys.items() if value is not None}
    for section, default, alternative in ALTERNATIVES:
        if alternative in tables[section]:
            del tables[section][default]
    return tables
