"""The example reaches at least 97.5 % accuracy on the held-out digits with every training seed."""

import json

import pytest

from support import status, train


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (1, 2))])
def test_digits_example_reaches_97_5_percent_accuracy(seed, tmp_path, table):
    out = tmp_path / "run"
    said = train("torchrun", 2, out, "--seed", str(seed))
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    table(f"digits, two ddp ranks, training seed {seed}", [[f"accuracy {100 * last['accuracy']:.2f} %"]])
    assert last["kind"] == "validation"
    assert last["accuracy"] >= 0.975
    assert said.rstrip().endswith(f"run folder: {out}")
    assert status(out)["state"] == "done"
    for figure in ("curves.png", "confusion.png", "confusion.csv", "classes.csv"):
        assert (out / "figures" / figure).stat().st_size > 100
