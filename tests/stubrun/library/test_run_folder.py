"""The run folder of a job: numbered attempts, files that a job keeps there, and its modes."""

import json
import os
import shutil

import pytest

from bash_library import LIB, assert_dies
from messages import numbers
from slipway.base.environment import World
from slipway.run.lock import Lock
from slipway.run.recorder import provenance
from stubs import ROOT


@pytest.mark.parametrize(
    ("folders", "files", "last"),
    [
        ([], [], 0),
        (["1", "9", "10", "08", "x", "-3", "12 3", "a[$(id)]"], ["logs/99"], 10),
        # version 0.1 of the trainer, started manually, left a verdict and no folder in logs
        ([], ["verdict.3", "verdict.x", ".verdict.9.7", "verdict.08"], 3),
    ],
)
def test_last_attempt_from_log_folders_and_verdicts(bash, folders, files, last):
    make = 'rmdir run/logs/2; for name; do case $name in */) mkdir "run/logs/$name" ;; *) touch "run/$name"; esac; done'
    assert bash(f"{make}; last_attempt", *[f"{name}/" for name in folders], *files).out == f"{last}\n"


@pytest.mark.parametrize(
    ("given", "scheduler", "ends"), [("", "slurm", "yes"), ("interactive=1", "slurm", "no"), ("", "local", "no")]
)
def test_scheduler_ends_job_only_for_slurm_batch_job(bash, given, scheduler, ends):
    code = f"{given}\nscheduler_ends_job && echo yes || echo no"
    assert bash(code, scheduler=scheduler).out == f"{ends}\n"


def test_single_backend_on_two_nodes_creates_no_run_folder(bash, place):
    assert_dies(bash("BACKEND=single run_dir=new/r; open_run_folder"), "too-many-nodes", 2)
    assert not (place / "new").exists()


def test_open_run_folder_creates_attempt_and_copies_library(bash, place):
    code, out, err = bash('run_dir=new/r; open_run_folder; printf "%s\\n" "$RUN_DIR" "$attempt" "$log_dir" "$lib"')
    folder = place / "new" / "r"
    assert (code, out.splitlines()) == (0, [str(folder), "1", f"{folder}/logs/1", f"{folder}/lib"])
    assert (folder / "logs" / "1" / "job").read_text() == "slurm 4711\n"
    assert (folder / "lib" / "slurm.bash").read_text() == (LIB / "slurm.bash").read_text()
    assert numbers(err.partition(str(folder))[0]) == [1]
    assert str(folder) in err


def test_attempt_number_taken_concurrently_is_skipped(bash):
    taken = "mkdir --parents new/logs/1; last_attempt() { echo 0; }; run_dir=new; open_run_folder"
    assert bash(f'{taken}; echo "$attempt"')[:2] == (0, "2\n")


@pytest.mark.parametrize(
    ("run_dir", "named", "lines"), [("new", ["/new/logs"], 1), ("file/r", ["/file/r", "SLIPWAY_"], 2),
                                    ("file", ["/file", "SLIPWAY_"], 2)]
)  # fmt: skip
def test_run_folder_that_cannot_be_created_is_refused(bash, run_dir, named, lines):
    full = {"mkdir": 'case "$*" in */logs/.new.*) exit 1 ;; esac; exec /bin/mkdir "$@"'}
    refused = bash(f"touch file; run_dir={run_dir}; open_run_folder", programs=full)
    assert_dies(refused, "cannot-write", *named, lines=lines)


# regression: with group_readable the folder above it was made under its umask
@pytest.mark.parametrize(("call", "mode"), [("open_run_folder", "700"), ("open_run_folder 750", "750")])
def test_only_run_folder_is_private_not_its_parent(bash, call, mode):
    code = f"umask 022; run_dir=new/a; {call}; stat --format=%a new new/a"
    assert bash(code)[:2] == (0, f"755\n{mode}\n")


@pytest.mark.parametrize(("umask", "above"), [("002", 0o755), ("077", 0o750), ("027", 0o750)])
def test_mode_750_lets_group_read_but_not_write(bash, place, umask, above):
    shutil.copytree(LIB, place / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "me").write_text("#!/bin/bash\njob_id=1\nreadonly job_id\n")
    open_it = f"umask {umask}; lib=$PWD/lib run_dir=new/a; open_run_folder 750; script_file=$PWD/me; save_job_script"
    begin = "rm -r run; touch c.toml; chmod 600 c.toml lib/*; "
    assert bash(f"{begin}{open_it}; echo $TRAINER_UMASK").out == "027\n"
    paths = [place / "new", *(place / "new" / "a").rglob("*")]
    modes = {path.name: path.stat().st_mode for path in paths}
    assert modes.pop("new") & 0o777 == above
    assert modes.pop("job.sh") & 0o777 == 0o740
    assert {"input.toml", "slurm.bash", "job"} <= modes.keys()
    assert {*modes.values()} == {0o040750, 0o100640}


def test_library_is_copied_to_run_folder_once(bash, place):
    kept = place / "run" / "lib"
    assert bash('save_library; echo "$lib"').out == f"{kept}\n"
    copied = {path.name for path in kept.iterdir() if path.is_file()}
    assert copied == {".slipway-library", *(path.name for path in LIB.glob("*.*"))}
    assert bash("touch run/job.sh run/lib/mark; save_library; ls run/lib/mark")[:2] == (0, "run/lib/mark\n")


def test_second_save_library_keeps_existing_copy(bash, place):
    assert bash("save_library")[:2] == bash("save_library")[:2] == (0, "")
    assert list((place / "run").glob(".lib.*")) == []
    assert_dies(bash("copy_library() { return 1; }; save_library"), "cannot-write", f"{place}/run/lib")


def test_job_script_is_saved_with_settings_and_arguments(bash, place):
    (place / "c.toml").write_text("a = 1\n")
    (place / "me").write_text("#!/bin/bash\njob_id=1\nreadonly job_id\necho rest\n")
    keep = 'script_file=$PWD/me; save_job_script "$@"; cat run/job.sh; [ -x run/job.sh ]'
    code, out, err = bash(keep, "a b", "$(id)", SLIPWAY_DATA="x'y")
    assert code == 0, err
    assert out.startswith("#!/bin/bash\njob_id=1\nreadonly job_id\n# Kept settings (of job 4711)")
    assert out.endswith("# Kept settings end.\necho rest\n")
    assert "set -- 'a b' '$(id)'" in out
    assert (place / "run" / "input.toml").read_text() == "a = 1\n"


CACHE = 'cp -r "$lib" original; lib=$PWD/original; mkdir -p "$lib/__pycache__"; copy_library "$PWD/copy"'


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("saved_lines; saved_lines a | tail --lines=2 | grep --count 'Kept settings end'", 0),
        (f"{CACHE}; ls copy/stage.bash; ! ls copy/__pycache__", 0),
        ('scratch=$PWD/disk; copy_library_to_scratch; echo "$lib"; ls "$lib/stage.bash"', 0),
        ("scratch=$PWD/none; copy_library_to_scratch", 78),
        ("SLIPWAY_OUTPUT=$PWD/new/runs; open_output_folder; ls new/runs", 0),
    ],
    ids=["settings", "no cache of Python", "library of a shell", "library that cannot be placed", "output"],
)
def test_copy_library_and_open_output_folder(bash, code, ended):
    assert bash(code).code == ended


def test_output_folder_that_cannot_be_created_is_refused(bash, place):
    refused = bash("SLIPWAY_OUTPUT=$PWD/disk/x/runs; touch disk/x; open_output_folder")
    assert_dies(refused, "cannot-write", f"{place}/disk/x/runs", "SLIPWAY_OUTPUT", lines=2)


# regression: SLIPWAY_RUN_DIR=$HOME removed ~/lib and overwrote ~/input.toml
def test_run_folder_with_foreign_files_is_refused(bash, place):
    assert bash("refuse_foreign_folder") == (0, "", "")
    refused = bash("mkdir run/mine; refuse_foreign_folder")
    assert_dies(refused, "folder-holds-other-files", f"{place}/run ", "mine", "SLIPWAY_RUN_DIR")


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("job.sh", ""),
        ("run.json", json.dumps(provenance(World(rank=0, size=1), {}))),
        ("lock", json.dumps(Lock(ROOT, job_id="", attempt=1)._owner)),
        ("logs/3/job", "slurm 1_2\n"),
    ],
)
def test_folder_marked_as_run_may_hold_other_files(bash, mark, text):
    write = f'mkdir --parents run/mine run/logs/3; printf %s "$1" >run/{mark}; refuse_foreign_folder'
    assert bash(write, text).code == 0
    assert bash(write, "mine").code == (78 if text else 0)


@pytest.mark.parametrize(
    "code",
    [
        "mkfifo run/lock; ! first_line_has run/lock a; ! first_line_has run/lib a; ! first_line_has run/gone a",
        "mkfifo run/lock; ! is_run_folder",  # nothing waits for a FIFO
        """echo '{"started": "x", "host": "y", "world_size": 2}' >run/run.json; is_run_folder""",
        "echo '\"host\": 3' >run/run.json; first_line_has run/run.json host",
        "is_foreign_file run/lib; ! is_saved_library run/lib",
        ("touch run/lib/.slipway-library; ! is_foreign_file run/lib; is_saved_library run/lib; "
        "! is_foreign_file run/verdict.1"),
        "echo a >run/input.toml; echo a >c.toml; ! is_foreign_file run/input.toml",
        "echo a >run/input.toml; echo 2 >c.toml; is_foreign_file run/input.toml",
        "echo a >run/input.toml; echo 2 >c.toml; SLIPWAY_SCRIPT=x; ! is_foreign_file run/input.toml",  # it writes none
    ],
)  # fmt: skip
def test_run_files_are_distinguished_from_foreign_files(bash, code):
    assert bash(f"mkdir --parents run/lib; set +e; {code.replace('; ', ' && ')}").code == 0


STATUS = """status() { echo '{"attempt": 2, "state": "'"$1"'"}' >run/status.json; }; """


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("attempt_has_session || echo no; run_has_session || echo no", "no\nno\n"),
        ("status running; attempt_has_session && attempt_has_open_session && echo open", "open\n"),
        ("status running; attempt=1; attempt_has_session || echo no; run_has_session && echo yes", "no\nyes\n"),
        ("status done; attempt_has_session && ! attempt_has_open_session && echo done", "done\n"),
    ],
)
def test_session_state_is_read_from_status_json(bash, code, out):
    assert bash(STATUS + code).out == out


def test_session_folders_and_newest_status_are_found(bash, place):
    show = 'find_session_folders; echo "${folders[*]}"; find_newest_status; echo "$newest"'
    run = place / "run"
    assert bash(show).out == f"{run}\n\n"
    write = "mkdir run/fold1 out; for n in run out run/fold1; do echo >$n/status.json; sleep 0.01; done"
    (run / "sessions").write_text(f"gone\nfold1\n{place}/out\n")
    folders = f"{run} {run}/gone {run}/fold1 {place}/out"
    assert bash(f"{write}; {show}").out == f"{folders}\n{run}/fold1/status.json\n"


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
def test_last_of_several_sessions_decides_state(bash, place, states, said):
    for number, state in enumerate(states):
        path = place / "run" / f"fold{number}" / "status.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"attempt": 2, "state": state}))
        os.utime(path, (number, number))
    (place / "run" / "sessions").write_text("fold1\nfold0\n")  # the request of an earlier attempt
    ask = "run_has_session && ! attempt_has_open_session || echo begun"
    assert bash(ask).out == said
    assert bash(f"attempt=1; {ask}").out == ""


SAVE = 'save() { mkdir --parents "$1/checkpoints"; ln --symbolic "$2" "$1/checkpoints/latest"; }; '
SESSIONS = """save run step_00000009
save 'run/fold 0' step_00000020
save run/a/fold1 step_00000300
save out step_00004000
printf '%s\\n' 'fold 0' a/fold1 "$PWD/out" gone >run/sessions"""


@pytest.mark.parametrize(
    ("saved", "step"),
    [
        ("", 0),
        ("save run step_00000120", 120),
        *[(f"save run {name}", 0) for name in ("x", "step_", "step_1x")],
        (SESSIONS, 4329),
    ],
)
def test_resumable_step_is_sum_of_all_sessions(bash, saved, step):
    assert bash(f"{SAVE}{saved}\nresumable_step").out == f"{step}\n"
