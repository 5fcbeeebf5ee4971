"""`jobgen site --detect` if commands are missing, hang, fail or print garbage: it loses only their answers."""

import errno
import os
import re
import sys
import time
from pathlib import Path

import pytest

import jobgen.detect
import recorded
from jobgen.base.job import Site
from jobgen.cli import main
from jobgen.detect import ask, detect
from jobgen.detect.ask import Answer, Asker
from jobgen.resolve.load import load

RUBBISH = {
    "nothing": "",
    "binary": "\x00\x01\x7f\xff\x1b[31mred\x1b[0m",
    "one long line": "x" * 100_000,
    "pipes": "|" * 11 + "\n" + "a|up|1:00|1|idle|1|1:1:1|1|1|f|gpu:0|n\n" + "|".join(["*"] * 12),
    "equal signs": "=\n=a\nPartitionName=\nPartitionName== =\nSLURM_VERSION = ...\nSelectType =\n" + "= " * 100,
    "numbers": "999999999999999999999999|" * 12 + "\nsmp = " + "9" * 400,
    "quotes": 'ClusterName = a"\'\\\nname = "x"\n[options]\n' + '"' * 50,
    "other letters": "Größe ½ 四 ²|" * 12 + "\n" + "²" * 9 + ":²",
    "indented": "     state = free\n\tmore\n\n     np = ²\n",
}


pytestmark = pytest.mark.usefixtures("in_the_project")


def script(folder, text):
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class TestAsker:
    def test_missing_or_failing_command_returns_error(self, tmp_path):
        asker = Asker(os.environ)
        assert asker.run("no-such-program").error == os.strerror(errno.ENOENT)
        failing = script(tmp_path, "echo out; echo first >&2; echo why >&2; exit 3")
        assert asker.run(failing)[1:] == ("", "why")
        silent = asker.run(script(tmp_path, "exit 3"), "again")
        assert (silent.text, silent.error.split()[-1]) == ("", "3")
        assert asker.run("no\0thing").error
        assert len(asker.failed) == 4

    def test_hanging_command_is_killed_with_children_and_not_restarted(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ask, "LIMIT", 3.0)
        program = script(tmp_path, f"echo x >>{tmp_path}/started; sleep 600 & echo $! >{tmp_path}/child; wait")
        asker, began = Asker(os.environ), time.monotonic()
        assert asker.run(program).error.endswith(" 3 s")
        assert program in asker.run(program, "again").error
        assert time.monotonic() - began < 300
        assert (tmp_path / "started").read_text() == "x\n"
        child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
        while child.exists() and ") Z " not in child.read_text():
            assert time.monotonic() - began < 300

    def test_background_child_holding_output_is_not_waited_for(self, tmp_path):
        began = time.monotonic()
        assert Asker(os.environ).run(script(tmp_path, "sleep 600 & echo said")).text == "said\n"
        assert time.monotonic() - began < 300

    def test_command_that_closes_output_and_continues_is_killed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ask, "LIMIT", 0.5)
        assert Asker(os.environ).run(script(tmp_path, "exec >&- 2>&-; exec sleep 600")).error.endswith(" s")

    def test_command_with_endless_output_is_killed(self, monkeypatch):
        monkeypatch.setattr(ask, "LARGEST", 1 << 20)
        assert Asker(os.environ).run("yes").error.endswith(" 1 MiB")

    def test_command_gets_no_input_and_c_locale(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        assert Asker(os.environ).run(script(tmp_path, 'cat; echo "$LC_ALL"')).text == "C\n"

    def test_invalid_utf8_in_answer_is_replaced(self, tmp_path):
        assert Asker(os.environ).run(script(tmp_path, r"printf '\377\376ok'")).text == "\ufffd\ufffdok"


class Played(Asker):
    """Answers from a recording without starting processes; one of them is garbage."""

    recording, spoilt, rubbish = "", 0, ""

    def _run(self, words, command, *, both):
        known = recorded.commands_of(self.recording)
        number = next((n for n, (line, _) in enumerate(known) if line == words), None)
        if words[0] == "bash":
            number = next((n for n, (line, _) in enumerate(known) if line[0] == "module"), None)
        if number is None:
            return Answer(command, "", "not recorded")
        text = self.rubbish if number == self.spoilt else known[number][1].replace("[error] ", "")
        return Answer(command, "BEGIN MODULES\n" * (words[0] == "bash") + text, "")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] * (path.name in {"amd", "condo", "routed", "typed-gres"}))
        for path in sorted(recorded.CLUSTERS.iterdir())
        if path.is_dir()
    ],
)
def test_garbage_output_affects_only_its_own_answers(tmp_path, monkeypatch, kind):
    folder = recorded.login_node(kind, tmp_path, monkeypatch)
    monkeypatch.setattr(jobgen.detect, "Asker", Played)
    monkeypatch.setattr(Played, "recording", str(folder / "login.txt"))
    texts = dict(RUBBISH)
    for number, (_, printed) in enumerate(recorded.commands_of(folder / "login.txt")):
        monkeypatch.setattr(Played, "spoilt", number)
        texts |= {"half of it": printed[: len(printed) // 2], "upside down": "\n".join(printed.splitlines()[::-1])}
        texts["in capitals"] = printed.upper()
        for name, text in texts.items():
            monkeypatch.setattr(Played, "rubbish", text)
            (tmp_path / "mine.toml").write_text(detect().text, encoding="utf-8")
            site = load(str(tmp_path / "mine.toml"), [], Site)
            assert site.name, name


def test_draft_is_printed_if_no_command_answers(tmp_path, monkeypatch, capsys):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sinfo", "scontrol", "sacctmgr", "srun", "sbatch", "id", "apptainer", "unshare", "ip", "bash"):
        (programs / name).write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(ask, "LIMIT", 0.3)
    monkeypatch.setenv("PATH", str(programs))
    for name in [name for name in os.environ if recorded.UNSET.match(name)]:
        monkeypatch.delenv(name)
    began = time.monotonic()
    assert main(["site", "--detect"]) == 0
    assert time.monotonic() - began < 300
    text = capsys.readouterr().out
    assert re.search(r"(?m)^# .*: scontrol show config: .* 0 s\.$", text)
    assert re.search(r"(?m)^# .*: scontrol --oneliner show partition: .*\bscontrol\b", text)  # which did not answer
    (tmp_path / "mine.toml").write_text(text)
    assert load(str(tmp_path / "mine.toml"), [], Site).scheduler == "slurm"
