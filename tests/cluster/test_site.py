"""Site features beyond the example site: no environment export, GPUs as gres, salloc."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import FIXED, Cluster, Job
from jobgen.cli import main
from messages import assert_error, assert_names, assert_warning, slugs
from support import ROOT

SETTINGS = {**FIXED, "SLIPWAY_VENV": sys.prefix}


def submit(cluster: Cluster, *words: str, out: Path, **env: str) -> Job:
    """Submit a job with jobgen and ``words``; its output is written beside the run folder ``out``."""
    log = out.with_name(f"{out.name}.log")
    command = [sys.executable, "-m", "jobgen", "submit", *words[:1], "--site", "example"]
    command += ["--set", f"options.output={log}", *words[1:]]
    env = {**SETTINGS, "SLIPWAY_RUN_DIR": str(out), **env}
    return cluster.job(cluster.run(*command, **env).split()[-1], log)


class TestEnvironmentNotExported:
    """SBATCH_EXPORT=NONE, which many HPC centers recommend."""

    def test_jobgen_submit_writes_settings_into_script(self, cluster, tmp_path, config):
        run = submit(
            cluster, "ddp", out=tmp_path / "run", SBATCH_EXPORT="NONE", SLIPWAY_CONFIG=config(1), SLIPWAY_STAGE="1"
        )
        run.ends()
        said = next(line for line in run.output.splitlines() if "set at submission: " in line)
        settings = ("USE_CONTAINER='0'", "SLIPWAY_DEVICE='cpu'", f"SLIPWAY_VENV='{sys.prefix}'", "SLIPWAY_STAGE='1'")
        assert_names(said, *settings)
        cluster.resubmit(tmp_path / "run", folder=tmp_path, SBATCH_EXPORT="NONE").ends()

    @pytest.mark.prove
    def test_site_path_provides_container_runtime(self, cluster, tmp_path, config, image):
        folder = Path(shutil.which("apptainer", path=image["PATH"])).parent
        env = {**image, "SLIPWAY_CONFIG": config(1), "SBATCH_EXPORT": "NONE"}
        without = submit(cluster, "ddp", out=tmp_path / "none", **env)
        without.ends(ExitCode="78:0")
        assert_error(without.output, "no-container-runtime", "apptainer", "USE_CONTAINER=0")
        assert_warning(without.output, "environment-left", "PATH")
        words = ("--set", f'path=["{folder}"]', "--set", f'env.APPTAINER_BIND="{image["APPTAINER_BIND"]}"')
        submit(cluster, "ddp", *words, out=tmp_path / "run", **env).ends()

    def test_committed_script_warns_that_environment_is_missing(self, cluster, tmp_path):
        job = cluster.submit("ddp.job", out=tmp_path / "run", SBATCH_EXPORT="NONE")
        job.ends(ExitCode="78:0")
        assert_warning(job.output, "environment-left", "--export=NONE", "SBATCH_EXPORT", "--export=ALL")


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        pytest.param(("--set", "gpu_request=gres"), 4, marks=pytest.mark.prove),
        pytest.param(("--set", "gpu_request=gpus-per-task"), 4, marks=pytest.mark.prove),
        (("--set", "gpu_request=gres", "--set", "ranks_per_node=1"), 2),
    ],
)
def test_one_rank_per_gpu_for_each_gpu_request_option(cluster, tmp_path, config, settings, ranks):
    """One rank for each allocated GPU, whichever option requested it."""
    job = submit(cluster, "ddp", *settings, out=tmp_path / "run", SLIPWAY_CONFIG=config(1))
    job.ends()
    assert f": {ranks} rank(s), {ranks // 2} on each of 2 node(s)" in job.output
    assert "idle-gpus" not in slugs(job.output)


class TestSalloc:
    """The committed scripts inside an allocation."""

    def run(self, cluster: Cluster, out: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        env = {**SETTINGS, "SLIPWAY_OUTPUT": str(out), **env}
        shell = 'cd "$1" && shift && "$@" 2>&1; echo "ended with $?"'
        allocation = ("salloc", "--quiet", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=4", "--partition=gpu")
        return cluster.run(*allocation, "bash", "-c", shell, "-", str(ROOT), *words, **env)

    def test_script_trains_twice_in_one_allocation(self, cluster, tmp_path, config):
        words = "bash jobscripts/ddp.job --epochs 1 && sleep 1 && bash jobscripts/ddp.job --epochs 2"
        said = self.run(cluster, tmp_path, "bash", "-c", words, SLIPWAY_CONFIG=config(2), SLIPWAY_DEVICE="cpu")
        assert said.endswith("ended with 0\n"), said
        assert said.count(": 4 rank(s), 2 on each of 2 node(s)") == 2
        assert len([*tmp_path.glob("ddp-*/checkpoints/latest")]) == 2

    @pytest.mark.prove
    @pytest.mark.parametrize("backend", ["ddp", "horovod"])
    def test_job_steps_leave_terminal_input_unread(self, cluster, tmp_path, config, backend):
        """No job step reads the terminal's input or stops for it: the line remains for the next program."""
        line = 'BACKEND=$0 bash jobscripts/ddp.job; echo "ended with $?"; read -r line; echo "then $line"'
        words = shlex.join(["bash", "-c", line, backend])
        said = self.run(
            cluster,
            tmp_path,
            *("bash", "-c", 'echo typed | script --quiet --command "$0" /dev/null', words),
            SLIPWAY_CONFIG=config(1),
        )
        assert "ended with 0" in said
        assert "then typed" in said

    def test_time_limit_in_allocation_does_not_requeue(self, cluster, tmp_path, config):
        signal = "(until grep -q . RUN/metrics.jsonl; do sleep 0.2; done; kill -USR1 $(cat pid)) & echo $$ >pid; "
        words = f"cd {tmp_path}; {signal.replace('RUN', 'ddp-*')} exec bash {ROOT}/jobscripts/ddp.job"
        env = {"SLIPWAY_CONFIG": config(4000), "SLIPWAY_LIB": str(ROOT / "jobscripts" / "lib")}
        said = self.run(cluster, tmp_path, "bash", "-c", words, **env)
        assert "no-requeue" in slugs(said)
        assert re.search(r"stopped at step \d+ .*: sbatch --nodes=2 ", said), said
        assert said.endswith("ended with 75\n"), said

    def test_script_outside_allocation_is_refused(self):
        done = subprocess.run(
            ["bash", ROOT / "jobscripts" / "ddp.job"],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 78
        assert done.stderr.count("\n") == 1
        assert_names(done.stderr, "ddp.job: ", "sbatch", "salloc")


INIT = Path("/usr/share/modules/init/bash")
PYTORCH = """#%Module
prepend-path PATH {bin}
prepend-path PYTHONPATH {packages}
"""


@pytest.mark.prove
@pytest.mark.skipif(not INIT.exists(), reason="no Environment Modules: apt-get install environment-modules")
class TestPythonFromModules:
    """PyTorch as EasyBuild and Spack install it: on PATH and PYTHONPATH, by a module."""

    @pytest.fixture
    def modules(self, tmp_path):
        """Return the environment of a user with a module PyTorch/1.0."""
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "python3").symlink_to("/usr/bin/python3")
        (programs / "torchrun").write_text("#!/usr/bin/env python3\nfrom torch.distributed.run import main\nmain()\n")
        (programs / "torchrun").chmod(0o755)
        paths = [path for path in sys.path if path.endswith("site-packages")] + [str(ROOT / "src")]
        file = tmp_path / "modulefiles" / "PyTorch" / "1.0"
        file.parent.mkdir(parents=True)
        file.write_text(PYTORCH.format(bin=programs, packages=":".join(paths)))
        return {
            "BASH_ENV": str(INIT),  # every Bash has `module`, as with a center's profile
            "MODULEPATH": str(tmp_path / "modulefiles"),
            "PYTHONPATH": "/of/the/submission",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SLIPWAY_VENV": "modules",
        }

    @pytest.mark.parametrize("purge", ["true", "false"])
    def test_trainer_runs_with_site_modules(self, cluster, tmp_path, config, modules, purge):
        settings = ("container=none", 'modules=["PyTorch/1.0"]', f"purge_modules={purge}")
        words = [word for setting in settings for word in ("--set", setting)]
        submit(cluster, "ddp", *words, out=tmp_path / "run", SLIPWAY_CONFIG=config(1), **modules).ends()


@pytest.mark.prove
class TestSharedImage:
    """A read-only image and a site file in a folder of the center; root and alice, each with a clone."""

    @pytest.fixture
    def centre(self, cluster, image):
        """Return the center's software folder, with the image and the script that all users submit."""
        folder = cluster.folder / "software"
        (folder / "sites").mkdir(parents=True)
        apptainer = shutil.which("apptainer", path=image["PATH"])
        words = [apptainer, "build", "--sandbox", folder / "image", image["SLIPWAY_IMAGE"]]
        subprocess.run(words, check=True, capture_output=True)
        site = f'name = "centre"\nimage = "{folder}/image"\ngpus_per_node = 2\n[options]\npartition = "gpu"\n'
        (folder / "sites" / "centre.toml").write_text(site)
        subprocess.check_call(["chmod", "--recursive", "a+rX,a-w", folder])
        return folder

    def clone(self, folder: Path, owner: int) -> Path:
        for name in ("src", "configs", "jobscripts"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.check_call(["chown", "--recursive", f"{owner}:{owner}", folder])
        return folder

    def test_two_users_train_and_shared_folder_is_unchanged(  # noqa: PLR0917 -- fixtures
        self, cluster, users_folder, users_image, image, centre, monkeypatch
    ):
        monkeypatch.setenv("SLIPWAY_SITES", str(centre / "sites"))
        words = ["render", "ddp", "--site", "centre", "--set", "nodes=1", "--output"]
        clones = {"root": self.clone(cluster.folder / "clone", 0), "alice": self.clone(users_folder / "clone", 20001)}
        paths = {"root": image["PATH"], "alice": users_image["PATH"]}
        before = listing(centre)

        def submitted(user: str) -> Job:
            clone = clones[user]
            script = clone / "jobscripts" / "centre.job"
            assert main([*words, str(script)]) == 0
            log = clone / "job.log"
            env = {"APPTAINER_BIND": f"{clone}/src:/opt/slipway/src", "PATH": paths[user], "CLUSTER_AS": user}
            command = ["env", f"--chdir={clone}", "sbatch", "--parsable", f"--output={log}", str(script)]
            return cluster.job(cluster.run(*command, "--epochs", "1", SLIPWAY_DEVICE="cpu", **env).strip(), log)

        jobs = {user: submitted(user) for user in clones}
        for user, job in jobs.items():
            job.ends()
            assert (clones[user] / "runs" / f"ddp-{job.number}" / "verdict.1").read_text().startswith("done ")
        assert listing(centre) == before


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, mode and modification time of everything below a folder."""
    found = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), stat.st_mode, stat.st_mtime_ns) for path, stat in found]
