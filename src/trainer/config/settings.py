"""The trainer's settings: every option, its unit and its default.

Each field is a key of its TOML section and a flag with the same name (``cli.py``). Field names are unique over all
sections. An optional setting is None here. Files and flags turn it off with 0 or "", as its help text says.
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
"""The range that both torch and numpy accept."""

DATASET_NAMES = ("digits", "mnist", "cifar10", "imagefolder", "synthetic")
PLUGIN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""package.module:factory, a user-defined model or data set (``plugin.py``)."""
DatasetName = Annotated[
    str, Meta(pattern=f"^({'|'.join(DATASET_NAMES)}|{PLUGIN})$", examples=[*DATASET_NAMES, "package.module:factory"])
]
Steps = Annotated[
    str,
    Meta(
        pattern=r"^(start|[1-9]\d{0,8}(-[1-9]\d{0,8})?)?$",
        examples=["a number (10)", "a range (10-14)", "start", '""'],
    ),
]
Ranks = Annotated[str, Meta(pattern=r"^(all|\d{1,6}(,\d{1,6})*)$", examples=["all", "rank numbers (0,3)"])]
OptimizerName = Literal["sgd", "adadelta", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]
BackendName = Literal["auto", "single", "ddp", "horovod"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data set, preprocessing and augmentation."""

    dataset: DatasetName = "digits"
    """digits is included, mnist and cifar10 are torchvision's files, imagefolder has one folder per class;
    package.module:factory is a user-defined function that takes this section and returns Splits."""
    data_dir: str = "data"
    """Folder that holds the data set; for imagefolder also a ZIP archive (trainer pack)."""
    download: bool = False
    """Download mnist or cifar10 into data-dir if it is missing."""
    image_size: AtLeast1 = 224
    """Edge length of the square input for imagefolder, in pixels."""
    resize: Literal["crop", "squash"] = "crop"
    """Resize method of imagefolder: crop takes the central square, 7/8 of the shorter edge; squash scales the whole
    image and changes its aspect ratio."""
    normalise: bool = True
    """Normalize imagefolder images by ImageNet's mean and standard deviation; otherwise values range from 0 to 1."""
    val_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Fraction of the samples held out for validation, stratified by class, if the data set has no validation part."""
    split_seed: Seed = 0
    """Seed of the training/validation split."""
    crop_padding: AtLeast0 = 0
    """Augmentation for data sets in memory: pad each side by N pixels, then take a random crop; 0: none."""
    resized_crop: bool = False
    """Augmentation for imagefolder: crop a random 8-100 % of the area; overrides resize."""
    flip: bool = False
    """Augmentation: flip half of the training images horizontally."""
    workers: AtLeast0 = 2
    """Decoder processes per rank (imagefolder), and as many for validation; other data sets use none."""
    device_memory_fraction: Share = 0.1
    """Keep a data set in memory on the GPU if it needs at most this fraction of the GPU's free memory, for training and
    for validation each; 0: never. Results are the same."""
    bad_image_share: Share = 0.01
    """Stop if more than this fraction of images cannot be decoded: of the training set in an epoch, or of the
    validation set."""
    decoder: Literal["auto", "pil", "simplejpeg"] = "auto"
    """JPEG decoder of imagefolder for training; pil decodes other formats and all validation images. auto: simplejpeg
    if installed, which takes three fifths of the time. A resumed run keeps its first choice."""
    max_image_pixels: AtLeast1 = 89478485
    """An imagefolder image with more pixels counts as one that cannot be decoded; a pixel takes 4 bytes of memory. The
    default is PIL's warning limit."""
    synthetic_shape: tuple[AtLeast1, AtLeast1, AtLeast1] = (3, 224, 224)
    """Channels, height and width of synthetic images."""
    synthetic_samples: AtLeast1 = 4096
    """Number of synthetic training images."""
    synthetic_classes: AtLeast1 = 1000
    """Number of classes of synthetic images."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model options."""

    arch: str = "mnist-cnn"
    """mnist-cnn, mlp, or the name of any torchvision classification model (resnet18, vit_b_16, ...);
    package.module:factory is a user-defined function that takes (channels, height, width) and classes."""
    weights: str | None = None
    """Local file of initial weights (.safetensors, or a .pt file of tensors); "": random weights."""
    channels_last: bool | Literal["auto"] = "auto"
    """Use the NHWC (channels_last) memory format; auto: if amp is not none, except with horovod and for user-defined
    models; a resumed run keeps its first choice."""
    compile: bool = False
    """Compile the model with torch.compile; needs a C++ compiler at run time.
    Jobs keep the compiled code in the run folder."""
    sync_bn: bool = False
    """Compute batch-norm statistics over all ranks instead of per rank (ddp on GPUs)."""
    find_unused_parameters: bool = False
    """Allow steps that leave some parameters unused (ddp, which becomes slower; horovod always allows them)."""
    split: str | None = None
    """Split the model into pipeline stages before these submodules (features.4,features.6), each stage on a separate
    device; grad-accum-steps sets the number of micro-batches. auto: measure, and minimize the time of the slowest
    stage; "": one stage."""
    recompute: bool = False
    """Activation checkpointing: keep only the input of each block (a residual block, a transformer layer) and recompute
    the rest in the backward pass: less memory, a third more computation, the same result."""
    pipeline: Literal["1f1b", "gpipe"] = "1f1b"
    """Pipeline schedule of a split model: 1f1b keeps fewer activations; gpipe runs all forward passes first."""
    ema_decay: PositiveShare | None = None
    """Decay of an exponential moving average of the weights, which is evaluated in place of the weights; 0: none."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Optimizer and learning rate."""

    optimizer: OptimizerName = "adamw"
    """Optimizer."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply lr by 1 (none), the world size (linear), or its square root (sqrt)."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    weight_decay: NonNegative = 0.0
    """L2 penalty (sgd, adadelta, adam) or decoupled decay (adamw)."""
    decay_norm_bias: bool = True
    """Also apply weight-decay to normalization layers and biases."""
    schedule: ScheduleName = "cosine"
    """Learning rate after the warm-up: constant, multiplied by gamma every step-epochs, or half a cosine down to 0."""
    gamma: Positive = 0.7
    """Factor of the step schedule."""
    step_epochs: AtLeast1 = 1
    """Period of the step schedule, in epochs."""
    warmup_epochs: NonNegative = 0.0
    """Epochs of linear warm-up from 0 to lr."""
    clip_grad: Positive | None = None
    """Clip gradients to this global 2-norm; 0: no clipping."""
    label_smoothing: Share = 0.0
    """Label smoothing: the fraction of each target that is spread evenly over all classes."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training length, batch size and precision."""

    epochs: AtLeast1 = 14
    """Passes over the training set."""
    max_steps: AtLeast1 | None = None
    """End after this many optimizer steps, even within an epoch; 0: no limit."""
    batch_size: AtLeast1 = 64
    """Samples per optimizer step, over all ranks and micro-batches."""
    batch_size_per_rank: AtLeast1 | None = None
    """Samples per optimizer step on each rank; replaces batch-size; 0: unused."""
    val_batch_size: AtLeast1 = 1000
    """Samples per evaluation batch on each rank."""
    grad_accum_steps: AtLeast1 = 1
    """Micro-batches per optimizer step (gradient accumulation), to save memory."""
    amp: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """Mixed precision: autocast to this type (fp16 with loss scaling); auto: bf16 if the devices of all ranks
    support it in hardware and, on GPUs, if the model's operators are large at this batch size, except for user-defined
    models; a resumed run keeps its first choice."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and optimizer state."""
    seed: Seed = 0
    """Seed of weights, sample order, augmentation and dropout."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Logs, checkpoints and checks."""

    log_interval: AtLeast1 = 10
    """Steps between two records of training loss and rate."""
    checkpoint_interval: AtLeast1 | None = None
    """Steps between two checkpoints within an epoch, in addition to the one after each epoch; 0: only after epochs."""
    keep: AtLeast1 = 3
    """Number of newest checkpoints to keep, in addition to the one with the best validation accuracy."""
    tensorboard: bool = False
    """Also write the metrics as TensorBoard events."""
    figures: bool = True
    """Draw the learning curves and the confusion matrix at the end."""
    record_samples: bool = False
    """Write the sample ids of each step to logs/samples.rank<N>.jsonl, for audits."""
    fp16_compression: bool = False
    """Send gradients as 16-bit floats (horovod)."""
    verify_replicas: AtLeast1 | None = None
    """Compare weights and optimizer state of all ranks every N steps and before each checkpoint; if they differ, end
    the run and report the rank: its memory or GPU is faulty; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Options of one attempt, not saved with the run."""

    backend: BackendName = "auto"
    """Data-parallel backend; auto: ddp if RANK is set (torchrun, a job script), else one process."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Device; auto: a GPU if available."""
    devices_per_rank: AtLeast1 | None = None
    """GPUs per rank for the stages of a split model; 0: one per stage."""
    stage_devices: str | None = None
    """Device of each stage (cuda:0,cpu), the same on all ranks; "": consecutive GPUs."""
    dist_backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """torch.distributed backend of ddp; auto: nccl on GPUs, gloo on CPUs."""
    init_method: str = "env://"
    """Rendezvous of ddp: env:// (MASTER_ADDR, MASTER_PORT) or file:///shared/new-file-for-each-attempt."""
    collective_timeout: AtLeast1 = 600
    """Seconds that ranks wait for each other: to join, in a collective, and while rank 0 saves or draws."""
    nproc_per_node: AtLeast1 | Literal["auto"] | None = None
    """Start this many ddp ranks on this machine, without torchrun; auto: as many as its GPUs allow; 0: start no other
    rank."""
    threads: AtLeast1 | None = None
    """CPU threads per rank; 0: OMP_NUM_THREADS, else an even share of the available CPUs."""
    stop_epoch: AtLeast1 | None = None
    """Stop after this epoch of the run; schedules still span all epochs, and a later attempt continues; 0: no early
    stop."""
    selftest: bool = False
    """Test the ranks instead of training: each rank reports its placement and speed; faults end the run with an
    error."""
    profile: Steps | None = None
    """Profile these optimizer steps (10-14), counted from 1 in this attempt: a trace per rank in profile/, a summary
    in the log and the report. start: the seconds up to the first step, by part; "": none."""
    profile_ranks: Ranks = "0"
    """Ranks to profile (0,3), or all."""
    dry_run: bool = False
    """Quick check of all parts: take one optimizer step, evaluate one batch, and write nothing to output-dir except
    the schedule figure of a split model."""
    memory: bool = False
    """With dry-run: first compute, without a GPU, how much memory a rank needs; exit with 78 if its devices have
    less."""
    output_dir: str | None = None
    """Run folder; "": a new one, runs/<dataset>-<arch>-<date and time>."""
    resume: str | None = None
    """auto: continue from the newest valid checkpoint of output-dir, if any; or the path of a checkpoint or a run
    folder."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment: the options that are saved with a run and reproduce it."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """Everything that files and flags can set: an experiment and the options of one launch."""

    launch: Launch = field(default_factory=Launch)


ALTERNATIVES = (("train", "batch_size", "batch_size_per_rank"),)
"""Section, and keys of which only one may be set. The first key has a default."""


def experiment(config: Config) -> dict[str, dict[str, Any]]:
    """Return the experiment as the tables of a CONFIG.toml, without options that are turned off."""
    tables = {}
    for part in fields(Config):
        keys = asdict(getattr(config, part.name))
        tables[part.name] = {key: value for key, value in keys.items() if value is not None}
    for section, default, alternative in ALTERNATIVES:
        if alternative in tables[section]:
            del tables[section][default]
    return tables
