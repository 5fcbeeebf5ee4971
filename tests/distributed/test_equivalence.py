"""The same global batches give the same weights for any number of ranks and any backend.

The model has no dropout and no batch norm. Dropout draws from (seed, step, rank), so other ranks drop other units;
batch norm looks at a rank's own samples, so its statistics are of smaller batches.
"""

import pytest
import torch
import torch.nn.functional as F

from support import ROOT, train, train_many, weights
from trainer.config.settings import DataConfig
from trainer.data.epoch import Epoch
from trainer.data.sets import open_data
from trainer.model.small import MLP

WORLDS = [("forked", 1), ("torchrun", 2), ("forked", 3), ("forked", 4), ("horovodrun", 2), ("mpirun", 2)]
LIMITS = {"float32": 1e-5, "float64": 1e-12}
"""CPUs multiply matrices of other heights with other kernels: on one with AVX10 float32 differs by 7e-6."""
# 1,438 samples in batches of 479 leave one sample for an epoch's last step, so most ranks have none.
FLAGS = [
    *("--arch", "mlp", "--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.05", "--clip-grad", "1.0"),
    *("--batch-size", "479", "--grad-accum-steps", "2", "--max-steps", "20", "--no-figures", "--amp", "none"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of all runs; single-process and spawn runs start as users start them."""
    folder = tmp_path_factory.mktemp("worlds")
    for dtype in LIMITS:
        (folder / dtype).mkdir()
        train("single", 1, folder / dtype / "single-1", *FLAGS, "--dtype", dtype)
    train("spawn", 2, folder / "float64" / "spawn-2", *FLAGS, "--dtype", "float64")
    for launcher, ranks in WORLDS:
        name = f"{launcher}-{ranks}"
        train_many(
            launcher, ranks, {folder / dtype / name: [*FLAGS, "--dtype", dtype] for dtype in LIMITS}, folder / name
        )
    return folder


@pytest.mark.core
@pytest.mark.horovod
@pytest.mark.parametrize("dtype", LIMITS)
def test_weights_after_20_steps_agree_between_all_backends_and_world_sizes(dtype, runs, table):
    expected = weights(runs / dtype / "single-1" / "checkpoints" / "latest")
    differences = {}
    for run in sorted((runs / dtype).glob("*-*/")):
        found = weights(run / "checkpoints" / "latest")
        assert found.keys() == expected.keys()
        differences[run.name] = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    table(
        f"{dtype}: largest difference of a weight from one process, after 20 steps (limit {LIMITS[dtype]})",
        [("world", "difference"), *((name, f"{difference:.1e}") for name, difference in differences.items())],
    )
    assert {f"{launcher}-{ranks}" for launcher, ranks in WORLDS} < differences.keys()
    assert max(differences.values()) <= LIMITS[dtype]


@pytest.mark.core
def test_trainer_gives_weights_of_plain_torch_loop(tmp_path):
    """Compare the trainer with twenty lines of plain torch on the same batches."""
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
        for ids in torch.from_numpy(Epoch(len(data), seed=0, epoch=epoch)[:]).split(479):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels[ids]), data.labels[ids]).backward()
            optimizer.step()
    found = weights(tmp_path / "run" / "checkpoints" / "latest")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("launcher", ["spawn", pytest.param("horovodrun", marks=pytest.mark.horovod)])
def test_all_ranks_start_with_weights_of_rank_0(launcher, tmp_path):
    flags = ["--arch", "rank_model:build", "--max-steps", "10", "--dtype", "float64", "--no-figures"]
    runs = [tmp_path / "one", tmp_path / "two"]
    for ranks, run in enumerate(runs, start=1):
        train("single" if ranks == 1 else launcher, ranks, run, *flags, PYTHONPATH=str(ROOT / "tests"))
    one, two = (weights(run / "checkpoints" / "latest") for run in runs)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-12
