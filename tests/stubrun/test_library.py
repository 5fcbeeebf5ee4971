"""The functions of jobscripts/lib, one by one, in a small Bash with stubs: working, failing, silent and hanging."""

import ast
import gzip
import importlib.util
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from jobgen import account
from messages import assert_error, assert_warning, messages, numbers, slugs
from slipway.layout import SETTINGS, SWITCH
from slipway.lock import Lock
from slipway.recorder import provenance
from slipway.world import World
from stubs import HOSTILE, ROOT

LIB = ROOT / "jobscripts" / "lib"
START = """set -euo pipefail
readonly script_name=x.job scheduler={scheduler} job_id=4711
lib={lib} submit_folder=$PWD
source "$lib/{scheduler}.bash"
source "$lib/srun.bash"
source "$lib/mpirun.bash"
source "$lib/ssh.bash"
source "$lib/build.bash"
source "$lib/shell.bash"
source "$lib/{runtime}.bash"
"""
START += " ".join(
    f"{row.name}={'0' if row.kind is SWITCH else repr('')}"
    for row in SETTINGS.values()
    if row.name.startswith("SLIPWAY_")
)
START += """
launcher=srun srun_options=(--export=ALL) mpirun_options=() remote_shell=(ssh) container_runtime={runtime}
SLIPWAY_RANKS_PER_NODE='' SLIPWAY_SCRIPT='' SLIPWAY_CONFIG=$PWD/c.toml SLIPWAY_DATA='' SLIPWAY_LOCAL_DISK=$PWD/disk
SLIPWAY_DEVICE=cuda SLIPWAY_STAGE=0 SLIPWAY_MAX_REQUEUES=3 SLIPWAY_PREFLIGHT_SECONDS=5 SLIPWAY_IMAGE=$PWD/i.sif
SLIPWAY_VENV=$PWD/venv SLIPWAY_VARIANT=cpu SLIPWAY_HOROVOD=0 SLIPWAY_NCCL_PATH='' SLIPWAY_WHEELHOUSE=''
SLIPWAY_PYTHON=python3 SLIPWAY_BASE_IMAGE='' SLIPWAY_BUILD_ARGS=''
: "${{USE_CONTAINER:=1}}" "${{BACKEND:=ddp}}"
RUN_DIR=$PWD/run attempt=2 log_dir=$RUN_DIR/logs/2 nodes=(n1 n2) nnodes=2 head_node=n1 cpus=8 ranks_per_node=2
world_size=4 cpus_per_rank=4 gpus_per_node=2 first_port=24711 cancelled=0 code=0 scratch='' container=() data=''
image=$SLIPWAY_IMAGE venv=$SLIPWAY_VENV step_may_run='' port_is_given='' data_kind='' data_image='' mount_point=''
directives_gpus=2 directives_cpus=8 save_seconds=120 devices_per_rank=1 launch_pid='' job_variables=OURS_
SLIPWAY_NOTIFY_SECONDS=20 SLIPWAY_PROBE_SECONDS=20 SLIPWAY_ADAPT=1 entry_point_is_checked=1
SLIPWAY_NODES=2 SLIPWAY_WAIT_SECONDS=9 SLIPWAY_MAX_RESTARTS=3 SLIPWAY_SPARES=0 allocation=(n1 n2) planned_nodes=2
healthy_nodes=(n1 n2) lost_nodes=() restarts=0 fruitless=0 failed='' first_step=0
mkdir --parents disk run/logs/2
"""
"""What a script has set before any of its calls."""


LAUNCHERS_SAY = (
    ("----\nprterun has detected an attempt to run as root.\n\nx", True),
    ("There are not enough slots available in the system to satisfy the 4\nslots", True),
    ("An unrecognized option was included on the mpirun command line:", True),
    ("PRTE was unable to open the hostfile:", True),
    ("srun: unrecognized option '--foo'\nTry \"srun --help\" for more information", True),
    ("srun: error: Unable to create step for job 7: More processors requested than permitted", True),
    ("usage: torchrun [-h]\ntorchrun: error: argument --nproc-per-node: x\033[2J", True),
    ("srun: error: Unable to create step for job 7: Job/step already completing or completed", False),
    ("srun: error: node1: task 0: Killed", False),
    ("my torchrun: error: x", False),
    ("", False),
)
"""What launchers print, and whether by that they refuse what they were told."""

ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ANSWER = """answer() { printf '%s\\0' $(($# + 1)) "${@:2}" end >"$1"; }; """
"""How a stub of Python answers a job script: FILE WORD... (answer.py)."""


HEAD = ANSWER + """echo "${@:3}" >>"$HOME/asked"; """
"""The same, of head_address.py, whose words are kept."""


def answered(path):
    """Return the words of an answer."""
    count, *words, end = path.read_text().split("\0")[:-1]
    assert (int(count), end) == (len(words) + 2, "end")
    return words


def tar_of(*names):
    """Return a tar with empty files of these names."""
    with io.BytesIO() as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
        return stream.getvalue()


TAR = tar_of("one", "two")
with io.BytesIO() as _stream:
    with zipfile.ZipFile(_stream, "w") as _archive:
        _archive.writestr("one", b"")
    ZIP = _stream.getvalue()


@pytest.fixture
def stub(tmp_path):
    """Return a function that puts a program of some lines of Bash on PATH."""

    def stub(name, code):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)

    return stub


@pytest.fixture
def place(tmp_path):
    """Return a folder with a hostile name, in which the functions are called."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    return folder


@pytest.fixture
def bash(place, tmp_path):
    """Return a function that runs Bash with the library, and returns exit code, output and errors."""

    def bash(code, *arguments, scheduler="slurm", runtime="apptainer", lib=LIB, limit=600, **env):
        start = START.format(scheduler=scheduler, runtime=runtime, lib=lib)
        done = subprocess.run(
            ["bash", "-c", start + code, "x", *arguments],
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), **ROOT_MAY, **env},
            cwd=place,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=limit,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return bash


def assert_dies(done, slug, *values, code=78, lines=1):
    """Hold that a script ended with this error, as the last of so many lines that it printed to standard error."""
    assert done[0] == code, done
    assert done[2].splitlines()[-1].startswith("x.job: "), done
    assert done[2].count("\n") == lines, done
    assert_error(done[2], slug, *values)


def give_rights(path, user, rights, kind="access"):
    """Give a user rights to a file by an ACL, which becomes one that its owner has made; default: to a folder's new."""
    mine, others = (6, 4) if kind == "access" else (7, 5)
    entries = [(1, mine, -1), (2, rights, user), (4, others, -1), (0x10, rights | others, -1), (0x20, others, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error}")


def wait_until(holds):
    """Wait until it does, for 60 s at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


SRUN = 'while [[ $1 == --* ]]; do shift; done; exec "$@"'


def functions():
    """Return the names of all functions of the library."""
    found = set()
    kinds = [("slurm", "apptainer"), ("slurm", "pyxis"), ("pbs", "podman"), ("local", "apptainer"), ("dask", "podman")]
    for scheduler, runtime in kinds:
        code = START.format(scheduler=scheduler, runtime=runtime, lib=LIB).partition("SLIPWAY_")[0] + "declare -F"
        lines = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout
        found |= {line.split()[-1] for line in lines.splitlines()}
    return found


def test_every_function_is_called_here():
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    snippets = " ".join(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    calls = set(re.findall(r"(?:^|[\s;&|(!\"=])(\w+)(?=[\s;)\"]|$)", snippets))
    assert len(functions()) > 60
    assert functions() - calls == set()


def test_every_function_has_its_comment():
    for path in sorted(LIB.glob("*.bash")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if re.fullmatch(r"\w+\(\) \{", line):
                assert lines[number - 1].startswith("#"), f"{path.name}: {line}"


class TestSays:
    def test_note(self, bash):
        assert bash("note 'a  b' c") == (0, "", "x.job: a  b c\n")

    def test_die(self, bash):
        died = bash("die no-gpu x  'y  z'; echo no")
        assert died == (78, "", "x.job: error[no-gpu]: x y  z\n")
        assert bash("(die stopped-early x) || echo $?")[1] == "75\n"

    def test_error_and_warn_go_on(self, bash):
        said = bash('error no-gpu x; warn node-lost y z; echo "$last_note"')
        assert said == (0, "warning[node-lost]: y z\n", "x.job: error[no-gpu]: x\nx.job: warning[node-lost]: y z\n")

    def test_join_by(self, bash):
        assert bash("join_by ', ' a 'b 2' c; join_by ' or ' a")[1] == "a, b 2, c\na\n"

    def test_library_identity(self, bash, tmp_path):
        copy = tmp_path / "lib"
        shutil.copytree(LIB, copy)
        first = bash("library_identity", lib=copy)[1]
        assert re.fullmatch(r"library \d+\.\d+\.\d+ \(sha256 [0-9a-f]{12}\)\n", first)
        with (copy / "name_rank.sh").open("a") as file:
            file.write("\n")
        assert bash("library_identity", lib=copy)[1] != first

    def test_an_old_bash_is_named(self, tmp_path):
        text = (LIB / "job.bash").read_text()
        check = re.search(r"(?ms)^if \(\(BASH_VERSINFO.*?^fi\n", text)[0]
        for version, code in (("4 3", 78), ("4 4", 0), ("5 0", 0), ("3 2", 78)):
            script = check.replace("BASH_VERSINFO", "version")
            done = subprocess.run(
                ["bash", "-c", f"version=({version})\n{script}"], capture_output=True, text=True, check=False
            )
            assert done.returncode == code, version
            assert slugs(done.stderr) == ["old-bash"] * (code == 78)
            assert ("4.4" in done.stderr) == (code == 78)
        # before anything that such a Bash could not read
        assert text.index("BASH_VERSINFO") < text.index("\nsource ")


class TestSettings:
    def test_check_setting(self, bash):
        refused = bash("SLIPWAY_STAGE=yes; check_setting SLIPWAY_STAGE")
        assert_dies(refused, "bad-value", "SLIPWAY_STAGE", "'yes'", SETTINGS["SLIPWAY_STAGE"].kind.expected)
        assert bash("unset SLIPWAY_STAGE; check_setting SLIPWAY_STAGE; check_setting SLIPWAY_DATA") == (0, "", "")

    def test_check_settings(self, bash, place):
        (place / "c.toml").touch()
        code = "unset RUN_DIR; SLIPWAY_CONFIG=c.toml SLIPWAY_OUTPUT=../x; SLIPWAY_RUN_DIR=r; SLIPWAY_ARGS=; "
        code += "check_settings; "
        code += 'printf "%s\\n" "$SLIPWAY_CONFIG" "$SLIPWAY_OUTPUT"; env | grep RUN_DIR || :'
        assert bash(code) == (0, f"{place}/c.toml\n{place.parent}/x\n", "")

    # once: two runs in one job ended each other's steps
    def test_steps_and_launches_have_the_mark_of_their_run(self, bash):
        code = "unset RUN_DIR; SLIPWAY_OUTPUT=x run_dir=$1; check_settings; echo $run_mark"
        first, again, other = (bash(code, run)[1] for run in ("run", "run/../run", "run 2"))
        assert re.fullmatch(r"[0-9a-f]{16}\n", first), first
        assert first == again != other

    def test_check_settings_works_in_the_folder_of_the_first_attempt(self, bash, tmp_path):
        names = "unset RUN_DIR; SLIPWAY_OUTPUT=x SLIPWAY_RUN_DIR= SLIPWAY_ARGS="
        assert (
            bash(f"{names}; kept_folder={tmp_path}/bin; mkdir {tmp_path}/bin; check_settings; pwd")[1]
            == f"{tmp_path}/bin\n"
        )
        assert bash(f"{names}; kept_folder=/gone; check_settings; echo ok")[1] == "ok\n"

    def test_check_backend(self, bash):
        assert bash("check_backend ddp horovod") == (0, "", "")
        refused = bash("BACKEND=horovod; check_backend single")
        assert_dies(refused, "wrong-backend", "BACKEND=horovod", "single", "`jobgen render horovod-gloo --site SITE`")

    def test_make_absolute(self, bash, place):
        names = {
            "a": f"{place}/a",
            "./a//b/": f"{place}/a/b",
            "/x/../y": "/y",
            "": "",
            "-n": f"{place}/-n",
            "a\tb": None,
        }
        for given, expected in names.items():
            out = bash('X=$1; make_absolute X; printf %s "$X"', given)[1]
            assert out == (expected if expected is not None else f"{place}/a\tb")

    def test_require(self, bash, place):
        (place / "there").touch()
        either = "require no-data 'file or folder' X"
        there = f"X=there; require no-data file X; {either}"
        assert bash(there) == (0, "", "")
        assert_dies(bash("X=gone; require no-script folder X 'make it'"), "no-script", "X:", " gone ", "make it")
        assert bash(f"X=disk; {either}; require no-data folder X") == (0, "", "")
        for kind in ("file", "folder", "file or folder"):
            refused = bash(f"[ -p f ] || mkfifo f; X=f; require no-data '{kind}' X")
            assert_dies(refused, "no-data", "X:", " f ", kind)
        assert_dies(bash("X=disk; require no-data file X"), "no-data", "X:", " disk ", "file")

    def test_export_variables_and_forget_parent_job(self, bash):
        code = 'export_variables A=1 B="two words" C="x y=z" E=5; export D=4 E=6; bash -c "$1" 2>&1'
        child = (
            START.format(scheduler="slurm", runtime="apptainer", lib=LIB)
            + 'forget_parent_job; echo "${A-}.${B-}.${C-}.${D-}.${E-}.${SLIPWAY_EXPORTED-}"'
        )
        assert bash(code, child)[1] == "....4.6.\n".replace("....4", "...4")

    def test_forget_parent_job_with_a_damaged_list(self, bash):
        listed = "A=1\n=2\nB\n1C=3\na[$(touch executed)]=4\nPATH\n\nD=x"
        code = 'forget_parent_job; echo "${A-}.${B-}.${D-}"; ls'
        assert bash(code, A="1", B="", D="x", SLIPWAY_EXPORTED=listed)[:2] == (0, "..\ndisk\nrun\n")

    def test_note_settings_and_note_environment(self, bash):
        err = bash("note_settings", SLIPWAY_STAGE="1", SLIPWAY_DATA="a b", SLIPWAY_ARGS="")[2]
        assert re.findall(r"SLIPWAY_\S+", err) == ["SLIPWAY_STAGE='0'"]
        assert bash("note_settings; note_environment") == (0, "", "")
        assert bash("note_environment", scheduler="pbs", SLURM_EXPORT_ENV="NONE") == (0, "", "")
        assert_warning(bash("note_environment", SLURM_EXPORT_ENV="NONE")[2], "environment-left", "--export=NONE")

    def test_is_exported(self, bash):
        ask = "export A=; B=1; for n in A B C; do ! is_exported $n || echo $n; done"
        assert bash(ask)[1] == "A\n"

    def test_settings_to_keep(self, bash):
        assert bash("settings_to_keep", SLIPWAY_IMAGE="x")[1].split().count("SLIPWAY_IMAGE") == 1
        out = bash("kept_settings=(SLIPWAY_DEVICE); settings_to_keep", SLIPWAY_STAGE="0", SLIPWAY_OUTPUT="x")[1]
        assert out.split() == ["SLIPWAY_IMAGE", "SLIPWAY_VENV", "SLIPWAY_CONFIG", "SLIPWAY_DEVICE", "SLIPWAY_STAGE"]

    def test_load_modules(self, bash, stub):
        stub("srun", "")
        stub("scontrol", "")
        module = 'module() { echo "$*"; : "$UNSET"; [ "$2" != broken ]; }; '
        assert bash(module + "load_modules 1 a/1 'b c'")[:2] == (0, "purge\nload a/1 b c\n")
        assert bash(module + "load_modules 0 a")[1] == "load a\n"
        assert_dies(bash(module + "load_modules 0 broken b"), "no-modules", "broken b")
        purged = bash("module() { PATH=/nowhere; }; load_modules 1 a")
        assert_dies(purged, "no-modules", "srun", "purge_modules = false")
        # once: without modules on the node the script ends with 127 and no line of its own
        assert_dies(bash("load_modules 1 a"), "no-modules", "`module`")


class TestRunFolder:
    def test_scheduler_ends_job(self, bash):
        said = "scheduler_ends_job && echo yes || echo no"
        assert bash(said)[1] == "yes\n"
        assert bash(f"interactive=1; {said}")[1] == "no\n"
        assert bash(said, scheduler="local")[1] == "no\n"

    def test_processes_left_and_yield_to(self, bash, place):
        """Of another script in the same allocation: a launch that goes on is named; this attempt's number is free."""
        (place / "run/logs/1").mkdir(parents=True)
        (place / "run/logs/1/job").write_text("slurm 4711\n")
        begin = 'interactive=1; echo "$HOSTNAME 77 5" >run/logs/1/process; find_beginner 1; '
        start = f"{begin} SLIPWAY_LAUNCH=4711.none.1.77.9 sleep 60 & left=$!; "
        start += "until processes_left 1 | grep .; do :; done; "
        _, out, _ = bash(f'{start} echo "$left"; kill "$left"; wait; processes_left 1')
        assert len({*out.split()}) == 1
        assert len(out.split()) == 2
        assert_dies(bash(f"{begin} yield_to 1"), "folder-in-use", "job 4711 ")
        assert not (place / "run/logs/2").exists()
        assert (place / "run/logs/1").exists()

    def test_last_attempt(self, bash, place):
        assert bash("rm -r run/logs; mkdir run/logs; last_attempt")[1] == "0\n"
        for name in ("1", "9", "10", "08", "x", "-3", "12 3", "a[$(id)]"):
            (place / "run" / "logs" / name).mkdir(parents=True, exist_ok=True)
        (place / "run" / "logs" / "99").touch()
        assert bash("last_attempt")[1] == "10\n"

    def test_last_attempt_counts_verdicts_too(self, bash, place):
        """Version 0.1 of the trainer, started by hand, left a verdict and no folder in logs."""
        (place / "run").mkdir()
        for name in ("verdict.3", "verdict.x", ".verdict.9.7", "verdict.08"):
            (place / "run" / name).touch()
        assert bash("last_attempt")[1] == "3\n"

    def test_open_run_folder(self, bash, place):
        assert_dies(bash("BACKEND=single run_dir=new/r; open_run_folder"), "too-many-nodes", 2)
        assert not (place / "new").exists()
        code = 'run_dir=new/r; open_run_folder; printf "%s\\n" "$RUN_DIR" "$attempt" "$log_dir" "$lib"'
        code, out, err = bash(code)
        folder = place / "new" / "r"
        assert (code, out.splitlines()) == (0, [str(folder), "1", f"{folder}/logs/1", f"{folder}/lib"])
        assert (folder / "logs" / "1" / "job").read_text() == "slurm 4711\n"
        assert (folder / "lib" / "slurm.bash").read_text() == (LIB / "slurm.bash").read_text()
        assert numbers(err.partition(str(folder))[0]) == [1]
        assert str(folder) in err

    def test_a_number_that_another_job_takes_at_the_same_moment_is_left_to_it(self, bash, place):
        (place / "new" / "logs" / "1").mkdir(parents=True)
        code, out, _ = bash('last_attempt() { echo 0; }; run_dir=new; open_run_folder; echo "$attempt"')
        assert (code, out) == (0, "2\n")

    def test_a_disk_that_takes_no_folder_is_named(self, bash, stub):
        stub("mkdir", 'case "$*" in */logs/.new.*) exit 1 ;; esac; exec /bin/mkdir "$@"')
        assert_dies(bash("run_dir=new; open_run_folder"), "cannot-write", "/new/logs")

    def test_its_mode_is_its_own(self, bash, place):
        assert bash("umask 022; run_dir=new/a; open_run_folder; run_dir=other/b; open_run_folder 750")[0] == 0
        modes = [(place / name).stat().st_mode & 0o777 for name in ("new", "new/a", "other", "other/b")]
        # once: with group_readable the folder above it is made under its umask
        assert modes == [0o755, 0o700, 0o755, 0o750]

    @pytest.mark.parametrize(("umask", "above"), [("002", 0o755), ("077", 0o750), ("027", 0o750)])
    def test_with_750_the_group_reads_and_writes_nothing(self, bash, place, umask, above):
        (place / "lib").mkdir()
        for path in LIB.glob("*.*"):
            shutil.copy(path, place / "lib")
            (place / "lib" / path.name).chmod(0o600)
        (place / "c.toml").touch(0o600)
        (place / "me").write_text("#!/bin/bash\njob_id=1\nreadonly job_id\n")
        open_it = f"umask {umask}; lib=$PWD/lib run_dir=new/a; open_run_folder 750; script_file=$PWD/me; keep_script"
        assert bash(f"rm -r run; {open_it}; echo $TRAINER_UMASK")[1] == "027\n"
        assert (place / "new").stat().st_mode & 0o777 == above
        modes = {path.stat().st_mode & 0o777 for path in (place / "new" / "a").rglob("*") if path.is_dir()}
        assert modes == {0o750}
        files = {path.name: path.stat().st_mode & 0o777 for path in (place / "new" / "a").rglob("*") if path.is_file()}
        assert files.pop("job.sh") == 0o740
        assert {"input.toml", "slurm.bash", "job"} <= files.keys()
        assert set(files.values()) == {0o640}

    def test_one_that_cannot_be_made_is_named(self, bash, place):
        (place / "file").touch()
        for run_dir in ("file/r", "file"):
            refused = bash(f"run_dir={run_dir}; open_run_folder")
            assert_dies(refused, "cannot-write", f"{place}/{run_dir}", "SLIPWAY_", lines=2)

    def test_keep_library_and_copy_library(self, bash, place):
        assert bash('keep_library; echo "$lib"')[1] == f"{place}/run/lib\n"
        copied = {path.name for path in (place / "run" / "lib").iterdir() if path.is_file()}
        assert copied == {".slipway-library", *(path.name for path in LIB.glob("*.*"))}
        (place / "run" / "job.sh").touch()
        (place / "run" / "lib" / "mark").touch()
        assert bash("keep_library")[0] == 0
        assert (place / "run" / "lib" / "mark").exists()
        (place / "run" / "job.sh").unlink()
        (place / "run" / "lib" / "mark").unlink()
        assert bash("keep_library")[0] == 0, "another job that begins here has the same library"
        assert list((place / "run").glob(".lib.*")) == []
        copy = "copy_library copy; ls copy/slurm.bash"
        assert bash(copy)[1] == "copy/slurm.bash\n"
        full = bash("rm --force run/job.sh; copy_library() { return 1; }; keep_library")
        assert_dies(full, "cannot-write", f"{place}/run/lib")

    def test_keep_script_and_kept_lines(self, bash, place):
        (place / "c.toml").write_text("a = 1\n")
        (place / "me").write_text("#!/bin/bash\njob_id=1\nreadonly job_id\necho rest\n")
        run = 'script_file=$PWD/me; keep_script "$@"; cat run/job.sh'
        code, out, err = bash(run, "a b", "$(id)", SLIPWAY_DATA="x'y")
        assert code == 0, err
        assert out.startswith("#!/bin/bash\njob_id=1\nreadonly job_id\n# Kept settings (of job 4711)")
        assert out.endswith("# Kept settings end.\necho rest\n")
        assert "set -- 'a b' '$(id)'" in out
        assert (place / "run" / "input.toml").read_text() == "a = 1\n"
        assert os.access(place / "run" / "job.sh", os.X_OK)
        assert bash("kept_lines; kept_lines a | tail -n 2")[1].count("# Kept settings end.") == 2


class TestScratch:
    def test_random_name(self, bash):
        names = bash("random_name; random_name")[1].split()
        assert [bool(re.fullmatch("[0-9a-f]{16}", name)) for name in names] == [True, True]
        assert names[0] != names[1]

    def test_make_scratch_remove_scratch(self, bash, stub, place):
        stub("srun", SRUN)
        code = 'scratch_id=4711; make_scratch; stat --format=%a "$scratch"; cat run/logs/2/scratch; ls disk; '
        code += "remove_scratch"
        code, out, err = bash(code)
        assert (code, err) == (0, "")
        mode, kept, name = out.splitlines()
        assert (mode, kept) == ("700", f"{place}/disk/{name}")
        assert list((place / "disk").iterdir()) == []

    def test_record_scratch(self, bash, stub):
        stub("srun", SRUN)
        code = f'old=$PWD/disk/slipway-1.{"a" * 16}; mkdir run/logs/1 "$old"; echo slurm 4711 >run/logs/1/job; '
        code += 'echo "$old" >run/logs/1/scratch; scratch=/new; record_scratch; cat run/logs/2/scratch; ls disk'
        assert bash(code) == (0, "/new\n", "")

    @pytest.mark.parametrize("hangs", ["exec sleep 600", f"({SRUN}); exec sleep 600"])  # before its work, and after
    def test_make_folder_on_each_node_tries_again_where_the_launcher_hangs(self, bash, stub, place, hangs):
        stub("srun", f"if mkdir {place.parent}/tried 2>/dev/null; then {hangs}; fi; {SRUN}")
        call = 'SLIPWAY_PREFLIGHT_SECONDS=1; make_folder_on_each_node "$PWD/disk/x" && stat --format=%a disk/x'
        code, out, err = bash(call)
        assert (code, out) == (0, "700\n")
        assert_warning(err, "slow-nodes", "SLIPWAY_PREFLIGHT_SECONDS")

    @pytest.mark.parametrize("there", ["ln --symbolic $PWD disk/x", "touch disk/x"])
    def test_make_folder_on_each_node_takes_no_folder_of_others(self, bash, stub, there):
        stub("srun", SRUN)
        code, _, err = bash(f'{there}; make_folder_on_each_node "$PWD/disk/x"')
        assert code != 0
        assert messages(err) == []

    # once: another user put a folder of the same name in its place
    @pytest.mark.parametrize("case", [("777", "", False), ("1777", "", True), ("755", "", True), ("777", "disk", True)])
    def test_make_scratch_where_others_cannot_exchange_it(self, bash, stub, open_folder, case):
        mode, trusted, made = case
        stub("srun", SRUN)
        disk = f"disk={open_folder}/disk; mkdir --mode={mode} $disk $disk/deeper; chmod {mode} $disk; "
        call = 'SLIPWAY_LOCAL_DISK=$disk/deeper scratch_id=1; chmod 755 "$SLIPWAY_LOCAL_DISK"; make_scratch; echo made'
        trust = f"SLIPWAY_TRUSTED_FOLDER=${trusted}; " if trusted else ""
        code, out, err = bash(disk + trust + call)
        assert (code, out) == ((0, "made\n") if made else (78, ""))
        assert slugs(err) == ([] if made else ["writable-by-others", "cannot-write"])

    def test_remove_on_each_node(self, bash, stub):
        # root may remove anything, unless it gives that up
        mortal = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
        stub("srun", SRUN.replace("exec", f"exec {' '.join(mortal)}"))
        code = "mkdir -p disk/x/a/b disk/y; touch disk/x/a/b/c; chmod 0 disk/x/a/b; chmod 500 disk/x/a disk/x; "
        code += '! srun rm -rf disk/x 2>/dev/null; remove_on_each_node 9 "$PWD/disk/x" "$PWD/disk/y"; ls -A disk'
        assert bash(code) == (0, "", "")

    # once: the step waited for the GPUs that a rank held which could not be killed
    def test_helpers_take_no_gpu(self, bash, stub):
        stub("srun", 'echo "$*"')
        stub("mpirun", "echo $SLURM_GPUS_PER_NODE")
        gpus = "gpus_per_node=2 gpu_options=(--gres=gpu:2); "
        assert " --gres=none " in bash(f"{gpus}remove_on_each_node 9 /x")[1]
        assert (
            bash(f"{gpus}launcher=mpirun; remove_on_each_node 9 /x; (mpirun_node 0 9 true); mpirun_each_node 9 true")[1]
            == "0\n0\n2\n"
        )
        assert bash("launcher=mpirun; remove_on_each_node 9 /x", scheduler="pbs")[:2] == (0, "\n")

    @pytest.mark.parametrize("broken", ["exit 1", "exec sleep 600"])
    def test_remove_scratch_never_fails(self, bash, stub, place, broken):
        stub("srun", broken)
        code, _, err = bash("cleanup_seconds=1; scratch=$PWD/disk/x; mkdir disk/x; remove_scratch; echo on")
        assert code == 0
        assert_warning(err, "scratch-left", "disk/x")
        assert list((place / "disk").iterdir()) == []
        without = "scratch=; remove_scratch; unset scratch; remove_scratch"
        assert bash(without) == (0, "", "")

    def test_remove_old_scratch(self, bash, stub, place):
        stub("srun", SRUN)
        stub("scontrol", '[ "${!#}" != 99 ] || echo "JobId=99 JobState=RUNNING X=y"')
        names = {"1": "4711", "3": "98", "4": "99"}
        for number, job in names.items():
            log = place / "run" / "logs" / number
            log.mkdir(parents=True)
            (log / "job").write_text(f"slurm {job}\n")
            scratch = place / "disk" / f"slipway-{job}.{'0' * 16}"
            scratch.mkdir(parents=True)
            (log / "scratch").write_text(f"{scratch}\n")
        for number, path in (("5", place / "c.toml"), ("6", Path("/")), ("7", "")):  # damaged
            (place / "run" / "logs" / number).mkdir()
            (place / "run" / "logs" / number / "job").write_text("slurm 1\n")
            (place / "run" / "logs" / number / "scratch").write_text(f"{path}\n")
        (place / "c.toml").touch()
        assert bash("remove_old_scratch") == (0, "", "")
        assert [path.name for path in (place / "disk").iterdir()] == [f"slipway-99.{'0' * 16}"]
        assert (place / "c.toml").exists()

    # once: a controller that is silent was asked for each of them, 80 s long, while the job held its nodes
    def test_remove_old_scratch_asks_a_silent_scheduler_once(self, bash, stub, place):
        stub("srun", SRUN)
        stub("scontrol", 'echo "$*" >>"$HOME/asked"; exit 1')
        for number, job in {"1": "97", "3": "98", "4": "4711"}.items():
            log = place / "run" / "logs" / number
            log.mkdir(parents=True)
            (log / "job").write_text(f"slurm {job}\n")
            (log / "scratch").write_text(f"{place}/disk/slipway-{job}.{'0' * 16}\n")
            (place / "disk" / f"slipway-{job}.{'0' * 16}").mkdir(parents=True)
        assert bash("remove_old_scratch") == (0, "", "")
        assert len((place.parent / "asked").read_text().splitlines()) == 1
        assert sorted(path.name[:10] for path in (place / "disk").iterdir()) == ["slipway-97", "slipway-98"]

    def test_job_is_over(self, bash, stub):
        over = "! job_is_over 99_1 || echo over"
        for said, expected in (
            ("echo JobState=RUNNING X=y", ""),
            ("echo JobState=COMPLETED X=y", "over\n"),
            ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "over\n"),
        ):
            stub("scontrol", said)
            assert bash(over)[1] == expected, said
        runs_as = 'if [ "$2" = "{}" ]; then echo "    job_state = R"; else echo "Unknown Job Id"; exit 153; fi'
        stub("qstat", runs_as.format("99[1]"))
        # once: asks for 99[1, without the closing bracket
        assert bash(over, scheduler="pbs")[1] == ""
        stub("qstat", runs_as.format("99"))
        assert bash("! job_is_over 99 || echo over", scheduler="pbs")[1] == ""
        # in a container all scripts may have the same number: it is this one's, or that of another program
        over = "! job_is_over x-$$ || echo over; ! job_is_over x-1 || echo over; ! job_is_over x-999999999 || echo gone"
        assert bash(over, scheduler="local")[1] == "over\nover\ngone\n"
        runs = "bash -c 'while :; do sleep 0.1; done' run/job.sh & "
        # until then it is a fork of this shell, whose own command line holds all of this
        runs += """until [ "$(tr '\\0' ' ' <"/proc/$!/cmdline" | head -c 9)" = "bash -c w" ]; do :; done; """
        runs += "! job_is_over x-$! || echo over; kill $!"
        assert bash(runs, scheduler="local")[1] == ""

    def test_a_job_is_over_that_is_this_one_under_another_name(self, bash, stub):
        stub("scontrol", 'echo "JobId=4711 ArrayJobId=4700 ArrayTaskId=3 JobState=RUNNING X=y"')
        for number, said in (("4711", "over\n"), ("471", "")):
            assert bash("! job_is_over 4700_3 || echo over", SLURM_JOB_ID=number)[1] == said

    # once: SLIPWAY_RUN_DIR=$HOME removed ~/lib, and wrote over ~/input.toml
    def test_refuse_foreign_folder(self, bash, place):
        (place / "run" / "logs").mkdir(parents=True)
        assert bash("refuse_foreign_folder")[0] == 0
        (place / "run" / "mine").mkdir()
        refused = bash("refuse_foreign_folder")
        assert_dies(refused, "folder-holds-other-files", f"{place}/run ", "mine", "SLIPWAY_RUN_DIR")
        marks = {
            "job.sh": "",
            "run.json": json.dumps(provenance(World(rank=0, size=1), {})),
            "lock": json.dumps(Lock(place, job_id="", attempt=1)._owner),
            "logs/3/job": "slurm 1_2\n",
        }
        for mark, text in marks.items():
            path = place / "run" / mark
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            assert bash("refuse_foreign_folder")[0] == 0, mark
            if text:
                path.write_text("mine")
                assert bash("refuse_foreign_folder")[0] == 78, mark
            path.unlink()

    def test_first_line_has_holds_run_is_foreign_and_is_kept_library(self, bash, place):
        run = place / "run"
        (run / "lib").mkdir(parents=True)
        os.mkfifo(run / "lock")  # nothing waits for it
        assert bash("first_line_has run/lock a || first_line_has run/lib a || first_line_has run/gone a")[0] == 1
        assert bash("holds_run")[0] == 1
        (run / "run.json").write_text('{"started": "x", "host": "y", "world_size": 2}\n')
        assert bash("holds_run; first_line_has run/run.json host")[0] == 0
        assert bash("is_foreign run/lib; ! is_kept_library run/lib")[0] == 0
        (run / "lib" / ".slipway-library").touch()
        assert bash("! is_foreign run/lib; is_kept_library run/lib; ! is_foreign run/verdict.1")[0] == 0
        (run / "input.toml").write_text("a = 1\n")
        (place / "c.toml").write_text("a = 1\n")
        assert bash("! is_foreign run/input.toml; echo 2 >c.toml; is_foreign run/input.toml")[0] == 0
        assert bash("SLIPWAY_SCRIPT=x; ! is_foreign run/input.toml")[0] == 0, "it writes none"

    # once: a clone under umask 002 was refused, where it is the default since each user has a group
    def test_refuse_shared_and_is_private(self, bash, stub, place, open_folder):
        file = open_folder / "file"
        file.touch()
        user, group = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())
        os.chown(file, user, group)
        check = f'refuse_shared {user} "$@"', str(open_folder), str(file)
        assert bash(*check) == (0, "", "")
        file.chmod(0o664)
        for members, name, code in (
            ("", "ann:x", 0),
            ("ann", "ann:x", 0),
            ("ann,bob", "ann:x", 78),
            ("bob", "ann:x", 78),
            ("", "team:x", 78),
        ):
            stub("getent", f"[ $1 = passwd ] && echo ann:x:{user}:{group}::/: || echo {name}:{group}:{members}")
            assert bash(*check)[0] == code, (members, name)
            assert (bash(f"is_private {group} {user}")[0] == 0) == (code == 0), (members, name)
        assert_dies(bash(*check), "writable-by-others", file, group, f"chmod -R go-w '{open_folder}'")
        # once: whose primary group it is was not among its members
        ann = f"[ $1 = passwd ] && echo ann:x:{user}:{group}::/: || echo ann:x:{group}:"
        for other, code in (
            (f"bob:x:1{user}:{group}", 78),
            (f"bob:x:1{user}:1{group}", 0),
            (f"nna:x:{user}:{group}", 0),
        ):
            stub("getent", f'echo "$*" >>asked; {ann}; [ "$*" != passwd ] || echo {other}::/:')
            assert bash(*check)[0] == code, other
        (place / "asked").unlink()
        assert bash(*check, *[str(file)] * 9)[0] == 0
        assert len((place / "asked").read_text().splitlines()) == 3, "once for all of them"
        # once: a directory that lists 100,000 users for minutes, and one that lists none
        (place / "asked").unlink()
        stub("getent", f'echo "$*" >>asked; [ $# = 1 ] && exit 3; {ann}')
        assert bash(f"{check[0]}; {check[0]}", *check[1:])[0] == 0
        assert (place / "asked").read_text().splitlines().count("passwd") == 1, "once for a script"
        assert bash(f"timeout() {{ return 124; }}; {check[0]}", *check[1:])[0] == 0
        assert bash(f"awk() {{ return 127; }}; {check[0]}", *check[1:])[0] == 78
        stub("getent", f"[ $1 = passwd ] && echo ann:x:0:{group}::/: || echo ann:x:{group}:")
        assert bash(f"is_private {group} 0")[0] != 0, "root shares its group"
        assert bash(f"is_private 0 {user}")[0] != 0, "not the user's primary group"
        stub("getent", f"[ $1 = passwd ] && echo ann:x:{user}:{group}::/: || echo ann:x:{group}:")
        assert_dies(bash(f"refuse_shared '' {file} {file}.gone"), "writable-by-others", f"{file}.gone")
        for mode in (0o666, 0o646):
            file.chmod(mode)
            assert_dies(bash(*check), "writable-by-others", file)

    def test_refuse_shared_takes_no_group_for_private_where_an_acl_names_others(self, bash, stub, open_folder):
        user, group = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())
        stub("getent", f"[ $1 = passwd ] && echo ann:x:{user}:{group}::/: || echo ann:x:{group}:")
        file = open_folder / "file"
        file.touch()
        os.chown(file, user, group)
        give_rights(file, 23456, 0o7)
        done = bash(f"refuse_shared {user} {file}")
        assert_dies(done, "writable-by-others", file)
        give_rights(file, 23456, 0o4)
        assert bash(f"refuse_shared {user} {file}") == (0, "", "")

    # once: what shows mode 777 for every file (SMB, WSL's drvfs) could not be used at all
    def test_is_trusted(self, bash, open_folder):
        place = open_folder / "a b" / "run"
        place.mkdir(parents=True)
        (open_folder / "link").symlink_to(open_folder / "a b")
        (open_folder / "a").mkdir()
        for path in (place.parent, place):
            path.chmod(0o777)
        run = 'refuse_shared "" "$1"; refuse_shared_above "$1"; RUN_DIR=$1; keep_others_out'
        for folder in ("a b", "a b/run", "link"):
            assert bash(f'SLIPWAY_TRUSTED_FOLDER="$2"; {run}', str(place), str(open_folder / folder)) == (0, "", "")
        for folder in (open_folder / "a", open_folder / "gone", open_folder / "a b" / "run" / "x", "", "/", ".", ".."):
            done = bash(f'SLIPWAY_TRUSTED_FOLDER="$2"; {run}', str(place), str(folder))
            assert_error(done[2], "writable-by-others", place, "SLIPWAY_TRUSTED_FOLDER")
            assert bash('SLIPWAY_TRUSTED_FOLDER="$2"; is_trusted "$1"', str(place), str(folder))[0] == 1

    def test_change_mode(self, bash, stub, open_folder):
        """A file system may refuse it."""
        (open_folder / "a").touch(0o664)
        (open_folder / "a").chmod(0o664)
        assert bash('change_mode go-w "$1/a"; stat --format=%a "$1/a"', str(open_folder))[:2] == (0, "644\n")
        stub("chmod", "exit 1")
        assert bash('change_mode go-w "$1/a"', str(open_folder))[0] == 1
        assert bash('SLIPWAY_TRUSTED_FOLDER=$1; change_mode go-w "$1/a"', str(open_folder))[0] == 0

    def test_keep_others_out(self, bash, place):
        (place / "run" / "logs" / "2").mkdir(parents=True)
        assert bash("keep_others_out") == (0, "", "")
        assert bash("rm -r run/logs; chmod 777 run; keep_others_out; stat --format=%a run")[:2] == (0, "755\n")
        (place / "run").chmod(0o757)
        assert_dies(bash("keep_others_out"), "writable-by-others", place / "run")

    # once: under a default ACL, which undoes the umask, others could write logs, verdicts and checkpoints
    def test_refuse_shared_files(self, bash, place):
        own = place / "own"
        own.mkdir(0o755)
        call = "umask go-w; RUN_DIR=$1; keep_others_out", str(own)
        give_rights(own, 23456, 0o5, "default")
        assert bash(*call) == (0, "", "")
        give_rights(own, 23456, 0o7, "default")
        assert_dies(bash(*call), "writable-by-others", own, "chmod 700", "SLIPWAY_OUTPUT")
        assert [*own.iterdir()] == []
        (own / "logs").mkdir()
        own.chmod(0o700)
        assert bash(*call) == (0, "", ""), "nobody else can enter it"
        os.removexattr(own, "system.posix_acl_default")
        own.chmod(0o755)
        assert_dies(bash(*call), "writable-by-others", own / "logs")
        (own / "logs").chmod(0o755)
        assert bash("umask go-w; RUN_DIR=$1; refuse_shared_files", str(own)) == (0, "", "")

    @pytest.mark.parametrize(
        ("folders", "code"),
        [
            ({"a": 0o777}, 78),
            ({"a": 0o775}, 0),
            ({"a": 0o2775, "a/b": 0o2770}, 0),
            ({"a": 0o757, "a/b": 0o2775}, 78),
            ({"a": 0o1777, "a/b": 0o1775}, 0),
            ({"": 0o700, "a": 0o777}, 0),
            ({"a": 0o777, "a/b": 0o700}, 78),
            ({"a": 0o755, "a/b": 0o2755}, 0),
        ],
    )
    def test_refuse_shared_above(self, bash, stub, open_folder, folders, code):
        stub("getent", "exit 2")
        (open_folder / "a" / "b" / "run").mkdir(parents=True)
        for name, mode in folders.items():
            (open_folder / name).chmod(mode)
        done = bash('refuse_shared_above "$1"', str(open_folder / "a" / "b" / "run"))
        assert done[0] == code, done
        if code:
            assert_dies(done, "writable-by-others", open_folder / "a")
        elif {0o775, 0o2775} & {*folders.values()}:
            assert_warning(done[2], "writable-by-others", open_folder / "a")
            assert done[2].count("\n") == 1
        else:
            assert done[2] == ""
        call = 'refuse_shared_above "$1"'
        assert bash(f"{call}; {call}", str(open_folder / "a" / "b" / "run")) == done, "the same is said once"

    # once: a link was taken for a folder that all may write, and what it leads to was not looked at
    def test_refuse_shared_above_looks_at_what_a_link_leads_to(self, bash, open_folder):
        (open_folder / "a" / "b" / "clone").mkdir(parents=True)
        (open_folder / "link").symlink_to("a/b")
        call = 'cd "$1"; refuse_shared_above "$PWD"', str(open_folder / "link" / "clone")
        assert bash(*call) == (0, "", "")
        (open_folder / "a").chmod(0o777)
        assert_dies(bash(*call), "writable-by-others", open_folder / "a")
        (open_folder / "a").chmod(0o755)
        (open_folder / "a" / "b").chmod(0o777)
        assert_dies(bash('refuse_shared_above "$1"', f"{open_folder}/link/clone"), "writable-by-others", "a/b")

    def test_a_folder_that_the_members_of_a_project_share_is_not_refused(self, bash, open_folder):
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        (open_folder / "run").mkdir()
        open_folder.chmod(0o2770)
        os.chown(open_folder, 12345, 12345)
        assert bash('refuse_shared_above "$1"', str(open_folder / "run")) == (0, "", "")

    def test_refuse_company(self, bash, stub, place):
        (place / "run" / "logs" / "1").mkdir(parents=True)
        (place / "run" / "logs" / "1" / "job").write_text("slurm 99\n")
        stub("scontrol", "echo JobState=RUNNING X=y")
        assert_dies(bash("refuse_company"), "folder-in-use", "99", place / "run")
        stub("scontrol", "echo JobState=COMPLETED X=y")
        assert bash("refuse_company") == (0, "", "")
        stub("scontrol", "exit 1")
        code, out, err = bash("log_dir=; refuse_company")  # once: nothing said that two may train in one folder
        assert (code, out) == (0, "")
        assert_warning(err, "folder-in-use", 99, place / "run")
        assert bash("refuse_company") == (0, "", "")  # that has been said
        (place / "run" / "logs" / "1" / "process").write_text("n1 77 5\nended 75\n")
        assert bash("log_dir=; refuse_company") == (0, "", "")
        for job in ("slurm 4711", "slurm", ""):
            stub("scontrol", "echo JobState=RUNNING X=y")
            (place / "run" / "logs" / "1" / "job").write_text(job)
            assert bash("refuse_company") == (0, "", ""), job

    def test_what_a_job_has_noted_of_itself_and_its_end(self, bash, place):
        code = "cluster=near; begin_attempt 3; has_noted_end 3 || echo lives; find_beginner 3; is_own_job && echo own; "
        code += "cluster=far; is_foreign_job && echo foreign; note_own_end 7; has_noted_end 3 && echo over; "
        code += "foreign_job_is_over 1 x || echo $?; (refuse_unknown 3) || echo $?; log_dir=; note_own_end 7"
        assert bash(code, scheduler="pbs")[:2] == (0, "lives\nown\nforeign\nover\n2\n78\n")
        assert not (place / "run" / "logs" / "3").exists()

    # once: a job of another cluster, which the scheduler does not know, counted as over
    @pytest.mark.parametrize("job", ["slurm 99 far", "slurm 4711 far", "pbs 99 head"])
    def test_refuse_company_of_another_cluster(self, bash, stub, place, job):
        log = place / "run" / "logs" / "1"
        log.mkdir(parents=True)
        (log / "job").write_text(f"{job}\n")
        (log / "process").write_text("elsewhere 77 5\n")
        unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
        stub("scontrol", f'case "$*" in *--clusters=far*) exit 1 ;; esac; {unknown}')
        code = "log_dir=; cluster=near; refuse_company"
        assert_dies(bash(code), "folder-in-use", job.split()[1], place / "run", "ended", "logs/1/process")
        # once: `sbatch` of a shell that does not know its cluster took all for foreign
        if job.startswith("slurm 99"):
            stub("scontrol", 'case "$*" in *--clusters*) exit 1 ;; esac; echo JobState=COMPLETED X=y')
            assert bash(code.replace("near", "")) == (0, "", "")
            stub("scontrol", f'case "$*" in *--clusters=far*) exit 1 ;; esac; {unknown}')
        if job == "slurm 99 far":
            # once: one question without an answer, and the job that had just run was one of which nothing is known
            (log / "code").touch()
            stub("scontrol", "[ ! -e asked ] || exit 1; touch asked; echo JobState=RUNNING X=y")
            waited = bash(f"sleep() {{ SECONDS=$((SECONDS + 70)); }}; {code}")
            assert_dies(waited, "folder-in-use", "99", place / "run")
            assert "/logs/1/process" not in waited[2]  # nothing to be said there: it runs
            (log / "code").unlink()
            stub("scontrol", "echo JobState=RUNNING X=y")
            assert_dies(bash(code), "folder-in-use", "99")
            stub("scontrol", unknown)  # what `scontrol --clusters=far` says
            assert bash(code) == (0, "", "")
            stub("scontrol", "exit 1")
        for verdict, over in (
            ("done 9 trained", True),
            ("out-of-time 9 time-limit", True),
            ("stopped 9 user", True),
            ("stopped 9 launcher", False),  # its script may start the ranks again
            ("stopped 9 signal", True),
            ("", False),
        ):
            (place / "run" / "verdict.1").write_text(f"{verdict}\n")
            assert (bash(code)[0] == 0) == over, verdict
        with (log / "process").open("a") as file:
            file.write("ended\n")
        assert bash(code) == (0, "", "")

    # once: only the last attempt's job was asked for
    def test_refuse_company_of_all_earlier_attempts(self, bash, stub, place):
        for number, job in ((1, 99), (3, 100), (10, 101)):
            (place / "run" / "logs" / str(number)).mkdir(parents=True)
            (place / "run" / "logs" / str(number) / "job").write_text(f"slurm {job}\n")
        stub("scontrol", '[ "${!#}" = 99 ] || { echo JobState=FAILED X=y; exit; }; echo JobState=RUNNING X=y')
        assert_dies(bash("attempt=11; refuse_company"), "folder-in-use", "99", place / "run")
        stub("scontrol", "echo JobState=COMPLETED X=y")
        assert bash("attempt=11; refuse_company") == (0, "", "")

    # once: both had looked before either had noted itself, and both trained
    def test_of_two_that_begin_at_once_the_later_number_yields(self, bash, stub, place):
        stub("scontrol", "echo JobState=RUNNING X=y")
        other = "last_attempt() { mkdir -p new/logs/1; echo slurm 99 >new/logs/1/job; echo 0; }"
        assert_dies(bash(f"log_dir=; {other}; run_dir=new; open_run_folder"), "folder-in-use", "99", place / "new")
        assert [path.name for path in (place / "new" / "logs").iterdir()] == ["1"]

    def test_attempt_is_over(self, bash, place):
        folder = place / "run" / "logs" / "1"
        folder.mkdir(parents=True)
        ask = "code=0; attempt_is_over 1 || code=$?; echo $code"
        begin = f"log_dir=; begin_attempt 1; printf '%s\n' {{}} >run/logs/1/process; {ask}"
        for process, interactive, code in (
            ('"$HOSTNAME $(process_of $$)"', "1", 0),  # this one
            ('"$HOSTNAME $(process_of $PPID)"', "1", 1),
            ('"$HOSTNAME $(process_of $PPID)"', "", 1),
            ('"$HOSTNAME ${PPID} 1"', "1", 0),  # its number is another's by now
            ('"elsewhere $(process_of $PPID)"', "1", 3),
            ('"elsewhere 1 1" "ended 75"', "1", 0),
            ('"elsewhere $(process_of $PPID)"', "", 0),  # requeued onto another node
            ('""', "1", 0),
        ):
            folder.rmdir()
            said = bash(f"interactive={interactive}; {begin.format(process)}; rm -r run/logs/1; mkdir run/logs/1")
            assert said == (0, f"{code}\n", ""), process

    # once: the next rung of a sweep was refused while the job before it still cleaned up
    @pytest.mark.parametrize(
        ("file", "text"), [("requeues", "1 99_1\n1 4711\n"), ("logs/1/code", "0\n"), ("verdict.1", "done 1\n")]
    )
    def test_refuse_company_waits_where_a_job_continues_or_has_trained(self, bash, stub, place, file, text):
        (place / "run" / "logs" / "1").mkdir(parents=True)
        (place / "run" / "logs" / "1" / "job").write_text("pbs 99_1\n")
        (place / "run" / file).write_text(text)
        stub("qstat", 'echo "    job_state = $([ -e asked ] && echo X || echo E)"; touch asked')
        began = time.monotonic()
        assert bash("refuse_company", scheduler="pbs") == (0, "", "")
        assert time.monotonic() - began > 2
        stub("qstat", 'echo "    job_state = R"')
        refused = bash("sleep() { SECONDS=200; }; refuse_company", scheduler="pbs")
        assert_dies(refused, "folder-in-use", "99_1", place / "run")
        if file == "verdict.1":  # by which it has noted its end
            return
        # once: a server that grew silent made the running job one of which nothing is known
        (place / "asked").unlink()
        stub("qstat", 'if [ -e asked ]; then exit 1; fi; touch asked; echo "    job_state = R"')
        refused = bash("sleep() { SECONDS=$((SECONDS + 70)); }; refuse_company", scheduler="pbs")
        assert_dies(refused, "folder-in-use", "99_1", place / "run")

    # once: a scheduler that does not answer says nothing of the job
    def test_job_is_over_without_an_answer(self, bash, stub):
        stub("scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
        assert bash("! job_is_over 99 || echo over")[1] == ""
        stub("qstat", "echo 'qstat: cannot connect to server head (errno=15010)' >&2; exit 171")
        assert bash("! job_is_over 99 || echo over", scheduler="pbs")[1] == ""

    def test_stage_to_local_disk(self, bash, stub, place):
        stub("srun", SRUN)
        (place / "i.sif").write_text("image")
        (place / "i").mkdir()
        (place / "i" / "i.sif").write_text("data")
        code = 'SLIPWAY_STAGE=1 data=$PWD/i scratch=$PWD/disk; stage_to_local_disk; cat "$image" "$data/i.sif"'
        assert bash(code)[1] == "imagedata"
        assert bash("stage_to_local_disk; echo $?")[1] == "0\n"
        kept = bash('SLIPWAY_STAGE=1 scratch=$PWD/disk; stage_to_local_disk; echo "$image"', USE_CONTAINER="0")
        assert kept[:2] == (0, f"{place}/i.sif\n"), "an image that is not used stays where it is"
        stub("srun", "exit 1")
        assert_dies(bash("SLIPWAY_STAGE=1 scratch=$PWD/disk; stage_to_local_disk"), "staging-failed", lines=2)

    def test_build_local_venv(self, bash, stub, place):
        stub("srun", SRUN)
        assert bash('venv=here; build_local_venv; echo "$venv"')[1] == "here\n"
        local = "USE_CONTAINER=0 SLIPWAY_VENV=local; "
        assert_dies(bash(f"{local}build_local_venv"), "no-clone", "build/setup", place)
        (place / "build").mkdir()
        (place / "build" / "setup").write_text('#!/bin/bash\necho "$VENV $VARIANT $1"\n')
        (place / "build" / "setup").chmod(0o755)
        out = bash(f'{local}scratch=$PWD/disk/s; build_local_venv; echo "$venv"; echo "${{PATH%%:*}}"')[1].splitlines()
        venv = f"{place}/disk/s/venv"
        assert out[:2] == [f"{venv} cpu train", venv]
        assert f"{venv}/bin".startswith(out[2])
        (place / "build" / "setup").write_text("#!/bin/bash\nexit 1\n")
        assert_dies(bash(f"{local}scratch=x; build_local_venv"), "build-failed")
        # once: the builds refused what others could write, and a job ran it
        (place / "build" / "setup").chmod(0o777)
        assert_dies(bash(f"{local}scratch=x; build_local_venv"), "writable-by-others", "build/setup")


class TestData:
    def test_kind_of_data(self, bash, place):
        (place / "folder.tar").mkdir()
        (place / "image.tar").write_bytes(b"hsqs" + bytes(200))
        (place / "cut.sqsh").write_bytes(b"hsqs" + bytes(36) + (10**12).to_bytes(8, "little") + bytes(200))
        (place / "plain").write_bytes(TAR)
        (place / "packed").write_bytes(gzip.compress(TAR))
        (place / "text.tar").write_text("not a tar\n")
        (place / "text.gz").write_bytes(gzip.compress(b"not a tar\n" * 900))
        (place / "cut.gz").write_bytes(gzip.compress(random.Random(1).randbytes(9000))[:20])
        (place / "zip").write_bytes(ZIP)
        (place / "cut.zip").write_bytes(ZIP[:-30])
        (place / "empty").touch()
        (place / "nothing.tar").write_bytes(bytes(10240))
        said = bash('for name in *; do echo "$name $(kind_of_data "$PWD/$name")"; done', TAR_OPTIONS="--wildcards")[1]
        found = dict(line.split(" ", 1) for line in said.splitlines())
        kinds = {
            name: found[name] for name in ("folder.tar", "image.tar", "plain", "packed", "zip", "text.tar", "empty")
        }
        assert kinds == {
            "folder.tar": "folder",
            "image.tar": "squashfs",
            "plain": "tar",
            "packed": "tar",
            "zip": "zip",
            "text.tar": "file",
            "empty": "file",
        }
        assert found["nothing.tar"] == "file"
        assert found["cut.sqsh"].split()[0] == "damaged"
        assert numbers(found["cut.sqsh"]) == [248, 10**12]
        both = "kind_of_squashfs cut.sqsh; kind_of_squashfs image.tar"
        assert bash(both)[1] == f"{found['cut.sqsh']}\nsquashfs\n"
        assert bash("kind_of_zip cut.zip; kind_of_zip zip")[1] == f"{found['cut.zip']}\nzip\n"
        assert re.match(r"damaged .*\bZIP\b", found["cut.zip"])
        assert found["text.gz"].startswith("file tar: ")
        ended = "unexpected end of file"  # of gzip
        assert ended in found["cut.gz"]

    def test_check_data_and_inspect_data(self, bash, place):
        assert bash('SLIPWAY_DATA=; inspect_data; check_data; echo "<$data_kind>"') == (0, "<>\n", "")
        (place / "image").write_bytes(b"hsqs" + bytes(200))
        (place / "tar").write_bytes(TAR)
        (place / "zip").write_bytes(ZIP)
        (place / "cut").write_bytes(ZIP[:-30])
        (place / "file").write_text("x")
        see = 'check_data; echo "$data_kind"'
        assert bash(f"SLIPWAY_DATA=$PWD; {see}", USE_CONTAINER="0")[1] == "folder\n"
        assert bash(f"SLIPWAY_DATA=image; {see}")[1] == "squashfs\n"
        assert bash(f"SLIPWAY_DATA=tar SLIPWAY_STAGE=1; {see}", USE_CONTAINER="0")[1] == "tar\n"
        assert bash(f"SLIPWAY_DATA=zip; {see}", USE_CONTAINER="0")[1] == "zip\n"
        assert bash(f"SLIPWAY_DATA=file SLIPWAY_SCRIPT=x.py; {see}")[1] == "file\n"
        for name, values in {
            "image": ["squashfs", "USE_CONTAINER=1", "unsquashfs"],
            "tar": ["tar", "SLIPWAY_STAGE=1"],
            "cut": [bash("kind_of_data cut")[1].strip().removeprefix("damaged ")],
            "file": ["folder", "ZIP", "squashfs", "tar"],
        }.items():
            refused = bash(f"SLIPWAY_DATA={name}; {see}", USE_CONTAINER="0")
            assert_dies(refused, "bad-data-file", "SLIPWAY_DATA:", f" {name} ", *values)
            assert refused[1] == ""
        for runtime in ("podman", "pyxis"):
            refused = bash(f"SLIPWAY_DATA=image; {see}", runtime=runtime)
            assert_dies(refused, "bad-data-file", "SLIPWAY_DATA:", " image ", "squashfs", "unsquashfs", "tar")
            assert "USE_CONTAINER=1" not in refused[2]
        assert_dies(bash(f"SLIPWAY_DATA=gone; {see}"), "no-data", "SLIPWAY_DATA:", " gone ")


class TestContainer:
    def test_image_mount(self, bash):
        words = 'type=bind,"source=/a,b:c""d","destination=/e f",image-src=/,ro'
        assert bash("image_mount '/a,b:c\"d' '/e f'")[1] == words

    def test_data_are_mounted_only_where_they_are_an_image(self, bash, place):
        (place / "c.toml").touch()
        (place / "d").mkdir()
        show = 'SLIPWAY_DEVICE=cpu; use_container --nv; printf "%s\\n" "${container[@]}" "data is $data"'
        words = bash(f"data=$PWD/d data_kind=folder scratch=/s; {show}")[1].splitlines()
        quoted = f"{place}/d".replace('"', '""')
        assert f'type=bind,"source={quoted}","destination={quoted}"' in words
        assert words[-1] == f"data is {place}/d"
        words = bash(f"data=$PWD/x data_kind=squashfs scratch=/s mount_point=/s/mounted; {show}")[1].splitlines()
        assert [word for word in words if word.endswith('"destination=/s/mounted",image-src=/,ro')] == [words[-3]]
        assert words[-1] == "data is /s/mounted"
        # the copy need not be on this machine, which may be a client's
        words = bash(f"data=/s/data/x data_kind=folder scratch=/s; {show}")[1].splitlines()
        assert [word for word in words if "/s/data/x" in word] == ["data is /s/data/x"]

    def test_bind_mount(self, bash):
        assert bash("bind_mount '/a,b:c\"d'")[1] == 'type=bind,"source=/a,b:c""d","destination=/a,b:c""d"'

    def test_use_container(self, bash, place):
        (place / "c.toml").touch()
        code, out, _ = bash('use_container --nv -- /usr; printf "%s\\n" "${container[@]}"')
        words = out.splitlines()
        assert (code, words[:4]) == (0, ["apptainer", "run", "--no-eval", f"--pwd={place}"])
        assert words[4] == "--nv"
        assert words[-1] == f"{place}/i.sif"
        assert 'type=bind,"source=/usr","destination=/usr"' in words
        words = bash('container_options=(--env "A=a b"); use_container --nv; printf "%s\\n" "${container[@]}"')[1]
        assert words.splitlines()[4:7] == ["--env", "A=a b", "--nv"]
        assert "--nv" not in bash('SLIPWAY_DEVICE=cpu; use_container --nv; echo "${container[@]}"')[1]
        assert bash('USE_CONTAINER=0; use_container --nv; echo "${#container[@]}"')[1] == "0\n"
        assert_dies(bash("use_container -- /gone"), "cannot-read", "/gone ")

    def test_check_inputs(self, bash, stub, place):
        for name in ("c.toml", "i.sif"):
            (place / name).touch()
        assert_dies(bash("check_inputs"), "no-container-runtime", "apptainer", "USE_CONTAINER=0")
        stub("apptainer", "")
        assert bash('check_inputs; echo "$image $data"')[1] == f"{place}/i.sif \n"
        refused = bash("USE_CONTAINER=0; check_inputs")
        assert_dies(refused, "no-environment", "SLIPWAY_VENV", "/venv/bin/python", "USE_CONTAINER=1")

    def test_use_venv_and_find_conda(self, bash):
        assert_dies(bash("use_venv /gone"), "no-environment", "SLIPWAY_VENV", "/gone/bin/python")
        found = bash("find_conda mine", HOME="/nowhere")
        assert_dies(found, "no-environment", "SLIPWAY_VENV", "mine", "/nowhere/.conda/", "`conda env list`")

    def test_find_python(self, bash, stub, place, tmp_path):
        find = 'USE_CONTAINER=0; find_python; echo "$venv"; [[ $PATH == "$venv/bin":* ]] && echo first'
        stub("python3", "")
        local = "SLIPWAY_VENV=local; USE_CONTAINER=0; find_python; echo $venv"
        assert bash(f"site_downloads=1; {local}")[:2] == bash(f"SLIPWAY_WHEELHOUSE=$PWD; {local}")[:2] == (0, "\n")
        assert_dies(bash(local), "no-wheelhouse", "SLIPWAY_VENV=local", "SLIPWAY_WHEELHOUSE", "downloads = true")
        assert_dies(bash("SLIPWAY_WHEELHOUSE=/gone; check_wheelhouse"), "no-wheelhouse", "SLIPWAY_WHEELHOUSE", "/gone")
        assert bash("SLIPWAY_VENV=modules; USE_CONTAINER=0; find_python; echo $venv")[:2] == (0, "\n")
        refused = bash("SLIPWAY_VENV=modules; PATH=/nowhere; USE_CONTAINER=0; find_python")
        assert_dies(refused, "no-environment", "SLIPWAY_VENV=modules", "python3")
        assert_dies(bash(f"SLIPWAY_VENV=conda:mine; {find}"), "no-environment", "SLIPWAY_VENV", "mine", tmp_path)
        python = place / "envs" / "mine" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(mode=0o755)
        (tmp_path / ".conda").mkdir()
        (tmp_path / ".conda" / "environments.txt").write_text(f"/gone/mine\n{place}/envs/mine\n/else\n")
        assert bash(f"SLIPWAY_VENV=conda:mine; {find}")[1] == f"{place}/envs/mine\nfirst\n"

    def test_keeps_python_path(self, bash, place):
        keeps = "keeps_python_path && echo kept || echo not"
        (place / "venv").mkdir()
        for text, said in (("false", "not"), ("true", "kept")):
            (place / "venv" / "pyvenv.cfg").write_text(f"include-system-site-packages = {text}\n")
            assert bash(f"USE_CONTAINER=0; {keeps}")[1] == f"{said}\n"
            assert bash(f"USE_CONTAINER=1; {keeps}")[1] == "not\n"
        assert bash(f"USE_CONTAINER=0 SLIPWAY_VENV=modules venv=; {keeps}")[1] == "kept\n"

    def test_check_packages(self, bash, stub):
        stub("python3", ANSWER + 'echo of a module; answer "$2" torch msgspec')
        refused = bash("USE_CONTAINER=0; check_packages")
        assert_dies(refused, "no-environment", "SLIPWAY_VENV=", "torch, msgspec", "--system-site-packages")
        assert bash("USE_CONTAINER=1; check_packages; SLIPWAY_SCRIPT=mine.py USE_CONTAINER=0; check_packages")[0] == 0

    def test_podman(self, bash, stub, place):
        (place / "c.toml").touch()
        missing = bash("PATH=/nowhere; check_image", runtime="podman")
        assert_dies(missing, "no-container-runtime", "podman", "USE_CONTAINER=0")
        stub("podman", 'printf "%s\\n" "$@"; exit 3')
        refused = bash("touch i.sif; check_image", runtime="podman")
        assert_dies(refused, "image-not-local", f"docker-archive:{place}/i.sif")
        assert bash("rm -f i.sif; check_image", runtime="podman")[0] == 0
        show = 'use_container --device=nvidia.com/gpu=all -- /usr; "${container[@]}" python3 x'
        code, out, _ = bash(f"image=localhost/my:1; {show}", runtime="podman")
        words = out.splitlines()
        assert (code, words[:2]) == (3, ["--cgroup-manager=cgroupfs", "run"])
        assert words[-5:] == ["localhost/my:1", "sh", f"{LIB}/podman_init.sh", "python3", "x"]
        options = {"--rm", "--network=host", "--ipc=host", "--cgroups=no-conmon", "--entrypoint=", "--label=slipway="}
        options |= {f"--workdir={place}", "--device=nvidia.com/gpu=all", 'type=bind,"source=/usr","destination=/usr"'}
        options |= {"--env=HOME"}  # every variable but those that find the host's programs
        assert not {"--env=PATH", "--env=LD_LIBRARY_PATH"} & set(words)
        assert len(words) == len(set(words) | {"--mount"}) + words.count("--mount") - 1  # Podman refuses one path twice
        assert "--interactive" in words  # of a shell, whose file was sourced here
        code, out, _ = bash(f"unset -v terminal; image=x; {show}", runtime="podman")
        assert "--interactive" not in out.splitlines()
        assert options <= set(words)
        assert ("--userns=keep-id" in words) == (os.geteuid() != 0)
        assert bash("image_runs || echo no", runtime="podman")[1].endswith("true\nno\n")

    def test_remove_containers(self, bash, stub, tmp_path):
        stub(
            "podman",
            'case $* in *label=slipway=*/s) echo 4711 ;; ps*) echo 1 ;; *) printf "%s " "$@" >"$HOME/removed" ;; esac',
        )
        removed = tmp_path / "removed"
        # once: with no folder yet, or none any more, the containers of all of the user's jobs
        assert bash("end_job", runtime="podman")[0] == 0
        assert not removed.exists()
        end = "scratch=$PWD/s; mkdir s; end_job"
        assert bash(end, runtime="podman")[0] == 0
        assert removed.read_text() == "rm --force --time=0 4711 "
        removed.unlink()
        assert bash("remove_containers /s", runtime="podman")[0] == 0
        assert removed.exists()

    def test_podman_init_hands_the_first_sigterm_on_and_no_second(self, bash, place):
        count = "trap 'n=$((n + 1))' TERM; n=0; echo ready >ready; for i in 1 2 3 4 5; do sleep 0.2; done; exit $n"
        code = 'sh "$lib/podman_init.sh" sh -c "$1" & until [ -f ready ]; do sleep 0.05; done; kill $!; '
        code += "sleep 0.3; kill $!; wait $! || echo $?; wait $! || echo $?"
        assert bash(code, count)[1].splitlines()[-1] == "1"
        (place / "ready").unlink()
        assert bash(f"export SLURM_JOB_ID=1; {code}", count)[1] == ""
        assert bash('echo typed | sh "$lib/podman_init.sh" cat')[1] == "typed\n"

    def test_pyxis(self, bash, stub, place, tmp_path):
        stub("srun", "echo --container-image=...")
        assert_dies(bash("check_image", runtime="pyxis"), "no-image", f"{place}/i.sif ", "`enroot import`")
        assert bash("SLIPWAY_IMAGE=docker://nvcr.io#nvidia/pytorch:1; check_image", runtime="pyxis")[0] == 0
        stub("srun", "echo usage")
        refused = bash("touch i.sif; check_image", runtime="pyxis")
        assert_dies(refused, "no-container-runtime", "--container-image", "USE_CONTAINER=0")
        show = 'set_container --container-writable; printf "%s\\n" "${container[@]}" "${on_head_node[@]}"'
        out = bash(f"bind_paths=(/a/b / '/c d') image=docker://x#y; cd /usr; {show}", runtime="pyxis")[1]
        assert out.splitlines() == [
            "--container-image=x#y", "--container-workdir=/usr", "--container-mounts=/a/b:/a/b,/c d:/c d",
            "--no-container-entrypoint", "--container-writable",
            "srun", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--nodelist=n1",
        ]  # fmt: skip
        out = bash(f"unset terminal; bind_paths=(/usr); {show}", runtime="pyxis")[1]  # in a script that is no shell
        assert out.splitlines()[-2:] == ["--cpu-bind=none", "--gres=none"]
        assert_dies(bash("bind_paths=(/a:b); set_container", runtime="pyxis"), "bad-path", "/a:b: ")

    def test_singularity(self, bash, place):
        out = bash('bind_paths=(/usr); set_container; echo "${container[0]}"', runtime="apptainer")[1]
        assert out == "apptainer\n"
        out = bash('container_runtime=singularity bind_paths=(/usr); set_container; echo "${container[0]}"')[1]
        assert out == "singularity\n"
        refused = bash("SLIPWAY_IMAGE=docker://debian; check_image")
        assert_dies(refused, "image-not-local", "`apptainer pull my.sif docker://debian`")

    def test_activate_conda(self, bash, place):
        scripts = place / "venv" / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        show = 'activate_conda; echo "${CONDA_PREFIX-none} ${PROJ_DATA-none} $image"'
        (scripts / "proj.sh").write_text(
            'echo said\n[ -n "$NOWHERE" ] && export NOWHERE\nfalse\nimage=other\nexport PROJ_DATA="$CONDA_PREFIX/a b"\n'
        )
        assert bash(show)[:2] == (0, f"none none {place}/i.sif\n")  # it is no prefix of conda's
        (place / "venv" / "conda-meta").mkdir()
        assert bash(show) == (0, f"{place}/venv {place}/venv/a b {place}/i.sif\n", "said\n")
        assert bash(f"{show}; [[ $- == *e*u* ]]")[0] == 0  # the script's own options stay
        (scripts / "proj.csh").write_text("setenv PROJ_DATA x\n")
        (scripts / "zlib.sh").write_text("echo broken; exit 1\n")
        ended = bash(show)
        assert_dies(ended, "no-environment", "SLIPWAY_VENV", f"{scripts} ", lines=3)
        assert ended[1] == ""
        assert ended[2].startswith("said\nbroken\n")

    def test_choose_container(self, bash, stub, place):
        choose = 'USE_CONTAINER=; choose_container; echo "$USE_CONTAINER"'
        assert bash(choose, scheduler="local")[1] == "0\n"
        (place / "i.sif").touch()
        stub("apptainer", "exit 1")
        assert bash(choose, scheduler="local")[1] == "0\n"
        stub("apptainer", "exit 0")
        assert bash(choose, scheduler="local")[1] == "1\n"


class TestAllocation:
    @pytest.mark.parametrize(
        ("text", "cpus"), [("8", 8), ("8(x2),4", 4), ("4,16(x3)", 4), ("", 1), ("abc", 1), ("0", 1), ("64(x100)", 64)]
    )
    def test_smallest_cpu_count(self, bash, text, cpus):
        assert bash('smallest_cpu_count "$1"', text)[1] == f"{cpus}\n"

    def test_count_words(self, bash):
        assert bash("count_words 0,1,2; count_words 5; count_words ''")[1] == "3\n1\n0\n"

    def test_plan_ranks(self, bash):
        show = 'plan_ranks; echo "$ranks_per_node $world_size $cpus_per_rank"'
        assert bash(f"cpus=5; {show}")[1] == "2 4 2\n"
        assert bash(f"cpus=1 SLIPWAY_RANKS_PER_NODE=3; {show}")[1] == "3 6 1\n"
        assert bash(f"BACKEND=single nnodes=1; {show}")[1] == "1 1 8\n"
        refused = bash("gpus_per_node=0; plan_ranks")
        assert_dies(refused, "no-gpu", "SLIPWAY_RANKS_PER_NODE", "SLIPWAY_DEVICE=cpu")
        assert numbers(refused[2]) == [1]

    @pytest.mark.parametrize(
        ("given", "ranks", "idle"),  # the last: numbers of the warning
        [
            ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2", "2 4 2 4", []),
            ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=4", "4 2 1 8", []),
            ("gpus_per_node=3 SLIPWAY_DEVICES_PER_RANK=2", "2 2 1 8", [1, 3, 2]),
            (
                "gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=1",
                "2 2 1 8",
                [2, 4, 1, 2, 2, 1, 2],
            ),
            ("gpus_per_node=4 SLIPWAY_DEVICES_PER_RANK=2 BACKEND=single nnodes=1", "2 1 1 8", [2, 4]),
            # stages share the cores
            ("gpus_per_node=2 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=2 SLIPWAY_DEVICE=cpu", "2 4 2 4", []),
            # a scheduler that knows nothing of GPUs
            ("gpus_per_node=0 SLIPWAY_DEVICES_PER_RANK=2 SLIPWAY_RANKS_PER_NODE=2", "2 4 2 4", []),
            # without the setting ranks may share a GPU
            ("gpus_per_node=2 SLIPWAY_RANKS_PER_NODE=4", "1 8 4 2", []),
        ],
    )
    def test_plan_ranks_of_several_gpus_and_check_gpu_count(self, bash, given, ranks, idle):
        show = 'echo "$devices_per_rank $world_size $ranks_per_node $cpus_per_rank"'
        code, out, said = bash(f"{given}; plan_ranks; {show}")
        assert (code, out) == (0, f"{ranks}\n"), said
        assert (slugs(said), numbers(said)) == (["idle-gpus"] * bool(idle), idle)
        assert said.count("\n") == bool(idle)

    @pytest.mark.parametrize(
        ("given", "said"),  # idle GPUs of so many, ranks a node, GPUs that they take; ranks, nodes, ranks a node
        [
            ("nnodes=2 SLIPWAY_RANKS_PER_NODE=2", []),
            ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1, 2, 1, 2]),
            ("nnodes=3 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1]),  # 3 are not as many on each of fewer nodes
            ("nnodes=4 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1, 4, 2, 2]),
            ("nnodes=1 SLIPWAY_RANKS_PER_NODE=1", [1, 2, 1, 1]),
            ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICE=cpu", []),
            ("nnodes=2 SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_SCRIPT=spawns.py", [1, 2, 1, 1, 2, 1, 2]),
            ("nnodes=2 SLIPWAY_RANKS_PER_NODE=2 SLIPWAY_SCRIPT=mine.py gpus_per_node=4", [2, 4, 2, 2, 4, 1, 4]),
        ],
    )
    def test_note_idle_gpus(self, bash, given, said):
        code, _, err = bash(f"gpus_per_node=2 {given}; plan_ranks; note_idle_gpus 2>/dev/null")
        assert (code, slugs(err), numbers(err)) == (0, ["idle-gpus"] * bool(said), said)
        assert err.count("\n") == bool(said)
        assert not said or f"SLIPWAY_RANKS_PER_NODE={said[2]} " in err

    def test_refuse_mig_slices(self, bash):
        slices = {"CUDA_VISIBLE_DEVICES": "MIG-1c5f,MIG-2d6a"}
        assert_dies(bash("refuse_mig_slices", **slices), "mig-slices", " 4 ", "`jobgen submit single --site SITE`")
        assert bash("world_size=1; refuse_mig_slices", **slices) == (0, "", "")
        assert bash("SLIPWAY_DEVICE=cpu; refuse_mig_slices", **slices) == (0, "", "")
        assert bash("refuse_mig_slices", CUDA_VISIBLE_DEVICES="0,1") == (0, "", "")

    @pytest.mark.parametrize(
        ("given", "slug", "named"),
        [
            ("gpus_per_node=1", "too-few-gpus", [1, 2, 2, 1]),
            ("gpus_per_node=1 BACKEND=single", "too-few-gpus", [1, 2, 2, 1]),
            ("gpus_per_node=4 SLIPWAY_RANKS_PER_NODE=3", "too-few-gpus", [3, 2, 6, 4]),
            ("gpus_per_node=0", "no-gpu", [2]),
            ("gpus_per_node=1 SLIPWAY_DEVICE=cpu", "no-gpu", [1, 2]),
        ],
    )
    def test_check_gpu_count_names_the_numbers(self, bash, given, slug, named):
        refused = bash(f"SLIPWAY_DEVICES_PER_RANK=2; {given}; plan_ranks; echo no")
        direct = "SLIPWAY_DEVICES_PER_RANK=2 devices_per_rank=2 ranks_per_node=1; check_gpu_count; echo ok"
        assert bash(direct)[1] == "ok\n"
        assert_dies(refused, slug)
        assert (refused[1], numbers(refused[2])) == ("", named)

    SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),6"}

    def test_join_interactively(self, bash, stub):
        stub("scontrol", "printf '%s\\n' n1 n2")
        stub("srun", f"SLURM_GPUS_ON_NODE=3; export SLURM_GPUS_ON_NODE; {SRUN}")
        show = (
            'interactive=1 run_mark=ab; find_allocation; echo "$gpus_per_node ${#on_head_node[@]} ${srun_options[*]}"'
        )
        shown = "--export=ALL --job-name=slipway-step-ab --mem=0 --overlap\n"
        assert bash(show, **self.SLURM)[:2] == (0, f"3 11 {shown}")
        # of the job from inside whose salloc was started
        assert bash(show, SLURM_GPUS_ON_NODE="4", **self.SLURM)[1] == f"3 11 {shown}"
        assert bash(show, SLURM_GPUS_ON_NODE="4", SLURMD_NODENAME="n1", **self.SLURM)[1].startswith("4 0 ")
        code, _, err = bash(f"interactive=; {show}; join_interactively", **self.SLURM, SLURM_JOB_GPUS="0")
        assert (code, slugs(err)) == (0, ["scheduler-silent"])
        stub("srun", f"echo of TaskProlog; echo 9; export SLURM_GPUS_ON_NODE=3; {SRUN}; echo 8")
        assert bash(show, **self.SLURM)[:2] == (0, f"3 11 {shown}")
        for broken in ("exit 1", "echo of TaskProlog", "echo 'slipway-gpus nodes[$(id)]'"):
            stub("srun", broken)
            assert_dies(bash(show, **self.SLURM), "node-not-ready", "n1", lines=2)

    def test_stop_for_signal_and_again_inside_an_interactive_job(self, bash, place):
        for scheduler in ("slurm", "pbs"):
            (place / "run" / "STOP").unlink(missing_ok=True)
            stop = "interactive=1; stop_for_signal; again requeue || echo no"
            code, out, err = bash(stop, scheduler=scheduler)
            assert (code, out, slugs(err)) == (0, "no\n", ["no-requeue"])
            assert (place / "run" / "STOP").read_text() == "user\n"

    def test_find_allocation_of_slurm(self, bash, stub):
        stub("scontrol", "printf '%s\\n' n1 n2")
        show = 'find_allocation; echo "${nodes[@]} $nnodes $head_node $cpus $gpus_per_node $world_size $first_port"'
        assert bash(show, SLURM_GPUS_ON_NODE="4", **self.SLURM)[1] == "n1 n2 2 n1 6 4 8 24711\n"
        assert bash(show, SLURM_JOB_GPUS="0,1,5", **self.SLURM)[1] == "n1 n2 2 n1 6 3 6 24711\n"
        assert bash(f"SLIPWAY_RANKS_PER_NODE=1; {show}", **self.SLURM)[1] == "n1 n2 2 n1 6 0 2 24711\n"
        for broken in ("exit 1", "exit 0"):
            stub("scontrol", broken)
            assert_dies(bash("find_allocation", **self.SLURM), "no-nodes", "scontrol", "n[1-2]", lines=2)
        # once: a job from inside one was refused, too
        stub("scontrol", "printf '%s\\n' n1 n2")
        for number, refused in (("4711", True), ("4700", False)):
            env = {"SLURM_HET_SIZE": "3", "SLURM_JOB_ID_HET_GROUP_0": number, "SLURM_GPUS_ON_NODE": "4"}
            found = bash("find_allocation", **env, **self.SLURM)
            assert slugs(found[2]) == ["scheduler-silent", *["heterogeneous-job"] * refused]
            assert found[0] == 78 * refused

    @pytest.mark.parametrize(
        ("record", "gpus", "option"),
        [
            ("Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1)", 2, "--gres=gpu:2"),
            ("TRES=cpu=16,node=2,gres/gpu=4", 2, "--gres=gpu:2"),
            ("TresPerTask=gres:gpu:1", 2, "--gres=gpu:2"),
            ("Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=shard:2(0/8)", 2, ""),  # no whole one
            ("Partition=gpu Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=", 0, ""),  # they are another job's
            ("", 2, ""),  # nobody answers
        ],
    )
    def test_gpus_are_those_of_the_job(self, bash, stub, record, gpus, option):
        stub("scontrol", "printf '%s\\n' n1 n2")
        show = "SLIPWAY_RANKS_PER_NODE=1; find_allocation; forget_other_jobs; find_gpu_options; "
        show += 'echo "$gpus_per_node ${gpu_options[*]}"'
        env = {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1", "slurm_record": record and f"JobId=4711 {record}"}
        assert bash(show, **env, **self.SLURM)[1] == f"{gpus} {option}\n"

    def test_find_allocation_of_pbs(self, bash, stub, place):
        (place / "nodes").write_text("n1\nn1\nn2\n")
        env = {"PBS_JOBID": "4711.head", "PBS_NODEFILE": str(place / "nodes"), "scheduler": "pbs"}
        show = 'find_allocation; echo "${nodes[@]} $nnodes $head_node $cpus $gpus_per_node $world_size $first_port"'
        stub("qstat", "printf '    Resource_List.%s\\n' 'ncpus = 10' 'ngpus = 8' 'walltime = 01:00:00'")
        assert bash(show, **env)[1] == "n1 n2 2 n1 5 4 8 24711\n"
        for broken in ("exit 1", "exit 0", "echo x"):
            stub("qstat", broken)
            assert bash(show, **env)[1] == "n1 n2 2 n1 8 2 4 24711\n", broken

    # once: as many as the directives ask for, though the job was submitted without
    @pytest.mark.parametrize(
        ("record", "gpus"),
        [
            (["exec_host = n1/0+n2/0", "exec_vnode = (n1:ncpus=8)+(n2:ncpus=8)", "Resource_List.ncpus = 16"], 0),
            (["exec_host = n1/0+n2/0", "exec_vnode = (n1:ngpus=4)+(n2:ngpus=4)"], 4),
            (["exec_host = n1/0+n2/0", "Resource_List.nodes = 2:ppn=8"], 0),  # Torque
            (["exec_host = n1/0+n2/0", "Resource_List.nodes = n1:ppn=8:gpus=3:shared+n2:gpus=3"], 3),
            (["exec_host = n1/0+n2/0"], 2),  # of the directives: that says nothing
        ],
    )
    def test_gpus_of_a_job_of_pbs_are_what_its_record_says(self, bash, stub, place, record, gpus):
        (place / "nodes").write_text("n1\nn2\n")
        stub("qstat", f"printf '    %s\\n' {shlex.join([*record, 'Resource_List.walltime = 01:00:00'])}")
        env = {"PBS_JOBID": "4711.head", "PBS_NODEFILE": str(place / "nodes"), "scheduler": "pbs"}
        code, out, err = found = bash('find_allocation; echo "$gpus_per_node"', **env)
        if gpus:
            assert (code, out, err) == (0, f"{gpus}\n", "")
        else:
            assert_dies(found, "no-gpu", "SLIPWAY_RANKS_PER_NODE")

    # once: no word, and PBS killed the job before it had saved
    @pytest.mark.parametrize(("limit", "said"), [("", ["no-time-limit"]), ("x", ["no-time-limit"]), ("3600", [])])
    def test_a_job_of_pbs_without_a_time_limit_that_can_be_read_is_told(self, bash, stub, place, limit, said):
        (place / "nodes").write_text("n1\nn2\n")
        stub("qstat", f"echo '    queue = gpu'; echo '    Resource_List.walltime = {limit}'")
        env = {"PBS_JOBID": "4711.head", "PBS_NODEFILE": str(place / "nodes"), "scheduler": "pbs"}
        code, _, err = bash("find_allocation", **env)
        assert (code, slugs(err)) == (0, said)

    @pytest.mark.parametrize(
        ("lines", "counts"),
        [
            (["Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:1)"], [3]),
            (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:2-3)"], [2, 2]),
            (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)"], [2, 1]),
            (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1g.5gb:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES="], [2, 0]),
            (["NumNodes=2 GRES=gpu:9", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(0/8),craynetwork:1"], [0]),
            (["NodeList=n[1-2]"], []),
        ],
    )
    def test_gpus_of_nodes_of_slurm(self, bash, stub, lines, counts):
        stub("scontrol", "printf '%s\\n' n1 n2")
        record = "\n   ".join(["JobId=4711 JobName=ddp", *lines])
        assert [*map(int, bash("gpus_of_nodes", slurm_record=record)[1].split())] == counts
        found = bash("SLIPWAY_RANKS_PER_NODE=2; find_allocation; echo yes", slurm_record=record, **self.SLURM)
        if len({*counts}) < 2:
            assert found[1] == "yes\n"
        else:
            assert_dies(found, "uneven-gpus")
            assert numbers(found[2]) == counts

    # once: at a site whose Slurm knows of no GPUs the job lost the choice of them
    @pytest.mark.parametrize("device", ["auto", "cpu"])
    def test_gpus_that_somebody_has_chosen_stay(self, bash, device):
        chosen = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": ""}
        show = 'forget_other_jobs; echo "$CUDA_VISIBLE_DEVICES ${SLURM_JOB_GPUS-}"'
        record = {"SLURM_JOB_GPUS": "0", "slurm_record": "JobId=4711 Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES="}
        code, out, err = bash(f"SLIPWAY_DEVICE={device}; {show}", **chosen, **record)
        assert (code, out, slugs(err)) == (0, "2,3 \n", ["kept-variable"] * (device != "cpu"))
        given = {"slurm_record": "JobId=4711 Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:1(IDX:0)"}
        assert bash(f"SLIPWAY_DEVICE={device}; {show}", **chosen, **{**record, **given}) == (0, "2,3 0\n", "")

    OPENPBS = "    exec_host = {}\n    exec_vnode = {}\n    Resource_List.ngpus = 4"

    @pytest.mark.parametrize(
        ("said", "counts"),
        [
            (OPENPBS.format("n1/0*8+n2/0*8", "(n1:ncpus=8:ngpus=3:mem=9kb)+(n2:ncpus=8:ngpus=1)"), [1, 3]),
            (OPENPBS.format("n1/0+n1/1+n2/0", "(n1:ngpus=1)+(n1:ngpus=1)+(n2:ngpus=2)"), [2, 2]),  # two chunks a host
            (OPENPBS.format("n1/0+n2/0", "(n1[0]:ngpus=1+n1[1]:ngpus=1)+(n2[0]:ngpus=2)"), [2, 2]),  # vnodes
            (OPENPBS.format("n1/0+n2/0", "(n1:ncpus=8:ngpus=4)+(n2:ncpus=8)"), [0, 4]),
            (OPENPBS.format("n1/0+n2/0", "(n1:ngpus=4)"), []),  # nobody knows whose that is
            ("    exec_host = n1/0-3+n2/0-3\n    exec_gpus = n1-gpu/1+n1-gpu/0+n2-gpu/0", [1, 2]),  # Torque
            ("    exec_host = n1/0+n2/0\n    exec_gpus = n2-gpu/0", [0, 1]),
            ("    exec_host = n1/0+n2/0", []),
        ],
    )
    def test_gpus_of_nodes_of_pbs(self, bash, stub, place, said, counts):
        assert sorted(map(int, bash('gpus_of_nodes <<<"$1"', said, scheduler="pbs")[1].split())) == counts
        (place / "nodes").write_text("n1\nn2\n")
        stub("qstat", f"echo {shlex.quote(said)}")
        found = bash("find_allocation; echo yes", scheduler="pbs", PBS_JOBID="4711", PBS_NODEFILE=str(place / "nodes"))
        if len({*counts}) < 2:
            assert found[1] == "yes\n"
        else:
            assert_dies(found, "uneven-gpus")
            assert sorted(numbers(found[2])) == counts

    @pytest.mark.parametrize(
        ("nodes", "expected"),
        [("2:ppn=8:gpus=2", "2"), ("n1:gpus=1:ppn=4+n2:gpus=1", "1"), ("2:ppn=8", "0"), ("", "")],
    )
    def test_gpus_asked_for(self, bash, nodes, expected):
        line = f"    Resource_List.nodes = {nodes}" if nodes else "    Resource_List.ncpus = 8"
        assert bash('gpus_asked_for <<<"$1"', line, scheduler="pbs")[1].strip() == expected

    def test_no_master(self, bash):
        assert_dies(bash("no_master why"), "no-master-address", "why")
        code, out, err = bash("restarts=1; no_master why || echo on")
        assert (code, out) == (0, "on\n")
        assert_error(err, "no-master-address", "why")

    def test_number_of_nodes(self, bash):
        for count, found in (("3", 3), ("", 1), ("a[$(touch executed)]", 1)):
            assert bash("number_of_nodes", SLURM_JOB_NUM_NODES=count)[1] == f"{found}\n"

    def test_refuse_lost_task(self, bash, place):
        """A requeued job that Slurm does not show may be the task of an array that has begun a run."""
        call = "run_dir=$PWD/runs/ddp-4711; refuse_lost_task"
        task = {"SLURM_RESTART_COUNT": "1", "SLURM_ARRAY_JOB_ID": "90", "SLURM_ARRAY_TASK_ID": "3"}
        assert bash(call, **task) == (0, "", "")
        begun = place / "runs" / "ddp-90_3" / "job.sh"
        begun.parent.mkdir(parents=True)
        begun.touch()
        assert_dies(bash(call, **task), "scheduler-silent", begun)
        assert bash(call, **{**task, "SLURM_RESTART_COUNT": ""}) == (0, "", "")

    def test_level_gpus(self, bash):
        show = 'echo "$gpus_per_node"'
        assert bash(f"level_gpus; level_gpus 2; level_gpus 2 2 2; {show}") == (0, "2\n", "")
        assert_dies(bash("level_gpus 2 2 1"), "uneven-gpus", "2", "1", "SLIPWAY_RANKS_PER_NODE")
        assert_dies(bash("SLIPWAY_DEVICE=cpu; level_gpus 2 0"), "uneven-gpus")  # their number is that of GPUs
        # once: refused, though the ranks of a node need no more than the smallest number
        for ranks, each, device, counts in (
            (1, "", "cuda", (2, 1)),
            (4, "2", "cpu", (0, 2)),
            (1, "2", "auto", (3, 2, 4)),
            (2, "", "cuda", (2, 1)),
            (1, "2", "cuda", (2, 1)),
            (1, "", "auto", (2, 0)),
        ):
            words = f"SLIPWAY_RANKS_PER_NODE={ranks} SLIPWAY_DEVICES_PER_RANK={each} SLIPWAY_DEVICE={device}"
            done = bash(f"{words}; level_gpus {' '.join(map(str, counts))}; {show}")
            if device == "cpu" or ranks * int(each or 1) <= min(counts):
                assert done[:2] == (0, f"{min(counts)}\n")
                assert slugs(done[2]) == ["idle-gpus"]
            else:
                assert_dies(done, "uneven-gpus")
        assert bash(f"BACKEND=single; level_gpus 2 1; {show}")[1] == "1\n"

    # a step is refused where it asks a node for more GPUs than that has
    @pytest.mark.parametrize(
        ("device", "least", "options"), [("cuda", "gpu:1(IDX:0)", "--gres=gpu:1"), ("cpu", "", "--gres=none")]
    )
    def test_steps_ask_for_no_more_gpus_than_the_smallest_node_has(self, bash, stub, device, least, options):
        stub("scontrol", "printf '%s\\n' n1 n2")
        lines = ["JobId=4711", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", f"Nodes=n2 CPU_IDs=0 Mem=0 GRES={least}"]
        record = "\n   ".join(lines)
        run = f'SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICE={device}; find_allocation; echo "${{gpu_options[@]}}"'
        assert bash(run, slurm_record=record, **self.SLURM)[:2] == (0, f"{options}\n")

    def test_find_allocation_of_this_machine(self, bash):
        show = 'find_allocation; echo "${nodes[@]} $nnodes $gpus_per_node $cpus"; ((first_port < 30000))'
        assert bash(show, scheduler="local") == (0, f"127.0.0.1 1 1 {len(os.sched_getaffinity(0))}\n", "")

    @pytest.mark.parametrize(
        ("settings", "counted", "plan"),
        [
            ("", "0 no GPU", "0 2 2 1"),
            ("", "1 torch", "1 1 1 1"),
            ("", "8 torch", "8 8 8 1"),
            ("SLIPWAY_DEVICE=cpu", "8 torch", "0 2 2 1"),
            ("SLIPWAY_DEVICE=cuda", "8 torch", "8 8 8 1"),
            ("SLIPWAY_DEVICE=cuda", "0 no GPU", ""),
            ("SLIPWAY_RANKS_PER_NODE=3", "8 torch", "3 3 3 1"),
            ("SLIPWAY_RANKS_PER_NODE=3", "0 no GPU", "0 3 3 1"),
            ("SLIPWAY_RANKS_PER_NODE=3", "2 torch", ""),
            ("SLIPWAY_DEVICES_PER_RANK=3", "8 torch", "6 2 2 3"),
            ("SLIPWAY_DEVICES_PER_RANK=3", "2 torch", ""),
            ("SLIPWAY_DEVICES_PER_RANK=3", "0 no GPU", "0 2 2 3"),
            ("SLIPWAY_RANKS_PER_NODE=4 SLIPWAY_DEVICES_PER_RANK=3", "8 torch", ""),
            ("BACKEND=single", "8 torch", "1 1 1 1"),
            ("BACKEND=single SLIPWAY_DEVICES_PER_RANK=2", "8 torch", "2 1 1 2"),
            ("BACKEND=single", "0 no GPU", "0 1 1 1"),
            ("", "0 no\nGPU", "0 2 2 1"),  # in one line
            ("", "x torch", ""),
            ("", "nodes[$(id)] torch", ""),
            ("", "2", ""),
        ],
    )
    def test_count_ranks_of_this_machine(self, bash, stub, settings, counted, plan):
        words = shlex.join(counted.split(" ", 1))
        stub("python3", ANSWER + f'echo an image says hello; answer "$2" {words}; echo 7')
        show = f"nnodes=1 USE_CONTAINER=0 SLIPWAY_DEVICE=auto {settings}; count_ranks; "
        show += 'echo "$gpus_per_node $ranks_per_node $world_size $devices_per_rank"'
        code, out, err = bash(show, scheduler="local", PYTHONPATH="/somewhere")
        said = [line for line in out.splitlines() if line not in {"an image says hello", "7"}]
        assert (code, said) == ((0, [plan]) if plan else (78, [])), err
        assert len(err.splitlines()) == 1

    def test_count_gpus_of_this_machine_that_fails(self, bash, stub):
        stub("python3", ANSWER + 'answer "$2" 2 torch; echo why >&2; exit 78')
        counted = bash("USE_CONTAINER=0; count_gpus", scheduler="local")
        assert_dies(counted, "broken-gpu", "SLIPWAY_DEVICE=cpu", lines=2)

    def test_isolate_python(self, bash):
        show = 'isolate_python; echo "${PYTHONPATH-}/${PYTHONHOME-}/${PYTHONSTARTUP-}/$PYTHONNOUSERSITE"'
        env = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"), "x")
        assert bash(f"USE_CONTAINER=1; {show}", **env)[1] == "///1\n"
        assert bash(f"USE_CONTAINER=0 SLIPWAY_VENV=modules; {show}", **env)[1] == "x///1\n"

    def test_share_of_node_job_field_and_to_seconds_of_pbs(self, bash):
        asked = "    Resource_List.ncpus = 10\n    Resource_List.ngpus = 0\n    other = 3"
        share = 'for name in ncpus ngpus gone; do share_of_node "Resource_List.$name" 7 <<<"$1"; done'
        assert bash(share, asked, scheduler="pbs")[1] == "5\n0\n7\n"
        assert bash('job_field other <<<"$1"', asked, scheduler="pbs")[1] == "3\n"
        said = [
            "01:00:10",
            "00:08:09",
            "100:00:00",
            "3600",
            "1:2",
            "1:00:00:08",
            "",
            "abc",
            "1:",
            "-1",
            "a[$(id)]:00:00",
        ]
        out = bash('for t; do echo "$(to_seconds "$t")"; done', *said, scheduler="pbs")
        assert out[1].split("\n")[:-1] == ["3610", "489", "360000", "3600", "62", "86408", *[""] * 5]

    def test_ask_for_job_of_a_server_that_hangs(self, bash, stub, tmp_path):
        stub("qstat", "exec sleep 600")
        copy = tmp_path / "lib"
        shutil.copytree(LIB, copy)
        text = (copy / "pbs.bash").read_text()
        (copy / "pbs.bash").write_text(text.replace("ANSWER_SECONDS=20", "ANSWER_SECONDS=1"))
        assert bash("ask_for_job || echo $?", scheduler="pbs", lib=copy, PBS_JOBID="1")[1] == "124\n"

    def test_plan_save_and_time_is_nearly_up(self, bash, stub):
        nearly = "save_seconds=120; time_is_nearly_up && echo yes || echo no"
        for said, expected in (("00:02:10", "yes"), ("01:00:00", "no"), ("", "no"), ("unlimited", "no")):
            stub("qstat", f"echo '    Resource_List.walltime = {said}'")
            assert bash(nearly, scheduler="pbs", PBS_JOBID="1")[1] == f"{expected}\n", said
        stub("qstat", "exit 1")
        assert bash(nearly, scheduler="pbs", PBS_JOBID="1")[1] == "no\n"

    # once: inside qsub -I a script took the job's whole time for its own, and PBS killed it without a save
    @pytest.mark.parametrize("name", ["resources_used.walltime", "stime", "start_time"])
    def test_time_left(self, bash, stub, place, name):
        (place / "nodes").write_text("n1\nn2\n")
        said = "00:50:00" if name.startswith("resources") else time.ctime(time.time() - 3000)
        record = f"    Resource_List.walltime = 01:00:00\n    {name} = {said}"
        stub("qstat", f"echo {shlex.quote(record)}")
        env = {"scheduler": "pbs", "PBS_JOBID": "4711", "PBS_NODEFILE": str(place / "nodes")}
        planned = 'time_left <<<"$job_record"; echo $((save_at - SECONDS))'
        for code in ("find_allocation", "SECONDS=3000; find_allocation; time_is_nearly_up || :"):
            left, save = map(int, bash(f"interactive=1; {code}; {planned}", **env)[1].split())
            assert (550 < left <= 600, 550 - 140 < save <= 600 - 140) == (True, True)
        assert_dies(bash("interactive=1 save_seconds=600; find_allocation", **env), "time-too-short", "600")
        # a batch job begins with its script, whatever the server says of an earlier run of it
        assert 3550 < int(bash('find_allocation; time_left <<<"$job_record"', **env)[1]) <= 3600

    def test_time_left_of_an_answer_that_says_little(self, bash):
        limit = "    Resource_List.walltime = 01:00:00\n    stime = x"
        for said, left in ((limit, "3600\n"), ("    resources_used.walltime = 00:50:00", "")):
            assert bash('SECONDS=0 interactive=1; time_left <<<"$1"', said, scheduler="pbs")[1] == left
        assert bash("seconds_since x; seconds_since ''; seconds_since 'Fri Nov 99 15:43:09 2026'", scheduler="pbs") == (
            0, "", ""
        )  # fmt: skip

    # once: every 20 s, 180 times an hour
    @pytest.mark.parametrize(
        ("moment", "ended"),
        [
            ((3600, 100, ""), "no 0 100"),  # until the next question
            ((3600, 200, "01:00:00"), "no 1 200"),
            ((300, 100, ""), "no 0 60"),  # until the time is up
            ((300, 160, "00:05:00"), "yes 1 1"),
            ((300, 160, "00:10:00"), "no 1 200"),  # an administrator has given it more
            ((300, 160, ""), "yes 1 1"),  # the server is silent: its last word holds
            ((3600, 210, "00:05:40"), "yes 1 1"),  # an administrator has taken some away
            (("", 100, ""), "no 0 100"),
            (("", 200, "00:05:00"), "yes 1 1"),
        ],
    )
    def test_the_server_is_asked_every_200_s_and_at_the_end(self, bash, stub, moment, ended):
        limit, now, said = moment
        stub("qstat", f"echo >>asked; echo '    Resource_List.walltime = {said}'")
        code = f"SECONDS=0; plan_save '{limit}'; SECONDS={now}; time_is_nearly_up && up=yes || up=no; "
        code += 'touch asked; echo "$up $(wc -l <asked) $pause"'
        assert bash(code, scheduler="pbs", PBS_JOBID="1")[1] == f"{ended}\n"

    def test_watch_time_limit(self, bash, stub):
        assert bash("watch_time_limit") == bash("watch_time_limit", scheduler="local") == (0, "", "")
        stub("qstat", "echo '    Resource_List.walltime = 00:02:10'")
        wait = "trap 'echo warned; exit' USR1; watch_time_limit; while :; do sleep 0.05; done"
        assert bash(wait, scheduler="pbs", PBS_JOBID="1")[1] == "warned\n"
        stub("qstat", "echo '    Resource_List.walltime = 09:00:00'")
        began = time.monotonic()
        assert bash("watch_time_limit; sleep 0.3", scheduler="pbs", PBS_JOBID="1")[0] == 0
        assert time.monotonic() - began < 300  # it ends with the script

    def test_read_arguments(self, bash):
        read = 'SLIPWAY_ARGS=$1; read_arguments; printf "<%s>" "${#arguments[@]}" "${arguments[@]}"'
        assert bash(read, "--a 'b  c' *", scheduler="pbs")[1] == "<3><--a><b  c><*>"
        assert bash(read, "", scheduler="pbs")[1] == "<0>"
        assert bash(read, "it's", scheduler="pbs")[0] == 78


class TestEachNode:
    def test_srun_each_node(self, bash, stub):
        stub("srun", 'printf "%s\\n" "$@"')
        out = bash("(srun_each_node 5 echo 'a b')")[1].splitlines()
        assert out == [
            "--nodes=2",
            "--ntasks=2",
            "--ntasks-per-node=1",
            "--cpus-per-task=8",
            "--export=ALL",
            "echo",
            "a b",
        ]

    def test_on_each_node(self, bash, stub):
        for broken, expected in (("exit 3", 3), ("exec sleep 600", 124), ("exit 0", 0)):
            stub("srun", broken)
            began = time.monotonic()
            assert bash("on_each_node 1 true && echo 0 || echo $?")[1] == f"{expected}\n"
            assert time.monotonic() - began < 300

    def test_on_each_node_lets_a_trap_run(self, bash, stub):
        stub("srun", "sleep 0.1; kill -TERM $STUB_PID; exec sleep 600")  # timeout passes none on while it forks
        began = time.monotonic()
        ended = bash("export STUB_PID=$$; catch_signals; on_each_node 600 true; echo no")
        assert_dies(ended, "stopped-early", code=75)
        assert ended[1] == ""
        assert time.monotonic() - began < 300

    # once: nothing ended a step that a signal came right behind, and the node worked on until the step's time limit
    @pytest.mark.parametrize("call", ["on_each_node 600 true", "output_of 600 srun"])
    def test_a_signal_before_the_wait_ends_the_step_too(self, bash, stub, call):
        stub("srun", "exec sleep 600")
        began = time.monotonic()
        early = """trap '[[ $BASH_COMMAND != wait_limited* ]] || { sleep 0.2; kill -TERM $$; }' DEBUG"""
        ended = bash(f"set -o functrace; catch_signals; {early}; {call}; echo no")
        assert_dies(ended, "stopped-early", code=75)
        assert ended[1] == ""
        assert time.monotonic() - began < 300

    def test_a_signal_while_ssh_starts_steps_ends_those_and_starts_no_more(self, bash, stub, tmp_path):
        stub("ssh", f"echo $1 >>'{tmp_path}/nodes'; exec sleep 600")
        began = time.monotonic()
        early = """trap '[[ $BASH_COMMAND != started+=* ]] || { sleep 0.2; kill -TERM $BASHPID; }' DEBUG"""
        bash(f"set -o functrace; nodes=(n1 n2 n3); {early}; ssh_each_node 600 true")
        assert (tmp_path / "nodes").read_text() == "n1\n"
        assert time.monotonic() - began < 300

    def test_output_of_run_limited_and_wait_limited(self, bash, place):
        assert bash("run_limited 5 sh -c 'echo said; exit 4' || echo $?") == (0, "said\n4\n", "")
        assert bash('output_of 5 echo "a  b"; echo "$output"') == (0, "a  b\n", "")
        assert bash('output_of 5 bash -c "echo part; exit 3" || echo "$? $output"')[1] == "3 part\n"
        short = "SLIPWAY_PREFLIGHT_SECONDS=1"
        assert bash(f'{short}; output_of 1 sleep 20 || echo "$?<$output>"')[1] == "124<>\n"
        kill = "attempt=1 SLIPWAY_MAX_RESTARTS=1; output_of 5 sh -c 'echo part; kill -KILL $$'"
        code, out, err = bash(f'{kill} || echo "$? $output"; repeat_killed_step || echo no')
        assert (code, out) == (0, "137 part\nno\n")
        assert (slugs(err), numbers(messages(err)[0].text)) == (["step-repeated"], [1])
        # once: the head node's server, a step where srun starts it, stayed ended, and the preflight found nobody
        ended = "end_old_steps() { echo ended; }; find_master() { echo found; }; attempt=1 code=137 step_timed_out=''; "
        for server, out in (("head_is_tried=1 server=7", "ended\nfound\n"), ("head_is_tried=1", "ended\n"),
                            ("server=7", "ended\n")):  # fmt: skip
            assert bash(f"{ended}{server}; repeat_killed_step")[:2] == (0, out)
        assert bash('sh -c "exit 4" & wait_limited $! || echo "$? <$step_may_run>"')[1] == "4 <>\n"
        # inside salloc the terminal is no input of a step
        assert bash('echo typed | { output_of 5 cat; echo "<$output>"; }') == (0, "<>\n", "")
        assert list((place / "disk").iterdir()) == []

    # once: a pipe was read when the command had ended, until nothing held it open
    def test_output_of_a_program_that_prints_much_or_leaves_a_process(self, bash):
        much = "output_of 5 head --bytes=200000 /dev/zero; output_of 5 sh -c 'yes | head -n 100000'; "
        assert bash(much + "echo ${#output}", limit=20)[:2] == (0, "65535\n")
        began = time.monotonic()
        leaves = "output_of 5 sh -c 'sleep 15 & echo $! said'; kill ${output% *}; echo ${output#* }"
        assert bash(leaves)[:2] == (0, "said\n")
        assert time.monotonic() - began < 10

    def test_answer_of(self, bash, stub, place):
        show = """ && printf '<%s>' "${#answer[@]}" "${answer[@]}" || echo "$?$step_failure" """
        stub(
            "python3",
            ANSWER + 'head --bytes=200000 /dev/zero; answer "$2" "${@:3}"; sleep 15 2>/dev/null & echo $! >pid; echo 7',
        )
        began = time.monotonic()
        words = """answer_of 5 x.py 'a  b' '' $'c\nd' end >out"""
        assert bash(words + show)[1] == "<4><a  b><><c\nd><end>"
        assert bash('kill $(cat pid); ls "$log_dir"')[1] == ""
        assert time.monotonic() - began < 10
        cut = "answer_of 5 x.py a end b"
        for left in ("", "5\\0a\\0end\\0", "5\\0a\\0end\\0b\\0en", "nodes[$(id)]\\0end\\0", "end\\0", "\\0"):
            stub("python3", f"printf '{left}' >\"$2\"")
            code, out, err = bash(cut + show)
            assert (code, out[:7], err) == (0, "1: x.py", ""), left
            assert bash(f"printf '{left}' >left; read_answer left || echo no")[1] == "no\n"
        stub("python3", "echo why >&2; exit 3")
        assert bash(cut + show) == (0, "3: see above\n", "why\n")

    def test_start_server_and_end_server(self, bash, stub):
        stub("python3", ANSWER + 'answer "$2" "${@:3}"; echo; exec sleep 600 >/dev/null 2>&1')
        ends = 'wait $pid 2>/dev/null || echo $?; ls "$log_dir"'
        code = """start_server 5 x.py 'a b' end >/dev/null; printf '<%s>' "${answer[@]}"; pid=$server; end_server; """
        assert bash(code + ends) == (0, "<a b><end>137\n", "")
        stub("python3", "echo 5; exit 3")
        assert bash('start_server 5 x.py || echo "$step_failure"; end_server')[1] == "5\n: see above\n"

    def test_hold_signals_and_release_signals(self, bash):
        code = "trap 'echo usr1' USR1; trap 'echo \"hup '\\''\"' HUP; trap '' INT; trap - TERM; hold_signals; "
        code += "kill -HUP $$; kill -INT $$; kill -TERM $$; kill -USR1 $$; echo held; release_signals; echo lives"
        assert bash(code)[:2] == (-signal.SIGTERM, "held\nhup '\n")
        assert bash(code.replace("kill -TERM $$; ", ""))[:2] == (0, "held\nhup '\nusr1\nlives\n")

    @pytest.mark.parametrize(
        ("container", "slug"),
        [
            ("", None),
            ('echo banner; exec "$@"', None),
            ('"$@"', None),
            ("set -e; echo bye", "bad-entry-point"),
            ('"$@"; echo bye', "bad-entry-point"),
            ('"$@" || exit 0', "bad-entry-point"),
            ("exit 255", None),  # for the next step, which says what it was to do
        ],
    )
    def test_check_entry_point(self, bash, stub, container, slug):
        stub("run", container)
        words = "container=(run)" if container else "container=()"
        ended = bash(f"entry_point_is_checked=''; {words}; check_entry_point >/dev/null; check_entry_point; echo on")
        if slug:
            assert_dies(ended, slug, "i.sif")
        else:
            assert (ended[0], ended[1]) == (0, "on\n")

    @pytest.mark.parametrize("launcher", ["srun", pytest.param("mpirun", marks=pytest.mark.slow), "ssh", "local"])
    def test_step_on_each_node_and_explain_failure(self, bash, stub, launcher):
        stub("srun", SRUN)
        stub("ssh", "exec bash")
        stub("mpirun", 'while [[ $1 == -* ]]; do shift 2; done; exec "$@"')
        scheduler = "local" if launcher == "local" else "slurm"
        show = '|| echo "$?$step_failure"'
        start = f"launcher={launcher} SLIPWAY_PREFLIGHT_SECONDS=1"
        failed = bash(f"{start}; step_on_each_node 0 sh -c 'exit 3' {show}", scheduler=scheduler)[1]
        assert (numbers(failed), "SLIPWAY_" in failed) == ([3], False)
        # 137: of mpirun, which is started with SIGTERM blocked
        late = bash(f"{start}; step_on_each_node 0 sleep 20 {show}", scheduler=scheduler)[1]
        assert numbers(late) == [137 if launcher == "mpirun" else 124, 1]
        assert "SLIPWAY_PREFLIGHT_SECONDS" in late
        assert bash(f"{start}; step_on_each_node 2 sleep 1.2 {show}", scheduler=scheduler)[:2] == (0, "")
        assert "SLIPWAY_" not in bash(f"{start}; SECONDS=7; explain_failure 137 3600 6; echo $step_failure")[1]

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ("make_scratch", (5, "cannot-write")),
            ("SLIPWAY_STAGE=1; stage_to_local_disk", (3600, "staging-failed")),
            ("SLIPWAY_STAGE=1 SLIPWAY_PREFLIGHT_SECONDS=7200; stage_to_local_disk", (7200, "staging-failed")),
            (
                "mkdir build; ln -s /bin/true build/setup; USE_CONTAINER=0 SLIPWAY_VENV=local; build_local_venv",
                (3600, "build-failed"),
            ),
            ("program=(-m trainer c.toml); preflight", (5, "node-not-ready")),
            ("choose_port 24711", (60, "no-free-port")),
            ("check_mpi mpirun --version", (60, "no-mpi")),
            ("SLIPWAY_PREFLIGHT_SECONDS=300; choose_port 24711", (300, "no-free-port")),
            ("check_client", (120, "no-environment")),
        ],
    )
    def test_a_step_that_takes_too_long_names_the_setting(self, bash, stub, place, call, expected):
        limit, slug = expected
        stub("timeout", 'echo "$2" >>limit; exit 124')
        (place / "i.sif").touch()
        (place / "venv" / "bin").mkdir(parents=True)
        (place / "venv" / "bin" / "python").symlink_to("/bin/true")
        # the clock of a step whose time is up
        clock = "scratch_id=1; wait_limited() { wait $1 || SECONDS=$((SECONDS + 7200)); return 124; }"
        scheduler = "dask" if call == "check_client" else "slurm"
        code, _, err = bash(f"{clock}; {call}", scheduler=scheduler)
        assert (code, (place / "limit").read_text().split()[0]) == (1 if "choose_port" in call else 78, str(limit)), err
        assert_error(err, slug, f" {limit} ", "SLIPWAY_PREFLIGHT_SECONDS")

    # once: a signal was heeded only when `$(timeout 60 mpirun --version)` had returned
    def test_output_of_lets_a_trap_run(self, bash):
        began = time.monotonic()
        ended = bash("export PID=$$; catch_signals; check_mpi sh -c 'sleep 0.1; kill -TERM $PID; exec sleep 600'")
        assert_dies(ended, "stopped-early", code=75)
        assert ended[1] == ""
        assert time.monotonic() - began < 300

    def test_local_each_node(self, bash):
        assert (
            bash("(local_each_node 5 echo hi); (local_each_node 1 sleep 9) || echo $?", scheduler="local")[1]
            == "hi\n124\n"
        )

    def test_use_mpirun_and_mpirun_each_node(self, bash, stub):
        stub("mpirun", 'printf "%s\\n" "$@"')
        code, out, err = bash("(mpirun_each_node 5 echo hi)", MINE="x", SLURM_X="y")
        assert (code, out.splitlines()[-4:]) == (0, ["--map-by", "ppr:1:node:OVERSUBSCRIBE", "echo", "hi"]), err
        assert "MINE" in out.splitlines()
        assert "SLURM_X" not in out
        gpus = "; (use_mpirun; echo ${SLURM_GPUS_PER_NODE:-none})"
        assert bash("gpu_options=(--gres=gpu:2)" + gpus)[1] == "2\n"
        assert bash("gpu_options=()" + gpus)[1] == "none\n"
        assert_dies(bash("PATH=/nowhere; use_mpirun --hostfile f"), "no-mpi", "mpirun")

    # once: HOSTNAME and TMPDIR of the first node went to all
    @pytest.mark.parametrize(("scratch", "forwarded"), [("/local/x", True), ("/local/y", False)])
    def test_keep_to_this_node(self, bash, stub, scratch, forwarded):
        env = {"HOSTNAME": "n1", "TMPDIR": "/local/x", "MINE": "1"}
        stub("mpirun", 'printf "%s\\n" "$@"; env')
        words, _, inherited = bash(f"scratch={scratch}; mpirun_each_node 5 true", **env)[1].partition("\ntrue\n")
        assert [name in words.splitlines() for name in env] == [False, forwarded, True]
        assert [f"{name}={value}" in inherited.splitlines() for name, value in env.items()] == [True] * 3
        kept = bash(f"scratch={scratch}; (keep_to_this_node; env)", **env)[1].splitlines()
        assert [f"{name}={value}" in kept for name, value in env.items()] == [False, forwarded, True]
        script = bash(f"scratch={scratch}; remote_script 0 true", **env)[1]
        assert [f"declare -x {name}=" in script for name in env] == [False, forwarded, True]

    @pytest.mark.parametrize("call", ["use_mpirun", "check_mpi mpirun --version", "refuse_root"])
    @pytest.mark.parametrize(
        ("options", "env", "refused"),
        [
            ("", {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": ""}, True),
            ("", {"OMPI_ALLOW_RUN_AS_ROOT": "yes"}, True),
            ("", {}, False),
            ("--allow-run-as-root", {"OMPI_ALLOW_RUN_AS_ROOT": ""}, False),
        ],
    )
    def test_refuse_root(self, bash, stub, call, options, env, refused):  # noqa: PLR0917 -- fixtures
        stub("mpirun", "echo Open MPI 4")
        done = bash(f"mpirun_options=({options}); {call}", **env)
        if refused and os.geteuid() == 0:
            assert_dies(done, "mpi-as-root", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
        else:
            assert done[0] == 0, done

    @pytest.mark.parametrize(("said", "refused"), LAUNCHERS_SAY)
    def test_note_refusal_and_leave_cause(self, bash, said, refused):
        show = "note_refusal; cat run/logs/2/cause 2>/dev/null || echo none"
        cause = bash(f"printf '%s\\n' \"$1\" >run/logs/2/stderr.log; {show}", said)[1]
        assert cause.startswith("78 launch-refused: ") if refused else cause == "none\n"
        assert cause.isprintable() or cause[:-1].isprintable()
        assert bash(f"leave_cause stopped-early x; {show}")[1] == "75 stopped-early: x\n"

    def test_ssh_each_node_and_remote_script(self, bash, stub, place):
        stub("ssh", '[ "$1" != n9 ] || exit 255; exec env -i PATH=/usr/bin:/bin SSH_CLIENT=x "$2"')
        show = "(ssh_each_node 5 bash -c 'echo \"$NODE_RANK $MINE $PWD ${SSH_CLIENT-none} $*\"' - 'a b' \"it's\")"
        code, out, _ = bash(show, MINE="x\ny'z")
        assert code == 0
        lines = ["0 x", "1 x", *[f"y'z {place} none a b it's"] * 2]
        assert sorted(out.splitlines()) == lines
        assert bash("(ssh_each_node 5 bash -c 'exit $((NODE_RANK * 7))') || echo $?")[1] == "7\n"
        assert bash("nodes=(n1 n9); (ssh_each_node 5 true) || echo $?")[1] == "255\n"
        assert bash("(ssh_each_node 1 sleep 20) || echo $?")[1] == "124\n"
        assert "export NODE_RANK=3" in bash("remote_script 3 true")[1]
        assert bash("(ssh_node 1 5 bash -c 'echo \"$PET_NODE_RANK\"')")[1] == "1\n"

    def test_srun_node_by_node_and_srun_node(self, bash, stub):
        stub("srun", 'echo "$NODE_RANK $PET_NODE_RANK $*"')
        words = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=8 --export=ALL --nodelist={} echo a b"
        lines = [f"0 0 {words.format('n1')}", f"1 1 {words.format('n2')}"]
        assert sorted(bash("(srun_node_by_node echo 'a b')")[1].splitlines()) == lines
        assert bash("(srun_node 1 0 echo 'a b')")[1].splitlines() == lines[1:]
        helper = lines[1].replace("--export", "--cpu-bind=none --gres=none --export")
        assert bash("(srun_node 1 9 echo 'a b')")[1].splitlines() == [helper]
        stub("srun", "exit $((NODE_RANK * 7))")
        assert bash("(srun_node_by_node true) || echo $?")[1] == "7\n"

    def test_for_each_node(self, bash):
        assert sorted(
            bash("at() { echo \"$*\"; }; nodes=(a b c); for_each_node together at 'x  y'")[1].splitlines()
        ) == [
            "0 x  y",
            "1 x  y",
            "2 x  y",
        ]

    @pytest.mark.parametrize("code", ["3", "127", "143"])
    def test_for_each_node_ends_the_others_where_one_fails_and_returns_its_code(self, bash, tmp_path, code):
        at = 'at() { [ "$1" != 2 ] || { sleep 0.5; exit "$2"; }; '
        at += f"trap 'echo $1 >>{tmp_path}/ended; exit 5' TERM; for i in {{1..6000}}; do sleep 0.1; done; }}; "
        began = time.monotonic()
        assert bash(f"{at} nodes=(a b c); (for_each_node together at {code}) || echo $?")[1] == f"{code}\n"
        assert time.monotonic() - began < 300
        assert sorted((tmp_path / "ended").read_text().split()) == ["0", "1"]

    def test_for_each_node_lets_the_others_finish_where_they_work_apart(self, bash, tmp_path):
        at = f'at() {{ [ "$1" != 1 ] || exit 3; sleep 1; echo "$1" >>{tmp_path}/done; }}; nodes=(a b c); '
        assert bash(f"{at} (for_each_node apart at) || echo $?")[1] == "3\n"
        assert sorted((tmp_path / "done").read_text().split()) == ["0", "2"]

    def test_a_step_by_ssh_is_done_where_it_can_be(self, bash, stub, tmp_path):
        slow = '[ "$1" = n1 ] || {{ for i in {{1..{}}}; do sleep 0.1; done; echo "$1" >>{}; exit 0; }}; exit 255'
        stub("ssh", slow.format(10, tmp_path / "done"))
        assert bash("(ssh_each_node 5 true) || echo $?")[1] == "255\n"
        assert (tmp_path / "done").read_text() == "n2\n"
        stub("ssh", slow.format(6000, tmp_path / "done"))
        assert bash("(ssh_each_node 0 true) || echo $?")[1] == "255\n"  # a launch
        assert (tmp_path / "done").read_text() == "n2\n"

    def test_for_each_node_that_is_ended(self, bash, tmp_path):
        at = f"at() {{ trap 'echo $1 >>{tmp_path}/ended; exit 0' TERM; for i in {{1..6000}}; do sleep 0.1; done; }}; "
        began = time.monotonic()
        run = f"{at} for_each_node apart at & sleep 1; kill -TERM $!; wait $! || echo $?"
        assert bash(run)[0] == 0
        assert time.monotonic() - began < 300
        assert sorted((tmp_path / "ended").read_text().split()) == ["0", "1"]

    def test_until_nodes_end_and_end_nodes(self, bash):
        assert bash("sleep 0.1 & a=$!; (exit 4) & until_nodes_end together $a $! || echo $?")[1] == "4\n"
        assert (
            bash("until_nodes_end apart; end_nodes 999999999; sleep 20 & end_nodes $!; wait $! || echo $?")[1]
            == "143\n"
        )


class TestShell:
    """jobscripts/lib/shell.bash."""

    def test_open_output_folder(self, bash, place):
        assert bash("SLIPWAY_OUTPUT=$PWD/new/runs; open_output_folder")[0] == 0
        assert (place / "new" / "runs").is_dir()
        refused = bash("SLIPWAY_OUTPUT=$PWD/disk/x/runs; touch disk/x; open_output_folder")
        assert_dies(refused, "cannot-write", f"{place}/disk/x/runs", "SLIPWAY_OUTPUT", lines=2)

    def test_place_library(self, bash):
        assert bash('scratch=$PWD/disk; place_library; echo "$lib"; ls "$lib/stage.bash"')[0] == 0
        assert bash("scratch=$PWD/none; place_library")[0] == 78

    def test_a_copied_library_has_no_cache_of_python(self, bash):
        words = 'cp -r "$lib" original; lib=$PWD/original; mkdir -p "$lib/__pycache__"; copy_library "$PWD/copy"'
        assert bash(f"{words}; ls copy/stage.bash; ! ls copy/__pycache__")[0] == 0

    def test_run_command(self, bash):
        code, out, err = bash('container=(env A=1); run_command sh -c \'echo "$A $*"; exit 7\' - "b  c" "*"')
        assert (code, out) == (7, "1 b  c *\n")
        assert re.search(r"^x\.job: on \S+, in \S.*/i\.sif, with 2 GPUs and 8 cores\n$", err)
        out = bash("""container=(sh -c 'echo "$PS1 $*"' -); run_command""")[1]
        assert out == r"slipway \h:\w\$  bash --norc" + "\n"

    def test_run_command_of_pyxis_starts_srun_at_a_terminal(self, bash, stub):
        stub("srun", 'printf "%s|" "$@"')
        words = "source $lib/shell.bash; on_head_node=(srun --overlap) container=(--container-image=x); run_command a b"
        assert bash(words)[1] == "--overlap|--container-image=x|a|b|"


class TestRanks:
    def test_set_rank_environment(self, bash):
        code = "scratch=/s data='a b'; set_rank_environment; env"
        out = bash(code, PYTHONPATH="/x", PYTHONSTARTUP="/y")[1].splitlines()
        for line in ("OMP_NUM_THREADS=4", "DATA=a b", "TRAINER_WORLD_SIZE=4", "TRAINER_ATTEMPT=2", "GPUS_PER_NODE=2"):
            assert line in out
        for line in ("TRITON_CACHE_DIR=/s/triton", "TORCHINDUCTOR_CACHE_DIR=/s/inductor", "PYTHONNOUSERSITE=1"):
            assert line in out
        assert [line for line in out if line.startswith(("PYTHONPATH=", "PYTHONSTARTUP="))] == []
        assert {"DEVICES_PER_RANK=1", "CPUS_PER_RANK=4"} <= {*out}
        assert not any(line.startswith("TRAINER_BOUND_GPUS=") for line in out)

    def test_set_environment(self, bash):
        """A shell gets no plan of ranks, by which a torchrun that is started in it would be refused."""
        out = bash("scratch=/s; set_environment; env")[1].splitlines()
        assert {"TRITON_CACHE_DIR=/s/triton", "OMP_NUM_THREADS=4", "DEVICES_PER_RANK=1", "TMPDIR=/s"} <= {*out}
        assert [line for line in out if line.startswith(("TRAINER_", "RUN_DIR="))] == []

    # once: a folder of the submission, or of the first node's prolog, was exported to ranks that do not see it
    @pytest.mark.parametrize("folder", ["/gone", "$PWD/disk", "/a,b:c"])
    def test_temporary_files_go_to_the_folder_that_each_node_has(self, bash, folder):
        code, out, err = bash(f"export TMPDIR={folder}; scratch=/s; set_environment; sh -c 'echo \"$TMPDIR\"'")
        assert (code, out, err.count("\n")) == (0, "/s\n", 1)

    def test_set_rank_environment_where_ranks_are_bound_to_their_gpus(self, bash):
        code = "scratch=/s devices_per_rank=2 bound_backends=(horovod); set_rank_environment; "
        code += 'echo "${TRAINER_BOUND_GPUS-none}"'
        assert bash(code)[1] == "none\n"
        assert bash(f"BACKEND=horovod; {code}")[1] == "2\n"

    def test_choose_rendezvous(self, bash, stub, tmp_path):
        stub("getent", "echo '10.0.0.1 STREAM n1'; echo '10.0.0.1 DGRAM'; echo 10.0.0.2 STREAM")
        stub("python3", HEAD + 'answer "$2" address "$7" "$4"; echo; exec sleep 600 >/dev/null 2>&1')
        show = """choose_rendezvous >/dev/null; end_server; echo "$MASTER_ADDR ${TRAINER_MEETING-none}" """
        assert re.fullmatch(r"10.0.0.1 24711 [0-9a-f]{16}\n", bash(show)[1])
        assert re.fullmatch(r"10.0.0.1 1024 \w+\n", bash(show, MASTER_PORT="1024")[1])
        assert re.fullmatch(r"head-ib0 24711 \w+\n", bash(show, MASTER_ADDR="head-ib0")[1])
        show = f"nnodes=1; {show}"
        assert bash(show)[1] == "10.0.0.1 none\n"
        asked = (tmp_path / "asked").read_text().splitlines()
        assert [re.sub("[0-9a-f]{16}", "T", line) for line in asked] == [
            "T 24711 2000  10.0.0.1 10.0.0.2",
            "T 1024 1  10.0.0.1 10.0.0.2",
            "T 24711 2000 head-ib0 head-ib0",
        ]
        stub("getent", "echo '127.0.1.1 STREAM n1'")
        assert_dies(bash("choose_rendezvous"), "no-master-address", "n1", "127.0.1.1", "MASTER_ADDR")
        assert bash('nnodes=1; choose_rendezvous; echo "$MASTER_ADDR"')[1] == "127.0.1.1\n"
        for broken in ("exit 2", "exit 0"):
            stub("getent", broken)
            assert_dies(bash("choose_rendezvous"), "no-master-address", "n1", "MASTER_ADDR")

    @pytest.mark.parametrize(
        ("said", "slug"),
        [
            ("none '10.0.0.1 is of virbr0'", "no-master-address"),
            ("taken", "no-free-port"),
            ("address 10.0.0.9 24711", "no-master-address"),
            ("address 10.0.0.1 bye", "no-master-address"),
            ("address 10.0.0.1", "no-master-address"),
            ("", "no-master-address"),
        ],
    )
    def test_choose_address_refuses_what_is_no_address(self, bash, stub, said, slug):
        stub("getent", "echo 10.0.0.1 STREAM n1")
        stub("python3", HEAD + f'answer "$2" {said}; echo; exec sleep 600 >/dev/null 2>&1')
        code, _, err = bash("trap end_server EXIT; choose_rendezvous >/dev/null; echo on")
        assert code == 78
        assert_error(err, slug, "n1" if slug != "no-free-port" else "24711", "MASTER_ADDR" if " " in said else "")
        for call in ("export_meeting x y", "choose_address 127.0.0.1 ::1"):
            assert_dies(bash(call), "no-master-address", "n1", "MASTER_ADDR")

    @pytest.mark.parametrize("port", ["abc", "0", "22", "1023", "70000", "a[$(touch executed)]", "-1"])
    def test_a_port_of_the_users_is_checked(self, bash, place, port):
        assert bash("choose_rendezvous", MASTER_ADDR="mine", MASTER_PORT=port)[0] == 78
        assert not (place / "executed").exists()

    def test_choose_port(self, bash, stub):
        stub("python3", ANSWER + 'answer "$2" "$3"')
        assert bash('choose_port 24711; echo "$MASTER_PORT"')[1] == "24711\n"
        assert bash('port_is_given=1; choose_port 24711; echo "$MASTER_PORT"', MASTER_PORT="4")[1] == "4\n"
        stub("python3", ANSWER + 'printf "\n== CUDA ==\n\n4\n"; answer "$2" "$3"; echo 5')  # as published images do
        assert bash('choose_port 24711 >/dev/null; echo "$MASTER_PORT"')[1] == "24711\n"
        stub("python3", "exit 1")
        assert_dies(bash("choose_port 24711"), "no-free-port", "n1", code=1)

    @pytest.mark.parametrize(
        "said", ["bye", "", "0", "65536", "123456", "nodes[$(touch executed)]", "1; touch executed", "5' '6"]
    )
    def test_choose_port_refuses_what_is_no_port(self, said, bash, stub, tmp_path):
        stub("python3", ANSWER + f"answer \"$2\" '{said}'")
        code, out, _ = bash('choose_port 24711 || exit; echo "$((MASTER_PORT + 1))"')
        assert (code, out) == (1, "")
        assert bash('answer=("$1"); answer_is_port || echo no', said)[1] == "no\n"
        assert not [*tmp_path.rglob("executed")]

    def test_open_rendezvous_and_start_horovod_server(self, bash, stub):
        answer = ANSWER + 'answer "$2" 5555; echo; exec sleep 600 >/dev/null 2>&1'
        stub("python3", answer)
        code = "BACKEND=horovod rendezvous=1 master_is_found=1 MASTER_ADDR=10.0.0.1; open_rendezvous >/dev/null"
        code += '; echo "$HOROVOD_GLOO_RENDEZVOUS_PORT"; kill -0 "$server" && end_server; ls "$log_dir"'
        assert bash(code)[:2] == (0, "5555\n")
        start = "MASTER_ADDR=x; start_horovod_server >/dev/null; end_server; "
        code = start + 'echo "$HOROVOD_GLOO_TIMEOUT_SECONDS"'
        assert bash(code)[1] == "600\n"  # Horovod's 30 ended ranks that started later than others
        assert bash(code, HOROVOD_GLOO_TIMEOUT_SECONDS="60")[1] == "60\n"
        # as an image's entry point does; a pipe holds 64 KiB
        stub("python3", "printf '\n== CUDA ==\n4\n'; head --bytes=100000 /dev/zero | tr '\\0' 4; " + answer)
        assert bash(start + 'echo "$HOROVOD_GLOO_RENDEZVOUS_PORT"')[1] == "5555\n"
        for broken in ("exit 1", "echo 5555", ANSWER + 'answer "$2" bye; echo; exec sleep 600 >/dev/null 2>&1'):
            stub("python3", broken)
            ended = bash("MASTER_ADDR=x; start_horovod_server >/dev/null || { end_server; exit 1; }")
            assert_dies(ended, "no-rendezvous", code=1)
        stub("python3", "exec sleep 600 >/dev/null 2>&1")
        silent = "seconds=0; read() { ((++seconds < 200)) && return 142; }; MASTER_ADDR=x; start_horovod_server"
        # 142: as `read -t` ends after a second
        ended = bash(f"trap end_server EXIT; {silent}; echo it waits for ever")
        assert_dies(ended, "no-rendezvous", code=1)
        assert ended[1] == ""
        assert bash("open_rendezvous") == (0, "", "")

    @pytest.mark.parametrize(
        ("given", "count", "named", "address"),
        [
            ("rendezvous=1", 2, "(n1, n2)", "10.0.0.1:4444"),
            ("rendezvous=1 BACKEND=horovod", 2, "(n1, n2)", "10.0.0.1:5555"),
            ("BACKEND=horovod", 2, "(n1, n2)", ""),  # over MPI
            ("nodes=(a1 a2 a3 a4 a5 a6 a7 a8 a9) nnodes=9", 9, "(a1, a2, a3, a4, a5, a6, a7, a8, ...)", ""),
        ],
    )
    def test_note_ranks(self, bash, given, count, named, address):
        meet = "MASTER_ADDR=10.0.0.1 MASTER_PORT=4444 HOROVOD_GLOO_RENDEZVOUS_PORT=5555"
        code, out, err = bash(f"{meet} {given}; note_ranks")
        before, found, after = err.partition(named)
        assert (code, out, err.count("\n"), numbers(before), found) == (0, "", 1, [4, 2, count], named)
        assert re.findall(r"[\d.]+:\d+", after) == ([address] if address else [])

    def test_check_mpi(self, bash):
        assert bash('check_mpi echo "Open MPI 4"; echo "$TRAINER_MPI"')[1] == "Open MPI 4\n"
        refused = bash("check_mpi bash -c 'echo broken; exit 1'")
        assert_dies(refused, "no-mpi", "`jobgen submit horovod-gloo --site SITE`", "bash ", " broken")

    def test_choose_program(self, bash, place):
        show = 'choose_program "$@"; printf "%s\\n" "${program[@]}"'
        mine = "SLIPWAY_SCRIPT=mine.py; choose_program; echo ${PYTHONPATH-none}"
        assert [bash(f"SLIPWAY_ADAPT={adapt} {mine}")[1] for adapt in (0, 1)] == ["none\n", f"{LIB}\n"]
        words = bash(f"data=/d; {show}", "--lr", "a b")[1].splitlines()
        assert words[:3] == ["-m", "trainer", f"{place}/c.toml"]
        assert words[-4:] == ["--data-dir", "/d", "--lr", "a b"]
        assert bash(f"SLIPWAY_SCRIPT='my train.py'; {show}", "x")[1] == "my train.py\nx\n"
        words = bash(f"SLIPWAY_DEVICES_PER_RANK=2 devices_per_rank=2; {show}", "--lr", "1")[1].splitlines()
        assert words[-4:] == ["--devices-per-rank", "2", "--lr", "1"]
        words = bash(f"SLIPWAY_PROFILER=nsys; {show}")[1].splitlines()
        assert words[:3] == [str(LIB / "profile_rank.py"), "-m", "trainer"]
        words = bash(f"SLIPWAY_PROFILER=nsys SLIPWAY_SCRIPT=mine.py; {show}")[1].splitlines()
        assert words == [str(LIB / "profile_rank.py"), "mine.py"]

    def test_choose_numa_binding(self, bash, stub):
        stub("srun", SRUN)
        show = 'choose_numa_binding; echo "${numa_options[@]}"'
        refused = bash(f"numa_binding=node; PATH=${{PATH%%:*}}; {show}")
        assert_dies(refused, "no-numactl", "numa_binding", "numactl", "USE_CONTAINER=0", lines=2)
        for setting in (
            "BACKEND=horovod",
            "SLIPWAY_DEVICE=cpu",
            "SLIPWAY_DEVICE=auto gpus_per_node=0",
            "numa_binding=",
        ):
            assert bash(f"numa_binding=node; {setting}; {show}") == (0, "\n", "")
        stub("numactl", '[ "$1" = --physcpubind=+0 ]')
        assert bash(f"numa_binding=node; {show}") == (0, "--numa-binding=node\n", "")
        assert bash(f"numa_binding=node devices_per_rank=2; {show}")[:2] == (0, "\n")

    def test_check_profiler(self, bash, stub):
        stub("srun", SRUN)
        assert bash("check_profiler") == (0, "", "")
        refused = bash("SLIPWAY_PROFILER=nsys; check_profiler")
        assert_dies(refused, "no-profiler", "SLIPWAY_PROFILER=nsys", "PATH", "USE_CONTAINER=0", lines=2)
        stub("nsys", "echo Nsight 1")
        assert bash("SLIPWAY_PROFILER=nsys; check_profiler")[:2] == (0, "Nsight 1\n")

    def test_preflight(self, bash, stub):
        stub("srun", SRUN)
        stub("python3", 'printf "%s " "$@"; exit "${STUB:-0}"')
        run = "trainer_arguments=(c.toml --x); preflight"
        assert bash(run)[1] == "-m trainer.preflight c.toml --x "
        assert_dies(bash(run, STUB="1"), "node-not-ready")
        tried = bash(f"TRAINER_MEETING='1 x' head_is_tried=1; {run}; echo ${{TRAINER_MEETING-none}}$head_is_tried")
        assert tried[1].endswith("/try_head.py python3 -m trainer.preflight c.toml --x none\n")
        stub("python3", "exec sleep 600")
        late = bash(f"SLIPWAY_PREFLIGHT_SECONDS=1; {run}")
        assert_dies(late, "node-not-ready", " 1 ", "SLIPWAY_PREFLIGHT_SECONDS")
        own = "SLIPWAY_SCRIPT=t.py bind_paths=(/usr /gone) program=(t.py); preflight"
        code, _, err = bash(own)
        assert (code, set(slugs(err)), slugs(err)[-1]) == (78, {"cannot-read", "node-not-ready"}, "node-not-ready")
        assert "/gone " in messages(err)[0].text


class TestTimesAndNotices:
    def test_note_launch_and_note_end(self, bash, place):
        out = bash("spare_nodes=(n3); began_at=12.5; note_launch; note_end; echo $began_at; now")[1].split()
        lines = [json.loads(line) for line in (place / "run" / "goodput.jsonl").read_text().splitlines()]
        assert lines == [{"attempt": 2, "began": 12.5, "nodes": 2, "spares": 1}, {"attempt": 2, "ended": float(out[0])}]
        assert 0 <= float(out[1]) - float(out[0]) < 60

    def test_note_time_on_a_full_disk(self, bash):
        assert bash("RUN_DIR=/nowhere; note_time '%s' 1; echo on")[1] == "on\n"

    def test_notify(self, bash, place):
        told = place / "told"
        told.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
        told.chmod(0o755)
        notify = "check_notify; notify a b; notify_of_end 3"
        assert bash(notify)[:2] == (0, "")
        code, _, err = bash(
            "SLIPWAY_NOTIFY=$PWD/told; check_notify; note hello; notify_of_end 3; cat run/logs/2/notify.log"
        )
        assert (code, err) == (0, "x.job: hello\n")
        event, run, message, end = (place / "run" / "logs" / "2" / "notify.log").read_text().split("|")
        assert (event, run, end, numbers(message), message.split()[-1]) == ("end", f"{place}/run", "", [3], "hello")
        assert_dies(bash("SLIPWAY_NOTIFY=$PWD/run; check_notify"), "no-notify-program", f"SLIPWAY_NOTIFY={place}/run ")

    # once: TMPDIR was the folder that is removed before the end is told
    def test_what_is_notified_has_a_folder_for_temporary_files(self, bash, place):
        (place / "told").write_text('#!/bin/sh\necho "${TMPDIR-none}" && rm "$(mktemp)"\n')
        (place / "told").chmod(0o755)
        tell = "SLIPWAY_NOTIFY=$PWD/told; notify_of_end 3; cat run/logs/2/notify.log"
        assert bash(f"export TMPDIR=$PWD/gone; {tell}")[1] == "none\n"
        (place / "run" / "logs" / "2" / "notify.log").unlink()
        assert bash(f"export TMPDIR=$PWD/disk; {tell}")[1] == f"{place}/disk\n"


class TestRestart:
    """What test_restarts.py does not see."""

    def test_reserve_spares_and_use_nodes(self, bash):
        show = 'echo "$nnodes $head_node ${spare_nodes[*]} / ${srun_options[*]} / ${on_head_node[*]}"'
        code = "nodes=(a b c d); SLIPWAY_SPARES=1; reserve_spares; "
        assert bash(code + show)[1] == "3 a d / --export=ALL --nodelist=a,b,c / \n"
        out = bash(code + f"use_nodes b c d; use_nodes c d; {show}", SLURMD_NODENAME="a")[1]
        helper = "--cpu-bind=none --gres=none"
        step = f"srun --overlap --nodes=1 --ntasks=1 --export=ALL {helper} --nodelist=c"
        assert out == f"2 c d / --export=ALL --nodelist=c,d / {step}\n"
        everything = f"{code}use_nodes a b c d; {show}"
        assert bash(everything)[1] == "4 a d / --export=ALL / \n"
        for scheduler in ("pbs", "local"):
            fewer = f"{code}use_nodes b c; echo $nnodes $head_node"
            assert bash(fewer, scheduler=scheduler)[1] == "2 b\n"
        refused = bash("nodes=(a); SLIPWAY_SPARES=1; reserve_spares")
        assert_dies(refused, "too-few-nodes", "SLIPWAY_SPARES=1")
        assert numbers(refused[2]) == [1, 1]

    def test_replace_lost_nodes_only_where_one_is_lost(self, bash, stub):
        stub("srun", SRUN)
        assert bash("replace_lost_nodes || echo no")[1:] == ("no\n", "")
        assert bash("SLURM_JOB_ID=7 SLIPWAY_SPARES=1 lost_nodes=(); replace_lost_nodes || echo no")[1:] == ("no\n", "")

    def test_saved_step(self, bash, place):
        assert bash("saved_step")[1] == "0\n"
        (place / "run" / "checkpoints").mkdir()
        (place / "run" / "checkpoints" / "latest").symlink_to("step_00000120")
        assert bash("saved_step")[1] == "120\n"
        for name in ("x", "step_", "step_1x"):
            (place / "run" / "checkpoints" / "latest").unlink()
            (place / "run" / "checkpoints" / "latest").symlink_to(name)
            assert bash("saved_step")[1] == "0\n"

    def test_saved_step_is_the_sum_of_all_sessions(self, bash, place):
        for name, step in {"run": 9, "run/fold 0": 20, "run/a/fold1": 300, "out": 4000}.items():
            folder = place / name
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "checkpoints" / "latest").symlink_to(f"step_{step:08d}")
        (place / "run" / "sessions").write_text(f"fold 0\na/fold1\n{place}/out\ngone\n")
        assert bash("saved_step")[1] == "4329\n"

    def test_failed_node_is_that_of_the_first_signal(self, bash):
        torchrun = "  host      : n{}\n  rank      : 1 (local_rank: 0)\n  exitcode  : {} (pid: 12)\n"
        lost, killed = torchrun.format(1, 1), torchrun.format(2, -9)
        assert bash('failed_node <<<"$SAID"', SAID=lost + killed + torchrun.format(1, -15))[1] == "n2\n"
        assert bash('failed_node <<<"$SAID" || echo none', SAID=lost)[1] == "none\n"
        said = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n3: task 2: {}\n"
        said += "srun: error: n4: task 3: Killed"
        assert bash('failed_node <<<"$SAID"', SAID=said.format("Segmentation fault"))[1] == "n3\n"
        assert bash('failed_node <<<"$SAID"', SAID=said.format("Terminated"))[1] == "n4\n"

    def test_count_failures(self, bash):
        code = (
            "declare -A failures=(); failed={}; count_failures; count_failures; count_failures; echo ${{failures[*]}}"
        )
        assert bash(code.format("n2"))[1] == "2\n"
        assert bash(code.format("n9"))[1] == "\n"  # of another job

    def test_attempt_has_session_and_run_has_session(self, bash, place):
        assert bash("attempt_has_session || echo no; run_has_session || echo no")[1] == "no\nno\n"
        (place / "run" / "status.json").write_text('{"attempt": 2, "state": "running"}')
        assert bash("attempt_has_session || echo no")[1] == ""
        assert bash("attempt=1; attempt_has_session || echo no; run_has_session && echo yes")[1] == "no\nyes\n"
        assert bash("attempt_has_open_session && echo open")[1] == "open\n"
        (place / "run" / "status.json").write_text('{"attempt": 2, "state": "done"}')
        assert bash("attempt_has_session && ! attempt_has_open_session && echo done")[1] == "done\n"

    def test_find_session_folders_and_find_newest_status(self, bash, place):
        show = 'find_session_folders; echo "${folders[*]}"; find_newest_status; echo "$newest"'
        run = place / "run"
        assert bash(show)[1] == f"{run}\n\n"
        for number, path in enumerate([run / "fold1", place / "out", run]):
            path.mkdir(parents=True, exist_ok=True)
            (path / "status.json").write_text("{}")
            os.utime(path / "status.json", (9 - number, 9 - number))
        (run / "sessions").write_text(f"gone\nfold1\n{place}/out\n")
        assert bash(show)[1] == f"{run} {run}/gone {run}/fold1 {place}/out\n{run}/fold1/status.json\n"

    @pytest.mark.parametrize(
        ("states", "said"),
        [
            (["done", "running"], "begun\n"),
            (["failed", "running"], "begun\n"),
            (["done", "failed"], "begun\n"),
            (["done", "done"], ""),
            (["failed", "done"], ""),  # the script has caught the error
        ],
    )
    def test_of_several_sessions_the_last_one_counts(self, bash, place, states, said):
        for number, state in enumerate(states):
            path = place / "run" / f"fold{number}" / "status.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"attempt": 2, "state": state}))
            os.utime(path, (number, number))
        (place / "run" / "sessions").write_text("fold1\nfold0\n")  # the order of an earlier attempt
        assert bash("run_has_session && ! attempt_has_open_session || echo begun")[1] == said
        assert bash("attempt=1; run_has_session && ! attempt_has_open_session || echo begun")[1] == ""

    # once: "no process can be started on this node", for which administrators drain nodes
    def test_find_healthy_nodes_on_a_full_disk(self, bash, place, stub):
        (place / "run" / "logs" / "2" / "answers").mkdir(parents=True)  # so that nothing can be written
        stub("srun", SRUN)
        code, said, err = bash("launcher=srun allocation=(n1 n2); find_healthy_nodes || echo no")
        assert (code, said, set(slugs(err))) == (0, "no\n", {"no-restart"})
        assert "run/logs/2/answers" in err

    @pytest.mark.parametrize("launcher", ["srun", "ssh", "mpirun", "local"])
    def test_find_healthy_nodes(self, bash, stub, launcher):
        stub("srun", '[[ "$*" == *n1* ]] || exit 1; ' + SRUN)
        stub("ssh", '[ "$1" = n1 ] || exit 255; exec bash')
        stub("mpirun", '[[ "$*" == *"--host n1:2 "* ]] || exit 1; echo a banner; exec "${@: -2}"')
        show = 'echo "${healthy_nodes[*]} / ${lost_nodes[*]}"'
        code = f'launcher={launcher} allocation=(n1 n2); find_healthy_nodes; {show}; echo "${{nodes[*]}}"'
        alone = "n1 n2 / " if launcher == "local" else "n1 / "
        said = bash(code)
        assert said[1].splitlines() == [alone, "n1 n2"]
        assert slugs(said[2]) == ([] if launcher == "local" else ["node-silent"])
        down = 'nodes_out_of_service() { echo "$2 DOWN*"; }; '
        said = bash(f'{down}{code}; echo "${{node_states[n2]:-}}"')
        assert said[1].splitlines() == [
            alone + ("n2" if launcher != "local" else ""),
            "n1 n2",
            *(["DOWN*"] if launcher != "local" else [""]),
        ]
        assert slugs(said[2]) == []
        code = f"launcher={launcher} this_node=n2; find_healthy_nodes || echo no; {show}"
        for before in ("", down):
            found = bash(before + code)[1].splitlines()
            assert found == (["n1 n2 / "] if launcher == "local" else ["no", "n1 n2 / "])

    def test_a_node_is_asked_twice(self, bash, stub, place):
        """The second time it has three times as long; not if the scheduler says that it is down."""
        stub("srun", f'[[ "$*" != *n2* ]] || {{ echo >>asked; sleep 0.5; }}; {SRUN}')
        code = 'SLIPWAY_PROBE_SECONDS=0.3; find_healthy_nodes; echo "${healthy_nodes[*]}"'
        assert bash(code) == (0, "n1 n2\n", "")
        assert (place / "asked").read_text() == "\n\n"
        (place / "asked").unlink()
        down = 'nodes_out_of_service() { echo "n2 DOWN"; }; '
        assert bash(down + code) == (0, "n1\n", "")
        assert (place / "asked").read_text() == "\n"
        assert bash("SLIPWAY_PROBE_SECONDS=.5; longer_limit; SLIPWAY_PROBE_SECONDS=20; longer_limit")[1] == "1.5\n60\n"

    # once: Slurm's answer had no longer limit the second time, and a node that is down was called silent
    def test_the_scheduler_has_longer_the_second_time(self, bash, stub):
        stub("srun", f'[[ "$*" != *n2* ]] || exit 1; {SRUN}')
        stub("scontrol", "sleep 0.8; echo 'NodeName=n2 State=DOWN*'")
        code = 'SLIPWAY_PROBE_SECONDS=0.5; find_healthy_nodes; echo "${lost_nodes[*]}"'
        assert bash(code) == (0, "n2\n", "")

    # once: nodes that had not answered when the time limit came were lost
    def test_a_signal_meanwhile_says_nothing_of_nodes(self, bash, stub):
        stub("srun", f'[[ "$*" != *n2* ]] || {{ kill -USR1 "$SCRIPT"; sleep 0.5; }}; {SRUN}')
        code = "export SCRIPT=$$ SLURM_JOB_ID=7; end_old_ranks() { :; }; "
        code += 'nodes_out_of_service() { echo "n2 DOWN"; }; plan_restart || echo no'
        code += '; echo "${lost_nodes[*]}/${go_on:-}"'
        done = bash(code)
        assert (done[0], done[1], slugs(done[2])) == (0, "no\n/\n", ["no-restart"])
        assert bash("run_recorded log true && run_recorded log false && echo yes")[1] == "yes\n"
        assert bash("cancelled=1; run_recorded log true || echo no")[1] == "no\n"

    def test_sort_out(self, bash):
        code = 'printf "%s\n" "a banner" "n2 is gone" "n10" "n3 DOWN*" n1 >run/logs/2/answers; silent=(n1 n2 n3); '
        code += 'found=(); sort_out found; echo "${found[*]} / ${silent[*]} / ${node_states[n3]}"'
        assert bash(code)[1] == "n1 n3 / n2 / DOWN*\n"

    @pytest.mark.parametrize(
        ("state", "out"),
        [
            ("IDLE", False), ("ALLOCATED+MAINTENANCE", False), ("MIXED", False), ("UNKNOWN", False),
            ("ALLOCATED+DRAIN", False), ("MIXED+FAIL", False),
            ("DOWN*", True), ("ALLOCATED*", True), ("IDLE+DRAIN", True), ("ALLOCATED+NOT_RESPONDING", True),
            ("MIXED+DRAIN+NOT_RESPONDING", True), ("FAIL", True), ("IDLE+POWERED_DOWN", True),
        ],
    )  # fmt: skip
    def test_nodes_out_of_service_of_slurm(self, bash, stub, state, out):
        stub(
            "scontrol",
            f'[ "$*" = "--oneliner show node n1,n2" ] || exit 1; '
            f'echo "NodeName=n1 Arch=x State=IDLE Reason=DOWN"; echo "NodeName=n2 Arch=x State={state} Weight=1"',
        )
        assert bash("nodes_out_of_service 20 n1 n2")[1] == (f"n2 {state}\n" if out else "")
        stub("scontrol", "exec sleep 60")
        assert bash("nodes_out_of_service 0.2 n1 n2 || :")[:2] == (0, "")

    @pytest.mark.parametrize(
        ("state", "out"),
        [
            ("free", False), ("job-exclusive,busy", False), ("down", True), ("offline", False), ("down,offline", True),
            ("state-unknown,down", True), ("down,job-busy", True), ("Stale", False), ("stale", True),
        ],
    )  # fmt: skip
    def test_nodes_out_of_service_of_pbs(self, bash, stub, state, out):
        lines = ("n1", "     Mom = down", "     state = free", "", "n2", f"     state = {state}", "     queue = down")
        stub(
            "pbsnodes",
            f'[ "$*" = -a ] || exit 1; printf "%s\n" {" ".join(map(shlex.quote, (*lines, "n3", "     state = down")))}',
        )
        asked = bash("nodes_out_of_service 20 n1 n2.site", scheduler="pbs")[1]
        assert asked == (f"n2.site {state}\n" if out else "")
        assert bash("nodes_out_of_service 20 n1", scheduler="local")[:2] == (0, "")

    def test_ask_scheduler(self, bash):
        asked = "SLIPWAY_PROBE_SECONDS=0.2; ask_scheduler {} && echo yes || echo $?"
        assert bash(asked.format("sleep 0.4"))[1] == "yes\n"
        assert bash(asked.format("sleep 9"))[1] == "124\n"
        assert bash(asked.format("sh -c 'exit 7'"))[1] == "7\n"

    def test_count_common(self, bash):
        lists, pairs = "a=(n1 n2 n3) b=(n2 n3 n30) c=()", ("a b", "a c", "c a")
        assert bash("; ".join([lists, *(f"count_common {pair}" for pair in pairs)]))[1] == "2\n0\n0\n"

    @pytest.mark.parametrize("launcher", ["srun", "local"])
    def test_ask_nodes_and_node_answers(self, bash, stub, launcher):
        stub("srun", SRUN)
        assert sorted(bash(f"launcher={launcher}; (ask_nodes 5 n3 n4)")[1].split()) == ["n3", "n4"]
        assert bash(f"launcher={launcher}; (node_answers 1 5)")[1] == "n2\n"

    def test_local_node_and_mpirun_node(self, bash, stub):
        assert bash("(local_node 0 5 echo 'a b'); (local_node 0 1 sleep 9) || echo $?")[1] == "a b\n124\n"
        stub("mpirun", 'echo "$*"')
        out = bash("(mpirun_node 1 5 echo 'a b')")[1]
        assert ("--host n2:2 " in out, out.endswith(" -n 1 echo a b\n")) == (True, True)

    def test_leave_nodes_out(self, bash):
        code = "mpirun=(mpirun --hostfile all -x A); leave_nodes_out; echo ${mpirun[*]} ${SLURM_JOB_NODELIST:-}"
        assert bash(code)[1] == "mpirun -x A --host n1:2,n2:2\n"
        assert bash(f"SLURM_JOB_ID=7; {code}")[1] == "mpirun -x A --host n1:2,n2:2 n1,n2\n"

    def test_attempt_has_died(self, bash, place):
        verdict = place / "run" / "verdict.2"
        verdict.parent.mkdir()
        assert bash("code=1; attempt_has_died && echo yes")[1] == "yes\n"
        assert bash("code=0; attempt_has_died && echo yes")[1] == "yes\n"  # without a verdict
        for code in ("code=0 SLIPWAY_SCRIPT=x", "code=2 SLIPWAY_SCRIPT=x", "code=78", "code=1 cancelled=1"):
            assert bash(f"{code}; attempt_has_died || echo no")[1] == "no\n"
        verdict.write_text("stopped 7 launcher\n")
        assert bash("code=1; attempt_has_died && echo yes")[1] == "yes\n"
        # once: mpirun was killed, its daemons stopped the ranks, and the job ended as if a user had
        verdict.write_text("stopped 7 signal\n")
        assert bash("code=137; attempt_has_died && echo yes")[1] == "yes\n"
        assert bash("code=143; crashed || echo no")[1] == "no\n"
        for code in ("code=1", "code=137 cancelled=1"):
            assert bash(f"{code}; attempt_has_died || echo no")[1] == "no\n"
        verdict.write_text("failed 7 NaN\n")
        assert bash("code=1; attempt_has_died || echo no")[1] == "no\n"

    def test_plan_restart_and_choose_nodes(self, bash, stub):
        stub("srun", SRUN)
        stub("squeue", "exit 1")
        start = "declare -A failures=(); first_step=0; "
        show = 'echo "${nodes[*]} / ${spare_nodes[*]} / $world_size"'
        assert bash(f"{start} : >run/logs/2/stderr.log; plan_restart; use_chosen_nodes; {show}")[1] == "n1 n2 /  / 4\n"
        assert bash(f"{start} SLIPWAY_MAX_RESTARTS=0; plan_restart || echo no")[1] == "no\n"
        few = f"{start} allocation=(n1 n2 n3) healthy_nodes=(n1 n3); "
        assert bash(f"{few} choose_nodes; use_chosen_nodes; {show}")[1] == "n1 n3 /  / 4\n"
        code, out, err = bash(f"{few} planned_nodes=3; choose_nodes || echo no $go_on")
        assert (code, out.split()[0], numbers(out)) == (0, "no", [2, 3])
        assert_warning(err, "no-restart", "SLIPWAY_SPARES", "SLIPWAY_SHRINK=1")
        assert numbers(err)[:2] == [2, 3]
        assert (
            bash(f"{few} planned_nodes=3 SLIPWAY_SHRINK=1; choose_nodes; use_chosen_nodes; {show}")[1]
            == "n1 n3 /  / 4\n"
        )
        twice = "failures[n1]=2; "
        assert bash(f"{few} {twice} planned_nodes=2; choose_nodes; use_chosen_nodes; {show}")[1] == "n1 n3 /  / 4\n"
        assert bash(f"{few} {twice} SLIPWAY_SHRINK=1; choose_nodes; use_chosen_nodes; {show}")[1] == "n3 / n1 / 2\n"
        assert (
            bash(f"{few} failures[n1]=1 planned_nodes=1; choose_nodes; use_chosen_nodes; {show}")[1] == "n3 / n1 / 2\n"
        )

    def test_begin_attempt_and_next_attempt(self, bash, place):
        assert bash("mkdir run/logs/5; begin_attempt 5; echo $attempt; cat run/logs/6/job")[1] == "6\nslurm 4711\n"
        shutil.rmtree(place / "run")
        code = "chosen_nodes=(n1 n2); rendezvous=1 given_address=10.0.0.9 MASTER_PORT=24711; next_attempt; "
        code += "port_is_given=1; open_rendezvous; "
        out = bash(code + 'echo "$attempt $restarts $first_port $TRAINER_ATTEMPT $MASTER_ADDR"')
        assert out[1] == "3 1 24712 3 10.0.0.9\n"
        assert_warning(out[2], "restarted", "n1, n2")
        (message,) = [message.text for message in messages(out[2]) if message.slug == "restarted"]
        assert numbers(message) == [1, 3, 3, 0, 1, 2]

    def test_run_attempts(self, bash):
        steps = (
            'run_step() { echo "$1 $attempt"; code=$((attempt < 4)); [ $code = 1 ] || echo done 1 x >run/verdict.4; }; '
            "plan_restart() { chosen_nodes=(n1 n2); }; "
        )
        assert bash(f"{steps}run_attempts launch")[1] == "launch 2\nlaunch 3\nlaunch 4\n"

    def test_export_plan_and_find_master(self, bash, stub):
        code = "export_plan; env | grep '^TRAINER_' | sort --unique"
        lines = ["TRAINER_ATTEMPT=2", "TRAINER_RANKS_PER_NODE=2", "TRAINER_WORLD_SIZE=4"]
        assert bash(code)[1].splitlines() == lines
        stub("getent", "echo 10.0.0.7 STREAM n1")
        stub("python3", HEAD + 'answer "$2" address "$7"')
        assert bash("given_address=''; find_master; echo $MASTER_ADDR")[1] == "10.0.0.7\n"
        assert bash("given_address=10.0.0.8; find_master; echo $MASTER_ADDR")[1] == "10.0.0.8\n"

    def test_cause_of_death_and_read_verdict(self, bash, place):
        lost = bash("lost_nodes=(a1 b2 c3) node_states=([b2]=DOWN [c3]=DRAINED); cause_of_death 2")[1]
        assert all(word in lost for word in ("b2 (DOWN)", "c3 (DRAINED)"))
        assert "a1" not in lost
        killed = bash("failed=n1; cause_of_death 0")[1]
        assert re.search(r"\bn1\b", killed)
        assert f"{place}/run/logs/2/stderr.log" in killed
        assert bash("cause_of_death 0")[1] == bash("last_words")[1] != ""
        assert bash('read_verdict; echo "<$state>"')[1] == "<>\n"
        (place / "run" / "verdict.2").write_text("stopped 7 user asked\n")
        assert bash('read_verdict; echo "<$state> $step $reason"')[1] == "<stopped> 7 user asked\n"

    @pytest.mark.parametrize(
        ("given", "slug", "values"),
        [
            ("lost_nodes=(a b c); warn_of_death 2", "node-lost", ["7", "b ", "c "]),
            ("failed=n1; warn_of_death 0", "rank-killed", ["7", "n1"]),
            ("echo 'trainer: x' >run/logs/2/stderr.log; warn_of_death 0", "rank-failed", ["7", "trainer: x"]),
        ],
    )
    def test_warn_of_death(self, bash, given, slug, values):
        code, out, err = bash(f"attempt=7; {given}")
        assert (code, out, slugs(err)) == (0, "", [slug])
        assert_warning(err, slug, *values)

    def test_attempt_has_cause(self, bash, place):
        log = place / "run" / "logs" / "2"
        log.mkdir(parents=True)
        ask = 'attempt_has_cause && echo "<$cause_code> <$cause>" || echo none'
        assert bash(ask)[1] == "none\n"
        for text, found in {
            "78 node2: [rank 1] no data\n": "<78> <node2: [rank 1] no data>",
            "2 unknown flag --épochs": "<2> <unknown flag --épochs>",
            "2 first\n78 second\n": "<2> <first>",
            "1 no cause\n": "none",
            "078 x\n": "none",
            "778 x\n": "none",
            "0 x\n": "none",
            "78\n": "none",
            "78 \n": "none",
            "2x": "none",
            "78 \x1b[2J\n": "none",
            "\n78 x\n": "none",
            "x" * 9999: "none",
        }.items():
            (log / "cause").write_text(text)
            assert bash(ask)[1] == f"{found}\n", text

    def test_end_tree(self, bash):
        code = 'bash -c "sleep 51 & sleep 51; :" & sleep 0.3; end_tree $!; wait $! || echo $?'
        assert bash(f'{code}; pgrep -f "^sleep 51" || echo none')[1].splitlines() == ["137", "none"]

    def test_abandon_launch(self, bash, place):
        clock = "reads=0; read() { ((++reads < 20)) || { echo hung; exit; }; }"
        wait = f'{clock}; warn() {{ echo "$1"; }}; sleep 52 >log 2>&1 & '
        log = place / "run" / "logs" / "2" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("srun: launch/slurm: _step_signal: Terminating StepId=1.0\n")
        code = f"{wait}(abandon_launch $!); wait $! || echo $?"
        assert bash(code)[1].splitlines() == ["launcher-stuck", "137"]
        log.write_text("fine\n")
        assert bash(f"{wait}(abandon_launch $!); kill $!")[1] == "hung\n"

    def test_end_old_steps(self, bash, stub):
        others = "7.batch batch", "7.extern extern", "7.0 slipway-guard", "7.2 bash", "7.3 slipway-scratch", "7.4 step"
        others += "7.5 slipway-step-1", "7.6 slipway-step"  # another run in this job
        stub("squeue", shlex.join(["printf", "%s\n", *others, "7.1 slipway-step-2"]))
        stub("scancel", 'echo "$*" >>killed')
        for inside in ("", "1"):
            code = (
                f"interactive={inside} SLURM_JOB_ID=7 run_mark=2; end_old_steps; wait; echo $SLURM_OVERLAP; cat killed"
            )
            assert bash(f"{code}; rm killed")[1] == "1\n--signal=KILL 7.1\n"
        assert bash("end_old_steps", scheduler="pbs")[:2] == (0, "")

    def test_watch_scratch_and_end_scratch_watch(self, bash, stub, place):
        stub("srun", 'echo "$*" >>steps; env | grep -c ^SLURM_ >>steps; exec sleep 54')
        code = "forget_other_jobs; scratch_record=$PWD/record scratch=$PWD/s; watch_scratch; sleep 0.3; "
        code += "watch_scratch; scratch_is_watched && end_scratch_watch; scratch_is_watched || cat steps"
        env = {
            "SLURMD_NODENAME": "n1",
            "SLURM_GPUS_PER_NODE": "2",
            "SLURM_MEM_PER_CPU": "9",
            "SLURM_TRES_PER_TASK": "x",
        }
        words, unset = bash(code, **env)[1].splitlines()
        assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --nodelist=n2 sh " in words
        assert (words.endswith(f"{place}/record 4711.none.* {place}/s"), unset) == (True, "0")
        for nothing in ("", "scratch_record=x healthy_nodes=(n1); "):
            code = f"{nothing}watch_scratch; scratch_is_watched || echo none; ls steps"
            assert bash(f"rm -f steps; {code} 2>/dev/null || :", SLURMD_NODENAME="n1")[1] == "none\n"
        code = "scratch_record=x; watch_scratch; scratch_is_watched || end_scratch_watch"
        assert bash(code, scheduler="pbs")[:2] == (0, "")

    # once: inside salloc the step outlived the script
    @pytest.mark.parametrize("interactive", ["1", ""])
    def test_inside_salloc_nothing_watches_the_folder_of_a_script_that_has_ended(self, bash, stub, interactive):
        stub("srun", '[[ "$*" == *watch_scratch.sh* ]] || exit 1; exec sleep 53')
        code = f"interactive={interactive} scratch_record=$PWD/record scratch=$PWD/disk/x; mkdir disk/x; "
        code += "watch_scratch; watch=$scratch_watch; remove_scratch; "
        code += "! scratch_is_watched || { echo lives; end_scratch_watch; }; wait $watch || echo $?"
        done, out, err = bash(code, SLURMD_NODENAME="n1")
        assert (done, out) == (0, "143\n" if interactive else "lives\n143\n")
        assert slugs(err) == (["scratch-left"] if interactive else [])

    WATCH = ["sh", str(LIB / "watch_scratch.sh")]

    def test_watch_scratch_sh(self, tmp_path):
        """It removes the folder once it got SIGTERM, the script says that the job has ended, and no rank lives."""
        record, folder = tmp_path / "record", tmp_path / "x"
        (folder / "a").mkdir(parents=True)
        record.write_text(f"{folder}\n")
        rank = subprocess.Popen(["sleep", "59"], env={"PATH": "/usr/bin:/bin", "SLIPWAY_LAUNCH": "4711.1.2.3"})
        watch = subprocess.Popen([*self.WATCH, record, "4711.1.*", folder])
        time.sleep(0.3)
        watch.terminate()
        with record.open("a") as file:
            time.sleep(0.4)
            assert folder.exists()
            file.write("over\n")
        time.sleep(0.4)
        assert folder.exists()
        rank.kill()
        rank.wait()
        assert (watch.wait(10), folder.exists()) == (0, False)

    # once: the folder of a job was kept for a job that one of its ranks had submitted
    @pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID"])
    def test_a_job_that_a_rank_submitted_is_none_of_its_ranks(self, bash, place, variable):
        (place / "x").mkdir()
        (place / "record").write_text("x\nover\n")
        code = f"""
        export {variable}=4711; launch_id=4711.1.2.3
        {variable}=4712 SLIPWAY_LAUNCH=$launch_id sleep 9 & other=$!
        ! launch_lives || echo lives
        sh "$lib/watch_scratch.sh" record "4711.1.*" x & watch=$!
        sleep 0.2; kill $watch; wait $watch || :
        [ ! -e x ] || echo stays
        SLIPWAY_LAUNCH=$launch_id sleep 9 & until launch_lives; do :; done
        kill $! $other
        """
        assert bash(code, SLURM_JOB_ID="", PBS_JOBID="")[:2] == (0, "")

    def test_watch_scratch_sh_leaves_a_folder_alone_that_others_remove(self, tmp_path):
        watch = subprocess.Popen([*self.WATCH, tmp_path / "none", "4711", tmp_path / "x"])
        (tmp_path / "x").mkdir()
        time.sleep(0.3)
        watch.terminate()
        assert (watch.wait(10), (tmp_path / "x").exists()) == (0, True)

    # once: inside salloc it stayed where the script was ended before it knew of it
    def test_watch_scratch_sh_ends_once_its_record_is_gone(self, tmp_path):
        text = (LIB / "watch_scratch.sh").read_text()
        for old, new in (("sleep 2 &", "sleep 0.05 &"), ("naps % 30", "naps % 4")):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "watch.sh").write_text(text)
        (tmp_path / "record").touch()
        watch = subprocess.Popen(["sh", tmp_path / "watch.sh", tmp_path / "record", "4711", tmp_path / "x"])
        time.sleep(0.4)
        assert watch.poll() is None
        (tmp_path / "record").unlink()
        assert watch.wait(10) == 0

    MPIRUN = 'echo "$*" >>launches; while [ "$1" != sh ]; do shift; done; exec "$@"'

    @pytest.mark.parametrize("call", ["end_old_ranks", "SLIPWAY_MAX_RESTARTS=0; plan_restart || :"])
    def test_end_old_ranks(self, bash, stub, call):
        stub("mpirun", self.MPIRUN)
        code = f"""
        launcher=mpirun
        run_mark=ab
        SLIPWAY_LAUNCH=$job_id.ab.1.$$.5 sleep 58 & old=$!
        SLIPWAY_LAUNCH=$job_id.ba.1.$$.5 sleep 58 & other=$!
        healthy_nodes=(n1) allocation=(n1 n2)
        {call}
        wait $old || echo $?
        kill $other && cat launches
        """
        out = bash(f"source '{LIB}/mpirun.bash'; {code}", scheduler="pbs")[1].splitlines()
        assert out[0] == "137"
        assert "--host n1:1" in out[1] or "--host n1:2" in out[1]
        assert bash("end_old_ranks", scheduler="pbs")[:2] == (0, "")

    @pytest.mark.parametrize(
        ("before", "ended"), [("pbs $job_id", True), ("pbs ${job_id}0", False), ("slurm $job_id", False)]
    )
    def test_end_earlier_ranks(self, bash, stub, before, ended):
        """Of this very job and run alone; and of no job whose number begins with its number."""
        stub("mpirun", self.MPIRUN)
        code = f"""
        source '{LIB}/mpirun.bash'
        mkdir -p run/logs/1 && echo "{before}" >run/logs/1/job
        launcher=mpirun
        run_mark=ab
        SLIPWAY_LAUNCH=$job_id.ab.1.99.5 sleep 58 & old=$!
        SLIPWAY_LAUNCH=${{job_id}}0.ab.1.99.5 sleep 58 & other=$!
        SLIPWAY_LAUNCH=$job_id.ba.1.99.5 sleep 58 & beside=$!
        healthy_nodes=(n1) allocation=(n1)
        end_earlier_ranks
        kill -0 $other && kill -0 $beside && kill $other $beside
        kill $old 2>/dev/null || :
        wait $old || echo $?
        """
        assert bash(code, scheduler="pbs")[:2] == (0, f"{137 if ended else 143}\n")
        assert bash("end_earlier_ranks")[:2] == (0, "")

    def test_end_ranks(self, bash, stub):
        stub("mpirun", "exit 1")
        calls = "launcher=mpirun; end_ranks a.b; (nodes=(n1); end_ranks_of_node 0 a) || echo no"
        code, out, err = bash(f"source '{LIB}/mpirun.bash'; {calls}", scheduler="pbs")
        assert (code, out, slugs(err)) == (0, "no\n", ["old-ranks"])

    def test_watch_over_job_and_end_guard(self, bash, stub, place):
        stub("srun", 'echo "$*" >>steps; exec sleep 53')
        show = "; sleep 0.5; ls run/.heart.4711; kill -0 $guard; end_guard; sleep 0.2; cat steps; ls -A run"
        watch = "healthy_nodes=(n1 n2 n3) SLIPWAY_SPARES=1 SLIPWAY_SHRINK=0; watch_over_job"
        out = bash(watch + show, SLURMD_NODENAME="n1")[1].splitlines()
        assert out[0] == "run/.heart.4711"
        assert "--nodelist=n3 sh" in out[1]
        assert out[1].endswith(f"4711 {place}/run/requeues 1 scontrol requeue 4711")
        assert out[2:] == ["logs"]
        (place / "steps").unlink()
        out = bash(f"unset SLIPWAY_MAX_REQUEUES; {watch}{show}", SLURMD_NODENAME="n3")[1].splitlines()
        assert "--nodelist=n2 sh" in out[1]
        assert out[1].endswith("run/requeues 1 scancel 4711")
        assert bash("SLIPWAY_SHRINK=0; watch_over_job; echo ${guard:-none}; end_guard")[1] == "none\n"
        assert bash("watch_over_job; end_guard", scheduler="pbs")[:2] == (0, "")

    @pytest.mark.slow
    def test_the_sign_of_life_does_not_come_back(self, bash, stub):
        stub("srun", "exec sleep 53")
        watch = "healthy_nodes=(n1 n2 n3) SLIPWAY_SPARES=1 SLIPWAY_SHRINK=0; watch_over_job"
        look = "ls run/.heart.4711 2>/dev/null || echo gone"
        code = f"{watch}; {look}; end_guard; sleep 11; {look}; watch_over_job; {look}; end_guard; {look}"
        assert bash(code, SLURMD_NODENAME="n1")[1].splitlines() == ["run/.heart.4711", "gone"] * 2

    GUARD = f"""
    export SLURM_JOB_ID=4711
    sh '{LIB}/guard.sh' 0.2 0.6 "$PWD/heart" "$PWD/log" n1 4711 "$PWD/requeues" 1 scontrol requeue 4711
    echo $?
    ls
    """

    def test_a_guard_whose_job_has_ended_ends(self, bash, stub):
        stub("sleep", "exit 0")
        stub("srun", "echo asked >>srun")
        assert "0" in (out := bash(self.GUARD)[1].split())
        assert not {"srun", "log", "requeues", "goodput.jsonl"} & set(out)

    @pytest.mark.parametrize("state", ["COMPLETING", "COMPLETED", "CANCELLED", "PENDING"])
    def test_a_guard_does_nothing_to_a_job_that_is_over(self, bash, stub, state):
        """Slurm cannot end it where its slurmd is dead."""
        stub("sleep", "exit 0")
        stub("srun", "echo asked >>srun")
        stub(
            "scontrol",
            f'case $1 in requeue) echo requeued >>log ;; *) echo "JobId=4711 JobState={state} Reason=None"; esac',
        )
        assert "0" in (out := bash(f"touch heart; {self.GUARD}")[1].split())
        assert not {"srun", "log", "requeues", "goodput.jsonl"} & set(out)

    @pytest.mark.parametrize(("accepted", "acts"), [(True, ["requeue"]), (False, ["requeue", "scancel"])])
    def test_a_guard_acts_once(self, bash, stub, accepted, acts):
        """It has to ask four times: nobody answers, the job is suspended, is resized, runs."""
        stub("sleep", "exit 0")
        stub("srun", "exit 1")
        stub("scancel", "echo scancel >>acts")
        stub(
            "scontrol",
            f"""
            if [ "$1" = requeue ]; then echo requeue >>acts; exit {int(not accepted)}; fi
            echo asked >>asked
            case $(wc -l <asked) in
                1) exit 1 ;;
                2) echo "JobId=4711 JobState=SUSPENDED Reason=None" ;;
                3) echo "JobId=4711 JobState=RESIZING Reason=None" ;;
                4) echo "JobId=4711 JobState=RUNNING Reason=None" ;;
                *) echo "JobId=4711 JobState=PENDING Reason=None" ;;
            esac
            """,
        )
        out = bash(f"touch heart; {self.GUARD}cat acts requeues")[1].splitlines()
        assert out[0] == "0"
        assert out[-len(acts) - 1 :] == [*acts, "1 4711"]

    # once: a first node that is slow, or a requeue that the controller does not confirm in time, ended the job
    def test_a_guard_asks_twice_and_repeats_what_was_not_confirmed(self, bash, stub):
        stub("sleep", "exit 0")
        stub("scancel", "echo scancel >>acts")
        stub("timeout", 'shift 2; case $* in *requeue*) "$@"; exit 124 ;; esac; exec "$@"')
        stub("srun", 'echo srun >>asked; [ "$(wc -l <asked)" = 2 ] || exit 124')
        stub(
            "scontrol",
            """
            case $* in
                *"show node"*) echo "NodeName=n1 Arch=x State=${STATE:-ALLOCATED} X=y" ;;
                requeue*) echo requeue >>acts ;;
                *) if [ "$(grep --count requeue acts)" = 2 ]; then echo "JobId=1 JobState=PENDING X=y"
                   else echo "JobId=1 JobState=RUNNING X=y"; fi ;;
            esac
            """,
        )
        # the first time it answers, asked twice; then it does not, and two requests are not confirmed
        out = bash(f"touch heart acts; {self.GUARD}cat acts requeues; wc -l <asked")[1].splitlines()
        assert out[0] == "0"
        assert out[-4:] == ["requeue", "requeue", "1 4711", "6"]
        again = f"rm -f asked acts requeues; touch heart acts; {self.GUARD}wc -l <asked"
        assert bash(again, STATE="DOWN*")[1].splitlines()[-1] == "3"

    def test_note_guard(self, bash, place):
        assert bash("note_guard 1")[2] == ""
        (place / "run" / "logs" / "1").mkdir(parents=True)
        first = "guard.sh on n2: no sign of life"
        (place / "run" / "logs" / "1" / "guard.log").write_text(f"{first}\nmore\n")
        assert messages(bash("note_guard 1")[2]) == [("warning", "node-lost", first)]

    def test_end_step(self, bash):
        assert bash("sleep 54 & step_may_run=1; end_step; wait $! || echo $?")[1] == "143\n"
        assert bash("true & step_may_run=''; end_step; wait $! || echo $?")[1] == ""


class TestLaunch:
    def test_report(self, bash):
        assert bash("report 'no-data: x: y'")[2] == "x.job: error[no-data]: x: y\n"
        assert bash("report 'x y'")[2] == "x.job: error[rank-failed]: x y\n"

    def test_catch_signals_and_before_launch(self, bash):
        assert_dies(bash("catch_signals; kill -USR1 $$; sleep 1; echo no"), "time-too-short")
        assert_dies(bash("catch_signals; kill -TERM $$; sleep 1; echo no"), "stopped-early", code=75)
        assert bash("before_launch stopped-early 'a b'") == (75, "", "x.job: error[stopped-early]: a b\n")

    def test_run_step(self, bash):
        run = 'MASTER_PORT=1; step() { echo said >&2; exit 3; }; run_step step; echo "$code $cancelled"; '
        run += "cat run/logs/2/{code,stderr.log}"
        code, out, err = bash(run)
        assert (code, out) == (0, "3 0\n3\nsaid\n")
        assert err == bash("note_ranks")[2] + "said\n"

    def test_the_exit_code_is_the_step_s_whatever_signals_arrive(self, bash):
        """A hundred tries of a step that ends while signals arrive: Bash 5.2 lost 50 of 300 exit codes so."""
        run = """
        script=$$
        step() { sleep 0.0$((RANDOM % 3)); exit 7; }
        trap : USR1
        (trap '' USR1; while kill -USR1 "$script"; do sleep 0.00$((RANDOM % 9)); done) 2>/dev/null &
        sender=$!
        trap 'kill "$sender"' EXIT
        for try in {1..100}; do
            launch_once step
            echo "$code"
        done
        """
        code, out, _ = bash(run)
        assert (code, out.split()) == (0, ["7"] * 100)

    # once: 1 without a slug, and 1 in place of the 0 of a user's script
    def test_on_a_full_disk(self, bash, place):
        full = "trap '' XFSZ; ulimit -f 0; "
        assert_dies(bash(f"{full}(begin_attempt 5)"), "cannot-write", place / "run" / "logs")
        show = 'launch_once step; echo "$code"'
        assert bash(f"{full}step() {{ :; }}; {show}")[1] == "0\n"
        assert bash(f"{full}step() {{ return 7; }}; {show}")[1] == "7\n"
        assert bash(f"{full}step() {{ :; }}; time_limit_came=1; {show}")[1] == "1\n"  # which may have lost it
        assert bash(f"{full}step() {{ record_pid; }}; {show}")[1] == "78\n"

    def test_launch_once_writes_on_while_the_step_runs(self, bash, place):
        run = "MASTER_PORT=1; step() { echo one >&2; sleep 1; echo two >&2; }; "
        run += 'launch_once step 2>&1 | while read -r l; do echo "$l $SECONDS"; done'
        lines = [line.split() for line in bash(run)[1].splitlines()]
        assert [word for word, _ in lines] == ["one", "two"]
        assert int(lines[1][1]) > int(lines[0][1])

    def test_keep_ends_sh(self, place):
        """It holds the first and the last megabytes, also while they come, and delays nothing."""
        file = place / "log"
        lines = random.Random(0).randbytes(25_000_000)
        with subprocess.Popen(["sh", LIB / "keep_ends.sh", file], stdin=subprocess.PIPE) as copier:
            copier.stdin.write(b"no line")
            copier.stdin.flush()
            wait_until(lambda: file.exists() and file.read_bytes() == b"no line")
            copier.stdin.write(lines)
            copier.stdin.flush()
            assert sum(path.stat().st_size for path in place.iterdir()) < 30_000_000, "with the file that is being made"
            wait_until(lambda: file.read_bytes().endswith(lines[-100:]))
            assert file.stat().st_size < 20_100_000
        said, kept = b"no line" + lines, file.read_bytes()
        assert [path.name for path in place.iterdir()] == ["log"]
        assert (kept[:1_000_000], kept[-9_000_000:]) == (said[:1_000_000], said[-9_000_000:])
        assert numbers(kept[1_000_000:-9_000_000].decode()) == [len(said) - 10_000_000]

    def test_keep_ends_sh_reads_on_where_it_cannot_write(self, place):
        done = subprocess.run(
            ["sh", LIB / "keep_ends.sh", place], input=bytes(1 << 20), capture_output=True, check=True
        )
        assert done.returncode == 0

    # once: after one failed write nothing was kept any more, also where the disk had room again
    def test_keep_ends_sh_writes_again_as_soon_as_it_can(self, place):
        file = place / "later" / "log"
        command = ["sh", LIB / "keep_ends.sh", file]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as copier:
            copier.stdin.write(b"one\n")
            copier.stdin.flush()
            said = copier.stderr.readline()  # it could not
            file.parent.mkdir()

            def comes():
                copier.stdin.write(b"x\n")
                copier.stdin.flush()
                return file.exists() and file.stat().st_size

            wait_until(comes)
            copier.stdin.write(b"last\n")
            copier.stdin.close()
            assert copier.wait(60) == 0
            assert (bool(said), copier.stderr.read()) == (True, b"")
        assert file.read_bytes().endswith(b"x\nlast\n")

    def test_copy_errors_is_left_to_a_process_that_outlives_the_launch(self, bash, place):
        """What such a process says later is kept, and what others take for the script's life is closed."""
        run = "exec {watcher}> >(cat >/dev/null; echo >over); reader=$!; "
        run += "step() { { until [ -e over ]; do sleep 0.1; done; echo two >&2; } & echo one >&2; }; "
        run += "launch_once step >/dev/null 2>&1; cat run/logs/2/stderr.log; exec {watcher}>&-; until_ended $reader"
        assert bash(run)[:2] == (0, "one\n")
        wait_until(lambda: (place / "run" / "logs" / "2" / "stderr.log").read_text() == "one\ntwo\n")

    def test_copy_errors_outlives_the_script(self, bash, place):
        run = "abandon_launch() { :; }; step() { echo one >&2; kill -KILL $$; sleep 0.1; echo two >&2; }; "
        assert bash(f"{run}launch_once step")[0] == -signal.SIGKILL
        wait_until(lambda: (place / "run" / "logs" / "2" / "stderr.log").read_text() == "one\ntwo\n")

    def test_wait_for_copy(self, bash):
        assert bash('copy_errors said <<<"one"; cat said') == (0, "one\n", "one\n")
        waits = "wait_for_copy $!; launch_lives() { :; }; sleep 59 & wait_for_copy $!; kill $!"
        assert bash(f"close_descriptors; sleep 0 & {waits}")[:2] == (0, "")

    # once: 31 s, and SIGKILL comes 30 s after the SIGTERM of scancel
    @pytest.mark.parametrize("ends", ["cancelled=1", "time_limit_came=1"])
    def test_it_waits_less_where_the_job_is_being_ended(self, bash, ends):
        count = 'sleep() { slept+=($1); }; env sleep 59 & wait_for_copy $!; kill $!; echo "${slept[@]: -4}"'
        assert bash(f"{ends}; {count}")[1] == "0.02 1 1 1\n"
        assert bash(f"{count}; echo ${{#slept[@]}}")[1] == "1 1 1 1\n80\n"

    # once: these two held open what is to end with the script, and guard.sh took it for alive
    @pytest.mark.parametrize("call", ["launch_once step", "start_server 9 x.py"])
    def test_nothing_that_outlives_the_script_holds_its_sign_of_life(self, bash, stub, place, call):
        look = "for _ in {1..80}; do [ ! -e over ] || exec touch seen; sleep 0.05; done"
        stub("python3", f'{ANSWER}answer "$2" x; echo; {look}')
        run = f"exec {{heart}}> >(cat >/dev/null; echo >over); step() {{ kill -KILL $$; {look}; }}; "
        assert bash(f"exec >out 2>&1; {run}{call}; kill -KILL $$")[0] == -signal.SIGKILL
        wait_until((place / "seen").exists)

    # once: the first launch's copy went on into the second one's file
    def test_the_messages_of_a_launch_whose_port_was_taken_do_not_come_into_the_next_one_s(self, bash, place):
        first = 'echo "port: 1, x: EADDRINUSE" >&2; { until [ -e go ]; do sleep 0.05; done; echo old >&2; } & exit 1'
        run = "wait_for_copy() { sleep 0.2; }; MASTER_PORT=1 BACKEND=ddp port_is_given=''; "
        run += f"step() {{ mkdir once 2>/dev/null || {{ touch go; sleep 0.3; echo new >&2; exit 3; }}; {first}; }}; "
        code, out, err = bash(f'{run}run_step step; echo "$code"; cat run/logs/2/stderr.log')
        assert (code, out) == (0, "3\nnew\n")
        assert_warning(err, "port-taken", "1")

    def test_until_ended(self, bash):
        assert bash(
            "trap 'echo t' USR1; (sleep 0.2; kill -USR1 $$; sleep 0.3) & until_ended $!; ! kill -0 $! 2>/dev/null"
        )[:2] == (0, "t\n")

    def test_port_was_taken(self, bash, place):
        taken = "W c10d: failed to listen. port: 24711, useIpv6: false, code: -98, name: EADDRINUSE, message: in use"
        ask = 'MASTER_PORT=24711; port_was_taken "$SECONDS" && echo yes || echo no'
        assert bash(f"echo > run/logs/2/stderr.log; {ask}")[1] == "no\n"
        (place / "run" / "logs" / "2" / "stderr.log").write_text(f"{taken}\n")
        assert bash(ask)[1] == "yes\n"
        cause = "echo 78 x >run/logs/2/cause"
        for other in ("BACKEND=horovod", "port_is_given=1", "touch run/verdict.2", "SECONDS=100", cause):
            asked = ask.replace('"$SECONDS"', "0")
            assert bash(f"{other}; {asked}")[1] == "no\n", other
            (place / "run" / "verdict.2").unlink(missing_ok=True)

    @pytest.mark.parametrize(
        ("before", "after"),
        [(None, "time-limit 4711/2\n"), ("time-limit 1/1\n", "time-limit 4711/2\n"), ("user\n", "user\n"), ("", "")],
    )
    def test_request_stop(self, bash, place, before, after):
        (place / "run").mkdir()
        if before is not None:
            (place / "run" / "STOP").write_text(before)
        assert bash("request_stop") == (0, "", "")
        assert (place / "run" / "STOP").read_text() == after

    def test_request_stop_on_a_disk_that_is_full(self, bash, place):
        code, _, err = bash("rm -r run; request_stop user; echo on")
        assert code == 0
        assert_warning(err, "cannot-stop", place / "run" / "STOP")

    def test_stop_for_signal_and_record_pid(self, bash, place):
        assert bash("stop_for_signal") == (0, "", "")
        assert bash("stop_for_signal; cat run/STOP", scheduler="pbs")[1] == "user\n"
        run = "(record_pid; exec sleep 600) & launch_pid=$!; sleep 0.3; stop_for_signal; wait $launch_pid || echo $?"
        assert bash(run, scheduler="local")[1] == "143\n"
        assert (
            bash(
                "launch_pid=''; rm run/logs/2/pid; stop_for_signal; echo 999999999 > run/logs/2/pid; stop_for_signal",
                scheduler="local",
            )[0]
            == 0
        )

    @pytest.mark.parametrize(
        ("verdict", "code", "expected"),
        [
            ("done 9 trained", 1, 0),
            ("stopped 9 user", 0, 75),
            ("failed 0 nan", 0, 1),
            ("failed 0 nan", 78, 78),
            (None, 0, 1),
            (None, 9, 9),
            ("", 5, 5),
            ("\n", 5, 5),
            ("done", 0, 0),
        ],
    )
    def test_finish(self, bash, place, verdict, code, expected):
        (place / "run").mkdir()
        if verdict is not None:
            (place / "run" / "verdict.2").write_text(verdict)
        assert bash(f"code={code}; finish none")[0] == expected

    def test_a_script_of_ones_own_without_a_verdict_is_not_waited_for(self, bash, place):
        (place / "run").mkdir()
        began = time.monotonic()
        ended = "cancelled=1 launch_pid=1 code=143 world_size=1 SLIPWAY_SCRIPT=mine.py verdict_seconds=900"
        assert bash(f"{ended}; finish none", scheduler="local")[0] == 143
        assert time.monotonic() - began < 300

    @pytest.mark.parametrize(
        ("sizes", "said"),  # ranks, groups, the size of each
        [
            ([], [4]),
            (["4"], []),
            (["8"], []),  # it has started more by itself
            (["1", "1", "1", "1"], [4, 4, 1, 1, 1, 1]),
            (["1"] * 12, [4, 12, *[1] * 8]),
            (["2", "a[$(touch executed)]"], [4, 1, 2]),
        ],
    )
    def test_compare_world(self, bash, place, sizes, said):
        logs = place / "run" / "logs" / "2"
        logs.mkdir(parents=True)
        for number, size in enumerate(sizes):
            (logs / f"world.n{number}.1").write_text(f"{size}\n")
        code, _, err = bash("code=0 world_size=4; compare_world")
        assert (code, slugs(err), numbers(err)) == (0, ["ranks-not-connected"] * bool(said), said)
        assert ("1, 1, ..." in err) == (len(sizes) > 8)

    @pytest.mark.parametrize(
        ("node", "lives", "seconds"),
        [
            ("n1", "", 0),
            ("n2", "", 1),
            ("", "", 1),
            ("n1", "SLIPWAY_LAUNCH=a.b sleep 9 & until launch_lives; do :; done", 1),
        ],
    )
    def test_wait_for_verdict_and_launch_lives(self, bash, place, node, lives, seconds):
        wait = "SECONDS=0; wait_for_verdict 1; echo $SECONDS; launch_lives || echo over; kill $! 2>/dev/null || :"
        over = "" if lives else "over\n"
        assert bash(f"this_node={node} launch_id=a.b; {lives}\n{wait}")[1] == f"{seconds}\n{over}"
        (place / "run" / "verdict.2").touch()
        assert bash(f"this_node={node} launch_id=a.b; {lives}\n{wait}")[1] == f"0\n{over}"

    def test_continue_run(self, bash, place):
        again = 'again() { next_job=4712; }; continue_run chain 9; echo "still here"'
        assert bash(again)[0] == 75
        assert (place / "run" / "requeues").read_text() == "1 4711\n1 4712\n"
        (place / "run" / "requeues").write_text("2 9\n08 4711\n3 4711\n9 x\n")
        assert bash("requeues_of_job")[1] == "3\n"
        assert bash(again)[:2] == (0, "still here\n")
        assert bash("again() { return 1; }; SLIPWAY_MAX_REQUEUES=9; continue_run chain 9; echo on")[:2] == (0, "on\n")
        full = "rm run/requeues; ln -s /dev/full run/requeues; SLIPWAY_MAX_REQUEUES=9; continue_run chain 9"
        assert slugs(bash(full)[2]) == ["no-requeue"]
        (place / "run" / "requeues").unlink()
        (place / "run" / "requeues").touch()
        assert bash("cancelled=1; again() { exit 99; }; rm run/requeues; continue_run requeue 9; echo on")[:2] == (
            0,
            "on\n",
        )

    def test_catch_early_sigterm(self, bash):
        for before, code in ((":", 0), ("sigterm_at=''", 0), ("sigterm_at=3", 75), ("sigterm_at=3 restarted=1", 0)):
            assert bash(f"{before}; catch_early_sigterm")[0] == code, before
        assert bash("sigterm_at=''; catch_early_sigterm; kill -TERM $$")[0] == 75

    def test_take_names(self, bash):
        show = 'declare -F take_names >/dev/null; echo "${scratch-none} $theirs ${taken_names[*]}"'
        code = f'scratch=/x theirs=1 bash -c \'script_name=x lib=$1; . "$lib/job.bash"; {show}\' - "$lib"'
        assert bash(code)[1] == "none 1 scratch\n"

    def test_a_stray_signal(self, bash, stub):
        stub("scontrol", 'echo "JobId=1 JobState=$STATE PreemptTime=${PREEMPTED:-None} R=x"')
        code = "restarted=1 sigterm_at=59; signal_is_stray && echo yes"
        assert bash(code, STATE="RUNNING")[1] == "yes\n"
        assert bash(code, STATE="COMPLETING")[0] == 1
        assert bash(code, STATE="RUNNING", PREEMPTED="2026-01-31T12:00:00")[0] == 1
        for change in ("restarted=", "sigterm_at=", "sigterm_at=60", "attempt_has_session() { :; }"):
            assert bash(f"restarted=1 sigterm_at=9; {change}; signal_is_stray", STATE="RUNNING")[0] == 1, change
        assert bash("signal_is_stray", scheduler="pbs")[0] == 1
        assert (
            bash("continue_run() { echo $1; }; continue_stray; SLIPWAY_MAX_REQUEUES=0; continue_stray")[1]
            == "requeue\n"
        )
        assert bash("signal_is_stray() { return 1; }; stopped_before_launch")[0] == 75

    def test_saved_nothing(self, bash, place):
        assert bash("first_step=0; saved_nothing && echo yes")[1] == "yes\n"
        (place / "run" / "checkpoints").mkdir(parents=True)
        (place / "run" / "checkpoints" / "latest").symlink_to("step_00000009")
        assert bash("first_step=8; saved_nothing || echo no")[1] == "no\n"
        assert bash("first_step=0 SLIPWAY_SCRIPT=x; saved_nothing || echo no")[1] == "no\n"

    @pytest.mark.parametrize(
        ("given", "gained"),
        [
            ("first_step=8; step=9", True),
            ("first_step=9", False),
            ("SLIPWAY_SCRIPT=x; step=7", True),
            ("SLIPWAY_SCRIPT=x; step=0", False),
            ("SLIPWAY_SCRIPT=x; step=", False),
            ("SLIPWAY_SCRIPT=x; step=x; first_step=0", False),
            ("SLIPWAY_SCRIPT=x; first_step=9; step=10; touch run/status.json", False),
            ("SLIPWAY_SCRIPT=x; first_step=8; step=0; touch run/status.json", True),
        ],
    )
    def test_gained_step_continue_gained_and_continue_after_death(self, bash, place, given, gained):
        (place / "run" / "checkpoints").mkdir(parents=True)
        (place / "run" / "checkpoints" / "latest").symlink_to("step_00000009")
        calls = "continue_run() { echo $1; }; continue_gained chain; gained_step && echo yes || :"
        code, out, err = bash(f"{given}; {calls}")
        assert (code, out, slugs(err)) == (0, *(("chain\nyes\n", []) if gained else ("", ["no-requeue"])))
        out, err = bash(f"{given}; continue_after_death 0; echo ${{go_on:+yes}}")[1:]
        assert (out, slugs(err)) == (("yes\n", []) if gained else ("\n", ["no-restart"]))
        assert bash(f"{given}; continue_after_death 1; echo ${{go_on:+yes}}")[1:] == ("yes\n", "")

    def test_again_job_field_and_continue_command_of_slurm(self, bash, stub, place):
        stub(
            "scontrol",
            'case $1 in requeue) echo "$*" >>asked; exit "${STUB:-0}" ;; '
            '*) echo "JobId=1 JobState=${STATE:-RUNNING} R=x" ;; esac',
        )
        assert bash('again requeue; echo "$next_job"; job_field JobState')[1] == "4711\nRUNNING\n"
        assert (place / "asked").read_text() == "requeue 4711\n"
        assert bash("again requeue", STUB="1")[0] == 1
        assert bash("again requeue", STATE="CANCELLED")[0] == 1
        assert (place / "asked").read_text().count("\n") == 2
        stub("scontrol", "exit 1")
        assert bash("again requeue || echo no")[1] == "no\n"
        out = bash("continue_command")[1]
        assert (
            subprocess.check_output(["bash", "-c", f'sbatch() {{ echo "$2"; }}; {out}'], text=True)
            == f"{place}/run/job.sh\n"
        )

    def test_export_pair(self, bash, place):
        pairs = """export_pair 'A=b=$(touch executed)'; export_pair 'f%%=() { :; }'; export_pair 'UID=1'; """
        code, out, _ = bash(f"{pairs} env | grep -E '^(A|f%|UID)'")
        assert (code, out) == (0, "A=b=$(touch executed)\n")
        assert not (place / "executed").exists()

    def test_restore_environment(self, bash):
        change = "NEW=1; export NEW; OLD=changed; unset HOME; export OMP_NUM_THREADS=7; "
        show = "(restore_environment; env | sort | grep -E '^(NEW|OLD|HOME|OMP_NUM_THREADS|STRANGE)=')"
        code, out, err = bash(change + show, OLD="a 'b'\tc", STRANGE="$(id)", SHELLOPTS="braceexpand", **{"a b": "x"})
        assert code == 0, err
        assert [line.split("=")[0] for line in out.splitlines()] == ["HOME", "OLD", "STRANGE"]
        assert "OLD=a 'b'\tc" in out

    def test_again_and_continue_command_of_pbs(self, bash, stub, place):
        stub("qsub", 'printf "%s\\n" "$@" >asked; env >env; echo 4712.head.x')
        stub("qstat", "echo '    queue = gpu'")
        run = 'export_variables MASTER_PORT=1; again chain && echo "$next_job"; grep --count MASTER_PORT env || :'
        assert bash(run, scheduler="pbs", PBS_JOBID="1.h")[1] == "4712\n0\n"
        assert (place / "asked").read_text() == f"-W\ndepend=afterany:1.h\n-q\ngpu\n{place}/run/job.sh\n"
        for method, broken in (("chain", "exit 1"), ("requeue", "exit 1")):
            stub("qsub", broken)
            stub("qrerun", broken)
            assert bash(f"again {method} || echo no", scheduler="pbs", PBS_JOBID="1.h")[1] == "no\n"
        stub("qrerun", 'echo "$*"')
        assert bash("again requeue", scheduler="pbs", PBS_JOBID="1.h")[1] == "1.h\n"
        assert bash("continue_command", scheduler="pbs")[1].startswith("qsub ")
        assert bash("again none || echo no; continue_command", scheduler="local")[1].startswith("no\nbash ")

    def test_options_of_job_of_torque_and_log_path(self, bash):
        resources = "mem = 8gb", "neednodes = 2:ppn=4", "nodect = 2", "nodes = 2:ppn=4"
        lines = ["queue = batch", "Error_Path = head:/home/a/x.e12", *[f"Resource_List.{text}" for text in resources]]
        record = "\n".join(f"    {line}" for line in [*lines, "submit_args = -l nodes=2:ppn=4 -lmem=8gb x.pbs"])
        code = "job_record=$1 PBS_JOBID=12.head; options_of_job; echo ${options[*]}"
        said = bash(code, record, scheduler="pbs")[1]
        assert said == "-q batch -l mem=8gb -l nodes=2:ppn=4\n"
        made = f"{record}\n    Resource_List.place = scatter\n    Resource_List.select = 2:ncpus=4"
        assert bash(code, made, scheduler="pbs")[1] == said
        code = "job_record=$1; queue_of_submission; "
        code += "for name in mem me walltime nodect; do is_asked_for $name; echo $?; done"
        assert bash(f"set +e; {code}", record, scheduler="pbs")[1] == "batch\n0\n1\n0\n1\n"
        paths = {"x.o12": "", "x.o12-3": "", "x.o123": "h:/d/x.o123", "log": "h:/d/log", "12[3].h.OU": "h:/d/"}
        paths |= {"x.^array_index^": "", "": "h:/d/"}
        for name, expected in paths.items():
            said = bash('log_path "$1"', f"h:/d/{name}", scheduler="pbs", PBS_JOBID="12[3].h")[1]
            assert said == f"{expected}\n", name

    def test_last_words(self, bash, place):
        assert bash("last_words")[1].count("\n") == 1
        (place / "run" / "logs" / "2" / "stderr.log").write_text("x\ntrainer: first\ntrainer: second\n")
        assert bash("last_words")[1] == "trainer: second\n"

    @pytest.mark.parametrize("code", [0, 75, 9])
    def test_end_job(self, bash, stub, place, code):
        stub("srun", "exit 1")
        assert bash(f"scratch=$PWD/disk/x; trap end_job EXIT; exit {code}")[0] == code
        unfinished = "attempt=3 log_dir=x; mkdir run/.lib.3; touch run/.job.sh.3{,.settings} run/.job.sh.30"
        assert bash(f"{unfinished}; trap end_job EXIT; exit {code}")[0] == code
        assert [path.name for path in (place / "run").glob(".[lj]*")] == [".job.sh.30"], "of another attempt"
        broken = "server=999999999; rm() { return 1; }; scratch=x; end_server; trap end_job EXIT"
        assert bash(f"{broken}; exit {code}")[0] == code


def sum_and_numbers(said):
    """Return how a line on what a job has used adds it up, and the numbers that it adds."""
    used, _, rest = said.partition(";")
    return re.search(r"\d.*-hours$", used.strip())[0], numbers(rest)


class TestAccount:
    READ = "node1.7", "0000:01:00.0 10 870 31744 81559\n0000:02:00.0 10 880 1 81559\n"

    def account(self, bash, place, code, *, gpus=(), **words):
        """Return what is said, and the numbers that are kept."""
        logs = place / "run" / "logs" / "2"
        logs.mkdir(parents=True, exist_ok=True)
        for name, text in gpus:
            (logs / f"gpus.{name}").write_text(text)
        done = bash(f"launch_pid=1 SECONDS=4500; {code or ':'}; account", **words)
        assert (done[0], done[1]) == (0, "")
        return done[2], json.loads((logs / "account.json").read_text())

    def test_account(self, bash, place):
        gpus = [self.READ, ("node2.9", "0000:01:00.0 1 0 5 6\n0000:02:00.0 1 100 5 6\n")]
        said, kept = self.account(bash, place, "", gpus=gpus)
        # 1850 % in 22 samples, each of which counts alike
        assert sum_and_numbers(said) == ("2 nodes x 2 GPUs x 1.25 h = 5.00 GPU-hours", [84, 31, 80])
        numbers = {"seconds": 4500, "gpus_seen": 4, "busy": 84, "memory": 31744, "memory_total": 81559}
        assert kept == {"nodes": 2, "count": 2, "unit": "GPU", **numbers}

    def test_where_no_gpu_can_be_read_nothing_is_said_of_them(self, bash, place):
        said, kept = self.account(bash, place, "SECONDS=38 nnodes=1 gpus_per_node=1")
        assert sum_and_numbers(said) == ("1 node x 1 GPU x 38 s = 0.011 GPU-hours", [])
        assert kept["gpus_seen"] == 0

    def test_where_some_can_it_is_said_how_many(self, bash, place):
        said, _ = self.account(bash, place, "", gpus=[self.READ])
        assert sum_and_numbers(said)[1] == [88, 31, 80, 2, 4]

    def test_a_second_launch_leaves_a_second_file_of_a_node(self, bash, place):
        again = "node1.8", "0000:01:00.0 990 0 1 81559\n"
        said, kept = self.account(bash, place, "nnodes=1", gpus=[self.READ, again])
        assert (kept["gpus_seen"], kept["busy"]) == (2, 2)
        assert len(sum_and_numbers(said)[1]) == 3

    def test_a_client_has_its_nodes_from_when_they_came(self, bash, place):
        assert self.account(bash, place, "held_since=4000")[1]["seconds"] == 500

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "\n",
            "0000:01:00.0 1 9",
            "0000:01:00.0 0 0 0 0\n",
            "a b c 4 5\n",
            "x 1 2 3 a[$(touch executed)]\n",
            "x 08 1 1 1\n",
            "x 1 99999999999999999999 1 1\n",
            "x 1 2 3 4 5\n",
        ],
    )
    def test_half_a_file_is_as_none(self, bash, place, line):
        said, kept = self.account(bash, place, "", gpus=[("node1.7", line)])
        assert (kept["gpus_seen"], sum_and_numbers(said)[1]) == (0, [])
        assert not (place / "executed").exists()

    @pytest.mark.parametrize(
        ("code", "expected", "idle"),
        [
            ("SLIPWAY_DEVICE=cpu gpus_per_node=0", "2 nodes x 8 cores x 1.25 h = 20.0 core-hours", []),
            ("SLIPWAY_DEVICE=cpu", "2 nodes x 8 cores x 1.25 h = 20.0 core-hours", [4]),
            ("SLIPWAY_DEVICE=auto", "2 nodes x 2 GPUs x 1.25 h = 5.00 GPU-hours", []),
            ("SLIPWAY_DEVICE=auto gpus_per_node=0", "2 nodes x 8 cores x 1.25 h = 20.0 core-hours", []),
            # GPUs that the scheduler does not know of
            (
                "SLIPWAY_DEVICE=cuda gpus_per_node=0 devices_per_rank=2",
                "2 nodes x 4 GPUs x 1.25 h = 10.0 GPU-hours",
                [],
            ),
        ],
    )
    def test_gpus_or_cores(self, bash, place, code, expected, idle):
        assert sum_and_numbers(self.account(bash, place, code)[0]) == (expected, idle)

    @pytest.mark.parametrize(
        ("taken", "gpus", "expected"),
        [
            (2, [], ("1 node x 2 GPUs x 1.25 h = 2.50 GPU-hours", [])),
            (0, [], ("1 node x 8 cores x 1.25 h = 10.0 core-hours", [])),
            (0, [READ], ("1 node x 8 cores x 1.25 h = 10.0 core-hours", [])),  # torch for CPUs
            (2, [READ], ("1 node x 2 GPUs x 1.25 h = 2.50 GPU-hours", [88, 31, 80])),
        ],
    )
    def test_on_one_machine(self, bash, place, taken, gpus, expected):
        code = f"SLIPWAY_DEVICE=auto nnodes=1 gpus_per_node={taken}"
        said, _ = self.account(bash, place, code, gpus=gpus, scheduler="local")
        assert sum_and_numbers(said) == expected

    def test_nothing_is_said_where_no_rank_has_started(self, bash, place):
        assert bash("unset launch_pid; account; launch_pid=''; account") == (0, "", "")
        assert not (place / "run" / "logs" / "2" / "account.json").exists()

    def test_a_disk_that_is_full_changes_nothing(self, bash):
        code, _, err = bash("launch_pid=1 code=0 SLIPWAY_SCRIPT=x world_size=1; rm -r run/logs; finish none")
        assert (code, "2 nodes x " in err) == (0, True)

    def test_its_parts(self, bash):
        assert bash("read_gpu_usage; gpu_words 4; gpus_in_use")[1] == "2\n"
        full = "gpus_seen=1 busy=100 memory=512 memory_total=10239"
        assert re.findall(r"[\d.]+", bash(f"{full}; gpu_words 1")[1]) == ["100", "0.5", "10.0"]
        assert json.loads(bash(f"{full} count=1 unit=GPU seconds=9; account_json")[1])["memory"] == 512
        assert bash("plural 1 node; plural 0 node; plural 2 GPU")[1] == "1 node\n0 nodes\n2 GPUs\n"

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [(0, "0 s"), (59, "59 s"), (60, "1.00 min"), (3599, "60.0 min"), (3600, "1.00 h"), (360000, "100.0 h")],
    )
    def test_duration(self, bash, seconds, expected):
        assert bash(f"duration {seconds}")[1] == f"{expected}\n"

    def test_numbers_are_rounded_as_jobgen_rounds_them(self, bash):
        amounts = [0, 1, 2, 35, 36, 359, 360, 361, 1799, 1800, 35999, 36000, 36001, 123456789]
        out = bash("".join(f"quotient {amount} 3600; " for amount in amounts))[1]
        assert out.splitlines() == [account._quotient(amount, 3600) for amount in amounts]
        sizes = [0, 1, 51, 52, 1023, 1024, 10188, 10189, 10239, 10240, 10752, 81559]
        out = bash("".join(f"gibibytes {size}; " for size in sizes))[1]
        assert out.splitlines() == [account._gibibytes(size) for size in sizes]
        assert (account._quotient(4500, 3600), account._gibibytes(81559)) == ("1.25", "80")

    @pytest.mark.parametrize("gpus", [(), (READ,), (READ, ("node2.7", READ[1]))])
    @pytest.mark.parametrize(
        "code", ["", "SLIPWAY_DEVICE=cpu gpus_per_node=0", "nnodes=1 gpus_per_node=1", "SECONDS=99"]
    )
    def test_jobgen_says_the_same(self, bash, place, gpus, code):
        said, _ = self.account(bash, place, code, gpus=gpus)
        found = account.read_account(place / "run" / "logs" / "2" / "account.json")
        assert said == f"x.job: {account.describe([found], attempts=1)}\n"


class TestBuilds:
    def test_check_clone(self, bash, place):
        assert_dies(bash("check_clone build/image"), "no-clone", "build/image", place)
        (place / "build").mkdir()
        (place / "build" / "image").touch(0o755)
        assert bash("check_clone build/image") == (0, "", "")
        assert bash("lib=''; check_clone build/image") == (0, "", "")  # once: stat complained
        (place / "src" / "a" / "b" / "c").mkdir(parents=True)
        (place / ".git").mkdir()
        held = ["build/image", "apptainer.def", "Dockerfile", "pyproject.toml", "src/a/b/c/d.py", ".git/config"]
        for name in held:
            (place / name).touch()
        for name in [*held, "src/a/b/c", ".git"]:
            mode = (place / name).stat().st_mode
            (place / name).chmod(mode | 0o002)
            assert_dies(bash("check_clone build/image"), "writable-by-others", f"{place}/{name}")
            (place / name).chmod(mode)
        assert bash("check_clone build/image") == (0, "", "")

    def test_make_build_scratch_and_remove_build_scratch(self, bash, place):
        run = 'make_build_scratch; env | grep -c "disk/slipway-4711"; mkdir -p "$scratch/a"; '
        run += 'chmod 0 "$scratch/a"; exit 5'
        code, out, _ = bash(run)
        assert (code, out) == (5, "3\n")
        assert list((place / "disk").iterdir()) == []
        assert bash("scratch=$PWD/disk/y; mkdir disk/y; trap remove_build_scratch EXIT; exit 3")[0] == 3
        assert bash("SLIPWAY_LOCAL_DISK=$PWD/gone; make_build_scratch")[0] == 78

    def test_run_build_end_build_and_kill_build(self, bash):
        run = "make_build_scratch; end_build; kill_build; run_build sh -c 'echo $0; exit 3' a || echo $?"
        assert bash(run)[:2] == (0, "a\n3\n")
        # what has outlived the first process of a build that failed
        left = "pid=$(run_build sh -c 'sleep 99 >/dev/null & echo $!; exit 3') || ! kill -0 \"$pid\" 2>/dev/null"
        assert bash(f"make_build_scratch; {left}")[0] == 0

    def test_build_image(self, bash, stub, place):
        stub("apptainer", "")
        (place / "build").mkdir()
        (place / "build" / "image").write_text('#!/bin/bash\necho new >"$IMAGE_FOLDER/slipway-$VARIANT.sif"\n')
        (place / "build" / "image").chmod(0o755)
        assert bash("scratch=$PWD/disk; build_image; cat i.sif")[:2] == (0, "new\n")
        assert bash("is_sif i.sif")[0] == 1
        stub("mv", "exit 1")  # what has been built is not lost
        kept = bash("rm i.sif; make_build_scratch; build_image")
        assert_dies(kept, "cannot-write", f"{place}/i.sif ", f"{place}/i.sif.4711.")
        [image] = place.glob("i.sif.4711.*/slipway-*.sif")
        assert image.read_text() == "new\n"
        (place / "build" / "image").write_text("#!/bin/bash\nexit 1\n")
        assert_dies(bash("scratch=$PWD/disk; build_image"), "build-failed")

    def test_build_venv_try_venv_and_list_older_venvs(self, bash, place):
        (place / "build").mkdir()
        setup = '#!/bin/bash\nmkdir -p "$VENV/bin"; ln -s /bin/true "$VENV/bin/trainer"\n'
        (place / "build" / "setup").write_text(setup)
        (place / "build" / "setup").chmod(0o755)
        run = 'scratch=$PWD/disk/$RANDOM; mkdir "$scratch"; build_venv; ls venv/bin'
        assert bash(run)[:2] == (0, "trainer\n")
        older = re.escape(str(place / "venv.").replace("'", "'\\''"))
        code, _, err = bash(run)
        assert code == 0
        assert re.search(rf"{older}\S+", err.splitlines()[-1])
        broken = bash("mkdir -p v/bin; ln -s /bin/false v/bin/trainer; scratch=disk; try_venv v")
        assert_dies(broken, "build-failed")
        assert "venv.20260101" in bash("mkdir venv.20260101; list_older_venvs x")[2]
        foreign = bash("rm venv; mkdir venv; build_venv")
        assert_dies(foreign, "file-exists", f"{place}/venv ", "SLIPWAY_VENV")


def run(*words, **env):
    return subprocess.run(
        words, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **env}, timeout=600, check=False
    )  # fmt: skip


class TestFreePort:
    @pytest.fixture(autouse=True)
    def answer(self, tmp_path):
        self.answer = tmp_path / "answer"

    def port(self, first):
        done = run(sys.executable, str(LIB / "free_port.py"), str(self.answer), str(first))
        assert done.stdout == ""
        return done.returncode, answered(self.answer)[0] if self.answer.exists() else "", done.stderr

    def test_the_first_one_that_can_be_bound(self):
        with socket.create_server(("", 0)) as server:
            taken = server.getsockname()[1]
        first = 21000
        with socket.create_server(("127.0.0.1", first)):
            found = int(self.port(first)[1])
        assert found > first
        assert taken

    def test_the_ephemeral_range_is_passed_over(self):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        code, found, err = self.port(last - 10)
        assert (code, int(found) > last) == (0, True)
        code, found, err = self.port(first)  # where all are, one of those is better than none
        assert (code, int(found) >= first, err) == (0, True, "")

    def test_none_is_told(self):
        code, found, err = self.port(65536)
        assert (code, found, len(err.splitlines())) == (1, "", 1)

    def test_it_needs_nothing_but_python(self):
        for name in ("answer.py", "free_port.py", "head_address.py", "try_head.py", "check_gpus.py", "count_gpus.py"):
            text = (LIB / name).read_text()
            imports = set(re.findall(r"(?m)^(?:import|from) (\w+)", text))
            assert imports <= {*sys.stdlib_module_names, "answer", "slipway_gpu"}, name


class TestHeadAddress:
    """Of interfaces: ib0 is hardware, br0 a bridge with it, the others lead to virtual machines or containers."""

    INTERFACES = {
        "10.0.0.1": "eth0",
        "10.1.0.1": "br0",
        "10.2.0.1": "bond0",
        "192.168.122.1": "virbr0",
        "172.17.0.1": "docker0",
        "10.88.0.1": "cni-podman0",
        "10.3.0.1": "veth1",
        "fd00::1": "eth0",
    }

    @pytest.fixture
    def head_address(self, tmp_path, monkeypatch):
        """Return the module, which sees these interfaces."""
        monkeypatch.setattr(sys, "path", [*sys.path])
        spec = importlib.util.spec_from_file_location("head_address", LIB / "head_address.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        lower = {"br0": "bond0", "bond0": "eth0", "docker0": "veth1"}
        for name in {*self.INTERFACES.values()}:
            (tmp_path / name).mkdir()
            if name in {"br0", "virbr0", "docker0", "cni-podman0"}:
                (tmp_path / name / "bridge").mkdir()
            if name in lower:
                (tmp_path / name / f"lower_{lower[name]}").symlink_to(tmp_path / lower[name])
        (tmp_path / "eth0" / "device").mkdir()
        monkeypatch.setattr(module, "INTERFACES", tmp_path)
        return module

    @pytest.mark.parametrize(
        ("found", "chosen"),
        [
            ("fe80::1%eth0 169.254.3.4 192.168.122.1 172.17.0.1 10.0.0.1", "10.0.0.1"),
            ("10.88.0.1 10.1.0.1", "10.1.0.1"),
            ("10.2.0.1 10.0.0.1", "10.2.0.1"),  # in the order of the resolver
            ("10.3.0.1 10.0.0.1", "10.0.0.1"),
            ("127.0.1.1 10.3.0.1", "10.3.0.1"),  # all that a node has that is a container itself
            ("192.168.122.7 10.0.0.1", "192.168.122.7"),  # not by the number: this is of no bridge here
            ("fd00::1", "fd00::1"),
            ("fe80::1%eth0 169.254.3.4", ""),
            ("192.168.122.1 172.17.0.1 10.88.0.1", ""),
        ],
    )
    def test_it_is_chosen_by_the_kind_of_its_interface(self, head_address, found, chosen):
        address, why = head_address.choose(found.split(), self.INTERFACES)
        assert address == chosen
        assert all(word in why for word in found.split()) or chosen

    def test_addresses_of_this_machine(self, head_address):
        assert head_address.addresses()["127.0.0.1"] == "lo"

    @pytest.fixture
    def head(self, tmp_path):
        answer = tmp_path / "answer"
        words = [sys.executable, LIB / "head_address.py", answer, "token", "21500", "2000", "given", "127.0.0.1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "\n"
            yield process, answer
            process.kill()

    def try_head(self, meeting):
        words = (sys.executable, str(LIB / "try_head.py"), "echo", "a b")
        done = run(*words, MASTER_ADDR="127.0.0.1", TRAINER_MEETING=meeting)
        return done.returncode, done.stdout, done.stderr

    def test_nodes_try_it(self, head):
        process, answer = head
        address, port = answered(answer)[1:]
        assert address == "127.0.0.1"
        with socket.create_connection((address, int(port))):  # one that says nothing does not stop others
            assert self.try_head(f"{port} token") == (0, "a b\n", "")
        code, out, err = self.try_head(f"{port} other")
        assert (code, out) == (78, "")
        assert_error(err, "no-network", "127.0.0.1", port, "MASTER_ADDR")
        answer.unlink()
        assert process.wait(10) == 0
        code, out, err = self.try_head(f"{port} token")
        assert_error(err, "no-network", "127.0.0.1", port, "refused")

    def test_it_ends_with_its_reader(self, head):
        head[0].stdout.close()
        assert head[0].wait(10) == 0

    def test_a_port_that_is_taken_is_told(self, tmp_path):
        with socket.create_server(("", 0)) as server:
            port = str(server.getsockname()[1])
            done = run(sys.executable, str(LIB / "head_address.py"), str(tmp_path / "a"), "t", port, "1", "x", "x")
        assert (done.returncode, answered(tmp_path / "a")) == (0, ["taken"]), done


class TestNames:
    PLAN = {"TRAINER_WORLD_SIZE": "4", "TRAINER_RANKS_PER_NODE": "2"}

    @pytest.mark.parametrize(
        ("source", "env"),
        [
            ("slurm", {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}),
            ("openmpi", {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}),
            ("given", {"RANK": "3", "LOCAL_RANK": "1"}),
        ],
    )
    def test_name_rank(self, source, env):
        show = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE ${HOROVOD_RANK-} ${HOROVOD_CROSS_RANK-}"'
        words = ["sh", str(LIB / "name_rank.sh"), source, "sh", "-c", show]
        assert run(*words, **env, **self.PLAN).stdout == "3 1 4 2  \n"
        assert run(*words, **env, **self.PLAN, HOROVOD_SIZE="4").stdout == "3 1 4 2 3 1\n"
        if source != "given":
            assert run(*words, **self.PLAN).returncode != 0

    def test_name_node(self):
        for source, name in (("slurm", "SLURM_NODEID"), ("openmpi", "OMPI_COMM_WORLD_RANK")):
            words = [
                "sh",
                str(LIB / "name_node.sh"),
                source,
                "sh",
                "-c",
                'echo "$NODE_RANK $PET_NODE_RANK $1"',
                "-",
                "a b",
            ]
            assert run(*words, **{name: "1"}).stdout == "1 1 a b\n"
            assert run(*words).returncode != 0

    def test_rank_loop(self):
        show = 'echo "$RANK $LOCAL_RANK"; exit "$((RANK == 3 ? 5 : 0))"'
        done = run("bash", str(LIB / "rank_loop.bash"), "sh", "-c", show, NODE_RANK="1", **self.PLAN)
        assert (done.returncode, sorted(done.stdout.splitlines())) == (5, ["2 0", "3 1"])

    def test_rank_loop_passes_sigterm_on_and_waits(self):
        save = "trap 'sleep 0.3; echo saved; exit 0' TERM; while :; do sleep 0.05; done"
        env = {"PATH": "/usr/bin:/bin", "NODE_RANK": "0", **self.PLAN}
        words = ["bash", LIB / "rank_loop.bash", "bash", "-c", save]
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        process.terminate()
        assert process.communicate(timeout=300)[0] == "saved\nsaved\n"
        assert process.returncode == 0

    def test_rank_loop_kills_ranks_that_are_deaf_to_sigterm(self, tmp_path):
        shutil.copy(LIB / "name_rank.sh", tmp_path)
        loop = tmp_path / "rank_loop.bash"
        loop.write_text((LIB / "rank_loop.bash").read_text().replace("KILL_SECONDS=30", "KILL_SECONDS=0.2"))
        deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
        env = {"PATH": "/usr/bin:/bin", "NODE_RANK": "0", **self.PLAN}
        process = subprocess.Popen(["bash", loop, "bash", "-c", deaf], env=env, stdout=subprocess.PIPE, text=True)
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        process.terminate()
        process.communicate(timeout=10)
        assert process.returncode == 137


def test_a_script_of_ones_own_gets_the_umask_of_the_site():
    show = "import os; print(f'{os.umask(0):03o}')"
    for given, found in (("027", "027"), ("", "022"), ("nonsense", "022"), ("0277", "022")):
        words = ["sh", "-c", 'umask 022; exec "$@"', "-", sys.executable, "-c", show]
        done = run(*words, PYTHONPATH=str(LIB), PYTHONDONTWRITEBYTECODE="1", TRAINER_UMASK=given)
        assert done.stdout == f"{found}\n"


class TestPreflight:
    def test_paths_are_looked_for(self, place):
        words = ["sh", str(LIB / "preflight.sh"), "cpu", str(place)]
        assert run(*words).returncode == 0
        done = run(*words, f"{place}/gone")
        assert (done.returncode, done.stderr.count("\n")) == (78, 1)
        assert_error(done.stderr, "cannot-read", f"{place}/gone ")

    def gpus(self, device, **env):
        return run(sys.executable, str(LIB / "check_gpus.py"), device, **env)

    def test_without_a_driver(self):
        if Path("/dev/kfd").exists() or subprocess.run(
            ["ldconfig", "-p"], capture_output=True, text=True, check=False
        ).stdout.count("libcuda.so.1"):
            pytest.skip("has a driver")
        done = self.gpus("cuda")
        assert (done.returncode, len(done.stderr.splitlines())) == (78, 1)
        assert_error(done.stderr, "no-gpu", "libcuda.so.1", "SLIPWAY_DEVICE=cpu")
        assert self.gpus("auto").returncode == 0

    @pytest.mark.parametrize(
        ("machine", "slug", "values"),
        [
            ({"STANDIN_CUDA": "12020 80 80"}, "", []),
            ({"STANDIN_CUDA": "12020"}, "no-gpu", []),
            ({"STANDIN_CUDA": "12020", "STANDIN_INIT": "0"}, "no-gpu", []),
            ({"STANDIN_CUDA": "12020 80", "STANDIN_INIT": "802"}, "broken-gpu", ["(802)"]),
        ],
    )
    def test_what_the_driver_says(self, libcuda, machine, slug, values):
        done = self.gpus("cuda", LD_LIBRARY_PATH=str(libcuda), **machine)
        assert done.returncode == (78 if slug else 0)
        if slug:
            assert_error(done.stderr, slug, "SLIPWAY_DEVICE=cuda", "SLIPWAY_DEVICE=cpu", *values)


@pytest.mark.horovod
class TestHorovodServer:
    @pytest.fixture
    def server(self, tmp_path):
        pytest.importorskip("horovod")
        words = [sys.executable, LIB / "horovod_server.py", tmp_path / "answer", "127.0.0.1", "2", "2"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            yield process
            process.kill()

    def ask(self, port):
        connection = socket.create_connection(("127.0.0.1", port), timeout=300)
        connection.sendall(b"GET /global/0 HTTP/1.0\r\n\r\n")
        return connection

    def port(self, server, folder):
        assert server.stdout.readline() == "\n"
        return int(answered(folder / "answer")[0])

    def test_it_serves_until_its_reader_is_gone(self, server, tmp_path):
        with self.ask(self.port(server, tmp_path)) as connection:
            assert b"404" in connection.recv(100)
        server.stdout.close()
        assert server.wait(300) == 0

    # once: the system reset connections of some of the ranks, which Horovod answers by an abort
    def test_it_keeps_the_connections_of_many_ranks_waiting(self, server, tmp_path):
        port = self.port(server, tmp_path)
        server.send_signal(signal.SIGSTOP)
        ranks = [self.ask(port) for _ in range(200)]
        server.send_signal(signal.SIGCONT)
        for connection in ranks:
            with connection:
                assert b"404" in connection.recv(100)


CLIENT = """
echo "$*" >>"$HOME/calls"
[ "$PYTHONSAFEPATH" = 1 ] && [ -z "${PYTHONPATH:-}" ] || exit 9
shift 2
case $1 in
    check) [ -z "${NO_DASK:-}" ] || { echo "No module named dask_jobqueue" >&2; exit 1; } ;;
    nodes)
        [ -z "${CODE:-}" ] || exit "$CODE"
        cp "$2/request.json" "$HOME"
        printf '%s\n' "10.0.0.1 one 100" "10.0.0.2 two 50" "10.0.0.3 three 70" >"$2/.nodes"
        mv "$2/.nodes" "$2/nodes"
        trap 'echo ended >>"$HOME/calls"; exit' TERM
        while [ -d /proc/"$PPID" ]; do read -r -t 0.1 <> <(:) || :; done
        ;;
    each-node) NODE_RANK=1 exec python3 "$HOME/task.py" ;;
    on-head-node) shift 2 && "$@" ;;
    cancel) exit "${CANCEL:-0}" ;;
esac
"""
"""What stands for ``python -m trainer.dask``."""
TASK = """
import subprocess, sys
task = subprocess.Popen(["bash"], stdin=subprocess.PIPE, start_new_session=True)
task.stdin.write(sys.stdin.buffer.read())
task.stdin.flush()
sys.exit(task.wait())
"""
"""Its task on a node, whose standard input stays open."""
REQUEST = "node_request() { echo '{}'; }; "


class TestDask:
    @pytest.fixture
    def dask(self, bash, place, tmp_path):
        """Return ``bash`` with a client, and with a run folder whose attempt has begun."""
        (tmp_path / "task.py").write_text(TASK)
        python = place / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/bash\n{CLIENT}")
        python.chmod(0o755)
        return lambda code, **env: bash(code, scheduler="dask", **env)

    @pytest.fixture
    def calls(self, tmp_path):
        return lambda: (tmp_path / "calls").read_text().splitlines()

    def test_check_client(self, dask, place):
        said = dask('check_client; echo "${client[@]}"', PYTHONPATH="/foreign")[1]
        assert said.endswith(f" {place}/venv/bin/python -m trainer.dask\n")
        missing = dask("check_client", NO_DASK="1")
        python = f"{place}/venv/bin/python "
        assert_dies(missing, "no-environment", python, "pip", "dask-jobqueue", "cryptography", lines=2)
        module = "No module named dask_jobqueue"  # of Python
        assert missing[2].splitlines()[0] == module
        without = dask("SLIPWAY_VENV=$PWD/venv2; check_client")
        assert_dies(without, "no-environment", "SLIPWAY_VENV", f"{place}/venv2/bin/python ", "USE_CONTAINER=1")

    def test_find_allocation(self, dask):
        show = 'find_allocation; echo $nnodes $cpus $gpus_per_node $ranks_per_node $world_size "$scratch_id"'
        assert dask(show)[1] == "2 8 2 2 4 4711\n"
        refused = dask(f"SLIPWAY_MIN_NODES=3; {show}")
        assert_dies(refused, "conflicting-settings", "SLIPWAY_MIN_NODES", "SLIPWAY_NODES")
        assert numbers(refused[2]) == [3, 2]

    def test_ask_for_nodes(self, dask, calls, tmp_path):
        code, out, err = dask(
            f"{REQUEST} SLIPWAY_NODES=4; SLIPWAY_MIN_NODES=1; find_allocation; trap end_job EXIT; ask_for_nodes; "
            "left=$((time_is_up - SECONDS)); "
            'echo "${nodes[@]}" $nnodes $head_node $world_size; [ "$left" -ge 48 ] && [ "$left" -le 50 ]; '
            '"${on_head_node[@]}" printf "<%s>" "a b" "*"'
        )
        assert (code, out) == (0, "10.0.0.1 10.0.0.2 10.0.0.3 3 10.0.0.1 6\n<a b><*>"), err
        (second,) = [line for line in err.splitlines() if "10.0.0.2" in line]
        assert ("two" in second, numbers(second)) == (True, [2, 4, 10, 0, 0, 2, 50])
        assert (tmp_path / "request.json").read_text() == "{}\n"
        said = next(line for line in calls() if " nodes " in line)
        assert said.endswith("--workers 4 --min-workers 1 --wait 9 --save 120")
        assert calls()[-2].endswith("ended"), "the nodes are given back at the end of the script"
        assert " cancel " in calls()[-1]

    def test_nodes_that_do_not_come(self, dask):
        assert dask(f"{REQUEST} check_client; trap end_job EXIT; ask_for_nodes; echo no", CODE="75")[:2] == (75, "")

    def test_return_nodes(self, dask, calls):
        assert dask("return_nodes")[0] == 0
        code, _, err = dask(
            f"{REQUEST} check_client; trap end_job EXIT; ask_for_nodes; return_nodes; return_nodes", CANCEL="1"
        )
        assert (code, slugs(err)) == (0, ["jobs-left"])
        assert [line.split()[2] for line in calls() if "trainer.dask" in line] == ["check", "nodes", "cancel"]

    def test_dask_each_node(self, dask, calls):
        code, out, err = dask(
            "check_client; request=$PWD/r; export OURS_ID=7 OURS_CONF=8 A='b  $c'; "
            '(dask_each_node 5 sh -c \'echo $NODE_RANK $PET_NODE_RANK ${OURS_ID-unset} $OURS_CONF "$A" "$PWD" "$1"\' '
            'x "it\'s") || echo $?; '
            "(dask_each_node 0 sh -c 'exit 3') || echo $?"
        )
        assert code == 0, err
        assert out.splitlines()[0].startswith("1 1 unset 8 b  $c /")
        assert out.splitlines()[0].endswith(" it's")
        assert out.splitlines()[1:] == ["3"]
        steps = [line for line in calls() if "each-node" in line]
        assert ["--together" in line for line in steps] == [False, True]

    def test_job_is_over(self, dask):
        over = 'for job in 20260101-000000-"${HOSTNAME%%.*}"-$$ 20260101-000000-"${HOSTNAME%%.*}"-999999999 '
        over += "20260101-000000-elsewhere-1; do code=0; job_is_over $job || code=$?; echo $code; done"
        assert dask(over)[1] == "0\n0\n2\n"

    def test_stop_for_signal(self, dask, place):
        (place / "launch").mkdir()
        stop = 'sleep 50 & launch_pid=$!; echo $! >"$log_dir/pid"; stop_for_signal; code=0; '
        stop += "kill -0 $launch_pid 2>/dev/null && kill -KILL $launch_pid; wait $launch_pid || echo $?; cat run/STOP"
        assert dask(stop)[1] == "137\nuser\n"
        assert (
            dask(f"rm -f run/STOP; SLIPWAY_SCRIPT=x; {stop}".replace("kill -0", "sleep 0.5; kill -0"))[1]
            == "143\nuser\n"
        )

    @pytest.mark.slow
    def test_watch_time_limit(self, dask):
        wait = "time_is_up=$((SECONDS + {})); trap 'echo warned' USR1; watch_time_limit; read -r -t 4 <> <(:) || :"
        assert dask(wait.format(121))[1] == "warned\n"
        assert dask(wait.format(1))[1] == "warned\n"
        assert dask(wait.format(150))[1] == ""

    def test_again(self, dask, place):
        (place / "run").mkdir()
        (place / "run/job.sh").write_text(
            'echo "again $$ $SLIPWAY_CLIENT $A ${B-unset}"; trap "echo heard" TERM; kill -TERM $$\n'
        )
        code, out, err = dask("export B=1; echo $$; trap '' TERM USR1 INT; again restart; echo no", A="kept")
        pid = out.split()[0]
        assert (code, out) == (0, f"{pid}\nagain {pid} 4711 kept unset\nheard\n"), err
        assert dask("again none || echo no; continue_command")[1].startswith("no\nbash ")

    def test_signal_launch(self, dask):
        assert dask('signal_launch; record_pid; cat "$log_dir/pid"')[1].strip().isdigit()
