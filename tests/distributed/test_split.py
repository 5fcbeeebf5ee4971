"""A model in stages trains like the whole model: on several ranks, and if it is killed at any moment."""

import random
import time

import pytest

from support import ROOT, digest, last_step, train, train_many, training, weights

ARCH = ["--arch", "toy_model:build"]
"""Batch norm, dropout, stochastic depth."""
FLAGS = [
    *ARCH,
    *("--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.1", "--clip-grad", "0.5", "--ema-decay", "0.9"),
    *("--batch-size", "122", "--grad-accum-steps", "4", "--max-steps", "20", "--no-figures"),
]
CUTS = {2: "blocks.1", 3: "blocks.1,head"}
WAYS = {"whole": []} | {
    f"{stages} stages, {schedule}": ["--split", cuts, "--pipeline", schedule]
    for stages, cuts in CUTS.items()
    for schedule in ("gpipe", "1f1b")
}
LIMITS = {"float32": 1e-6, "float64": 1e-15}
WORLDS = [
    ("single", 1),
    ("forked", 2),
    pytest.param("horovodrun", 2, marks=pytest.mark.horovod),
]
"""Replicas of the model."""


@pytest.mark.parametrize(("launcher", "ranks"), WORLDS)
def test_weights_of_split_model_match_whole_model(launcher, ranks, tmp_path, table):
    runs = {(dtype, way): tmp_path / f"{dtype}, {way}" for dtype in LIMITS for way in WAYS}
    flags = {folder: [*FLAGS, "--dtype", dtype, *WAYS[way]] for (dtype, way), folder in runs.items()}
    train_many(launcher, ranks, flags, tmp_path / "all")
    rows = []
    for dtype, limit in LIMITS.items():
        expected = weights(runs[dtype, "whole"] / "checkpoints" / "latest")
        for way in WAYS:
            found = weights(runs[dtype, way] / "checkpoints" / "latest")
            assert found.keys() == expected.keys()
            difference = max(float((found[name] - expected[name]).abs().max()) for name in expected)
            rows.append((dtype, way, f"{difference:.1e}"))
            assert difference <= (0 if ranks == 1 else limit), way
    table(f"largest difference of a weight from the whole model after 20 steps, {launcher} x {ranks}", rows)


@pytest.mark.parametrize(
    ("ranks", "kills"),
    [(1, 2), *(pytest.param(ranks, 10, marks=pytest.mark.prove) for ranks in (1, 2))],
)
def test_killed_run_resumes_with_different_split_and_matches_whole_model(ranks, kills, tmp_path, table):
    launcher = "single" if ranks == 1 else "forked"
    flags = [*FLAGS[:-3], "--epochs", "10", "--checkpoint-interval", "4", "--log-interval", "1", "--no-figures"]
    env = {"PYTHONPATH": str(ROOT / "tests")}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(launcher, ranks, whole, *flags, **env)
    ways = [*list(WAYS.values())[1:], ["--split", CUTS[2], "--recompute"], []]
    draw = random.Random(f"{ranks} {kills}")
    killed = []
    for number in range(kills):
        way = ways[number % len(ways)]
        before = last_step(broken)
        with training(launcher, ranks, broken, *flags, "--resume", "auto", *way, **env) as launch:
            wanted = before + draw.randrange(1, 8)
            launch.until(lambda wanted=wanted: last_step(broken) >= wanted, f"step {wanted}")
            time.sleep(draw.random() / 10)
            launch.kill()
        killed.append(last_step(broken))
    assert killed[-1] < last_step(whole)
    train(launcher, ranks, broken, *flags, "--resume", "auto", **env)
    for file in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        first, second = ((run / "checkpoints" / "latest" / file).read_bytes() for run in (whole, broken))
        assert first == second, file
    table(
        f"a model in stages, killed and continued with another cut, {ranks} rank(s)",
        [(f"killed after steps {killed}", f"sha256 {digest(broken / 'checkpoints' / 'latest')[:16]}... equal")],
    )
