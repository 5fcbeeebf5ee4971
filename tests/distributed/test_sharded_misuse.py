"""Mistakes with sharded models in a Session: each ends at once with an error that names it, or is handled exactly."""

import json
import shutil

import pytest

from messages import messages, slugs
from session_runs import content, differences, finish, saved_step, words
from support import started

LIMIT = 60
"""Seconds in which the ranks must end: a deadlock would last half an hour."""
prove = pytest.mark.prove

ERRORS = [
    ("optimizer_before_sharding", 2, "parameters-not-given"),
    ("other_seed_on_replicas", 2, "unequal-replicas"),
    ("root_not_sharded", 2, "sharded-model"),
    ("evaluated_on_one_rank", 2, "uneven-forward"),
    ("batches_uneven", 2, "uneven-batches"),
    ("gradients_never_reduced", 2, "gradients-not-reduced"),
]
MORE_ERRORS = [
    ("fsdp1", 2, "sharded-model"),
    ("other_parts_sharded_on_one_rank", 2, "sharded-model"),
    ("torch_sampler_of_all_ranks", 4, "sampler-mesh"),
    ("resumed_with_parameters_in_another_order", 2, "different-state"),
    ("deepspeed", 2, "sharded-model"),
    ("zero", 2, "sharded-model"),
    ("optimizer_of_another_model", 2, "parameters-not-given"),
    ("sharded_within_session", 2, "sharded-model"),
    ("sharded_within_loop", 2, "sharded-model"),
    ("two_sessions", 2, "session-not-open"),
    ("sharded_on_one_rank", 2, "sharded-model"),
    ("other_mesh_on_one_rank", 2, "sharded-model"),
    ("other_model_on_one_rank", 2, "sharded-model"),
    ("evaluated_on_one_rank_before_training", 2, "uneven-forward"),
    ("evaluated_on_one_rank_after_training", 2, "uneven-forward"),
    ("evaluated_more_often_on_one_rank", 2, "uneven-forward"),
    ("validated_on_one_rank", 2, "uneven-passes"),
    ("sampler_of_all_ranks", 4, "sampler-mesh"),
    ("averages_in_extra", 2, "unsavable-state"),
    ("resumed_with_another_width", 2, "different-state"),
    ("resumed_with_another_dtype", 2, "different-state"),
    ("resumed_with_another_optimizer", 2, "different-state"),
    ("resumed_with_other_groups", 2, "different-state"),
    ("resumed_with_the_sampler_of_all_ranks", 4, "sampler-mesh"),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run folder in which two ranks have trained one epoch without a mistake."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    finish("sharded_misuse", 2, ["good"], folder)
    return folder


def run(name, ranks, folder, *flags):
    """Return the exit code and the output of a mistake; fail if the ranks do not end."""
    with started(
        words("sharded_misuse", ranks, name, *flags), folder.with_suffix(".log"), RUN_DIR=str(folder)
    ) as launch:
        code = launch.wait(LIMIT)
    return code, launch.output


@pytest.mark.parametrize(
    ("name", "ranks", "slug"), [*ERRORS, *(pytest.param(*each, marks=prove) for each in MORE_ERRORS)]
)
def test_mistake_ends_all_ranks_with_an_error(name, ranks, slug, tmp_path, request):
    folder, flags = tmp_path / "run", ()
    if name.startswith("resumed"):
        shutil.copytree(request.getfixturevalue("begun"), folder, symlinks=True)
        flags = ("2",)
    before = saved_step(folder)
    code, said = run(name, ranks, folder, *flags)
    assert code not in {0, 75}, said
    errors = {message.slug for message in messages(said) if message.kind == "error"}  # a rank may be ended before it
    assert errors == {slug}, said
    if name.startswith("resumed"):
        assert saved_step(folder) == before


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("ddp_around", "NotImplementedError", marks=prove),
        pytest.param("average_by_deepcopy", "AssertionError", marks=prove),
        pytest.param("averaged_model_of_sharded", "AssertionError", marks=prove),
    ],
)
def test_mistake_that_torch_refuses_before_the_session(name, error, tmp_path):
    code, said = run(name, 2, tmp_path / "run")
    assert code == 1
    assert error in said


@prove
def test_forward_pass_before_the_session_does_no_harm(tmp_path):
    code, said = run("forward_before_session", 2, tmp_path / "run")
    assert (code, slugs(said)) == (0, []), said


@prove
def test_ranks_that_all_read_the_whole_data_set_are_reported(tmp_path):
    code, said = run("torch_sampler_of_one_replica", 2, tmp_path / "run")
    assert (code, {*slugs(said)}) == (0, {"undivided-data"})


@prove
def test_model_converted_after_the_opening_resumes_exactly(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, epochs in [(whole, "2"), (parts, "1"), (parts, "2")]:
        code, said = run("converted_within_session", 2, folder, epochs)
        assert code == 0, said
    assert files_of(whole) == files_of(parts)


def files_of(folder):
    """Return the tensors of the newest checkpoint, as bytes."""
    return {name: data for name, data in content(folder).items() if name.endswith(".safetensors")}


def shards_deleted(checkpoint):
    (checkpoint / "shards.1.safetensors").unlink()


def shards_of_another_step(checkpoint):
    step = int(checkpoint.name.removeprefix("step_"))
    shutil.copy(checkpoint.with_name(f"step_{step - 1:08d}") / "shards.1.safetensors", checkpoint)


def piece_moved(checkpoint):
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["sharded"]["model"]["0.weight"]["pieces"][0]["offset"][0] += 1
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", [shards_deleted, shards_of_another_step, piece_moved])
@prove
def test_damaged_checkpoint_is_set_aside_and_the_run_is_exact(damage, begun, tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    shutil.copytree(begun, folder, symlinks=True)
    damage((folder / "checkpoints" / "latest").resolve())
    code, said = run("good", 2, folder, "2")
    assert code == 0, said
    assert {"damaged-checkpoint", "checkpoint-set-aside"} <= {*slugs(said)}
    assert run("good", 2, whole, "2")[0] == 0
    assert files_of(folder) == files_of(whole) != {}
    assert not differences(content(whole)["position"], content(folder)["position"])
