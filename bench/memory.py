"""``python bench/memory.py``: print the table of memory savings in docs/howto/split.md.

The numbers are computed, not measured, so they are the same on every machine.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.config.settings import ModelConfig, Settings, TrainConfig
from trainer.engine.memory import StageMemory, memory_of
from trainer.model import initial_model

SHAPE, CLASSES, BATCH = (3, 224, 224), 1000, 64
CUTS = {
    "efficientnet_b0": ["features.3"],
    "vit_b_16": ["encoder.layers.encoder_layer_6"],
}
"""One cut for each model, so that both stages need about the same memory."""
WAYS = {
    "as it is": {},
    "`--grad-accum-steps 8`": {"grad_accum_steps": 8},
    "`--amp bf16`": {"amp": "bf16"},
    "`--recompute`": {"recompute": True},
    "the last three": {"grad_accum_steps": 8, "amp": "bf16", "recompute": True},
    "two stages, `--grad-accum-steps 8`": {"grad_accum_steps": 8, "split": True},
}


def main() -> None:
    """Print the memory that the largest stage needs, for each model."""
    print("| model | with | weights | gradients, optimizer | activations | all |\n|---|---|---|---|---|---|")
    for arch, cuts in CUTS.items():
        for way, changes in WAYS.items():
            largest = max(stages_of(arch, cuts, changes), key=lambda stage: stage.total)
            name = arch if way == "as it is" else ""
            cells = (largest.parameters, largest.gradients + largest.optimizer, largest.activations, largest.total)
            print(f"| {name} | {way} |", " | ".join(f"{cell / 1e9:.2f} GB" for cell in cells), "|")


def stages_of(arch: str, cuts: list[str], changes: dict[str, object]) -> list[StageMemory]:
    """Return the memory of each stage of ``arch`` for one rank's step of 64 images of 224 x 224, with AdamW."""
    training = {key: value for key, value in changes.items() if key in {"grad_accum_steps", "amp"}}
    settings = Settings(
        model=ModelConfig(arch=arch, channels_last=False, recompute=bool(changes.get("recompute"))),
        train=replace(TrainConfig(batch_size=BATCH, val_batch_size=BATCH, amp="none"), **training),
    )
    model = initial_model(settings, shape=SHAPE, classes=CLASSES)
    return memory_of(model, settings, cuts=cuts if changes.get("split") else [], shape=SHAPE, ranks=1)


if __name__ == "__main__":
    main()
