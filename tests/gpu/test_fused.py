"""Fused optimisers whose steps GradScaler skips, on the device: torch's own and the trainer's, against foreach."""

import pytest
import torch

from fused_steps import CASES, SKIPPED, TOLERANCE, largest_difference, ours, steps, torchs, unwritten_memory_is_nan


@pytest.mark.parametrize("case", CASES)
def test_fused_optimizer_with_skipped_steps_matches_foreach(case, device, record):
    """``record`` shows torch's own too: from which release on it is right."""
    place, found = torch.device(device), {}
    try:
        steps(torchs(case, "fused"), place, skipped=())
    except RuntimeError as error:  # torch 2.11 has no fused Adagrad for CUDA
        if "`fused=True` requires" not in str(error):
            raise
        pytest.skip("torch has no fused kernel of it for this device")
    for label, skipped in SKIPPED.items():
        with unwritten_memory_is_nan():
            expected = steps(torchs(case, "foreach"), place, skipped=skipped)
            own, fused = (steps(build(case), place, skipped=skipped) for build in (ours, lambda n: torchs(n, "fused")))
        found[label] = largest_difference(own, expected)
        record(**{f"torch, skip {label}": largest_difference(fused, expected)})
    record(**{"trainer, most": max(found.values())})
    assert max(found.values()) < TOLERANCE
