"""jobgen: what its options mean, what it refuses, what it may import."""

import ast
import errno
import graphlib
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

from jobgen.cli import main
from jobgen.errors import JobgenError
from jobgen.load import load
from jobgen.model import JobSpec, Site
from jobgen.render import _commented
from jobgen.resolve import FIELDS_OF_SETTINGS, resolve
from jobgen.schedulers import pbs, scheduler_of, slurm
from jobgen.shell import COLUMNS, Expansion, array, default, option, quote
from messages import assert_error, assert_names, assert_warning, messages
from messages import refused as refusing
from slipway.layout import SETTINGS, VERSION
from slipway.slugs import SLUGS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "jobgen"
MODULES = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
LAYERS = [
    "__main__",
    "cli",
    "completion",
    "explain",
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
    "owners",
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
LAUNCHER = "launcher-conflict"
LEAVES = {"errors", "flags", "goodput", "gpu", "layout", "parser", "reading", "slugs"}
"""Modules of slipway that it may import."""
HOSTILE = ["a b", "a'b", 'a"b', "a:b,c", "$(touch x)", "`touch x`", "a;b", "ü", "-n", "", "*", "\\", "}", "#"]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def rendered(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 0
    return capsys.readouterr().out


def refused(capsys, slug, *values, settings=(), spec="ddp", site="example"):
    """Hold that a script cannot be made: one line, this error."""
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 78
    out, err = capsys.readouterr()
    assert_error(err, slug, *values)
    assert (out, err.count("\n")) == ("", 1)
    return messages(err)[0].text


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
        with refusing("bad-path", "a'b"):
            default("a'b")

    @pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\rb"])
    def test_what_could_begin_a_new_line_is_refused(self, text):
        with refusing("bad-path", repr(text)):
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
        assert "\nsite_downloads=1 " not in text
        assert "\nsite_downloads=1 " in rendered(capsys, "venv=local", "downloads=true")

    def test_a_binding_to_cores_is_torchrun_s(self, capsys):
        line = "\nnuma_binding=socket "
        text = rendered(capsys, "numa_binding=socket")
        assert (line in text, '"${numa_options[@]}"' in text) == (True, True)
        assert line not in rendered(capsys, "numa_binding=socket", "placement=per-rank")
        text = rendered(capsys)
        assert not any(name in text for name in ("numa_binding=", "numa_options"))

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
        assert "#PBS -S" not in text

    def test_an_option_with_blanks_is_one_word(self, capsys):
        assert "#SBATCH '--comment=two words' " in rendered(capsys, "options.comment=two words")

    def test_any_other_directive_is_passed_through(self, capsys):
        assert "#SBATCH --mail-type=END,FAIL " in rendered(capsys, site="modules-proxies")

    def test_the_warning_comes_before_the_save_and_the_schedulers_inexactness(self, capsys):
        assert "--signal=B:USR1@360 " in rendered(capsys, "save_seconds=300")

    def test_the_same_input_gives_the_same_bytes(self, capsys):
        assert rendered(capsys) == rendered(capsys)


def test_every_option_of_a_scheduler_gives_a_script_or_one_error(monkeypatch):
    """Every spec at every site, with each option that jobgen knows, or not, as any type: what reads options holds."""
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(isatty=lambda: True))
    specs = [load(str(path), [], JobSpec) for path in sorted((ROOT / "jobscripts" / "specs").glob("*.toml"))]
    sites = [load(str(path), [], Site) for path in sorted((ROOT / "jobscripts" / "sites").glob("*.toml"))]
    names = {*slurm.REASONS, *slurm.GPU_OPTIONS, *slurm.BATCH_OPTIONS, *pbs.REASONS, *pbs.BATCH_OPTIONS, "time"}
    names |= {"partition", "mem", "cpus-per-task", "ntasks-per-node", "gpus", "W", "not-known"}
    made = refused = 0
    for spec, site, name, value in itertools.product(specs, sites, sorted(names), [False, True, 1, "gpu:1", "it's"]):
        changed = msgspec.structs.replace(spec, options={**spec.options, name: value})
        try:
            job = resolve(changed, site, origin=["jobgen", "render", spec.name, "--site", site.name])
            scheduler = scheduler_of(job.scheduler)
            lines = [line for line, reason in scheduler.directives(job) if reason]
            scheduler.site_text(job)
            array = scheduler.array(job, tasks=2, at_once=1) if scheduler.has_queue else None
            words = scheduler.interactive(job, "shell") if spec.task == "shell" else []
        except JobgenError as error:
            assert error.slug in SLUGS  # noqa: PT017 -- most of the pairs give none
            refused += 1
            continue
        made += 1
        assert not array or len(array.directives) == len(lines) + 1
        assert all(isinstance(word, str) and word for word in words)
    assert made > 4 * refused > 0


def test_a_job_that_builds_can_be_given_gpus(capsys):
    for name in ("gres", "gpus-per-node", "gpus-per-task"):
        for spec in ("venv_build", "image_build"):
            assert f"#SBATCH --{name}=gpu:1 " in rendered(capsys, f"options.{name}=gpu:1", spec=spec)


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
        refused(capsys, "unknown-name", "'mine'", "amd", site="mine")

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
        assert_names(done.stderr, "SCRATCH: ", "output")
        line = next(line for line in text.splitlines() if line.startswith(': "${SLIPWAY_DATA:='))
        assert shell(f'{line}\necho "$SLIPWAY_DATA"') == "/data/$\n"

    @pytest.mark.parametrize("name", sorted(SETTINGS))
    def test_a_setting_is_no_variable_of_env(self, capsys, name):
        field = FIELDS_OF_SETTINGS.get(name)
        refused(capsys, "bad-site", "example", name, "[env]", f" {field}." if field else "", settings=[f"env.{name}=1"])

    def test_nothing_is_built_that_does_not_exist(self, capsys):
        refused(capsys, "nothing-to-build", "'modules'", " venv=.venv", settings=["venv=modules"], spec="venv_build")
        refused(capsys, "nothing-to-build", "podman", settings=["container=podman"], spec="image_build")


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
        assert re.search(r"#SBATCH --gres=gpu:4 +# .*\bsite\b", text)

    def test_memory_under_pbs(self, capsys):
        assert ":ncpus=8:ngpus=2:mem=65536mb:mpiprocs=2" in rendered(capsys, "mem=64G", site="pbs")
        assert "-l mem=131072mb" in rendered(capsys, "mem=64G", site="torque")
        assert "#SBATCH --mem=" not in rendered(capsys)

    @pytest.mark.parametrize(
        ("settings", "slug", "values"),
        [
            ("mem=lots", "bad-value", ["mem", "'lots'", "'480G'"]),
            ("gpu_request=slots", "bad-value", ["'slots'", "'gpus-per-node'", "'gres'", "'gpus-per-task'"]),
            ("gpu_type=a100_1g.5gb", "mig-slices", ["'a100_1g.5gb'", "`jobgen render single --site "]),
            (
                "placement=per-rank ranks_per_node=8 gpu_request=gpus-per-task",
                "too-few-gpus",
                [" 8 ", " 2 ", "'gpus-per-task'", "ranks_per_node"],
            ),
            (
                "container=pyxis launcher=mpirun",
                "launcher-conflict",
                ["container = 'pyxis'", "mpirun", " launcher=srun", " container=none"],
            ),
            ("container=docker", "bad-value", ["'docker'", "'apptainer'", "'podman'", "'pyxis'", "'singularity'"]),
        ],
    )
    def test_what_cannot_be(self, capsys, settings, slug, values):
        refused(capsys, slug, *values, settings=settings.split())

    def test_a_slice_is_enough_for_one_process(self, capsys):
        assert "--gpus-per-node=1g.10gb:1 " in rendered(capsys, "gpu_type=1g.10gb", spec="single")

    def test_a_type_of_pbs_is_a_property(self, capsys):
        refused(capsys, "bad-site", "gpu_type", "node_properties", settings=["gpu_type=a100"], site="pbs")


class TestPath:
    def test_folders_stand_before_the_nodes_path(self, capsys):
        text = rendered(capsys, 'path=["/opt/my apptainer/bin", "/opt/b"]')
        assert "\nexport PATH='/opt/my apptainer/bin':/opt/b:\"$PATH\"\n" in text
        assert "export PATH" not in rendered(capsys)

    def test_path_in_env_is_refused(self, capsys):
        """A value set outside wins, and every node has a PATH."""
        refused(capsys, "bad-site", "PATH", "[env]", " path", settings=["env.PATH=/opt/b"])


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
        ("site", "setting", "slug", "values"),
        [
            ("laptop", "nodes=2", "no-scheduler", ["dask", "laptop", "`jobgen render ddp-local"]),
            ("example", "backend=horovod", "conflicting-settings", ["client = 'dask'", "backend = 'ddp'"]),
            ("example", "task=selftest", "conflicting-settings", ["client = 'dask'", "backend = 'ddp'"]),
            ("example", "launcher=srun", "conflicting-settings", ["client = 'dask'", "launcher"]),
            ("example", "options.time=3:00", "conflicting-settings", ["options.time", " minutes="]),
            ("pbs", "options.walltime=3:00", "conflicting-settings", ["options.walltime", " minutes="]),
            ("example", "minutes=2", "time-too-short", ["minutes = 2 ", "save_seconds = 120 "]),
            ("example", "client=desk", "bad-value", ["client", "'desk'", "'dask'"]),
        ],
    )
    def test_what_it_cannot_be(self, capsys, site, setting, slug, values):
        refused(capsys, slug, *values, settings=[setting], spec="dask", site=site)

    def test_it_is_no_scheduler_of_a_site(self, capsys):
        refused(capsys, "bad-value", "'dask'", "'local'", "'pbs'", "'slurm'", settings=["scheduler=dask"])


class TestRefusals:
    def test_an_unknown_key_is_answered_with_the_nearest(self, capsys):
        refused(capsys, "unknown-key", " node=3", "'node'", "'nodes'", settings=["node=3"])

    def test_an_unknown_site_with_those_there_are(self, capsys):
        command = "`jobgen site --detect --output exampel.toml`"
        refused(
            capsys, "unknown-name", "'exampel'", "'example'", "amd, cray, example, ", command, " exampel.toml",
            site="exampel",
        )  # fmt: skip
        text = refused(capsys, "unknown-name", "'mine'", site="mine")
        assert re.findall("'(.*?)'", text) == ["mine"]  # none is suggested: people's own are called anything

    def test_an_unknown_spec_likewise(self, capsys):
        refused(capsys, "unknown-name", "'dpp'", "'ddp'", "cpu, dask, ddp, ", spec="dpp")

    def test_a_value_of_the_wrong_kind(self, capsys):
        refused(capsys, "bad-value", " nodes=two: nodes ", "'two'", settings=["nodes=two"])

    @pytest.mark.parametrize(
        ("setting", "choices"),
        [
            ("backend=foo", ["ddp", "horovod", "single"]),
            ("placement=x", ["per-node", "per-rank", "node-by-node"]),
            ("resume=later", ["requeue", "chain", "none"]),
            ("scheduler=lsf", ["local", "pbs", "slurm"]),
            ("accelerator=nvida", ["nvidia", "amd", "none", "nvidia"]),  # and which was meant
        ],
    )
    def test_a_value_that_is_none_of_a_few_is_answered_with_those(self, capsys, setting, choices):
        key, _, value = setting.partition("=")
        text = refused(capsys, "bad-value", f" {setting}: {key} ", settings=[setting])
        assert re.findall("'(.*?)'", text) == [value, *choices]

    def test_a_mistake_is_looked_for_where_it_was_made(self, capsys, tmp_path):
        """In the file, unless a setting of the command line has taken its place."""
        (tmp_path / "my.toml").write_text('name = "my"\nresume = "later"\nbinds = [1]\n')
        site = str(tmp_path / "my.toml")
        refused(capsys, "bad-value", f"{site}: resume ", "'later'", site=site)
        refused(capsys, "bad-value", f"{site}: binds[0] ", settings=["resume=none"], site=site)
        refused(capsys, "bad-value", " resume=now: resume ", settings=["resume=3", "resume=now"], site=site)
        refused(capsys, "bad-value", " options.mem=[]: options.mem ", settings=["options.mem=[]"])

    def test_an_output_that_cannot_be_written(self, capsys, tmp_path):
        assert main(["render", "ddp", "--site", "example", "--output", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "cannot-write", tmp_path, os.strerror(errno.EISDIR))

    def test_a_missing_file(self, capsys):
        refused(capsys, "cannot-read", "nowhere.toml", os.strerror(errno.ENOENT), spec="nowhere.toml")

    def test_a_line_break_in_an_option(self, capsys):
        refused(capsys, "bad-value", "options.comment", r"'\n'", settings=['options.comment="a\\nrm"'])

    def test_many_nodes_without_a_scheduler(self, capsys):
        refused(capsys, "no-scheduler", "ddp", "laptop", "`jobgen render ddp-local", site="laptop")

    @pytest.mark.parametrize(
        ("job", "setting", "slug", "way_out"),
        [
            ("horovod cray", "nodes=2", LAUNCHER, "`jobgen render horovod-gloo --site jobscripts/sites/cray.toml`"),
            ("ddp-mpirun cray", "nodes=2", LAUNCHER, "`jobgen render ddp --site jobscripts/sites/cray.toml`"),
            ("horovod pbs", "launcher=ssh", LAUNCHER, "`jobgen render horovod-gloo| launcher=mpirun"),
            ("horovod-srun pbs", "nodes=2", LAUNCHER, " launcher=mpirun| launcher=ssh"),
            ("ddp example", "resume=chain", "bad-site", "resume = 'chain'|slurm|'requeue'|'none'"),
            ("ddp-ranks laptop", "nodes=1", "no-scheduler", "laptop|--output ddp.sh && bash ddp.sh`"),
            ("ddp example", 'node_properties=["a100"]', "bad-site", "node_properties|options.constraint"),
            ("ddp example", "backend=single", "conflicting-settings", "'single'| nodes=1"),
            ("ddp example", "gpus_per_node=0", "no-gpu", "gpus_per_node = 0| ranks_per_node="),
            ("ddp example", "minutes=4", "time-too-short", "minutes = 4 |save_seconds = 120 | minutes="),
            ("ddp torque", 'remote_shell="ssh -o \'x"', "unclosed-quote", 'torque|remote_shell|"ssh -o \'x"'),
            ("split mpirun", "placement=node-by-node", LAUNCHER, "'node-by-node'|mpirun| launcher=ssh"),
            ("horovod-srun example", "placement=node-by-node", LAUNCHER, "'node-by-node'|MPI"),
            ("ddp-local laptop", "placement=node-by-node", "no-scheduler", "laptop"),
            ("split example", "devices_per_rank=3", "too-few-gpus", " 1 | 3 | 2 |devices_per_rank|gpus_per_node"),
            ("split example", "ranks_per_node=2", "too-few-gpus", " 2 | 4 |devices_per_rank|gpus_per_node"),
            ("single example", "devices_per_rank=3", "too-few-gpus", " 1 | 3 | 2 |gpus_per_node"),
            ("split example", "gpus_per_node=0", "too-few-gpus", " 2 | 0 |gpus_per_node"),
            (
                "ddp-local laptop",
                "ranks_per_node=0 devices_per_rank=2",
                "too-few-gpus",
                " 2 |devices_per_rank|gpus_per_node|1| ranks_per_node=",
            ),
        ],
    )
    def test_what_cannot_run_somewhere_is_refused_with_the_way_out(self, capsys, job, setting, slug, way_out):
        spec, site = job.split()
        settings = setting.split(" ") if "remote" not in setting else [setting]
        refused(capsys, slug, *way_out.split("|"), settings=settings, spec=spec, site=site)

    @pytest.mark.parametrize(
        ("setting", "least"),
        [
            ("nodes=0", "1"),
            ("minutes=0", "1"),
            ("cpus_per_gpu=0", "1"),
            ("devices_per_rank=0", "1"),
            ("ranks_per_node=-1", "0"),
            ("save_seconds=-1", "0"),
            ("max_requeues=99999999", "0"),
        ],
    )
    def test_numbers_out_of_range(self, capsys, setting, least):
        key, _, value = setting.partition("=")
        text = refused(capsys, "bad-value", f"{key} ", settings=[setting])
        assert re.findall(r"-?\d+", text) == [value, value, least, "1000000"]

    def test_what_is_no_whole_number(self, capsys):
        refused(capsys, "bad-value", "nodes ", "1000000000.0", settings=["nodes=1e9"])


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
            ours = {f"slipway.{name}" for name in LEAVES}
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
        assert_warning(err, "stale-script", f"{path} ", command)
        assert err.count("\n") == 1
        assert [line[:19] for line in out.splitlines()[3:]] == ["-#SBATCH --nodes=3 ", "+#SBATCH --nodes=2 "]

    def test_a_script_of_an_earlier_version_alone(self, tmp_path, capsys):
        path = self.written(tmp_path, "mine.job")
        self.written(tmp_path, "other.job")
        path.write_text(path.read_text().replace("By jobgen ", "By jobgen 0.0.7-"))
        assert main(["check", str(path)]) == 1
        assert_warning(capsys.readouterr().err, "stale-script", path, f"jobgen 0.0.7-{VERSION} ", f" {VERSION})")
        assert main(["check", str(tmp_path / "other.job")]) == 0
        assert main(["check", str(tmp_path / "gone.job")]) == 78
        assert_error(capsys.readouterr().err, "cannot-read", f"{tmp_path}/gone.job", os.strerror(errno.ENOENT))

    @pytest.mark.parametrize("header", ["", "# Generated:    rm -rf x", "# Generated:    jobgen render 'x"])
    def test_one_that_is_somebodys_own(self, tmp_path, capsys, header):
        (tmp_path / "mine.job").write_text(f"#!/bin/bash\n{header}\n")
        assert main(["check", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "no-job-script", tmp_path / "mine.job", "`jobgen render`")

    def test_a_folder_without_any(self, tmp_path, capsys):
        assert main(["check", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "no-job-script", tmp_path)
