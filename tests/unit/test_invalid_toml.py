"""Invalid spec and site files: each gets a one-line error and exit code 78, without a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from messages import assert_error, slugs

ROOT = Path(__file__).resolve().parents[2]
SPEC = 'name = "mine"\nabout = "Train."\n'
SITE = 'name = "mine"\n'
DEEP = "[" * 5000 + "]" * 5000

SPECS = {
    # not TOML
    "empty": ("", "bad-value", [": name "]),
    "text": ("hello", "bad-toml", []),
    "yaml": ("name: mine\n", "bad-toml", []),
    "json": ('{"name": "mine"}', "bad-toml", []),
    "unclosed table": (SPEC + "[options", "bad-toml", []),
    "unclosed string": ('name = "mine', "bad-toml", []),
    "unclosed long string": ('name = """mine', "bad-toml", []),
    "key twice": (SPEC + "nodes = 1\nnodes = 2\n", "bad-toml", []),
    "table twice": (SPEC + "[options]\n[options]\n", "bad-toml", []),
    "key without value": (SPEC + "nodes =\n", "bad-toml", []),
    "no quotes": ("name = mine\n", "bad-toml", []),
    "octal": (SPEC + "nodes = 02\n", "bad-toml", []),
    "bad escape": ('name = "a\\q"\n', "bad-toml", []),
    "surrogate": ('name = "\\ud800"\n', "bad-toml", []),
    "line break in a string": ('name = "a\nb"\n', "bad-toml", []),
    "control character": ('name = "a\x07b"\n', "bad-toml", []),
    "NUL": (SPEC.encode() + b"\0", "bad-toml", []),
    "only NUL": (b"\0" * 1000, "bad-toml", []),
    "binary": (bytes(range(256)), "bad-toml", ["UTF-8"]),
    "Latin-1": ('name = "mü"\n'.encode("latin-1"), "bad-toml", ["UTF-8"]),
    "UTF-16": (SPEC.encode("utf-16"), "bad-toml", ["UTF-8"]),
    "byte order mark": (b"\xef\xbb\xbf" + SPEC.encode(), "bad-toml", []),
    "escape sequence": (SPEC + "\x1b[31m = 1\n", "bad-toml", []),
    "deep list": (SPEC + f"nodes = {DEEP}\n", "bad-toml", []),
    "deep table": (SPEC + f"nodes = {'{a=' * 3000}1{'}' * 3000}\n", "bad-toml", []),
    # depends on Python's version: a table, or nested too deeply
    "deep key": (SPEC + f"options.{'a.' * 3000}a = 1\n", None, []),
    "huge": (SPEC + "#" * (1 << 16), "bad-toml", [" 65536"]),
    "huge number": (SPEC + f"nodes = {'9' * 5000}\n", None, []),
    "large number": (SPEC + f"nodes = {'9' * 100}\n", "bad-value", [": nodes ", "number"]),
    # not a spec
    "unknown key": (SPEC + "node = 2\n", "unknown-key", ["'node'", "'nodes'"]),
    "a site's key": (SPEC + "binds = []\n", "unknown-key", ["'binds'", "site"]),
    "unknown key with an escape": (SPEC + '"\\u001b[31m" = 2\n', "unknown-key", ["'\\x1b[31m'"]),
    "unknown key with a line break": (SPEC + '"a\\nb" = 2\n', "unknown-key", ["'a\\nb'"]),
    "long unknown key": (SPEC + f"{'k' * 5000} = 2\n", "unknown-key", ["'kkkk"]),
    "empty key": (SPEC + '"" = 2\n', "unknown-key", ["''"]),
    "name missing": ('about = "x"\n', "bad-value", [": name ", "text"]),
    "about missing": ('name = "x"\n', "bad-value", [": about ", "text"]),
    # wrong types
    "text for a number": (SPEC + 'nodes = "two"\n', "bad-value", [": nodes ", "'two'", "number"]),
    "fraction": (SPEC + "nodes = 1.5\n", "bad-value", [": nodes ", "1.5", "number"]),
    "true for a number": (SPEC + "nodes = true\n", "bad-value", [": nodes ", "true", "number"]),
    "nan": (SPEC + "nodes = nan\n", "bad-value", [": nodes ", "nan", "number"]),
    "inf": (SPEC + "minutes = inf\n", "bad-value", [": minutes ", "inf", "number"]),
    "minus inf": (SPEC + "save_seconds = -inf\n", "bad-value", [": save_seconds ", "-inf", "number"]),
    "date": (SPEC + "nodes = 1979-05-27\n", "bad-value", [": nodes ", "date", "(1979-05-27)", "number"]),
    "time": (SPEC + "minutes = 07:32:00\n", "bad-value", [": minutes ", "time", "(07:32:00)", "number"]),
    "date and time": (SPEC + "nodes = 1979-05-27T07:32:00Z\n", "bad-value", [": nodes ", "datetime"]),
    "list for a number": (SPEC + "nodes = [1, 2]\n", "bad-value", [": nodes ", "list", "number"]),
    "table for a number": (SPEC + "[nodes]\na = 1\n", "bad-value", [": nodes ", "table", "number"]),
    "table for text": (SPEC + "[config]\na = 1\n", "bad-value", [": config ", "table", "text"]),
    "number for text": (SPEC + "config = 1\n", "bad-value", [": config ", " 1", "text"]),
    "date for text": ('about = "x"\nname = 1979-05-27\n', "bad-value", [": name ", "date", "(1979-05-27)", "text"]),
    "text for a switch": (SPEC + 'mpi = "yes"\n', "bad-value", [": mpi ", "'yes'", "true", "false"]),
    "number for a switch": (SPEC + "mpi = 1\n", "bad-value", [": mpi ", " 1", "true", "false"]),
    "text for a table": (
        SPEC + 'options = "x"\n',
        "bad-value",
        [": options ", "'x'", "table", "text"],
    ),
    "list of tables": (SPEC + "[[options]]\na = 1\n", "bad-value", [": options ", "list", "table"]),
    "fraction in options": (
        SPEC + "[options]\nnice = 0.5\n",
        "bad-value",
        [": options.nice ", "0.5", "text"],
    ),
    "nan in options": (SPEC + "[options]\nnice = nan\n", "bad-value", [": options.nice ", "nan"]),
    "date in options": (SPEC + "[options]\nbegin = 2026-01-01\n", "bad-value", [": options.begin ", "date"]),
    "table in options": (SPEC + "[options.a]\nb = 1\n", "bad-value", [": options.a ", "table"]),
    "option with blanks": (SPEC + "[options]\n'a b' = 1\n", "unknown-key", ["'options.a b'"]),
    "option with dashes": (SPEC + "[options]\n--qos = 1\n", "unknown-key", ["'options.--qos'"]),
    "option with a line break": (SPEC + '[options]\n"a\\nb" = 1\n', "bad-value", [r"'\n'"]),
    "option of two lines": (SPEC + '[options]\ncomment = """a\nrm"""\n', "bad-value", [": options.comment ", r"'\n'"]),
    # wrong values
    "unknown backend": (SPEC + 'backend = "dpd"\n', "bad-value", ["'ddp'", "'horovod'", "'single'"]),
    "unknown task": (
        SPEC + 'task = "check"\n',
        "bad-value",
        [": task ", "'check'", "'train'", "'selftest'", "'venv'", "'image'", "'shell'"],
    ),
    "empty choice": (SPEC + 'device = ""\n', "bad-value", [": device ", "''", "'auto'", "'cuda'", "'cpu'"]),
    "choice with an escape": (SPEC + 'device = "\\u001b[2J"\n', "bad-value", [": device ", "'\\x1b[2J'"]),
    "no nodes": (SPEC + "nodes = 0\n", "bad-value", [": nodes ", " 0", " 1 ", " 1000000"]),
    "negative": (SPEC + "nodes = -1\n", "bad-value", [": nodes ", " -1", " 1 ", " 1000000"]),
    "negative minutes": (SPEC + "minutes = -60\n", "bad-value", [": minutes ", " -60", " 1 ", " 1000000"]),
    "negative ranks": (SPEC + "ranks_per_node = -2\n", "bad-value", [": ranks_per_node ", " -2", " 0 ", " 1000000"]),
    "negative requeues": (SPEC + "max_requeues = -1\n", "bad-value", [": max_requeues ", " -1", " 0 ", " 1000000"]),
    "too many nodes": (SPEC + "nodes = 1000001\n", "bad-value", [": nodes ", " 1000001", " 1 ", " 1000000"]),
    "empty name": ('name = ""\nabout = "x"\n', "bad-value", [": name ", "''"]),
    "name with a slash": (
        'name = "../mine"\nabout = "x"\n',
        "bad-value",
        [": name ", "'../mine'"],
    ),
    "name with a substitution": (
        'name = "$(id)"\nabout = "x"\n',
        "bad-value",
        [": name ", "'$(id)'"],
    ),
    "name with a blank": ('name = "my job"\nabout = "x"\n', "bad-value", [": name ", "'my job'"]),
    "name like an option": ('name = "-x"\nabout = "x"\n', "bad-value", [": name ", "'-x'"]),
    "name with a line break": ('name = "a\\nb"\nabout = "x"\n', "bad-value", [": name ", r"'\n'"]),
    "name with an escape": ('name = "a\\u001b"\nabout = "x"\n', "bad-value", [": name ", r"'\x1b'"]),
    "long name": (f'name = "{"n" * 65}"\nabout = "x"\n', "bad-value", [" 64"]),
    "about of two lines": ('name = "x"\nabout = """a\nrm"""\n', "bad-value", [": about ", r"'\n'"]),
    "NUL in about": ('name = "x"\nabout = "a\\u0000"\n', "bad-value", [": about ", r"'\x00'"]),
}
SITES = {
    "empty": ("", "bad-value", [": name ", "text"]),
    "a spec's key": (SITE + "nodes = 2\n", "unknown-key", ["'nodes'", "spec"]),
    "unknown scheduler": (
        SITE + 'scheduler = "slrm"\n',
        "bad-value",
        [": scheduler ", "'slrm'", "'local'", "'pbs'", "'slurm'"],
    ),
    "number for a scheduler": (
        SITE + "scheduler = 1\n",
        "bad-value",
        [": scheduler ", "'local'", "'pbs'", "'slurm'", " 1"],
    ),
    "table for a scheduler": (SITE + "[scheduler]\na = 1\n", "bad-value", [": scheduler ", "'local'", "table"]),
    "unknown launcher": (
        SITE + 'launcher = "mpi_run"\n',
        "bad-value",
        ["''", "'dask'", "'local'", "'mpirun'", "'srun'", "'ssh'"],
    ),
    "text for a list": (
        SITE + 'modules = "cuda"\n',
        "bad-value",
        [": modules ", "'cuda'", "list", "text"],
    ),
    "number in a list": (SITE + "modules = ['cuda', 12]\n", "bad-value", [": modules[1] ", " 12", "text"]),
    "list in a list": (SITE + "binds = [['/a']]\n", "bad-value", [": binds[0] ", "list", "text"]),
    "line break in a list": (SITE + 'binds = ["/a\\nb"]\n', "bad-value", [": binds[0] ", r"'\n'"]),
    "number in env": (SITE + "[env]\nNCCL_DEBUG = 1\n", "bad-value", [": env.NCCL_DEBUG ", " 1", "text"]),
    "table in env": (SITE + "[env.A]\nb = 'c'\n", "bad-value", [": env.A ", "table", "text"]),
    "variable of two words": (SITE + "[env]\n'A B' = 'c'\n", "bad-site", ["'A B'", "[env]"]),
    "variable with a substitution": (SITE + "[env]\n'A$(id)' = 'c'\n", "bad-site", ["'A$(id)'", "[env]"]),
    "negative GPUs": (SITE + "gpus_per_node = -1\n", "bad-value", [": gpus_per_node ", " -1", " 0 ", " 1000000"]),
    "no cores": (SITE + "cpus_per_gpu = 0\n", "bad-value", [": cpus_per_gpu ", " 0", " 1 ", " 1000000"]),
    "directive of two lines": (
        SITE + 'directives = ["a\\n#SBATCH --uid=0"]\n',
        "bad-value",
        [": directives[0] ", r"'\n'"],
    ),
    "carriage return": (SITE + 'local_disk = "/tmp\\r"\n', "bad-value", [": local_disk ", r"'\r'"]),
    "NUL in a path": (SITE + 'local_disk = "/tmp\\u0000"\n', "bad-value", [": local_disk ", r"'\x00'"]),
    "invalid UTF-8": (SITE.encode() + b"# \xff\n", "bad-toml", [" 16 ", "UTF-8"]),
}


def refused(capsys, *words, slug=None, values=()):
    """Assert that ``jobgen`` refuses with a one-line error."""
    assert main(list(words)) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jobgen: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable(), "more than one line, or control characters"
    assert len(err) < 1000
    assert_error(err, slug or slugs(err)[0], *values)


def written(folder, content):
    path = folder / "mine.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_at_least_69_invalid_files_are_tested():
    assert len(SPECS) + len(SITES) >= 69


@pytest.mark.parametrize(("content", "slug", "values"), SPECS.values(), ids=SPECS)
def test_invalid_spec_is_refused_in_one_line(capsys, tmp_path, content, slug, values):
    words = ["render", written(tmp_path, content), "--site", str(ROOT / "jobscripts/sites/example.toml")]
    refused(capsys, *words, slug=slug, values=[tmp_path / "mine.toml", *values])


@pytest.mark.parametrize(("content", "slug", "values"), SITES.values(), ids=SITES)
def test_invalid_site_file_is_refused_in_one_line(capsys, tmp_path, content, slug, values):
    words = ["render", str(ROOT / "jobscripts/specs/ddp.toml"), "--site", written(tmp_path, content)]
    refused(capsys, *words, slug=slug, values=values)


@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "socket link", "unreadable", "missing", "loop"])
def test_spec_or_site_path_without_readable_file_is_refused(capsys, tmp_path, kind):
    path = tmp_path / "mine.toml"
    reason = {"folder": errno.EISDIR, "socket link": errno.ENOENT, "loop": errno.ELOOP, "missing": errno.ENOENT}
    values = [path, os.strerror(reason[kind])] if kind in reason else [path]
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket link":
        path.symlink_to("/proc/self/fd/999")
    elif kind == "unreadable":
        path.symlink_to("/proc/self/mem" if os.getuid() == 0 else "/etc/shadow")
    elif kind == "loop":
        path.symlink_to(path)
    refused(capsys, "render", "ddp", "--site", str(path), slug="cannot-read", values=values)
    refused(capsys, "render", str(path), "--site", "example", slug="cannot-read", values=values)


@pytest.mark.parametrize("name", ["a\0.toml", "a\nb", "\x1b[31m", "x" * 5000, "", "/", "é" * 300 + ".toml"])
def test_malformed_spec_or_site_name_is_refused(capsys, name):
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
def test_malformed_set_option_is_refused(capsys, setting):
    refused(capsys, "render", "ddp", "--site", "example", "--set", setting)


def test_jobgen_exits_with_one_line_error_without_traceback(tmp_path):
    path = written(tmp_path, f"name = {DEEP}")
    words = [sys.executable, "-m", "jobgen", "render", path, "--site", path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert_error(done.stderr, "bad-toml", path)
    assert done.stderr.count("\n") == 1
