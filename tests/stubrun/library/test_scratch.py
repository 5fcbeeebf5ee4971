"""The job's folder on each node's local disk: creation, staging and removal."""

import os
import re

import pytest

from bash_library import SRUN, assert_dies, assert_ended
from messages import assert_warning, messages, slugs


def test_random_name_is_unique_hex(bash):
    first, second = bash("random_name; random_name").out.split()
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert first != second


def test_scratch_folder_is_private_and_removed_at_end(bash, place):
    show = 'stat --format=%a "$scratch"; cat run/logs/2/scratch; ls disk; remove_scratch'
    code, out, err = bash(f"scratch_id=4711; make_scratch; {show}")
    mode, kept, name = out.splitlines()
    assert (code, mode, kept, err) == (0, "700", f"{place}/disk/{name}", "")
    assert list((place / "disk").iterdir()) == []


def test_old_scratch_is_removed_once_new_is_recorded(bash):
    code = f'old=$PWD/disk/slipway-1.{"a" * 16}; mkdir run/logs/1 "$old"; echo slurm 4711 >run/logs/1/job; '
    code += 'echo "$old" >run/logs/1/scratch; scratch=/new; record_scratch; cat run/logs/2/scratch; ls disk'
    assert bash(code) == (0, "/new\n", "")


@pytest.mark.parametrize("hangs", ["exec sleep 600", f"({SRUN}); exec sleep 600"])  # before its work, and after
def test_hung_folder_creation_is_retried_with_warning(bash, place, hangs):
    srun = f"if mkdir {place.parent}/tried 2>/dev/null; then {hangs}; fi; {SRUN}"
    call = 'SLIPWAY_PREFLIGHT_SECONDS=1; make_folder_on_each_node "$PWD/disk/x" && stat --format=%a disk/x'
    code, out, err = bash(call, programs={"srun": srun})
    assert (code, out) == (0, "700\n")
    assert_warning(err, "slow-nodes", "SLIPWAY_PREFLIGHT_SECONDS")


@pytest.mark.parametrize("there", ["ln --symbolic $PWD disk/x", "touch disk/x"])
def test_make_folder_on_each_node_refuses_existing_path(bash, there):
    done = bash(f'{there}; make_folder_on_each_node "$PWD/disk/x"')
    assert (done.code != 0, messages(done.err)) == (True, [])


# regression: another user put a folder of the same name in its place
@pytest.mark.parametrize(
    ("mode", "trust", "made"),
    [
        ("777", "", False),
        ("1777", "", True),
        ("755", "", True),
        ("777", "SLIPWAY_TRUSTED_FOLDER=$disk; ", True),
    ],
)
def test_scratch_in_world_writable_folder_is_refused(bash, open_folder, mode, trust, made):
    disk = (
        f"disk={open_folder}/disk; mkdir --mode={mode} $disk $disk/deeper; chmod {mode} $disk; chmod 755 $disk/deeper; "
    )
    done = bash(f"{disk}{trust}SLIPWAY_LOCAL_DISK=$disk/deeper scratch_id=1; make_scratch; echo made")
    assert done[:2] == ((0, "made\n") if made else (78, ""))
    assert slugs(done.err) == ([] if made else ["writable-by-others", "cannot-write"])


def test_read_only_folders_are_removed(bash):
    # root may remove anything unless it drops that capability
    mortal = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    code = "mkdir -p disk/x/a/b disk/y; touch disk/x/a/b/c; chmod 0 disk/x/a/b; chmod 500 disk/x/a disk/x; "
    code += '! srun rm -rf disk/x 2>/dev/null; remove_on_each_node 9 "$PWD/disk/x" "$PWD/disk/y"; ls -A disk'
    assert bash(code, programs={"srun": SRUN.replace("exec", f"exec {' '.join(mortal)}")}) == (0, "", "")


# regression: the step waited for the GPUs of a rank that could not be killed
@pytest.mark.parametrize(
    ("code", "scheduler", "out"),
    [
        ("remove_on_each_node 9 /x", "slurm", ".* --gres=none .*"),
        ("launcher=mpirun; remove_on_each_node 9 /x", "slurm", "0"),
        ("launcher=mpirun; (mpirun_node 0 9 true)", "slurm", "0"),
        ("launcher=mpirun; (mpirun_each_node 9 true)", "slurm", "2"),
        ("launcher=mpirun; remove_on_each_node 9 /x", "pbs", ""),
    ],
)
def test_helper_steps_request_no_gpu(bash, code, scheduler, out):
    programs = {"srun": 'echo "$*"', "mpirun": "echo $SLURM_GPUS_PER_NODE"}
    said = bash(f"gpus_per_node=2 gpu_options=(--gres=gpu:2); {code}", scheduler=scheduler, programs=programs).out
    assert re.fullmatch(f"{out}\n", said)


@pytest.mark.parametrize("broken", ["exit 1", "exec sleep 600"])
def test_failed_scratch_removal_gives_only_warning(bash, place, broken):
    remove = "cleanup_seconds=1; scratch=$PWD/disk/x; mkdir disk/x; remove_scratch; echo on"
    code, _, err = bash(remove, programs={"srun": broken})
    assert code == 0
    assert_warning(err, "scratch-left", "disk/x")
    assert list((place / "disk").iterdir()) == []


@pytest.mark.parametrize(("spares", "kept"), [("(n2)", False), ("()", True)])
def test_scratch_record_is_kept_if_a_node_was_left_out(bash, place, spares, kept):
    code = f"scratch_id=4711; make_scratch; allocation=(n1 n2) nodes=(n1) nnodes=1 spare_nodes={spares}; remove_scratch"
    assert bash(code).code == 0
    record = place / "run" / "logs" / "2" / "scratch"
    assert record.exists() == kept
    assert list((place / "disk").iterdir()) == []
    record.unlink(missing_ok=True)  # which ends the watch: no scheduler does here


def test_remove_scratch_without_scratch_does_nothing(bash):
    assert bash("scratch=; remove_scratch; unset scratch; remove_scratch") == (0, "", "")


LEFT = """left() {
    local folder=disk/slipway-$2.0000000000000000
    mkdir --parents $folder run/logs/$1
    echo slurm $2 >run/logs/$1/job
    echo "${3-$PWD/$folder}" >run/logs/$1/scratch
}
"""
"""left NUMBER JOB [PATH]: write what an attempt of that number leaves."""


# regression: a silent controller was queried for each of them, for 80 s, while the job held its nodes
@pytest.mark.parametrize(
    ("left", "said", "stays", "asked"),
    [
        ("left 1 4711; left 3 98; left 4 99", '[ "${!#}" != 99 ] || echo "JobId=99 JobState=RUNNING X=y"', [99], 2),
        ("left 1 97; left 3 98; left 4 4711", "exit 1", [97, 98], 1),
        *[(f"left 5 1 {path}", ":", [1], 0) for path in ("$PWD/c.toml", "/", "''")],  # damaged
    ],
)
def test_old_scratch_is_removed_unless_job_may_run(bash, place, left, said, stays, asked):  # noqa: PLR0917 -- fixtures
    scontrol = f'echo >>"$HOME/asked"; {said}'
    done = bash(f'touch c.toml "$HOME/asked"; {LEFT}{left}; remove_old_scratch', programs={"scontrol": scontrol})
    assert done == (0, "", "")
    assert sorted(path.name for path in (place / "disk").iterdir()) == [f"slipway-{job}.{'0' * 16}" for job in stays]
    assert (place / "c.toml").exists()
    assert (place.parent / "asked").read_text().count("\n") == asked


STAGE = "SLIPWAY_STAGE=1 scratch=$PWD/disk; mkdir i; echo image >i.sif; echo data >i/i.sif; "


@pytest.mark.parametrize(
    ("container", "code", "out"),
    [
        ("1", f'{STAGE}data=$PWD/i; stage_to_local_disk; cat "$image" "$data/i.sif"', "image\ndata\n"),
        ("1", "stage_to_local_disk; echo $?", "0\n"),
        # an image that is not used stays where it is
        ("0", f'{STAGE}stage_to_local_disk; echo "${{image#"$PWD"}}"', "/i.sif\n"),
    ],
)
def test_stage_to_local_disk_copies_image_and_data(bash, container, code, out):
    assert bash(code, USE_CONTAINER=container)[:2] == (0, out)


def test_failed_staging_ends_job(bash):
    assert_dies(bash(f"{STAGE}stage_to_local_disk", programs={"srun": "exit 1"}), "staging-failed", lines=2)


class TestLocalEnvironment:
    """SLIPWAY_VENV=local: a virtual environment that each node makes on its disk."""

    LOCAL = "USE_CONTAINER=0 SLIPWAY_VENV=local scratch=$PWD/disk/s; "
    SETUP = "mkdir build; printf '#!/bin/bash\\n%s\\n' '{}' >build/setup; chmod {} build/setup; "

    def test_local_venv_is_built_and_first_in_path(self, bash, place):
        setup = self.SETUP.format('echo "$VENV $VARIANT $1"', 755)
        show = 'echo "$venv"; [[ $PATH == "$venv/bin":* ]]'
        done = bash(f"{setup}{self.LOCAL}build_local_venv; {show}")
        venv = f"{place}/disk/s/venv"
        assert (done.code, done.out.splitlines()[:1], done.out.splitlines()[-1]) == (0, [f"{venv} cpu train"], venv)

    @pytest.mark.parametrize(
        ("code", "slug", "values"),
        [
            ("venv=here; build_local_venv; echo $venv", "", []),
            (f"{LOCAL}build_local_venv", "no-clone", ["build/setup"]),
            (f"{SETUP.format('exit 1', 755)}{LOCAL}build_local_venv", "build-failed", []),
            # regression: the builds refused what others could write, and a job ran it
            (f"{SETUP.format('exit 1', 777)}{LOCAL}build_local_venv", "writable-by-others", ["build/setup"]),
        ],
    )
    def test_local_venv_that_cannot_be_built_is_refused(self, bash, code, slug, values):
        assert_ended(bash(code), slug, *values, out="here\n")
