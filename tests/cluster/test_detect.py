"""`jobgen site --detect` on a real Slurm and a real OpenPBS: the drafts load, and the schedulers take their scripts."""

import shutil

import pytest

from clusters import JOBGEN
from jobgen.base.job import Site
from jobgen.resolve.load import load

TOOLS = ("id", "ip", "bash", "unshare")
"""Programs that detection runs besides the scheduler's."""


def detected(cluster, folder, *words, **env):
    """Return the site drafted on the head, the draft's path, and the output."""
    path = folder / "mine.toml"
    said = cluster.run("env", *words, *JOBGEN, "site", "--detect", "--output", str(path), **env)
    text = path.read_text()
    print(text)
    return load(str(path), [], Site), path, said + text


def test_site_detect_drafts_slurm_site(cluster, users_folder):
    site, path, text = detected(cluster, users_folder, "-u", "SBATCH_EXPORT")
    assert (site.name, site.scheduler, site.resume) == ("test", "slurm", "requeue")
    assert (site.gpus_per_node, site.cpus_per_gpu, site.gpu_request) == (2, 8, "gpus-per-node")
    assert (site.options, site.cpu_options, site.mem) == ({"partition": "gpu"}, {}, "")
    assert "No answer" not in text
    assert "KillWait=15 sec" in text
    script = str(path.with_name("ddp.job"))
    cluster.jobgen("render", "ddp", "--site", path, "--output", script)
    cluster.run("sbatch", "--test-only", script)  # fails if the job could never start


@pytest.mark.prove
def test_site_detect_drafts_openpbs_site(cluster, openpbs, users_folder):
    programs = users_folder / "bin"  # the head also has Slurm's commands
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin"))
    site, path, text = detected(cluster, users_folder, f"PATH=/opt/pbs/bin:{programs}")
    assert (site.name, site.scheduler, site.pbs, site.resume) == ("head", "pbs", "openpbs", "chain")
    assert (site.gpus_per_node, site.cpus_per_gpu, site.mem) == (2, 4, "")
    assert (site.options, site.cpu_options) == ({"q": "gpu"}, {"q": "cpu"})
    assert "No answer" not in text
    script = str(path.with_name("ddp.pbs"))
    cluster.jobgen("render", "ddp", "--site", path, "--output", script)
    number = openpbs.run("qsub", "-h", script).strip()
    assert openpbs.job(number).fields["Resource_List.ngpus"] == "4"
    openpbs.run("qdel", number)
