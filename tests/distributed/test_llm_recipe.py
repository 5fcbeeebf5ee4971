"""The language-model recipe examples/llm/train.py: it trains, and resumes exactly, also on other numbers of ranks."""

import os
import signal

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from session_runs import content, differences, records, saved_step
from slipway.__main__ import main
from support import ROOT, launch_words, started, status

SCRIPT = ROOT / "examples" / "llm" / "train.py"
PRELOAD = ["transformers.models.llama.modeling_llama", "transformers.models.gpt2.tokenization_gpt2"]
SMALL = ["--vocabulary", "300", "--sequence", "16", "--batch", "12", "--micro-batch", "2", "--lr", "0.005"]
TEXT = "".join(f"{number * number % 7} and {number % 5} are numbers.\n" for number in range(300))


@pytest.fixture
def text(tmp_path):
    """Return a text file of about 250 sequences."""
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    return path


def attempt(folder, ranks, text, *flags):
    words = launch_words("forked", ranks, program=[str(SCRIPT)])[:-1]
    log = folder.with_name(f"{folder.name}.{saved_step(folder)}.log")
    flags = ["--text", str(text), *SMALL, *flags]
    return started([*words, *flags], log, preload=PRELOAD, RUN_DIR=str(folder))


def finish(folder, ranks, text, *flags, code=0):
    with attempt(folder, ranks, text, *flags) as launch:
        assert launch.wait() == code, launch.output
    return launch.output


def stop(folder, ranks, text, *flags):
    """Start the recipe and stop it after its first save."""
    with attempt(folder, ranks, text, *flags) as launch:
        launch.until(lambda: saved_step(folder) > 0, "checkpoint")
        os.kill(launch.rank_pids(0)[0], signal.SIGTERM)
        assert launch.wait() == 0, launch.output
    assert status(folder)["state"] == "stopped"


def losses(folder):
    return [record["loss"] for record in records(folder) if record["kind"] == "validation"]


def test_recipe_reads_as_one_page():
    assert len(SCRIPT.read_text().splitlines()) <= 150


def test_own_text_is_learned_and_a_stopped_run_ends_with_the_same_bits(tmp_path, text):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    finish(whole, 2, text)
    assert len(losses(whole)) == 3
    assert losses(whole)[-1] < losses(whole)[0]
    stop(stopped, 2, text)
    finish(stopped, 2, text)
    assert differences(content(whole), content(stopped)) == []
    exported = tmp_path / "exported"
    assert main(["export", str(whole), str(exported), "--extra", *map(str, (whole / "inputs").glob("*.json"))]) == 0
    model, tokenizer = (kind.from_pretrained(exported) for kind in (AutoModelForCausalLM, AutoTokenizer))
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids[:, :16]
    assert model(tokens, labels=tokens).loss < losses(whole)[0]


@pytest.mark.prove
def test_recipe_continues_from_a_folder_of_weights(tmp_path, text):
    first, second, exported = tmp_path / "first", tmp_path / "second", tmp_path / "exported"
    finish(first, 2, text)
    assert main(["export", str(first), str(exported), "--extra", str(first / "inputs")]) == 0
    finish(second, 3, text, "--weights", str(exported), "--epochs", "1", "--lr", "1e-9")
    assert losses(second) == [pytest.approx(losses(first)[-1], rel=1e-3)]


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=pytest.mark.prove) for ranks in (1, 3)])
def test_stopped_run_ends_on_another_number_of_ranks(tmp_path, text, ranks):
    stop(tmp_path / "run", 2, text)
    finish(tmp_path / "run", ranks, text)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]
    assert status(tmp_path / "run")["state"] == "done"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--batch", "7"], "--batch"),
        (["--sequence", "100000"], "--sequence"),
        (["--text", "gone.txt"], "gone.txt"),
        (["--text", "latin1.txt"], "latin1.txt"),
        (["--weights", "run"], "--weights run"),
    ],
)
def test_flags_that_do_not_fit_are_refused_and_leave_no_inputs(tmp_path, text, monkeypatch, flags, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.txt").write_bytes("\xe4".encode("latin-1"))
    said = finish(tmp_path / "run", 2, text, *flags, code=2)
    assert f"train.py: error: {named}" in said or named in said.partition("train.py: error: ")[2]
    assert not (tmp_path / "run" / "inputs" / "flags").exists()


@pytest.mark.prove
def test_run_is_not_continued_with_other_flags(tmp_path, text):
    stop(tmp_path / "run", 2, text)
    for flags in (["--vocabulary", "290"], ["--epochs", "4"]):
        assert flags[0] in finish(tmp_path / "run", 2, text, *flags, code=2).partition("train.py: error: ")[2]
    finish(tmp_path / "run", 2, text, "--micro-batch", "3")
