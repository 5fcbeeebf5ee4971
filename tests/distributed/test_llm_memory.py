"""The memory table of the language-model recipe: exact for parameters, gradients and AdamW, close for activations."""

import importlib
import json
import re
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from support import ROOT, launch_words, started
from trainer.model.memory_meter import Meter

FOLDER = ROOT / "examples" / "llm"
SMALL = {"vocabulary": 301, "end": 0, "sequence": 64}
MEASURED = f"""
import json, sys
import torch, torch.distributed as dist
sys.path.insert(0, {str(FOLDER)!r})
import memory, train
dist.init_process_group("gloo")
model = train.make_model(train.make_config("tiny", **{SMALL!r}), torch.device("cpu"), torch.float32)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros(2, 64, dtype=torch.int64)
model(tokens, labels=tokens, use_cache=False).loss.backward()
optimizer.step()
if dist.get_rank() == 0:
    print(json.dumps(memory.states(model, optimizer)))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def memory():
    """Import memory.py as it imports train.py: from its folder."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("memory")
    sys.path.remove(str(FOLDER))
    for name in ("memory", "train"):
        del sys.modules[name]


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.prove) for ranks in (1, 3))])
def test_state_has_the_computed_bytes(memory, tmp_path, ranks):
    script = tmp_path / "measured.py"
    script.write_text(MEASURED)
    words = launch_words("forked", ranks, program=[str(script)])[:-1]
    with started(words, tmp_path / "log", preload=["transformers.models.llama.modeling_llama"]) as launch:
        assert launch.wait() == 0, launch.output
    measured = json.loads(launch.output.splitlines()[-1])
    assert measured == list(memory.states_of(memory.make_config("tiny", **SMALL), ranks))
    assert measured[0] == measured[1] > 0


@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_are_within_a_quarter_of_the_meter(memory, checkpointing):
    """The meter counts a bf16 model of the same shape, whole, without the casts and buffers of fully_shard."""
    config = memory.make_config("tiny", **{**SMALL, "sequence": 512})
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if checkpointing:
            model.activation_checkpointing_enable()
        tokens = torch.zeros(4, 512, dtype=torch.int64)
        meter = Meter([*model.parameters(), *model.buffers(), tokens])
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda owner: meter.forget(owner.grad))
        with meter:
            model(tokens, labels=tokens, use_cache=False).loss.backward()
    computed = memory.working_memory(config, 2, checkpointing=checkpointing, sequences=4)
    assert computed == pytest.approx(meter.peak[0], rel=0.25)


@pytest.mark.prove
def test_page_shows_the_table(memory, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["memory.py"])
    memory.main()
    assert capsys.readouterr().out in (ROOT / "docs" / "howto" / "language-model.md").read_text()


@pytest.mark.prove
def test_first_row_of_the_table_is_current(memory, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["memory.py", "0.1B"])
    memory.main()
    row = capsys.readouterr().out.splitlines()[-1]
    assert row in (ROOT / "docs" / "howto" / "language-model.md").read_text().splitlines()
    assert re.fullmatch(r"\| 0\.1B \| 0\.1\dB \|( [\d.]+ GB \|){6}", row)
