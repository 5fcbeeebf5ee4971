"""Who removes the scratch folder of a job that Slurm ends: a step on each node, which waits for its end."""

import re
import subprocess
import time

import pytest

from bash_library import LIB
from messages import slugs

WATCH = ["sh", str(LIB / "watch_scratch.sh")]


def test_a_step_watches_the_folder_on_the_other_nodes(bash):
    code = "forget_other_jobs; scratch_record=$PWD/record scratch=$PWD/s; watch_scratch; sleep 0.3; "
    code += "watch_scratch; scratch_is_watched && end_scratch_watch; scratch_is_watched || cat steps"
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
def test_nothing_is_watched_without_a_record_or_another_node(bash, given, scheduler):
    code = f"{given}watch_scratch; scratch_is_watched || echo none; end_scratch_watch; ls steps"
    srun = {"srun": "touch steps; exec sleep 54"}
    assert bash(code, scheduler=scheduler, SLURMD_NODENAME="n1", programs=srun).out == "none\n"


# once: inside salloc the step outlived the script
@pytest.mark.parametrize("interactive", ["1", ""])
def test_inside_salloc_nothing_watches_the_folder_of_a_script_that_has_ended(bash, interactive):
    srun = {"srun": '[[ "$*" == *watch_scratch.sh* ]] || exit 1; exec sleep 53'}
    code = f"interactive={interactive} scratch_record=$PWD/record scratch=$PWD/disk/x; mkdir disk/x; "
    code += "watch_scratch; watch=$scratch_watch; remove_scratch; "
    code += "! scratch_is_watched || { echo lives; end_scratch_watch; }; wait $watch || echo $?"
    done, out, err = bash(code, SLURMD_NODENAME="n1", programs=srun)
    assert (done, out) == (0, "143\n" if interactive else "lives\n143\n")
    assert slugs(err) == (["scratch-left"] if interactive else [])


def test_the_folder_is_removed_after_the_end_of_job_and_ranks(tmp_path):
    """It removes the folder once it got SIGTERM, the script says that the job has ended, and no rank lives."""
    record, folder = tmp_path / "record", tmp_path / "x"
    (folder / "a").mkdir(parents=True)
    record.write_text(f"{folder}\n")
    rank = subprocess.Popen(["sleep", "59"], env={"PATH": "/usr/bin:/bin", "SLIPWAY_LAUNCH": "4711.1.2.3"})
    watch = subprocess.Popen([*WATCH, record, "4711.1.*", folder])
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
def test_a_job_that_a_rank_submitted_is_none_of_its_ranks(bash, place, variable):
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


def test_watch_scratch_sh_leaves_a_folder_alone_that_others_remove(tmp_path):
    watch = subprocess.Popen([*WATCH, tmp_path / "none", "4711", tmp_path / "x"])
    (tmp_path / "x").mkdir()
    time.sleep(0.3)
    watch.terminate()
    assert (watch.wait(10), (tmp_path / "x").exists()) == (0, True)


# once: inside salloc it stayed where the script was ended before it knew of it
def test_watch_scratch_sh_ends_once_its_record_is_gone(tmp_path):
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
