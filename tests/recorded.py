"""Login nodes of recorded clusters: programs that print what a recording has for their command line.

A recording (tests/unit/clusters/KIND/login.txt) is what a terminal would show: ``$ COMMAND``, and below it what that
prints; ``[error] LINE`` goes to standard error, ``[exit N]`` is the exit code. ``export NAME=VALUE`` stands above.
"""

import os
import platform
import re
import shlex
import shutil
import sys
from pathlib import Path

CLUSTERS = Path(__file__).parent / "unit" / "clusters"
PLAY = """#!{python}
import os, sys
sys.path.insert(0, {folder!r})
from recorded import play
sys.exit(play(os.environ["RECORDING"], [os.path.basename(sys.argv[0]), *sys.argv[1:]]))
"""
PROFILE = 'module() {{ "{bin}/module" "$@"; }}\necho "Welcome to the cluster"\n'
UNSET = re.compile(r"SBATCH_|SINFO_|LOADEDMODULES$|\w*_(proxy|PROXY)$|P?SCRATCH$|WORK(DIR)?$|RECORDING$")
"""Variables of this machine that a recorded one does not have."""


def commands_of(recording):
    """Return the commands of a recording, as lists of words, each with what it prints."""
    text = Path(recording).read_text(encoding="utf-8")
    parts = re.split(r"(?m)^\$ (.*)\n", text)[1:]
    return [(_words(line), printed) for line, printed in zip(parts[::2], parts[1::2], strict=True)]


def _words(line):
    return line.split(" ") if "|" in line else shlex.split(line)


def play(recording, words):
    """Print what a recording has for a command, as that did, and return its exit code; 64 where it has none."""
    printed = next((text for command, text in commands_of(recording) if command == words), None)
    if printed is None:
        print(f"{words[0]}: error: not in the recording: {words[1:]}", file=sys.stderr)
        return 64
    code = 0
    for line in printed.splitlines():
        if found := re.fullmatch(r"\[exit (\d+)\]", line):
            code = int(found[1])
        elif line.startswith("[error] "):
            print(line.removeprefix("[error] "), file=sys.stderr)
        else:
            print(line)
    return code


def login_node(kind, folder, monkeypatch, *, edit=lambda text: text):
    """Give this process the environment of a recorded login node, whose programs are made in ``folder``."""
    recording, programs = folder / "login.txt", folder / "bin"
    text = edit((CLUSTERS / kind / "login.txt").read_text(encoding="utf-8"))
    recording.write_text(text, encoding="utf-8")
    programs.mkdir()
    for name in {words[0] for words, _ in commands_of(recording)}:
        (programs / name).write_text(PLAY.format(python=sys.executable, folder=str(CLUSTERS.parents[1])))
        (programs / name).chmod(0o755)
    (programs / "bash").symlink_to(shutil.which("bash"))
    if (programs / "module").exists():
        (folder / ".bash_profile").write_text(PROFILE.format(bin=programs))
    for name in list(os.environ):
        if UNSET.match(name):
            monkeypatch.delenv(name)
    for name, value in re.findall(r"(?m)^export (\w+)=(.*)$", text.partition("\n$ ")[0]):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RECORDING", str(recording))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("PATH", str(programs))
    return folder


HOST = platform.node().partition(".")[0]
"""What a recorded machine without a scheduler is called: as this one."""
