"""``python bench/precision.py [--device cuda] [--rounds N]``: time training in the precisions that auto may choose.

It times optimizer steps of the trainer's learner on images in memory, in float32 and bf16, NCHW and NHWC. The four take
turns, with float32 and NCHW again as a fifth: if its ratio is not about 1, the machine was too busy to measure. On a
CPU it measures the process's CPU time, on a GPU the wall-clock time.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Literal

import torch

from slipway.dist.communicator import Alone
from trainer.config.settings import ModelConfig, Settings, TrainConfig
from trainer.data.loader import Batch
from trainer.data.micro_batches import MicroBatch
from trainer.engine.auto_precision import supports_bf16
from trainer.engine.learner import Learner
from trainer.model import Shape, initial_model
from trainer.model.normalise import normalisation
from trainer.parallel.single import SingleStrategy

Way = tuple[Literal["none", "bf16"], Literal["NCHW", "NHWC"]]
"""--amp, and the memory layout (NHWC: --channels-last)."""
MODELS: dict[str, tuple[Shape, int]] = {
    "mnist-cnn": ((1, 28, 28), 64),
    "resnet18": ((3, 32, 32), 64),
    "resnet50": ((3, 128, 128), 16),
    "mobilenet_v3_large": ((3, 128, 128), 16),
    "vit_b_16": ((3, 224, 224), 4),
}
"""Image shape, and images in a step."""
PLAIN: Way = ("none", "NCHW")
WAYS: list[Way] = [PLAIN, ("none", "NHWC"), ("bf16", "NCHW"), ("bf16", "NHWC"), PLAIN]
STEPS, CLASSES = 4, 10


def main() -> None:
    """Print a table of each model's speed relative to float32 and NCHW."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    print("this device multiplies bf16:", supports_bf16(device))
    print(f"Medians of {arguments.rounds} rounds, minimum and maximum in brackets")
    print("| model | float32 NHWC | bf16 NCHW | bf16 NHWC | float32 NCHW again |\n|---|---|---|---|---|")
    for arch, (shape, samples) in MODELS.items():
        ways = [stepper(settings_of(arch, *way), shape, samples, device) for way in WAYS]
        rounds = [[seconds(way, device) for way in ways] for _ in range(1 + arguments.rounds)][1:]
        ratios = zip(*([plain / other for other in others] for plain, *others in rounds), strict=True)
        cells = [f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})" for found in ratios]
        print(f"| {arch} |", " | ".join(cells), "|", flush=True)


def settings_of(arch: str, amp: Literal["none", "bf16"], layout: str) -> Settings:
    """Return the settings for a model, precision and layout."""
    return Settings(model=ModelConfig(arch=arch, channels_last=layout == "NHWC"), train=TrainConfig(amp=amp))


def stepper(settings: Settings, shape: Shape, samples: int, device: torch.device) -> Callable[[], None]:
    """Return a function that takes STEPS optimizer steps."""
    mean_std = (torch.full((shape[0],), 0.5, dtype=torch.float64), torch.full((shape[0],), 0.25, dtype=torch.float64))
    learner = Learner(
        settings,
        Alone(device),
        SingleStrategy(settings),
        initial_model(settings, shape=shape, classes=CLASSES),
        shape=shape,
        classes=CLASSES,
        normalise=normalisation(settings, mean_std, device),
        samples_per_epoch=samples,
    )
    images = torch.randint(256, (samples, *shape), dtype=torch.uint8)
    labels = torch.arange(samples) % CLASSES
    batch = Batch(images, labels, MicroBatch(labels.numpy(), True, samples, 0, 1), 0)

    def steps() -> None:
        for _ in itertools.repeat(None, STEPS):
            learner.backward([batch], count=1)
            learner.step()

    return steps


def seconds(steps: Callable[[], None], device: torch.device) -> float:
    """Return the time of the steps in seconds."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    began = clock()
    steps()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began


if __name__ == "__main__":
    main()
