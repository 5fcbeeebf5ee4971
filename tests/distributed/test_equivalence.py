"""The same global batches give the same weights, however many ranks share them and whatever reduces them.

The model has no dropout and no batch norm. Dropout draws from (seed, step, rank), so other ranks drop other units;
batch norm looks at a rank's own samples, so its statistics are of smaller batches.
"""

import pytest
import torch
import torch.nn.functional as F

from support import train, weights
from trainer.config import DataConfig
from trainer.data import open_data
from trainer.data.sampler import epoch_order
from trainer.models.small import MLP

WORLDS = [("torchrun", 1), ("spawn", 2), ("torchrun", 3), ("spawn", 4), ("horovodrun", 2), ("mpirun", 2)]
LIMITS = {"float32": 1e-6, "float64": 1e-12}
# 1,438 samples in batches of 479 leave one sample for the last step of an epoch: most ranks then have none.
FLAGS = [
    *("--arch", "mlp", "--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.05", "--clip-grad", "1.0"),
    *("--batch-size", "479", "--grad-accum-steps", "2", "--max-steps", "20", "--no-figures"),
]


@pytest.mark.horovod
@pytest.mark.parametrize("dtype", LIMITS)
def test_weights_after_20_steps_agree_between_all_worlds(dtype, tmp_path, table):
    train("single", 1, tmp_path / "single", *FLAGS, "--dtype", dtype)
    expected = weights(tmp_path / "single" / "checkpoints" / "latest")
    rows = []
    for launcher, ranks in WORLDS:
        out = tmp_path / f"{launcher}-{ranks}"
        train(launcher, ranks, out, *FLAGS, "--dtype", dtype)
        found = weights(out / "checkpoints" / "latest")
        assert found.keys() == expected.keys()
        rows.append((launcher, ranks, max(float((found[name] - expected[name]).abs().max()) for name in expected)))
    table(
        f"{dtype}: largest difference of a weight from one process, after 20 steps (limit {LIMITS[dtype]})",
        [("launcher", "ranks", "difference"), *((launcher, ranks, f"{d:.1e}") for launcher, ranks, d in rows)],
    )
    assert max(difference for _, _, difference in rows) <= LIMITS[dtype]


def test_a_bare_torch_loop_gives_the_same_weights(tmp_path):
    """Hold the trainer against twenty lines of plain torch on the same batches."""
    flags = ["--arch", "mlp", "--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.05", "--schedule", "constant"]
    flags += ["--warmup-epochs", "0", "--weight-decay", "0.001", "--batch-size", "479", "--dtype", "float64"]
    train("single", 1, tmp_path / "run", *flags, "--crop-padding", "0", "--epochs", "2", "--no-figures")

    data = open_data(DataConfig()).train
    torch.manual_seed(0)
    model = MLP((1, 8, 8), 10).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.001)
    pixels = data.images.double() / 255
    pixels = (pixels - pixels.mean()) / pixels.std()
    for epoch in range(2):
        for ids in torch.from_numpy(epoch_order(len(data), seed=0, epoch=epoch)).split(479):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels[ids]), data.labels[ids]).backward()
            optimizer.step()
    found = weights(tmp_path / "run" / "checkpoints" / "latest")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)
