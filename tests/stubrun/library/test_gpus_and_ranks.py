"""Number of ranks that a job starts, and their GPUs: the plan, its refusals and warnings."""

import pytest

from bash_library import assert_dies
from messages import numbers, slugs


@pytest.mark.parametrize(
    ("given", "ranks", "idle"),  # the last: values of the warning
    [
        ("cpus=5", "1 4 2 2", []),
        ("cpus=1 SLIPWAY_RANKS_PER_NODE=3", "1 6 3 1", []),
        ("BACKEND=single nnodes=1", "1 1 1 8", [1, 2]),
        ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2", "2 4 2 4", []),
        ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=4", "4 2 1 8", []),
        ("gpus_per_node=3 SLIPWAY_DEVICES_PER_RANK=2", "2 2 1 8", [1, 3, 2]),
        (
            "gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=1",
            "2 2 1 8",
            [2, 4, 1, 2, 2, 1, 2],
        ),
        ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2 BACKEND=single nnodes=1", "2 1 1 8", [2, 4]),
        # stages share the cores
        ("gpus_per_node=2 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=2 SLIPWAY_DEVICE=cpu", "2 4 2 4", []),
        # a scheduler without GPU information
        ("gpus_per_node=0 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=2", "2 4 2 4", []),
        # without the setting ranks may share a GPU
        ("gpus_per_node=2 SLIPWAY_RANKS_PER_NODE=4", "1 8 4 2", []),
    ],
)
def test_plan_ranks_and_idle_gpu_warning(bash, given, ranks, idle):
    show = 'echo "$devices_per_rank $world_size $ranks_per_node $cpus_per_rank"'
    code, out, said = bash(f"{given}; plan_ranks; {show}")
    assert (code, out) == (0, f"{ranks}\n"), said
    assert (slugs(said), numbers(said)) == (["idle-gpus"] * bool(idle), idle)
    assert said.count("\n") == bool(idle)


@pytest.mark.parametrize(
    ("given", "said"),  # idle GPUs, out of how many, ranks per node, GPUs that they use; ranks, nodes, ranks per node
    [
        ("nnodes=2 SLIPWAY_RANKS_PER_NODE=2", []),
        ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1, 2, 1, 2]),
        ("nnodes=3 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1]),  # 3 are not as many on each of fewer nodes
        ("nnodes=4 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1, 4, 2, 2]),
        ("nnodes=1 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1]),
        ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICE=cpu", []),
        ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_SCRIPT=spawns.py", [1, 2, 1, 1, 2, 1, 2]),
        ("nnodes=2 SLIPWAY_RANKS_PER_NODE=2 SLIPWAY_SCRIPT=mine.py gpus_per_node=4", [2, 4, 2, 2, 4, 1, 4]),
    ],
)
def test_idle_gpus_warning_suggests_ranks_per_node(bash, given, said):
    code, _, err = bash(f"gpus_per_node=2 {given}; plan_ranks; log_idle_gpus 2>/dev/null")
    assert (code, slugs(err), numbers(err)) == (0, ["idle-gpus"] * bool(said), said)
    assert err.count("\n") == bool(said)
    assert not said or f"SLIPWAY_RANKS_PER_NODE={said[2]} " in err


@pytest.mark.parametrize(
    ("settings", "devices", "accepted"),
    [
        ("", "MIG-1c5f,MIG-2d6a", False),
        ("world_size=1; ", "MIG-1c5f,MIG-2d6a", True),
        ("SLIPWAY_DEVICE=cpu; ", "MIG-1c5f,MIG-2d6a", True),
        ("", "0,1", True),
    ],
)
def test_mig_slices_are_refused_for_several_ranks(bash, settings, devices, accepted):
    done = bash(f"{settings}refuse_mig_slices", CUDA_VISIBLE_DEVICES=devices)
    if accepted:
        assert done == (0, "", "")
    else:
        assert_dies(done, "mig-slices", " 4 ", " 2.32 ", "`jobgen submit single --site SITE`")


@pytest.mark.parametrize(
    ("given", "slug", "named"),
    [
        ("gpus_per_node=0", "no-gpu", [1]),
        ("SLIPWAY_DEVICES_PER_RANK=2; gpus_per_node=1", "too-few-gpus", [1, 2, 2, 1]),
        ("SLIPWAY_DEVICES_PER_RANK=2; gpus_per_node=1 BACKEND=single", "too-few-gpus", [1, 2, 2, 1]),
        ("SLIPWAY_DEVICES_PER_RANK=2; gpus_per_node=4 SLIPWAY_RANKS_PER_NODE=3", "too-few-gpus", [3, 2, 6, 4]),
        ("SLIPWAY_DEVICES_PER_RANK=2; gpus_per_node=0", "no-gpu", [2]),
        ("SLIPWAY_DEVICES_PER_RANK=2; gpus_per_node=1 SLIPWAY_DEVICE=cpu", "no-gpu", [1, 2]),
    ],
)
def test_too_few_gpus_for_ranks_are_refused(bash, given, slug, named):
    refused = bash(f"{given}; plan_ranks; echo no")
    assert_dies(refused, slug, *["SLIPWAY_RANKS_PER_NODE", "SLIPWAY_DEVICE=cpu"] * (named == [1]))
    assert (refused.out, numbers(refused.err)) == ("", named)


def test_enough_gpus_for_ranks_are_accepted(bash):
    assert (
        bash("SLIPWAY_DEVICES_PER_RANK=2 devices_per_rank=2 ranks_per_node=1; check_gpu_count; echo ok").out == "ok\n"
    )


@pytest.mark.parametrize(
    ("settings", "counts", "least"),
    [
        ("", "", 2),
        ("", "2", 2),
        ("", "2 2 2", 2),
        ("BACKEND=single; ", "2 1", 1),
        # regression: refused, though the ranks of a node need no more than the smallest number
        ("SLIPWAY_RANKS_PER_NODE=1; ", "2 1", 1),
        ("SLIPWAY_RANKS_PER_NODE=4 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_DEVICE=cpu; ", "0 2", 0),
        ("SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_DEVICE=auto; ", "3 2 4", 2),
    ],
)
def test_smallest_gpu_count_is_used_on_all_nodes(bash, settings, counts, least):
    code, out, err = bash(f'{settings}use_smallest_gpu_count {counts}; echo "$gpus_per_node"')
    assert (code, out) == (0, f"{least}\n")
    assert slugs(err) == ["idle-gpus"] * (len({*counts.split()}) > 1)


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ("", "2 2 1"),
        ("SLIPWAY_DEVICE=cpu; ", "2 0"),  # their number is that of GPUs
        ("SLIPWAY_RANKS_PER_NODE=2; ", "2 1"),
        ("SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICES_PER_RANK=2; ", "2 1"),
        ("SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICE=auto; ", "2 0"),
    ],
)
def test_uneven_gpu_counts_of_nodes_are_refused(bash, settings, counts):
    assert_dies(
        bash(f"{settings}use_smallest_gpu_count {counts}"), "uneven-gpus", *counts.split(), "SLIPWAY_RANKS_PER_NODE"
    )
