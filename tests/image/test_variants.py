"""GPU images pass the tests of the CPU image, on this machine's CPUs: `make test-image VARIANT=...`."""

import os
import subprocess

import pytest

from support import ROOT

VARIANTS = sorted(path.stem for path in (ROOT / "containers" / "pins").glob("*.env") if path.stem != "cpu")


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gpu_image_passes_tests_of_cpu_image(variant):
    image = ROOT / "dist" / f"slipway-{variant}.sif"
    if not image.exists():
        pytest.skip(f"no dist/{image.name}: `make image VARIANT={variant}` builds it, in an hour")
    words = ["make", "test-image", f"VARIANT={variant}"]
    kept = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PARTS"}
    }
    done = subprocess.run(words, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
