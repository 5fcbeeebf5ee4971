"""`jobgen site --detect --save`: questions at a real terminal, and the file that becomes the user's default site."""

import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import jobgen.detect
import recorded
from jobgen.base.job import Site
from jobgen.cli import main
from jobgen.detect import detect, questions, save_default_draft
from jobgen.detect.draft import Draft, Found
from jobgen.resolve.load import load
from jobgen.resolve.search import default_site
from messages import assert_error, refused, slugs

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120
SAVE = ["site", "--detect", "--save"]


@pytest.fixture
def default(tmp_path, monkeypatch):
    """Return the path of the user's default site; the home folder is empty."""
    for name in ("XDG_CONFIG_HOME", "SLIPWAY_SITE", "SLIPWAY_SITES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".config" / "slipway" / "sites" / "default.toml"


@pytest.fixture
def node(tmp_path, monkeypatch, default):
    """Return a function that makes this machine a recorded login node, and returns the default site's path."""

    def node(kind, *edits):
        def edit(text):
            for old, new in edits:
                assert old in text, old
                text = text.replace(old, new)
            return text

        recorded.login_node(kind, tmp_path, monkeypatch, edit=edit)
        return default

    return node


class Terminal:
    """A jobgen command at a pseudoterminal."""

    def __init__(self, process, ours):
        self.process, self.ours, self.shown = process, ours, ""
        self.deadline = time.monotonic() + LIMIT

    def read(self):
        """Read what is printed next; return whether the terminal is still open."""
        assert time.monotonic() < self.deadline, self.shown
        if select.select([self.ours], [], [], 1)[0]:
            try:
                part = os.read(self.ours, 1 << 16)
            except OSError:  # the command has ended
                return False
            self.shown += part.decode()
            return bool(part)
        return True

    def until(self, prompt):
        """Wait for the prompt of a key, and return what was printed since the last one."""
        while not re.search(rf"{re.escape(prompt)}[^\n]*[:\]] $", self.shown):
            assert self.read(), self.shown
        text, self.shown = self.shown, ""
        return text

    def answer(self, prompt, text):
        """Wait for a prompt, type ``text``, and return what was printed before."""
        before = self.until(prompt)
        os.write(self.ours, text.encode())
        return before

    def end(self):
        """Return the exit code and the rest of the output."""
        while self.read():
            pass
        return self.process.wait(LIMIT), self.shown


@contextmanager
def terminal(*words, stdout=None):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "jobgen", *words],
        stdin=theirs,
        stdout=stdout or theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
        # A shell's background jobs ignore SIGINT, and so would the process.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- tests have one thread
        cwd=ROOT,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(ours)


class TestAtTerminal:
    def test_answers_are_saved_with_source(self, node, tmp_path):
        path = node("accounts-modules")
        with (tmp_path / "out").open("w") as out, terminal(*SAVE, stdout=out) as shown:
            asked = shown.answer("account [plgtraining-gpu]", "1\n")
            assert re.findall(r"(?m)^ +(\d+)  (\S+)\r$", asked) == [("1", "plgtraining-cpu"), ("2", "plgtraining-gpu")]
            shown.answer("interface (such as ib0) [leave it out]", "ib1\n")
            shown.answer(str(path), "\n")
            code, rest = shown.end()
        assert (code, slugs(rest)) == (0, [])
        text = path.read_text()
        assert (tmp_path / "out").read_text() == text
        site = load(str(path), [], Site)
        assert (site.options["account"], site.interface) == ("plgtraining-cpu", "ib1")
        assert re.search(r'(?m)^account = "plgtraining-cpu" # answered$', text)
        assert re.search(r'(?m)^interface = "ib1" # answered$', text)
        assert ("account to charge?" in text, "Dask" in text) == (False, False)
        assert default_site(os.environ).site == str(path)
        assert [file.name for file in path.parent.iterdir()] == ["default.toml"]

    def test_enter_takes_detected_value_or_leaves_field_out(self, node):
        path = node("accounts-modules")
        with terminal(*SAVE, "--name", "mine") as shown:
            shown.answer("account", "\n")
            shown.answer("interface", "\n")
            shown.answer(str(path), "y\n")
            assert shown.end()[0] == 0
        site, text = load(str(path), [], Site), path.read_text()
        assert (site.name, site.options["account"], site.interface) == ("mine", "plgtraining-gpu", "")
        assert re.search(r'(?m)^account = "plgtraining-gpu" # answered; sacctmgr ', text)
        assert '\n# interface = "ib0"' in text

    @pytest.mark.parametrize(
        ("answer", "partition", "values"),
        [
            ("4", "h100", ("nvidia", 4, 128 // 4)),
            ("h100", "h100", ("nvidia", 4, 128 // 4)),
            ("cpu", "cpu", ("none", 1, 112)),
            ("hidden", "hidden", ("nvidia", 8, 11)),
            ("a100", "a100", ("nvidia", 8, 11)),
        ],
    )
    def test_values_are_those_of_answered_partition(self, node, answer, partition, values):
        path = node("typed-gres")
        with terminal(*SAVE) as shown:
            shown.answer("partition [a100]", f"{answer}\n")
            shown.answer("interface", "\n")
            shown.answer(str(path), "\n")
            assert shown.end()[0] == 0
        site = load(str(path), [], Site)
        assert site.options["partition"] == partition
        assert (site.accelerator, site.gpus_per_node, site.cpus_per_gpu) == values
        assert re.search(rf'(?m)^partition = "{partition}" # answered', path.read_text())
        assert "right partition" not in path.read_text()

    def test_invalid_answers_are_asked_again(self, node):
        path = node("typed-gres", ("select/cons_tres", "select/other"), ("dsai|smith1||normal,qos_gpu|normal\n", ""))
        with terminal(*SAVE) as shown:
            shown.answer("partition", "9\n")
            shown.answer("partition", "a\x01b\n")
            shown.answer("partition", "1\n")
            shown.answer("gpu request [gres]", "gpus\n")
            assert "'gpus-per-node'" in shown.answer("gpu request [gres]", "\n")
            shown.answer("account (such as ACCOUNT)", "  007 \n")
            shown.answer("interface", "\n")
            shown.answer(str(path), "what\n")
            shown.answer(str(path), "YES\n")
            assert shown.end()[0] == 0
        site = load(str(path), [], Site)
        assert (site.options, site.gpu_request) == ({"account": "007", "partition": "a100"}, "gres")

    @pytest.mark.parametrize(("keys", "code"), [("n\n", 78), ("\x04", 78), ("\x03", 130)])
    def test_nothing_is_saved_without_confirmation(self, node, keys, code):
        path = node("machine")
        with terminal(*SAVE) as shown:
            shown.answer(str(path), keys)
            if code == 130:  # the pseudoterminal is not the session's
                shown.process.send_signal(signal.SIGINT)
            ended, rest = shown.end()
        assert (ended, slugs(rest)) == (code, [] if code == 130 else ["site-not-saved"])
        assert not (path.parent.parent / "sites").exists()

    def test_end_of_input_at_question_saves_nothing(self, node):
        path = node("accounts-modules")
        with terminal(*SAVE) as shown:
            shown.answer("account", "\x04")
            code, rest = shown.end()
        assert (code, slugs(rest)) == (78, ["site-not-saved"])
        assert not path.exists()

    def test_numbers_and_lists_are_parsed_by_type_of_example(self, node):
        path = node("openpbs")
        with terminal(*SAVE) as shown:
            shown.answer("A ", "12\n")
            shown.answer("directives ", "-l filesystems=home\n")
            shown.answer("local disk ", "\n")
            shown.answer("output ", "$HOME/runs\n")
            shown.answer("remote shell ", "\n")
            shown.answer(str(path), "\n")
            assert shown.end()[0] == 0
        site = load(str(path), [], Site)
        assert (site.options["A"], site.directives, site.output) == ("12", ("-l filesystems=home",), "$HOME/runs")


def load_text(path, text):
    file = path.parents[3] / "before.toml"
    file.write_text(text)
    return load(str(file), [], Site)


class TestWithoutTerminal:
    @pytest.mark.parametrize("kind", sorted(path.name for path in recorded.CLUSTERS.iterdir() if path.is_dir()))
    def test_yes_saves_every_recorded_cluster_as_valid_site(self, node, capsys, kind):
        path = node(kind)
        assert main([*SAVE, "--yes"]) == 0
        out, err = capsys.readouterr()
        assert out == path.read_text()
        assert str(path) in err.splitlines()[-1]
        assert load(str(path), [], Site) == load_text(path, detect().text)
        assert main(["render", "ddp-local" if kind == "machine" else "ddp"]) == 0

    def test_yes_takes_candidates_but_not_examples(self, node):
        path = node("typed-gres", ("select/cons_tres", "select/other"), ("dsai|smith1||normal,qos_gpu|normal\n", ""))
        assert save_default_draft(name="mine", yes=True) == path
        site = load(str(path), [], Site)
        assert (site.name, site.gpu_request, site.options) == ("mine", "gres", {"partition": "a100"})
        assert re.search(r'(?m)^gpu_request = "gres" # candidate', path.read_text())
        assert '# account = "ACCOUNT"' in path.read_text()

    @pytest.mark.parametrize("closed", [False, True])
    def test_without_terminal_nothing_is_saved_and_nothing_asked(self, node, capsys, monkeypatch, closed):
        path = node("typed-gres")
        if closed:
            monkeypatch.setattr(sys, "stdin", None)
        monkeypatch.setattr(jobgen.detect, "detect", None)
        assert main(SAVE) == 78
        assert_error(capsys.readouterr().err, "site-not-saved", "`jobgen site --detect --save`", "--yes")
        assert not path.exists()

    @pytest.mark.parametrize("kind", ["file", "dangling link", "folder"])
    def test_existing_default_is_kept(self, node, capsys, kind):
        path = node("machine")
        path.parent.mkdir(parents=True)
        if kind == "file":
            path.write_text("answers")
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("nowhere")
        assert main([*SAVE, "--yes"]) == 78
        assert_error(capsys.readouterr().err, "file-exists", path)
        assert [file.name for file in path.parent.iterdir()] == ["default.toml"]
        assert kind != "file" or path.read_text() == "answers"

    def test_default_saved_meanwhile_is_kept(self, node, monkeypatch):
        path = node("machine")
        real = jobgen.detect.load

        def late(*words):
            path.write_text("other")
            return real(*words)

        monkeypatch.setattr(jobgen.detect, "load", late)
        with refused("file-exists", path, code=78):
            save_default_draft(name=None, yes=True)
        assert path.read_text() == "other"
        assert [file.name for file in path.parent.iterdir()] == ["default.toml"]

    @pytest.mark.parametrize(("mask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
    def test_file_and_new_folders_have_modes_of_umask(self, node, mask, folder, file):
        path = node("machine")
        before = os.umask(mask)
        try:
            save_default_draft(name=None, yes=True)
        finally:
            os.umask(before)
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path.parents[2], path.parents[1], path.parent, path)]
        assert modes == [folder, folder, folder, file]

    @pytest.mark.parametrize("where", [".config", ".config/slipway/sites"])
    def test_file_in_place_of_folder_is_refused(self, node, capsys, where):
        path = node("machine")
        place = path.parents[3] / where
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert main([*SAVE, "--yes"]) == 78
        assert_error(capsys.readouterr().err, "cannot-write", path)

    def test_user_without_home_folder_is_refused(self, node, capsys, monkeypatch, tmp_path):
        node("machine")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
        assert main([*SAVE, "--yes"]) == 78
        assert_error(capsys.readouterr().err, "cannot-write", "HOME", "XDG_CONFIG_HOME")
        assert not Path("~").exists()

    def test_invalid_site_is_not_saved(self, node, monkeypatch):
        path = node("machine")
        real = detect

        def broken(name):
            found = real(name)
            found.draft.found["accelerator"] = Found("tpu", "test")
            return found

        monkeypatch.setattr(jobgen.detect, "detect", broken)
        with refused("bad-value", "accelerator", code=78):
            save_default_draft(name=None, yes=True)
        assert [*path.parent.iterdir()] == []

    @pytest.mark.parametrize(
        ("words", "code", "slug"),
        [
            (["--yes"], 2, "missing-argument"),
            (["--save", "--yes", "--name", ""], 2, "bad-flag-value"),
        ],
    )
    def test_invalid_save_options_are_refused(self, default, capsys, words, code, slug):
        assert main(["site", "--detect", *words]) == code
        assert_error(capsys.readouterr().err, slug)
        assert not default.exists()

    def test_save_and_output_exclude_each_other(self, capsys):
        with pytest.raises(SystemExit, match="2"):
            main([*SAVE, "--output", "x.toml"])
        assert_error(capsys.readouterr().err, "bad-arguments", "--output", "--save")


def test_long_lists_are_numbered_up_to_a_limit(monkeypatch, capsys):
    draft, names = Draft(), [f"p{number}" for number in range(1, 31)]
    draft.add_question("options.partition", "Which?", candidate="p1", choices=names)
    answers = iter(["21", "20"])
    monkeypatch.setattr(questions, "_line", lambda _: next(answers))
    questions.ask_questions(draft, ["options.partition"])
    assert draft.found == {"options.partition": Found("p20", "answered")}
    assert draft.questions == {}
    err = capsys.readouterr().err
    assert (" 20  p20\n" in err, "p21" in err, "p30" in err) == (True, True, False)
