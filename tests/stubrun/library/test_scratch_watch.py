"""Removal of the scratch folder of a job that Slurm ends: a job step on each node waits for the job's end."""

import re

import pytest

from bash_library import LIB
from messages import slugs


def test_watch_step_runs_on_other_nodes(bash):
    code = (
        "unset_inherited_slurm_variables; scratch_record=$PWD/record scratch=$PWD/s; start_scratch_watch; sleep 0.3; "
    )
    code += "start_scratch_watch; scratch_watch_runs && stop_scratch_watch; scratch_watch_runs || cat steps"
    env = dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_TRES_PER_TASK"), "2")
    srun = {"srun": 'echo "$*" >>steps; env | grep -c ^SLURM_ >>steps; exec sleep 54'}
    words, unset = bash(code, SLURMD_NODENAME="n1", programs=srun, **env).out.splitlines()
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --nodelist=n2 sh " in words
    assert re.search(r" /.*/record 4711\.none\.\* /.*/s$", words)
    assert unset == "0"


@pytest.mark.parametrize(
    ("given", "scheduler"),
    [("", "slurm"), ("scratch_record=x healthy_nodes=(n1); ", "slurm"), ("scratch_record=x; ", "pbs")],
)
def test_no_watch_without_record_or_other_node(bash, given, scheduler):
    code = f"{given}start_scratch_watch; scratch_watch_runs || echo none; stop_scratch_watch; ls steps"
    srun = {"srun": "touch steps; exec sleep 54"}
    assert bash(code, scheduler=scheduler, SLURMD_NODENAME="n1", programs=srun).out == "none\n"


# regression: inside salloc the step outlived the script
@pytest.mark.parametrize("interactive", ["1", ""])
def test_scratch_watch_in_salloc_ends_with_script(bash, interactive):
    srun = {"srun": '[[ "$*" == *watch_scratch.sh* ]] || exit 1; exec sleep 53'}
    code = f"interactive={interactive} scratch_record=$PWD/record scratch=$PWD/disk/x; mkdir disk/x; "
    code += "start_scratch_watch; watch=$scratch_watch; remove_scratch; "
    code += "! scratch_watch_runs || { echo lives; stop_scratch_watch; }; wait $watch || echo $?"
    done, out, err = bash(code, SLURMD_NODENAME="n1", programs=srun)
    assert (done, out) == (0, "143\n" if interactive else "lives\n143\n")
    assert slugs(err) == (["scratch-left"] if interactive else [])


def test_folder_is_removed_after_job_and_ranks_end(bash):
    """It removes the folder after SIGTERM, once the script reports the end of the job and no rank lives."""
    code = """
    mkdir -p x/a; echo x >record
    SLIPWAY_LAUNCH=4711.1.2.3 sleep 59 & rank=$!
    sh "$lib/watch_scratch.sh" record "4711.1.*" x & watch=$!
    sleep 0.3; kill $watch
    sleep 0.4; ls x
    echo over >>record
    sleep 0.4; ls x
    kill -KILL $rank; wait $rank || :
    wait $watch; ls
    """
    assert bash(code)[:2] == (0, "a\na\ndisk\nrecord\nrun\n")


# regression: the folder was kept because of a job that one of its ranks had submitted
@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_job_submitted_by_rank_does_not_count_as_rank(bash, place, variable):
    (place / "x").mkdir()
    (place / "record").write_text("x\nover\n")
    code = f"""
    export {variable}=4711; launch_id=4711.1.2.3
    {variable}=4712 SLIPWAY_LAUNCH=$launch_id sleep 9 & other=$!
    ! launch_runs || echo lives
    sh "$lib/watch_scratch.sh" record "4711.1.*" x & watch=$!
    sleep 0.2; kill $watch; wait $watch || :
    [ ! -e x ] || echo stays
    SLIPWAY_LAUNCH=$launch_id sleep 9 & until launch_runs; do :; done
    kill $! $other
    """
    assert bash(code, SLURM_JOB_ID="", PBS_JOBID="")[:2] == (0, "")


def test_folder_without_record_is_left_unchanged(bash):
    code = """sh "$lib/watch_scratch.sh" none 4711 x & mkdir x; sleep 0.3; kill $!; wait $!; ls -d x"""
    assert bash(code, limit=10)[:2] == (0, "x\n")


# regression: inside salloc the folder stayed if the script was ended before it knew of it
def test_watch_ends_after_record_is_removed(bash, place):
    text = (LIB / "watch_scratch.sh").read_text()
    assert ("sleep 2 &" in text, "naps % 30" in text) == (True, True)
    (place / "watch.sh").write_text(text.replace("sleep 2 &", "sleep 0.05 &").replace("naps % 30", "naps % 4"))
    code = "touch record; sh watch.sh record 4711 x & sleep 0.4; kill -0 $!; rm record; wait $!"
    assert bash(code, limit=10) == (0, "", "")
