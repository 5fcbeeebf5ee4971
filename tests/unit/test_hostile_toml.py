"""Spec and site files with mistakes in them: each is answered in one line, by exit code 78 and without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main

ROOT = Path(__file__).resolve().parents[2]
SPEC = 'name = "mine"\nabout = "Train."\n'
SITE = 'name = "mine"\n'
DEEP = "[" * 5000 + "]" * 5000

SPECS = {
    # what is no TOML
    "empty": ("", "name is missing"),
    "text": ("hello", "not valid TOML"),
    "yaml": ("name: mine\n", "not valid TOML"),
    "json": ('{"name": "mine"}', "not valid TOML"),
    "unclosed table": (SPEC + "[options", "not valid TOML"),
    "unclosed string": ('name = "mine', "not valid TOML"),
    "unclosed long string": ('name = """mine', "not valid TOML"),
    "key twice": (SPEC + "nodes = 1\nnodes = 2\n", "not valid TOML"),
    "table twice": (SPEC + "[options]\n[options]\n", "not valid TOML"),
    "key without value": (SPEC + "nodes =\n", "not valid TOML"),
    "no quotes": ("name = mine\n", "not valid TOML"),
    "octal": (SPEC + "nodes = 02\n", "not valid TOML"),
    "bad escape": ('name = "a\\q"\n', "not valid TOML"),
    "surrogate": ('name = "\\ud800"\n', "not valid TOML"),
    "line break in a string": ('name = "a\nb"\n', "not valid TOML"),
    "control character": ('name = "a\x07b"\n', "not valid TOML"),
    "NUL": (SPEC.encode() + b"\0", "not valid TOML"),
    "only NUL": (b"\0" * 1000, "not valid TOML"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "Latin-1": ('name = "mü"\n'.encode("latin-1"), "not UTF-8"),
    "UTF-16": (SPEC.encode("utf-16"), "not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf" + SPEC.encode(), "not valid TOML"),
    "escape sequence": (SPEC + "\x1b[31m = 1\n", "not valid TOML"),
    "deep list": (SPEC + f"nodes = {DEEP}\n", "nested too deeply"),
    "deep table": (SPEC + f"nodes = {'{a=' * 3000}1{'}' * 3000}\n", "nested too deeply"),
    "deep key": (SPEC + f"options.{'a.' * 3000}a = 1\n", ""),  # by Python's version: a table, or nested too deeply
    "huge": (SPEC + "#" * (1 << 16), "more than 65536 bytes"),
    "huge number": (SPEC + f"nodes = {'9' * 5000}\n", ""),
    "large number": (SPEC + f"nodes = {'9' * 100}\n", "nodes is a huge number"),
    # what is no spec
    "unknown key": (SPEC + "node = 2\n", "unknown key 'node'. Did you mean 'nodes'?"),
    "a site's key": (SPEC + "binds = []\n", "unknown key 'binds'. It belongs in a site's file."),
    "unknown key with an escape": (SPEC + '"\\u001b[31m" = 2\n', r"unknown key '\x1b[31m'."),
    "unknown key with a line break": (SPEC + '"a\\nb" = 2\n', r"unknown key 'a\nb'."),
    "long unknown key": (SPEC + f"{'k' * 5000} = 2\n", "unknown key 'kkkk"),
    "empty key": (SPEC + '"" = 2\n', "unknown key ''."),
    "name missing": ('about = "x"\n', "name is missing: it must be text in quotes."),
    "about missing": ('name = "x"\n', "about is missing: it must be text in quotes."),
    # wrong types
    "text for a number": (SPEC + 'nodes = "two"\n', "nodes is 'two': it must be a whole number."),
    "fraction": (SPEC + "nodes = 1.5\n", "nodes is 1.5: it must be a whole number."),
    "true for a number": (SPEC + "nodes = true\n", "nodes is true: it must be a whole number."),
    "nan": (SPEC + "nodes = nan\n", "nodes is nan: it must be a whole number."),
    "inf": (SPEC + "minutes = inf\n", "minutes is inf: it must be a whole number."),
    "minus inf": (SPEC + "save_seconds = -inf\n", "save_seconds is -inf: it must be a whole number."),
    "date": (SPEC + "nodes = 1979-05-27\n", "nodes is a date (1979-05-27): it must be a whole number."),
    "time": (SPEC + "minutes = 07:32:00\n", "minutes is a time (07:32:00): it must be a whole number."),
    "date and time": (SPEC + "nodes = 1979-05-27T07:32:00Z\n", "nodes is a datetime"),
    "list for a number": (SPEC + "nodes = [1, 2]\n", "nodes is a list: it must be a whole number."),
    "table for a number": (SPEC + "[nodes]\na = 1\n", "nodes is a table: it must be a whole number."),
    "table for text": (SPEC + "[config]\na = 1\n", "config is a table: it must be text in quotes."),
    "number for text": (SPEC + "config = 1\n", "config is 1: it must be text in quotes."),
    "date for text": ('about = "x"\nname = 1979-05-27\n', "name is a date (1979-05-27): it must be text in quotes."),
    "text for a switch": (SPEC + 'mpi = "yes"\n', "mpi is 'yes': it must be true or false."),
    "number for a switch": (SPEC + "mpi = 1\n", "mpi is 1: it must be true or false."),
    "text for a table": (
        SPEC + 'options = "x"\n',
        "options is 'x': it must be a table whose values are text in quotes,",
    ),
    "list of tables": (SPEC + "[[options]]\na = 1\n", "options is a list: it must be a table"),
    "fraction in options": (
        SPEC + "[options]\nnice = 0.5\n",
        "options.nice is 0.5: it must be text in quotes, a whole",
    ),
    "nan in options": (SPEC + "[options]\nnice = nan\n", "options.nice is nan"),
    "date in options": (SPEC + "[options]\nbegin = 2026-01-01\n", "options.begin is a date"),
    "table in options": (SPEC + "[options.a]\nb = 1\n", "options.a is a table"),
    "option with blanks": (SPEC + "[options]\n'a b' = 1\n", "'options.a b' is no option of a scheduler"),
    "option with dashes": (SPEC + "[options]\n--qos = 1\n", "'options.--qos' is no option of a scheduler"),
    "option with a line break": (SPEC + '[options]\n"a\\nb" = 1\n', "holds the control character"),
    "option of two lines": (SPEC + '[options]\ncomment = """a\nrm"""\n', "options.comment holds the control character"),
    # wrong values
    "unknown backend": (SPEC + 'backend = "dpd"\n', "it must be 'ddp', 'horovod' or 'single'. Did you mean 'ddp'?"),
    "unknown task": (
        SPEC + 'task = "check"\n',
        "task is 'check': it must be 'train', 'selftest', 'venv', 'image' or 'shell'.",
    ),
    "empty choice": (SPEC + 'device = ""\n', "device is '': it must be 'auto', 'cuda' or 'cpu'."),
    "choice with an escape": (SPEC + 'device = "\\u001b[2J"\n', r"device is '\x1b[2J'"),
    "no nodes": (SPEC + "nodes = 0\n", "nodes is 0: it must be 1 to 1000000."),
    "negative": (SPEC + "nodes = -1\n", "nodes is -1: it must be 1 to 1000000."),
    "negative minutes": (SPEC + "minutes = -60\n", "minutes is -60: it must be 1 to 1000000."),
    "negative ranks": (SPEC + "ranks_per_node = -2\n", "ranks_per_node is -2: it must be 0 to 1000000."),
    "negative requeues": (SPEC + "max_requeues = -1\n", "max_requeues is -1: it must be 0 to 1000000."),
    "too many nodes": (SPEC + "nodes = 1000001\n", "nodes is 1000001: it must be 1 to 1000000."),
    "empty name": ('name = ""\nabout = "x"\n', "name is '': it must be letters, digits"),
    "name with a slash": ('name = "../mine"\nabout = "x"\n', "name is '../mine': it must be letters, digits"),
    "name with a substitution": ('name = "$(id)"\nabout = "x"\n', "name is '$(id)': it must be letters, digits"),
    "name with a blank": ('name = "my job"\nabout = "x"\n', "name is 'my job': it must be letters, digits"),
    "name like an option": ('name = "-x"\nabout = "x"\n', "name is '-x': it must be letters, digits"),
    "name with a line break": ('name = "a\\nb"\nabout = "x"\n', "name holds the control character"),
    "name with an escape": ('name = "a\\u001b"\nabout = "x"\n', "name holds the control character"),
    "long name": (f'name = "{"n" * 65}"\nabout = "x"\n', "at most 64"),
    "about of two lines": ('name = "x"\nabout = """a\nrm"""\n', "about holds the control character"),
    "NUL in about": ('name = "x"\nabout = "a\\u0000"\n', "about holds the control character"),
}
SITES = {
    "empty": ("", "name is missing: it must be text in quotes."),
    "a spec's key": (SITE + "nodes = 2\n", "unknown key 'nodes'. It belongs in a spec's file."),
    "unknown scheduler": (
        SITE + 'scheduler = "slrm"\n',
        "scheduler is 'slrm': it must be 'local', 'pbs' or 'slurm'. Did you mean 'slurm'?",
    ),
    "number for a scheduler": (SITE + "scheduler = 1\n", "scheduler is 1: it must be 'local', 'pbs' or 'slurm'."),
    "table for a scheduler": (SITE + "[scheduler]\na = 1\n", "scheduler is a table: it must be 'local'"),
    "unknown launcher": (
        SITE + 'launcher = "mpi_run"\n',
        "it must be '', 'dask', 'local', 'mpirun', 'srun' or 'ssh'. Did you mean 'mpirun'?",
    ),
    "text for a list": (
        SITE + 'modules = "cuda"\n',
        "modules is 'cuda': it must be a list, each of it text in quotes.",
    ),
    "number in a list": (SITE + "modules = ['cuda', 12]\n", "modules[1] is 12: it must be text in quotes."),
    "list in a list": (SITE + "binds = [['/a']]\n", "binds[0] is a list: it must be text in quotes."),
    "line break in a list": (SITE + 'binds = ["/a\\nb"]\n', "binds[0] holds the control character"),
    "number in env": (SITE + "[env]\nNCCL_DEBUG = 1\n", "env.NCCL_DEBUG is 1: it must be text in quotes."),
    "table in env": (SITE + "[env.A]\nb = 'c'\n", "env.A is a table: it must be text in quotes."),
    "variable of two words": (SITE + "[env]\n'A B' = 'c'\n", "'A B' in [env]"),
    "variable with a substitution": (SITE + "[env]\n'A$(id)' = 'c'\n", "in [env]"),
    "negative GPUs": (SITE + "gpus_per_node = -1\n", "gpus_per_node is -1: it must be 0 to 1000000."),
    "no cores": (SITE + "cpus_per_gpu = 0\n", "cpus_per_gpu is 0: it must be 1 to 1000000."),
    "directive of two lines": (
        SITE + 'directives = ["a\\n#SBATCH --uid=0"]\n',
        "directives[0] holds the control character",
    ),
    "carriage return": (SITE + 'local_disk = "/tmp\\r"\n', "local_disk holds the control character"),
    "NUL in a path": (SITE + 'local_disk = "/tmp\\u0000"\n', "local_disk holds the control character"),
    "invalid UTF-8": (SITE.encode() + b"# \xff\n", "byte 16 is not UTF-8"),
}


def refused(capsys, *words):
    """Return the one line in which ``jobgen`` refuses."""
    assert main(list(words)) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jobgen: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable(), "more than one line, or control characters"
    assert len(err) < 1000
    assert "Traceback" not in err
    return err


def written(folder, content):
    path = folder / "mine.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_there_are_at_least_69():
    assert len(SPECS) + len(SITES) >= 69


@pytest.mark.parametrize(("content", "answer"), SPECS.values(), ids=SPECS)
def test_a_spec(capsys, tmp_path, content, answer):
    text = refused(capsys, "render", written(tmp_path, content), "--site", str(ROOT / "jobscripts/sites/example.toml"))
    assert answer in text
    assert str(tmp_path / "mine.toml") in text


@pytest.mark.parametrize(("content", "answer"), SITES.values(), ids=SITES)
def test_a_site(capsys, tmp_path, content, answer):
    text = refused(capsys, "render", str(ROOT / "jobscripts/specs/ddp.toml"), "--site", written(tmp_path, content))
    assert answer in text


@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "socket link", "unreadable", "missing", "loop"])
def test_what_is_no_file(capsys, tmp_path, kind):
    path = tmp_path / "mine.toml"
    answer = "Not a regular file"
    if kind == "folder":
        path.mkdir()
        answer = "Is a directory"
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket link":
        path.symlink_to("/proc/self/fd/999")
        answer = "No such file"
    elif kind == "unreadable":
        path.symlink_to("/proc/self/mem" if os.getuid() == 0 else "/etc/shadow")
        answer = ""
    elif kind == "loop":
        path.symlink_to(path)
        answer = "Too many levels"
    else:
        answer = "No such file"
    assert answer in refused(capsys, "render", "ddp", "--site", str(path))
    assert answer in refused(capsys, "render", str(path), "--site", "example")


@pytest.mark.parametrize("name", ["a\0.toml", "a\nb", "\x1b[31m", "x" * 5000, "", "/", "é" * 300 + ".toml"])
def test_names(capsys, name):
    refused(capsys, "render", "ddp", "--site", name)
    refused(capsys, "render", name, "--site", "example")


@pytest.mark.parametrize(
    "setting",
    [
        "nodes",
        "=3",
        "nodes=[[",
        f"nodes={DEEP}",
        "nodes=nan",
        "name.a=1",
        "name=a\nb",
        "a\nb=1",
        "options.=1",
        "nodes=\0",
    ],
)
def test_settings_of_the_command_line(capsys, setting):
    refused(capsys, "render", "ddp", "--site", "example", "--set", setting)


def test_the_program_itself_ends_with_a_line_and_no_traceback(tmp_path):
    path = written(tmp_path, f"name = {DEEP}")
    words = [sys.executable, "-m", "jobgen", "render", path, "--site", path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == f"jobgen: {path} is not valid: it is nested too deeply.\n"
