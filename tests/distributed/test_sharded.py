"""Sharded models in a Session: resumed on other meshes and world sizes, after kills, and from damaged checkpoints."""

import sys
from contextlib import ExitStack

import pytest
from safetensors.torch import load_file
from torch import nn

from messages import slugs
from session_runs import SCRIPTS, epochs_of, finish, lines, saved_step
from slipway.checkpoint.export import export
from slipway.checkpoint.format import read_checkpoint
from support import free_port, started, unshared


def run(folder, kind, ranks, *flags, code=0):
    return finish("sharded", ranks, ["--kind", kind, *flags], folder, code=code)


CHAIN = [("fsdp", 4), ("fsdp", 2), ("hsdp", 4), ("ddp", 2), ("tp", 4), ("fsdp", 3), ("tp", 2), ("fsdp", 1)]
ALL = [
    *(("fsdp", ranks) for ranks in (1, 2, 3, 4, 8)),
    *(("hsdp", ranks) for ranks in (2, 4, 8)),
    *(("tp", ranks) for ranks in (2, 4, 8)),
    *(("ddp", ranks) for ranks in (1, 2, 3, 4, 8)),
]


def spaced(numbers):
    return " ".join(map(str, numbers))


@pytest.mark.parametrize(
    "chain", [pytest.param(CHAIN, id="chain"), pytest.param(ALL + ALL[::-2], marks=pytest.mark.prove, id="all")]
)
def test_state_and_samples_are_exact_on_another_mesh(chain, tmp_path, table):
    folder, epochs = tmp_path / "run", str(len(chain))
    folder.mkdir()
    rows = []
    for kind, ranks in chain:
        step = saved_step(folder)
        code = 75 if ranks == 1 else 0  # without a launcher a stopped script exits with 75
        run(folder, kind, ranks, "--epochs", epochs, "--stop-at", str(step + 2), code=code)
        checkpoint = folder / "checkpoints" / "latest"
        sizes = [file.stat().st_size for file in sorted(checkpoint.glob("shards.*"))]
        read = [size for opened, _, size in sorted(lines(folder, "read")) if opened == step]
        rows.append([kind, str(ranks), str(saved_step(folder) - step), spaced(read), spaced(sizes)])
        assert saved_step(folder) > step
        assert len(read) == ranks
    table("ways to shard, ranks, steps, bytes that each rank has read, and has written in shards", rows)
    states = lines(folder, "states")
    after = {step: digest for what, step, digest in states if what == "stepped"}
    opened = [(step, digest) for what, step, digest in states if what == "opened"]
    assert len(opened) == len(chain)
    assert [after[step] for step, _ in opened[1:]] == [digest for _, digest in opened[1:]]
    for numbers in epochs_of(lines(folder, "samples"))[:-1]:
        assert sorted(numbers) == [*range(97)]


def test_damaged_shard_makes_all_ranks_use_the_checkpoint_before(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    run(folder, "fsdp", 3, "--stop-at", "6")
    step = saved_step(folder)
    shards = folder / "checkpoints" / "latest" / "shards.2.safetensors"
    data = bytearray(shards.read_bytes())
    data[-1] ^= 1
    shards.write_bytes(data)
    said = run(folder, "hsdp", 4)
    assert "damaged-checkpoint" in slugs(said)
    states = lines(folder, "states")
    (_, opened, digest) = [each for each in states if each[0] == "opened"][1]
    assert opened == step - 1
    assert ["stepped", opened, digest] in states
    assert "checkpoint-set-aside" in slugs(said)


def test_rank_that_cannot_write_leaves_the_checkpoint_before(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    said = run(folder, "fsdp", 2, "--epochs", "1", "--disk-full-at", "5", code=1)
    assert "checkpoint-not-written" in slugs(said)
    assert saved_step(folder) == 4
    read_checkpoint(folder / "checkpoints" / "latest")
    assert not [*(folder / "checkpoints").glob(".step_*")]
    run(folder, "fsdp", 2, "--epochs", "1")
    assert saved_step(folder) == 12


def test_sampler_must_divide_samples_by_mesh_of_model(tmp_path):
    said = run(tmp_path / "run", "tp", 4, "--without-mesh", code=1)
    assert "sampler-mesh" in slugs(said)


def test_ranks_must_share_the_run_folder(tmp_path):
    folder = tmp_path / "shared" / "run"
    folder.mkdir(parents=True)
    script = [sys.executable, str(SCRIPTS / "sharded.py")]
    hidden = [
        *unshared("mount"),
        "sh",
        "-c",
        'mount -t tmpfs none "$1" && shift && exec "$@"',
        "sh",
        str(folder.parent),
    ]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "RUN_DIR": str(folder)}
    with ExitStack() as stack:
        launches = [
            stack.enter_context(
                started([*(hidden if rank else []), *script], tmp_path / f"{rank}.log", **place, RANK=str(rank))
            )
            for rank in range(2)
        ]
        assert [launch.wait() for launch in launches] == [1, 1]
    assert slugs(launches[0].output)[-1:] == ["folder-not-shared"]


def test_exported_weights_are_whole(tmp_path):
    folder, weights = tmp_path / "run", tmp_path / "weights.safetensors"
    run(folder, "tp", 4, "--epochs", "1")
    assert export(folder, weights, best=True, model=None) == f"model at step {saved_step(folder)}"
    model = nn.Sequential(
        nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 23), nn.Dropout(), nn.LayerNorm(23), nn.Linear(23, 3)
    )
    model.load_state_dict(load_file(weights))
