"""Login nodes of recorded clusters: programs that print the recorded output for their command line.

A recording (tests/unit/clusters/KIND/login.txt) resembles a terminal session: ``$ COMMAND``, followed by its output.
``[error] LINE`` is written to standard error, ``[exit N]`` is the exit code. ``export NAME=VALUE`` lines come first.
"""

import os
import platform
import re
import shlex
import shutil
from pathlib import Path

CLUSTERS = Path(__file__).parent / "unit" / "clusters"
PROGRAM = """#!{bash}
IFS=$'\\037'
case $* in
{answers}
*) printf '%s: error: not in the recording: %s\\n' {name} "${{*@Q}}" >&2; exit 64 ;;
esac
"""
PROFILE = 'module() {{ "{bin}/module" "$@"; }}\necho "Welcome to the cluster"\n'
UNSET = re.compile(r"SBATCH_|SINFO_|LOADEDMODULES$|\w*_(proxy|PROXY)$|P?SCRATCH$|WORK(DIR)?$")
"""Variables of this machine that a recorded machine does not have."""


def commands_of(recording):
    """Return the commands of a recording as lists of words, each with its output."""
    text = Path(recording).read_text(encoding="utf-8")
    parts = re.split(r"(?m)^\$ (.*)\n", text)[1:]
    return [(_words(line), printed) for line, printed in zip(parts[::2], parts[1::2], strict=True)]


def _words(line):
    return line.split(" ") if "|" in line else shlex.split(line)


def _answer(words, printed):
    """Return the case branch of a program that prints a command's recorded output and exits with its code."""
    out, err, code = [], [], 0
    for line in printed.splitlines():
        if found := re.fullmatch(r"\[exit (\d+)\]", line):
            code = int(found[1])
        elif line.startswith("[error] "):
            err.append(line.removeprefix("[error] "))
        else:
            out.append(line)
    said = [(out, ""), (err, " >&2")]
    prints = [f"printf '%s\\n' {shlex.join(lines)}{where}" for lines, where in said if lines]
    return f"{shlex.quote(chr(31).join(words[1:]))}) {'; '.join([*prints, f'exit {code}'])} ;;"


def login_node(kind, folder, monkeypatch, *, edit=lambda text: text):
    """Set this process's environment to that of a recorded login node, with its programs in ``folder``."""
    recording, programs = folder / "login.txt", folder / "bin"
    text = edit((CLUSTERS / kind / "login.txt").read_text(encoding="utf-8"))
    recording.write_text(text, encoding="utf-8")
    programs.mkdir()
    bash, commands = shutil.which("bash"), commands_of(recording)
    for name in {words[0] for words, _ in commands}:
        answers = "\n".join(_answer(words, printed) for words, printed in commands if words[0] == name)
        (programs / name).write_text(PROGRAM.format(bash=bash, answers=answers, name=shlex.quote(name)))
        (programs / name).chmod(0o755)
    (programs / "bash").symlink_to(bash)
    if (programs / "module").exists():
        (folder / ".bash_profile").write_text(PROFILE.format(bin=programs))
    for name in list(os.environ):
        if UNSET.match(name):
            monkeypatch.delenv(name)
    for name, value in re.findall(r"(?m)^export (\w+)=(.*)$", text.partition("\n$ ")[0]):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("PATH", str(programs))
    return folder


HOST = platform.node().partition(".")[0]
"""Host name of a recorded machine without a scheduler: this machine's."""
