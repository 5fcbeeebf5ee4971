"""jobgen: what its options mean, what it refuses, what it may import."""

import ast
import graphlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.errors import JobgenError
from jobgen.render import _commented
from jobgen.shell import COLUMNS, Expansion, array, default, option, quote
from slipway.layout import SETTINGS, VERSION

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "jobgen"
MODULES = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
LAYERS = [
    "__main__",
    "cli",
    "completion",
    "detect",
    "follow",
    "tasks",
    "sweeps",
    "studies",
    "interactive",
    "submit",
    "faults",
    "runsets",
    "finding",
    "runs",
    "account",
    "scripts",
    "flags",
    "load",
    "render",
    "header",
    "standalone",
    "launch",
    "resolve",
    "settings",
    "containers",
    "launchers",
    "schedulers",
    "queues",
    "registry",
    "model",
    "datafile",
    "data",
    "template",
    "shell",
    "errors",
]
"""Each may import those below it."""
HOSTILE = ["a b", "a'b", 'a"b', "a:b,c", "$(touch x)", "`touch x`", "a;b", "ü", "-n", "", "*", "\\", "}", "#"]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def rendered(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def shell(script, *words):
    return subprocess.run(["bash", "-c", script, *words], check=True, capture_output=True, text=True).stdout


class TestShell:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_literal_reaches_the_command_unchanged(self, text):
        assert shell(f"printf %s {quote(text)}") == text

    @pytest.mark.parametrize("text", [text for text in HOSTILE if "'" not in text])
    def test_a_default_is_what_the_variable_holds(self, text):
        assert shell(f': "${{NAME:={default(text)}}}"; printf %s "$NAME"') == text

    def test_a_default_with_a_single_quote_is_refused(self):
        with pytest.raises(JobgenError, match="holds a single quote"):
            default("a'b")

    @pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\rb"])
    def test_what_could_begin_a_new_line_is_refused(self, text):
        with pytest.raises(JobgenError, match="holds a line break or control character"):
            quote(text)

    def test_variables_stay_variables(self):
        assert quote(option("--pwd", "PWD")) == '--pwd="$PWD"'
        assert shell(f'list=("a b" c); printf "<%s>" {quote(array("list"))}') == "<a b><c>"
        assert quote(Expansion('"$a"')) == '"$a"'


def test_what_is_no_file_keeps_its_mode(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main(["render", "ddp", "--site", "example", "--output", str(pipe)]) == 0
        assert reader.stdout.read().startswith(b"#!/usr/bin/env bash")
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o600


class TestComments:
    @pytest.mark.parametrize(("length", "lines"), [(COLUMNS - 9, 1), (COLUMNS - 8, 2)])
    def test_one_stands_beside_its_line_up_to_the_last_column(self, length, lines):
        assert len(_commented([("a=1", "y" * length)], column=6).splitlines()) == lines


class TestSettings:
    def test_an_option_has_the_schedulers_own_name(self, capsys):
        text = rendered(capsys, "options.qos=high", "options.exclusive=true", "options.nodes=7")
        assert "#SBATCH --qos=high " in text
        assert "#SBATCH --exclusive " in text
        assert re.findall(r"--nodes=\d+", text) == ["--nodes=7"]

    def test_an_environment_on_each_nodes_disk_is_made_there(self, capsys):
        text = rendered(capsys, "venv=local", "container=none")
        assert '\n: "${SLIPWAY_VENV:=local}"' in text
        assert '\n: "${USE_CONTAINER:=0}"' in text
        assert "\nbuild_local_venv " in text

    def test_one_can_be_dropped(self, capsys):
        assert (
            "--account" not in rendered(capsys, "options.account=false").partition("set -euo")[0].partition("\n#SB")[2]
        )

    def test_one_of_pbs_too(self, capsys):
        assert "#PBS -N ddp" in rendered(capsys, site="pbs")
        assert "#PBS -N" not in rendered(capsys, "options.N=false", site="pbs")

    @pytest.mark.parametrize("site", ["pbs", "torque"])
    @pytest.mark.parametrize("spec", ["ddp", "venv_build"])
    def test_pbs_is_told_the_shell_unless_the_site_drops_it(self, capsys, spec, site):
        assert "\n#PBS -S /bin/bash\n" in rendered(capsys, spec=spec, site=site)
        text = rendered(capsys, "options.S=false", spec=spec, site=site)
        assert ("#PBS -S" in text, "login shell reads this script" in text) == (False, False)

    def test_an_option_with_blanks_is_one_word(self, capsys):
        assert "#SBATCH '--comment=two words' " in rendered(capsys, "options.comment=two words")

    def test_any_other_directive_is_passed_through(self, capsys):
        assert "#SBATCH --mail-type=END,FAIL " in rendered(capsys, site="modules-proxies")

    def test_the_warning_comes_before_the_save_and_the_schedulers_inexactness(self, capsys):
        assert "--signal=B:USR1@360 " in rendered(capsys, "save_seconds=300")

    def test_the_same_input_gives_the_same_bytes(self, capsys):
        assert rendered(capsys) == rendered(capsys)


@pytest.mark.parametrize(
    ("setting", "slurm", "pbs"),
    [
        ("minutes=300", "--time=05:00:00", "walltime=05:00:00"),
        ("nodes=3", "--nodes=3", "select=3:"),
        ("name=digits", "--job-name=digits", "-N digits"),
    ],
)
def test_a_setting_is_a_directive(capsys, setting, slurm, pbs):
    assert f"#SBATCH {slurm}" in rendered(capsys, setting)
    assert pbs in rendered(capsys, setting, site="pbs")


def test_text_in_env_needs_no_quotes(capsys):
    for value in ("3", '"3"'):
        assert 'export NCCL_IB_GID_INDEX="${NCCL_IB_GID_INDEX:-3}"' in rendered(
            capsys, f"env.NCCL_IB_GID_INDEX={value}"
        )


class TestFurtherOptions:
    """Words of a site for mpirun and Apptainer: each is one word of the script, whatever it holds."""

    @pytest.mark.parametrize(
        ("spec", "site", "own"),
        [
            ("horovod", "mpirun", ""),
            ("ddp-mpirun", "example", ""),
            ("ddp", "mpirun", ""),
            ("horovod", "pbs", '--hostfile "$PBS_NODEFILE" '),
        ],
    )
    def test_those_of_mpirun_stand_behind_the_schedulers_own(self, capsys, spec, site, own):
        text = rendered(capsys, 'mpirun_options=["--mca", "btl_tcp_if_include", "ib0"]', spec=spec, site=site)
        assert f"\nmpirun_options=({own}--mca btl_tcp_if_include ib0)" in text
        assert "\nmpirun_options=" not in rendered(capsys, 'mpirun_options=["--mca"]')  # srun starts everything

    def test_those_of_apptainer(self, capsys):
        assert "\ncontainer_options=(--contain --nvccli) " in rendered(
            capsys, 'container_options=["--contain", "--nvccli"]'
        )
        assert "\ncontainer_options=" not in rendered(capsys)
        assert "\ncontainer_options=" not in rendered(capsys, 'container_options=["--contain"]', spec="image_build")

    @pytest.mark.parametrize("name", ["mpirun_options", "container_options"])
    def test_a_word_is_quoted(self, capsys, name):
        words = [word for word in HOSTILE if word.isprintable()]
        text = rendered(capsys, f"{name}={json.dumps(words)}", spec="horovod", site="mpirun")
        line = next(line for line in text.splitlines() if line.startswith(f"{name}=("))
        assert shell(f'{line}\nprintf "<%s>" "${{{name}[@]}}"') == "".join(f"<{word}>" for word in words)


class TestSitesAreFound:
    """By name: in the working folder, the user's, those of SLIPWAY_SITES, the centre's, and jobgen's own."""

    @pytest.fixture
    def folders(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setenv("SLIPWAY_SITES", f"{tmp_path}/first::{tmp_path}/second")
        names = ["jobscripts/sites", "home/.config/slipway/sites", "first", "second"]
        found = [tmp_path / name for name in names]
        for folder in found:
            folder.mkdir(parents=True)
        return found

    def test_the_first_folder_wins(self, folders, capsys):
        for folder in reversed(folders):
            (folder / "mine.toml").write_text(f'name = "{folder.name} of {folder.parent.name}"\n')
            text = rendered(capsys, spec="ddp", site="mine")
            assert f"# The site, {folder.name} of {folder.parent.name}." in text
        assert re.search(r"--site jobscripts/sites/mine\.toml", text)
        for folder in folders:
            (folder / "mine.toml").unlink()
        assert "# The site, example." in rendered(capsys, site="example")
        assert "There are: amd, " in refused(capsys, site="mine")

    def test_one_of_the_user_is_named_as_it_was(self, folders, capsys):
        (folders[1] / "mine.toml").write_text('name = "mine"\n')
        assert "# Generated:    jobgen render ddp --site mine\n" in rendered(capsys, site="mine")


class TestPathsOfASite:
    """Defaults of settings, in which variables are expanded where the job runs."""

    def test_they_are_the_settings_defaults(self, capsys):
        text = rendered(capsys, "image=/soft/slipway.sif", "output=${SCRATCH}/runs of $USER", "data=/data/$", "venv=/v")
        assert '\n: "${SLIPWAY_IMAGE:=/soft/slipway.sif}"' in text
        assert '\n: "${SLIPWAY_VENV:=/v}"' in text
        line = next(line for line in text.splitlines() if line.startswith(': "${SLIPWAY_OUTPUT:='))
        show = f'SCRATCH="/s \\"x" USER=me; {line}\necho "$SLIPWAY_OUTPUT"'
        assert shell(show) == '/s "x/runs of me\n'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={"USER": "me"}, check=False)
        assert done.returncode
        assert "SCRATCH: is not set here, and the site names it as output" in done.stderr
        line = next(line for line in text.splitlines() if line.startswith(': "${SLIPWAY_DATA:='))
        assert shell(f'{line}\necho "$SLIPWAY_DATA"') == "/data/$\n"

    @pytest.mark.parametrize("name", sorted(SETTINGS))
    def test_a_setting_is_no_variable_of_env(self, capsys, name):
        text = refused(capsys, f"env.{name}=1")
        assert f"site example: {name} in [env] is a setting of job scripts: " in text

    def test_nothing_is_built_that_does_not_exist(self, capsys):
        assert "venv = 'modules': there is none to build" in refused(capsys, "venv=modules", spec="venv_build")
        assert "builds a SIF, which podman does not run" in refused(capsys, "container=podman", spec="image_build")


class TestRequestsForGpus:
    @pytest.mark.parametrize(
        ("spec", "settings", "expected"),
        [
            ("ddp", ["gpus_per_node=4"], "--gpus-per-node=4 "),
            ("ddp", ["gpus_per_node=4", "gpu_type=a100"], "--gpus-per-node=a100:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gres"], "--gres=gpu:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gres", "gpu_type=v100"], "--gres=gpu:v100:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gpus-per-task"], "--gpus-per-task=4 "),
            ("ddp-ranks", ["gpus_per_node=4", "gpu_request=gpus-per-task"], "--gpus-per-task=1 "),
            # once: at a site with gres a job of one process asked for four GPUs, "a rank each"
            ("single", ["gpus_per_node=4", "gpu_request=gres"], "--gres=gpu:1 "),
            ("ddp", ["gpus_per_node=4", "ranks_per_node=1"], "--gpus-per-node=1 "),
        ],
    )
    def test_slurm(self, capsys, spec, settings, expected):
        text = rendered(capsys, *settings, spec=spec)
        assert f"#SBATCH {expected}" in text
        assert len(re.findall(r"(?m)^#SBATCH --(?:gpus|gres)", text)) == 1
        assert "gpu" not in "".join(
            re.findall(r"(?m)^#SBATCH --(?:gpus|gres)\S+", rendered(capsys, *settings, spec="cpu"))
        )

    @pytest.mark.parametrize(
        ("settings", "memory"),
        [([], "491520M"), (["ranks_per_node=1"], "122880M"), (["backend=single", "nodes=1"], "122880M")],
    )
    def test_memory_and_cores_follow_the_gpus(self, capsys, settings, memory):
        text = rendered(capsys, "gpus_per_node=4", "cpus_per_gpu=8", "mem=480G", *settings)
        assert f"#SBATCH --mem={memory} " in text
        assert f"#SBATCH --cpus-per-task={8 * int(memory[:-1]) // 122880} " in text

    def test_by_an_option_of_the_site_the_number_is_the_sites(self, capsys):
        text = rendered(capsys, "options.gpus-per-node=false", 'options.gres="gpu:4"', spec="single")
        assert re.search(r"#SBATCH --gres=gpu:4 +# asked for by the site\n", text)

    def test_memory_under_pbs(self, capsys):
        assert ":ncpus=8:ngpus=2:mem=65536mb:mpiprocs=2" in rendered(capsys, "mem=64G", site="pbs")
        assert "-l mem=131072mb" in rendered(capsys, "mem=64G", site="torque")
        assert "#SBATCH --mem=" not in rendered(capsys)

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ("mem=lots", "mem is 'lots': write a number and M, G or T, such as '480G'"),
            ("gpu_request=slots", "gpu_request is 'slots': it must be 'gpus-per-node', 'gres' or 'gpus-per-task'"),
            (
                "gpu_type=a100_1g.5gb",
                "is a MIG slice, and NCCL cannot connect ranks on slices: `jobgen render single --site ",
            ),
            ("placement=per-rank ranks_per_node=8 gpu_request=gpus-per-task", "8 ranks share 2 GPUs"),
            (
                "container=pyxis launcher=mpirun",
                "container = 'pyxis' is an option of srun, and mpirun starts the ranks",
            ),
            ("container=docker", "container is 'docker': it must be 'apptainer', 'podman', 'pyxis', 'singularity' or"),
        ],
    )
    def test_what_cannot_be(self, capsys, settings, why):
        assert why in refused(capsys, *settings.split())

    def test_a_slice_is_enough_for_one_process(self, capsys):
        assert "--gpus-per-node=1g.10gb:1 " in rendered(capsys, "gpu_type=1g.10gb", spec="single")

    def test_a_type_of_pbs_is_a_property(self, capsys):
        assert "gpu_type is for Slurm; with PBS use node_properties" in refused(capsys, "gpu_type=a100", site="pbs")


class TestPath:
    def test_folders_stand_before_the_nodes_path(self, capsys):
        text = rendered(capsys, 'path=["/opt/my apptainer/bin", "/opt/b"]')
        assert "\nexport PATH='/opt/my apptainer/bin':/opt/b:\"$PATH\"\n" in text
        assert "export PATH" not in rendered(capsys)

    def test_path_in_env_is_refused(self, capsys):
        """A value set outside wins, and every node has a PATH."""
        assert "use the field path" in refused(capsys, "env.PATH=/opt/b")


class TestContainers:
    """What starts the ranks in the image."""

    @pytest.mark.parametrize(
        ("name", "library", "options"),
        [
            ("apptainer", "apptainer", "--nv"),
            ("singularity", "apptainer", "--nv"),
            ("podman", "podman", "--device=nvidia.com/gpu=all"),
            ("pyxis", "pyxis", ""),
        ],
    )
    def test_each_has_its_library_and_options(self, capsys, name, library, options):
        text = rendered(capsys, f"container={name}", 'binds=["/a b"]')
        assert f"\ncontainer_runtime={name} " in text
        assert f'\nsource "$lib/{library}.bash"\n' in text
        assert f"\nuse_container {options} -- '/a b'".replace("  ", " ") in text

    @pytest.mark.parametrize("settings", [[], ["placement=per-rank"], ["placement=node-by-node"]])
    def test_of_srun_its_options_stand_before_what_it_starts(self, capsys, settings):
        text = rendered(capsys, "container=pyxis", *settings)
        for launch in re.findall(r"(?ms)^launch_\w+\(\) \{\n(.*?)^\}", text):
            before = launch.index('"${container[@]}"')
            assert all(
                before < launch.index(word) for word in ("sh ", "bash ", "torchrun", "python3") if word in launch
            )
        launch = re.search(r"(?ms)^launch_horovod\(\) \{\n(.*?)^\}", rendered(capsys, *settings))[1]
        assert launch.index("lib/") < launch.index('"${container[@]}"')


class TestDevicesPerRank:
    @pytest.mark.parametrize(
        ("settings", "gpus", "cpus"),
        [
            ([], 8, 96),  # all of the node: four ranks of two
            (["devices_per_rank=3"], 6, 72),  # two ranks of three
            (["ranks_per_node=2"], 4, 48),  # the ranks' own
            (["ranks_per_node=2", "devices_per_rank=1"], 2, 24),
            (["ranks_per_node=16", "devices_per_rank=1"], 8, 96),  # two ranks share a GPU
            (["backend=single", "nodes=1"], 2, 24),
            (["placement=per-rank"], 8, 24),  # of a task, which is a rank
        ],
    )
    def test_what_slurm_is_asked_for(self, capsys, settings, gpus, cpus):
        text = rendered(capsys, *settings, spec="split", site="roce")
        found = re.findall(r"#SBATCH --(?:gpus-per-node|cpus-per-task)=(\d+)", text)
        assert list(map(int, found)) == [gpus, cpus]

    def test_what_pbs_is_asked_for(self, capsys):
        assert ":ncpus=16:ngpus=4:mpiprocs=2:ompthreads=8 " in rendered(
            capsys, "gpus_per_node=4", spec="split", site="pbs"
        )
        assert ":ppn=16:gpus=2 " in rendered(capsys, "ranks_per_node=1", spec="split", site="torque")

    def test_the_trainer_is_told_only_where_there_are_several(self, capsys):
        assert '"${SLIPWAY_DEVICES_PER_RANK:=2}"' in rendered(capsys, spec="split")
        assert '"${SLIPWAY_DEVICES_PER_RANK:=}"' in rendered(capsys)

    def test_a_site_that_binds_gpus_to_tasks_binds_ranks_that_are_tasks(self, capsys):
        bound = "bound_backends="
        text = rendered(capsys, spec="split", site="gpu-per-task")
        assert "bound_backends=(horovod) " in text  # its torchruns are tasks, which see all GPUs of their nodes
        assert "bound_backends=(ddp horovod) " in rendered(capsys, spec="ddp-ranks", site="gpu-per-task")
        assert bound not in rendered(capsys, "placement=node-by-node", spec="split", site="gpu-per-task")
        assert bound not in rendered(capsys, spec="ddp-ranks", site="example")


class TestNodeByNode:
    @pytest.mark.parametrize(
        ("spec", "site", "loop"),
        [
            ("ddp", "example", "srun_node_by_node"),
            ("horovod-gloo", "cray", "srun_node_by_node"),
            ("single", "example", "srun_node_by_node"),
            ("ddp", "torque", "ssh_each_node 0"),  # as always
        ],
    )
    def test_every_launch_of_a_script_is_a_loop(self, capsys, spec, site, loop):
        text = rendered(capsys, "placement=node-by-node", spec=spec, site=site)
        launches = text.split("\nlaunch_")[1:]
        assert all(f"\n    {loop} \\\n" in launch for launch in launches)
        assert "#SBATCH --ntasks-per-node=2" not in text


class TestDask:
    """A client: what it asks for is what a job script of one node asks for at the site."""

    def request(self, capsys, *settings, site="example"):
        text = rendered(capsys, *settings, spec="dask", site=site)
        return json.loads(text.partition("<<'END_OF_REQUEST'\n")[2].partition("\nEND_OF_REQUEST")[0])

    def test_a_node_of_slurm(self, capsys):
        found = self.request(capsys, "minutes=90", "interface=ib0")
        job = rendered(capsys, "minutes=90", "nodes=1")
        scripts = set(re.findall(r"(?m)^#SBATCH (--\S+)", job))
        client = {"--job-name={name}", "--output={logs}/%j.log", "--no-requeue", "--deadline=now+{last}seconds"}
        gone = {"--job-name=ddp", "--signal=B:USR1@180", "--requeue", "--open-mode=append"}
        assert set(found["directives"]) == (scripts - gone) | client
        assert (found["cluster"], found["seconds"], found["interface"]) == ("SLURMCluster", 5400, "ib0")

    def test_a_node_of_pbs(self, capsys):
        found = self.request(capsys, "nodes=7", site="pbs")
        assert found["cluster"] == "PBSCluster"
        text = " ".join(found["directives"])
        assert "-N {name} -j oe -r n" in text
        assert "-l select=1:ncpus=" in text
        assert "-o {logs}/" in text

    def test_a_job_of_modules_loads_them(self, capsys):
        found = self.request(capsys, site="modules-proxies")
        assert found["prologue"][0] == "module purge"
        assert found["prologue"][1].startswith("module load ")

    def test_whatever_a_site_says_stays_json(self, capsys):
        found = self.request(capsys, "options.comment=END_OF_REQUEST \"'$(id)`\\")
        assert any("END_OF_REQUEST" in line for line in found["directives"])

    @pytest.mark.parametrize(
        ("site", "setting", "why"),
        [
            ("laptop", "nodes=2", "asks a scheduler for nodes, and site laptop has none: `jobgen render ddp-local"),
            ("example", "backend=horovod", "client = 'dask' trains with backend = 'ddp' only"),
            ("example", "task=selftest", "client = 'dask' trains with backend = 'ddp' only"),
            ("example", "launcher=srun", "client = 'dask' starts the ranks itself: leave launcher out"),
            (
                "example",
                "options.time=3:00",
                "a client has to know the time limit of its nodes: leave it out, and add --set minutes=N",
            ),
            (
                "pbs",
                "options.walltime=3:00",
                "a client has to know the time limit of its nodes: leave it out, and add --set minutes=N",
            ),
            ("example", "minutes=2", "minutes = 2 is no longer than the lead of the warning"),
            ("example", "client=desk", "client is 'desk'"),
        ],
    )
    def test_what_it_cannot_be(self, capsys, site, setting, why):
        assert why in refused(capsys, setting, spec="dask", site=site)

    def test_it_is_no_scheduler_of_a_site(self, capsys):
        assert "it must be 'local', 'pbs' or 'slurm'" in refused(capsys, "scheduler=dask")


class TestRefusals:
    def test_an_unknown_key_is_answered_with_the_nearest(self, capsys):
        assert "unknown key 'node'. Did you mean 'nodes'?" in refused(capsys, "node=3")

    def test_an_unknown_site_with_those_there_are(self, capsys):
        text = refused(capsys, site="exampel")
        assert "no site 'exampel'. Did you mean 'example'? There are: amd, cray, example, " in text
        command = "`jobgen site --detect --output exampel.toml` drafts one, which --site exampel.toml takes.\n"
        assert text.endswith(f"; {command}")
        assert "Did you mean" not in refused(capsys, site="mine")  # people's own are called anything

    def test_an_unknown_spec_likewise(self, capsys):
        assert "no spec 'dpp'. Did you mean 'ddp'? There are: cpu, dask, ddp, " in refused(capsys, spec="dpp")

    def test_a_value_of_the_wrong_kind(self, capsys):
        assert "nodes is 'two': it must be a whole number." in refused(capsys, "nodes=two")

    @pytest.mark.parametrize(
        ("setting", "choices"),
        [
            ("backend=foo", "'ddp', 'horovod' or 'single'"),
            ("placement=x", "'per-node', 'per-rank' or 'node-by-node'"),
            ("resume=later", "'requeue', 'chain' or 'none'"),
            ("scheduler=lsf", "'local', 'pbs' or 'slurm'"),
            ("accelerator=nvida", "'nvidia', 'amd' or 'none'. Did you mean 'nvidia'?"),
        ],
    )
    def test_a_value_that_is_none_of_a_few_is_answered_with_those(self, capsys, setting, choices):
        key, _, value = setting.partition("=")
        text = f"jobgen: --set {setting}: {key} is '{value}': it must be {choices}"
        assert refused(capsys, setting).rstrip(".\n") == text.rstrip(".")

    def test_a_mistake_is_looked_for_where_it_was_made(self, capsys, tmp_path):
        """In the file, unless a setting of the command line has taken its place."""
        (tmp_path / "my.toml").write_text('name = "my"\nresume = "later"\nbinds = [1]\n')
        site = str(tmp_path / "my.toml")
        assert refused(capsys, site=site).startswith(f"jobgen: {site}: resume is 'later': ")
        assert refused(capsys, "resume=none", site=site).startswith(f"jobgen: {site}: binds[0] is 1: ")
        assert refused(capsys, "resume=3", "resume=now", site=site).startswith("jobgen: --set resume=now: resume is ")
        assert refused(capsys, "options.mem=[]").startswith("jobgen: --set options.mem=[]: options.mem is a list: ")

    def test_an_output_that_cannot_be_written(self, capsys, tmp_path):
        assert main(["render", "ddp", "--site", "example", "--output", str(tmp_path)]) == 78
        assert capsys.readouterr().err == f"jobgen: cannot write {tmp_path}: Is a directory.\n"

    def test_a_missing_file(self, capsys):
        assert "cannot read nowhere.toml: No such file" in refused(capsys, spec="nowhere.toml")

    def test_a_line_break_in_an_option(self, capsys):
        assert "options.comment holds the control character" in refused(capsys, 'options.comment="a\\nrm"')

    def test_many_nodes_without_a_scheduler(self, capsys):
        assert "site laptop is one machine" in refused(capsys, site="laptop")

    @pytest.mark.parametrize(
        ("spec", "site", "setting", "way_out"),
        [
            ("horovod", "cray", "nodes=2", "`jobgen render horovod-gloo --site jobscripts/sites/cray.toml` needs none"),
            ("ddp-mpirun", "cray", "nodes=2", "`jobgen render ddp --site jobscripts/sites/cray.toml` needs none"),
            ("horovod", "pbs", "launcher=ssh", "needs none; or add --set launcher=mpirun"),
            ("horovod-srun", "pbs", "nodes=2", "add --set launcher=mpirun, or --set launcher=ssh"),
            ("ddp", "example", "resume=chain", "under slurm it can be 'requeue' or 'none'"),
            ("ddp-ranks", "laptop", "nodes=1", "--output ddp.sh && bash ddp.sh` trains there"),
            ("ddp", "example", 'node_properties=["a100"]', "with Slurm use options.constraint"),
            ("ddp", "example", "backend=single", "one process: add --set nodes=1"),
            ("ddp", "example", "gpus_per_node=0", "add --set ranks_per_node=N"),
            ("ddp", "example", "minutes=4", "add --set minutes=N"),
            ("ddp", "torque", 'remote_shell="ssh -o \'x"', "has a quote that is not closed"),
            ("split", "mpirun", "placement=node-by-node", "leave placement out, or add --set launcher=ssh"),
            ("horovod-srun", "example", "placement=node-by-node", "MPI starts the ranks of all nodes by one command"),
            ("ddp-local", "laptop", "placement=node-by-node", "is one machine"),
            (
                "split",
                "example",
                "devices_per_rank=3",
                "1 rank(s) with 3 GPUs each (devices_per_rank) need 3 GPUs of a",
            ),
            ("split", "example", "ranks_per_node=2", "2 rank(s) with 2 GPUs each (devices_per_rank) need 4 GPUs of a"),
            ("single", "example", "devices_per_rank=3", "and the nodes there have 2 (gpus_per_node)"),
            ("split", "example", "gpus_per_node=0", "and the nodes there have 0 (gpus_per_node)"),
            (
                "ddp-local",
                "laptop",
                "ranks_per_node=0 devices_per_rank=2",
                "gpus_per_node is 1: add --set ranks_per_node=N",
            ),
        ],
    )
    def test_what_cannot_run_somewhere_is_refused_with_the_way_out(self, capsys, spec, site, setting, way_out):
        assert way_out in refused(
            capsys, *(setting.split(" ") if "remote" not in setting else [setting]), spec=spec, site=site
        )

    @pytest.mark.parametrize(
        ("setting", "range_"),
        [
            ("nodes=0", "1 to"),
            ("minutes=0", "1 to"),
            ("cpus_per_gpu=0", "1 to"),
            ("devices_per_rank=0", "1 to"),
            ("ranks_per_node=-1", "0 to"),
            ("save_seconds=-1", "0 to"),
            ("max_requeues=99999999", "0 to"),
            ("nodes=1e9", "a whole number"),
        ],
    )
    def test_numbers_out_of_range(self, capsys, setting, range_):
        assert f"{setting.partition('=')[0]} is " in (text := refused(capsys, setting))
        assert f"it must be {range_}" in text


def imports(text):
    """Return every module that a source imports, also within functions, with the name taken from it."""
    for node in ast.walk(ast.parse(text, feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


class TestArchitecture:
    def test_imports_go_one_way(self):
        for module, text in MODULES.items():
            layer = LAYERS.index(module.split("/")[0].removesuffix(".py")) if module != "__init__.py" else len(LAYERS)
            used = {name.split(".")[1] for name, _ in imports(text) if name.startswith("jobgen.")}
            assert {name for name in used if LAYERS.index(name) < layer} == set(), module

    def test_no_imports_go_in_a_circle(self):
        names = {
            f"jobgen/{module}".removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in MODULES
        }
        graph = {}
        for module, text in MODULES.items():
            name = f"jobgen/{module}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            graph[name] = {
                f"{source}.{part}" if f"{source}.{part}" in names else source for source, part in imports(text)
            }
        assert "jobgen.queues" in graph["jobgen.queues.slurm"]
        list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError

    def test_only_schedulers_name_their_variables(self):
        for path in SOURCE.rglob("*.*"):
            if path.suffix in {".py", ".bash"} and ("SLURM_" in path.read_text() or "PBS_" in path.read_text()):
                assert {"schedulers", "queues", "slurm", "pbs"} & set(path.parts), path

    def test_nothing_but_the_standard_library_and_a_validator_is_imported(self):
        allowed = sys.stdlib_module_names | {"jobgen", "msgspec", "tomli", "__future__"}
        for module, text in MODULES.items():
            names = {f"{name}.{part}" if name == "slipway" else name for name, part in imports(text)}
            ours = {"slipway.layout", "slipway.flags", "slipway.goodput", "slipway.gpu", "slipway.reading"}
            assert {name for name in names if name.startswith("slipway")} <= ours, module
            assert {name.split(".")[0] for name in names} <= allowed | {"slipway"}, module

    def loaded(self, code, *modules):
        """Return which of ``modules`` are loaded after ``code``, in a process whose coverage is not measured."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        code = f"import sys, jobgen.cli\n{code}\nprint(*sorted({set(modules)} & set(sys.modules)))"
        return subprocess.check_output([sys.executable, "-c", code], text=True, env=env).split()

    def test_help_loads_next_to_nothing(self):
        assert self.loaded("", "torch", "msgspec", "tomllib", "subprocess", "json", "argparse") == ["argparse"]

    def test_rendering_loads_no_more_than_it_needs(self):
        render = "jobgen.cli.main(['render', 'ddp', '--site', 'example', '--output', '/dev/null'])"
        unused = ("torch", "numpy", "subprocess", "json", "tempfile", "difflib", "slipway.flags")
        assert self.loaded(render, *unused, "tomllib") == ["tomllib"]


class TestCheck:
    """``jobgen check``: whether scripts are what the commands in their headers give."""

    def written(self, folder, name, *options):
        path = folder / name
        assert main(["render", "ddp", "--site", "example", *options, "--output", str(path)]) == 0
        return path

    def test_scripts_that_are(self, tmp_path):
        self.written(tmp_path, "ddp.job")
        self.written(tmp_path, "alone.job", "--standalone")
        self.written(tmp_path, "set.job", "--set", "nodes=7", "--set", "options.comment=two words")
        assert main(["check", str(tmp_path)]) == 0

    def test_one_that_was_edited(self, tmp_path, capsys):
        path = self.written(tmp_path, "ddp.job", "--standalone")
        path.write_text(path.read_text().replace("--nodes=2", "--nodes=3"))
        assert main(["check", str(tmp_path)]) == 1
        command = (
            f"jobgen render jobscripts/specs/ddp.toml --site jobscripts/sites/example.toml --standalone --output {path}"
        )
        out, err = capsys.readouterr()
        assert err == f"jobgen: {path} is not what its files give (see above); generate it anew: {command}\n"
        assert [line[:19] for line in out.splitlines()[3:]] == ["-#SBATCH --nodes=3 ", "+#SBATCH --nodes=2 "]

    def test_a_script_of_an_earlier_version_alone(self, tmp_path, capsys):
        path = self.written(tmp_path, "mine.job")
        self.written(tmp_path, "other.job")
        path.write_text(path.read_text().replace("By jobgen ", "By jobgen 0.0.7-"))
        assert main(["check", str(path)]) == 1
        assert f"(jobgen 0.0.7-{VERSION} made it, and this is {VERSION})" in capsys.readouterr().err
        assert main(["check", str(tmp_path / "other.job")]) == 0
        assert main(["check", str(tmp_path / "gone.job")]) == 78
        assert capsys.readouterr().err == f"jobgen: cannot read {tmp_path}/gone.job: No such file or directory.\n"

    @pytest.mark.parametrize("header", ["", "# Generated:    rm -rf x", "# Generated:    jobgen render 'x"])
    def test_one_that_is_somebodys_own(self, tmp_path, capsys, header):
        (tmp_path / "mine.job").write_text(f"#!/bin/bash\n{header}\n")
        assert main(["check", str(tmp_path)]) == 78
        assert "does not say how it was generated" in capsys.readouterr().err

    def test_a_folder_without_any(self, tmp_path, capsys):
        assert main(["check", str(tmp_path)]) == 78
        assert "no script in" in capsys.readouterr().err
