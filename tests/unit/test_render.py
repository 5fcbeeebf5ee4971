"""jobgen render and check: the meaning of settings, and refusals."""

import errno
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

from jobgen.base.errors import JobgenError
from jobgen.base.job import JobSpec, Site
from jobgen.base.shell import COLUMNS, Expansion, array, default, option, quote
from jobgen.cli import main
from jobgen.render.script import _commented
from jobgen.resolve.load import load
from jobgen.resolve.resolve import SITE_FIELD_OF_SETTING, resolve
from jobgen.schedulers import pbs, scheduler_of, slurm
from messages import assert_error, assert_names, assert_warning, messages
from messages import refused as refusing
from slipway.base.contract import SETTINGS, VERSION
from slipway.base.slugs import SLUGS

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = "launcher-conflict"
NODE = ["gpus_per_node=4", "cpus_per_gpu=8", "mem=480G"]
MPIRUN = 'mpirun_options=["--mca", "btl_tcp_if_include", "ib0"]'
HOSTILE = ["a b", "a'b", 'a"b', "a:b,c", "$(touch x)", "`touch x`", "a;b", "ü", "-n", "", "*", "\\", "}", "#"]


pytestmark = pytest.mark.usefixtures("in_the_project")


def rendered(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 0
    return capsys.readouterr().out


def refused(capsys, slug, *values, settings=(), spec="ddp", site="example"):
    """Assert that a script cannot be rendered: a one-line error with this slug."""
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
    def test_quoted_literal_reaches_command_unchanged(self, text):
        assert shell(f"printf %s {quote(text)}") == text

    @pytest.mark.parametrize("text", [text for text in HOSTILE if "'" not in text])
    def test_default_is_assigned_to_variable_unchanged(self, text):
        assert shell(f': "${{NAME:={default(text)}}}"; printf %s "$NAME"') == text

    def test_default_with_single_quote_is_refused(self):
        with refusing("bad-path", "a'b"):
            default("a'b")

    @pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\rb"])
    def test_text_with_line_break_or_nul_is_refused(self, text):
        with refusing("bad-path", repr(text)):
            quote(text)

    def test_shell_variables_are_expanded_by_script(self):
        assert quote(option("--pwd", "PWD")) == '--pwd="$PWD"'
        assert shell(f'list=("a b" c); printf "<%s>" {quote(array("list"))}') == "<a b><c>"
        assert quote(Expansion('"$a"')) == '"$a"'


def test_output_to_pipe_keeps_mode_of_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main(["render", "ddp", "--site", "example", "--output", str(pipe)]) == 0
        assert reader.stdout.read().startswith(b"#!/usr/bin/env bash")
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o600


@pytest.mark.parametrize(("length", "lines"), [(COLUMNS - 9, 1), (COLUMNS - 8, 2)])
def test_comment_stays_on_line_if_it_fits_last_column(length, lines):
    assert len(_commented([("a=1", "y" * length)], column=6).splitlines()) == lines


class TestSettings:
    def test_site_options_become_scheduler_directives(self, capsys):
        text = rendered(capsys, "options.qos=high", "options.exclusive=true", "options.nodes=7")
        assert_names(text, "#SBATCH --qos=high ", "#SBATCH --exclusive ")
        assert re.findall(r"--nodes=\d+", text) == ["--nodes=7"]

    def test_local_venv_is_built_on_each_node(self, capsys):
        text = rendered(capsys, "venv=local", "container=none")
        assert_names(text, '\n: "${SLIPWAY_VENV:=local}"', '\n: "${USE_CONTAINER:=0}"', "\nbuild_local_venv ")
        assert "\nsite_downloads=1 " not in text
        assert "\nsite_downloads=1 " in rendered(capsys, "venv=local", "downloads=true")

    def test_option_set_to_false_is_omitted(self, capsys):
        directives = re.findall(r"(?m)^#SBATCH (.*)$", rendered(capsys, "options.account=false"))
        assert directives
        assert "--account" not in "".join(directives)

    @pytest.mark.parametrize("site", ["pbs", "torque"])
    @pytest.mark.parametrize("spec", ["ddp", "venv_build"])
    def test_pbs_script_sets_shell_unless_option_is_false(self, capsys, spec, site):
        assert "\n#PBS -S /bin/bash\n" in rendered(capsys, spec=spec, site=site)
        assert "#PBS -S" not in rendered(capsys, "options.S=false", spec=spec, site=site)

    def test_site_directives_are_passed_through(self, capsys):
        assert "#SBATCH --mail-type=END,FAIL " in rendered(capsys, site="modules-proxies")


@pytest.mark.parametrize(
    ("job", "settings", "present", "absent"),
    [
        # directives
        ("ddp@example", ["minutes=300"], ["#SBATCH --time=05:00:00"], []),
        ("ddp@pbs", ["minutes=300"], ["walltime=05:00:00"], []),
        ("ddp@example", ["nodes=3"], ["#SBATCH --nodes=3"], []),
        ("ddp@pbs", ["nodes=3"], ["select=3:"], []),
        ("ddp@pbs", ["options.place=scatter:exclhost"], ["-l place=scatter:exclhost "], ["place=scatter "]),
        ("ddp@example", ["name=digits"], ["#SBATCH --job-name=digits"], []),
        ("ddp@pbs", ["name=digits"], ["-N digits"], []),
        ("ddp@pbs", [], ["#PBS -N ddp"], []),
        ("ddp@pbs", ["options.N=false"], [], ["#PBS -N"]),
        ("ddp@example", ["options.comment=two words"], ["#SBATCH '--comment=two words' "], []),
        ("ddp@example", ["save_seconds=300"], ["--signal=B:USR1@360 "], []),  # 60 s because Slurm is inexact
        ("venv_build@example", ["options.gres=gpu:1"], ["#SBATCH --gres=gpu:1 "], []),
        ("image_build@example", ["options.gres=gpu:1"], ["#SBATCH --gres=gpu:1 "], []),
        ("venv_build@example", ["options.gpus-per-node=gpu:1"], ["#SBATCH --gpus-per-node=gpu:1 "], []),
        ("image_build@example", ["options.gpus-per-node=gpu:1"], ["#SBATCH --gpus-per-node=gpu:1 "], []),
        ("venv_build@example", ["options.gpus-per-task=gpu:1"], ["#SBATCH --gpus-per-task=gpu:1 "], []),
        ("image_build@example", ["options.gpus-per-task=gpu:1"], ["#SBATCH --gpus-per-task=gpu:1 "], []),
        # memory and cores follow the GPUs
        ("ddp@example", [], [], ["#SBATCH --mem="]),
        ("ddp@example", NODE, ["#SBATCH --mem=491520M ", "#SBATCH --cpus-per-task=32 "], []),
        ("ddp@example", [*NODE, "ranks_per_node=1"], ["#SBATCH --mem=122880M ", "#SBATCH --cpus-per-task=8 "], []),
        (
            "ddp@example",
            [*NODE, "backend=single", "nodes=1"],
            ["#SBATCH --mem=122880M ", "#SBATCH --cpus-per-task=8 "],
            [],
        ),
        ("ddp@pbs", ["mem=64G"], [":ncpus=8:ngpus=2:mem=65536mb:mpiprocs=2"], []),
        ("ddp@torque", ["mem=64G"], ["-l mem=131072mb"], []),
        ("single@example", ["gpu_type=1g.10gb"], ["--gpus-per-node=1g.10gb:1 "], []),  # enough for one process
        ("split@pbs", ["gpus_per_node=4"], [":ncpus=16:ngpus=4:mpiprocs=2:ompthreads=8 "], []),
        ("split@torque", ["ranks_per_node=1"], [":ppn=16:gpus=2 "], []),
        ("split@example", [], ['"${SLIPWAY_DEVICES_PER_RANK:=2}"'], []),
        ("ddp@example", [], ['"${SLIPWAY_DEVICES_PER_RANK:=}"'], []),
        # GPUs are bound to ranks that are tasks; a torchrun task sees all GPUs of its node
        ("split@gpu-per-task", [], ["bound_backends=(horovod) "], []),
        ("ddp-ranks@gpu-per-task", [], ["bound_backends=(ddp horovod) "], []),
        ("split@gpu-per-task", ["placement=node-by-node"], [], ["bound_backends="]),
        ("ddp-ranks@example", [], [], ["bound_backends="]),
        # torchrun binds to cores
        ("ddp@example", ["numa_binding=socket"], ["\nnuma_binding=socket ", '"${numa_options[@]}"'], []),
        ("ddp@example", ["numa_binding=socket", "placement=per-rank"], [], ["\nnuma_binding=socket "]),
        ("ddp@example", [], [], ["numa_binding=", "numa_options"]),
        # a site's options for mpirun follow the scheduler's
        ("horovod@mpirun", [MPIRUN], ["\nmpirun_options=(--mca btl_tcp_if_include ib0)"], []),
        ("ddp-mpirun@example", [MPIRUN], ["\nmpirun_options=(--mca btl_tcp_if_include ib0)"], []),
        ("ddp@mpirun", [MPIRUN], ["\nmpirun_options=(--mca btl_tcp_if_include ib0)"], []),
        (
            "horovod@pbs",
            [MPIRUN],
            ['\nmpirun_options=(--hostfile "$PBS_NODEFILE" --mca btl_tcp_if_include ib0)'],
            [],
        ),
        ("ddp@example", [MPIRUN], [], ["\nmpirun_options="]),  # srun starts everything
        # containers
        (
            "ddp@example",
            ['container_options=["--contain", "--nvccli"]'],
            ["\ncontainer_options=(--contain --nvccli) "],
            [],
        ),
        ("ddp@example", [], [], ["\ncontainer_options="]),
        ("image_build@example", ['container_options=["--contain"]'], [], ["\ncontainer_options="]),
        *(
            (
                "ddp@example",
                [f"container={name}", 'binds=["/a b"]'],
                [
                    f"\ncontainer_runtime={name} ",
                    f'\nsource "$lib/{library}.bash"\n',
                    '\n    "$PWD"\n    "$RUN_DIR"\n    "$SLIPWAY_LOCAL_DISK"\n    \'/a b\'\n)\n',
                    f"\ntrim_container_command{options}",
                ],
                [],
            )
            for name, library, options in (
                ("apptainer", "apptainer", " --nv"),
                ("singularity", "apptainer", " --nv"),
                ("podman", "podman", " --device=nvidia.com/gpu=all"),
                ("pyxis", "pyxis", ""),
            )
        ),
        # folders precede the nodes' PATH
        (
            "ddp@example",
            ['path=["/opt/my apptainer/bin", "/opt/b"]'],
            ["\nexport PATH='/opt/my apptainer/bin':/opt/b:\"$PATH\"\n"],
            [],
        ),
        ("ddp@example", [], [], ["export PATH"]),
    ],
)
def test_settings_render_expected_lines(capsys, job, settings, present, absent):
    spec, _, site = job.partition("@")
    text = rendered(capsys, *settings, spec=spec, site=site)
    assert [line for line in present if line not in text] == []
    assert [line for line in absent if line in text] == []


@pytest.mark.parametrize(
    ("scheduler", "finish", "rerunnable"),
    [("slurm", "finish requeue", "#SBATCH --requeue"), ("pbs", "finish chain", "-r y"), ("local", "finish none", "")],
)
def test_resume_defaults_to_what_users_may_do(capsys, tmp_path, scheduler, finish, rerunnable):
    site = tmp_path / "my.toml"
    site.write_text(f'name = "my"\nscheduler = "{scheduler}"\n')
    lines = rendered(capsys, spec="ddp-local" if scheduler == "local" else "ddp", site=str(site))
    assert finish in lines
    assert rerunnable in lines


def test_every_scheduler_option_renders_script_or_known_error(monkeypatch):
    """Every spec at every site, with each option that jobgen knows, present or absent, of any type."""
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


@pytest.mark.parametrize("value", ["3", '"3"'])
def test_env_value_is_exported_without_quotes(capsys, value):
    line = 'export NCCL_IB_GID_INDEX="${NCCL_IB_GID_INDEX:-3}"'
    assert line in rendered(capsys, f"env.NCCL_IB_GID_INDEX={value}")


@pytest.mark.parametrize("name", ["mpirun_options", "container_options"])
def test_each_extra_option_is_one_shell_word(capsys, name):
    words = [word for word in HOSTILE if word.isprintable()]
    text = rendered(capsys, f"{name}={json.dumps(words)}", spec="horovod", site="mpirun")
    line = next(line for line in text.splitlines() if line.startswith(f"{name}=("))
    assert shell(f'{line}\nprintf "<%s>" "${{{name}[@]}}"') == "".join(f"<{word}>" for word in words)


class TestSiteLookup:
    """By name: in the working folder, the user's, SLIPWAY_SITES, the center's, and jobgen's own."""

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

    def test_site_in_first_search_folder_is_used(self, folders, capsys):
        for folder in reversed(folders):
            (folder / "mine.toml").write_text(f'name = "{folder.name} of {folder.parent.name}"\n')
            text = rendered(capsys, spec="ddp", site="mine")
            assert f"# Site {folder.name} of {folder.parent.name}:" in text
        assert re.search(r"--site jobscripts/sites/mine\.toml", text)
        for folder in folders:
            (folder / "mine.toml").unlink()
        assert "# Site example:" in rendered(capsys, site="example")
        refused(capsys, "unknown-name", "'mine'", "amd", site="mine")

    def test_header_refers_to_user_site_by_name(self, folders, capsys):
        (folders[1] / "mine.toml").write_text('name = "mine"\n')
        assert "# Generated:    jobgen render ddp --site mine\n" in rendered(capsys, site="mine")


class TestSitePaths:
    """Defaults of settings, in which variables are expanded on the job's nodes."""

    def test_site_paths_are_defaults_of_settings(self, capsys):
        text = rendered(capsys, "image=/soft/slipway.sif", "output=${SCRATCH}/runs of $USER", "data=/data/$", "venv=/v")
        assert_names(text, '\n: "${SLIPWAY_IMAGE:=/soft/slipway.sif}"', '\n: "${SLIPWAY_VENV:=/v}"')
        line = next(line for line in text.splitlines() if line.startswith(': "${SLIPWAY_OUTPUT:='))
        show = f'SCRATCH="/s \\"x" USER=me; {line}\necho "$SLIPWAY_OUTPUT"'
        assert shell(show) == '/s "x/runs of me\n'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={"USER": "me"}, check=False)
        assert done.returncode
        assert_names(done.stderr, "SCRATCH: ", "output")
        line = next(line for line in text.splitlines() if line.startswith(': "${SLIPWAY_DATA:='))
        assert shell(f'{line}\necho "$SLIPWAY_DATA"') == "/data/$\n"

    @pytest.mark.parametrize("name", sorted(SETTINGS))
    def test_setting_in_env_table_is_refused(self, capsys, name):
        field = SITE_FIELD_OF_SETTING.get(name)
        refused(capsys, "bad-site", "example", name, "[env]", f" {field}." if field else "", settings=[f"env.{name}=1"])


class TestGpuRequests:
    @pytest.mark.parametrize(
        ("spec", "settings", "expected"),
        [
            ("ddp", ["gpus_per_node=4"], "--gpus-per-node=4 "),
            ("ddp", ["gpus_per_node=4", "gpu_type=a100"], "--gpus-per-node=a100:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gres"], "--gres=gpu:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gres", "gpu_type=v100"], "--gres=gpu:v100:4 "),
            ("ddp", ["gpus_per_node=4", "gpu_request=gpus-per-task"], "--gpus-per-task=4 "),
            ("ddp-ranks", ["gpus_per_node=4", "gpu_request=gpus-per-task"], "--gpus-per-task=1 "),
            # regression: at a site with gres, a job of one process requested four GPUs for "one rank each"
            ("single", ["gpus_per_node=4", "gpu_request=gres"], "--gres=gpu:1 "),
            ("ddp", ["gpus_per_node=4", "ranks_per_node=1"], "--gpus-per-node=1 "),
        ],
    )
    def test_slurm_script_has_one_gpu_request(self, capsys, spec, settings, expected):
        text = rendered(capsys, *settings, spec=spec)
        assert f"#SBATCH {expected}" in text
        assert len(re.findall(r"(?m)^#SBATCH --(?:gpus|gres)", text)) == 1
        assert "gpu" not in "".join(
            re.findall(r"(?m)^#SBATCH --(?:gpus|gres)\S+", rendered(capsys, *settings, spec="cpu"))
        )

    @pytest.mark.parametrize("gpus", [2, 4])
    def test_ranks_as_tasks_request_one_gpu_each(self, capsys, gpus):
        settings = ("nodes=3", f"gpus_per_node={gpus}", "cpus_per_gpu=8", "options.mem=32G")
        text = rendered(capsys, *settings, spec="ddp-ranks")
        asked = dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=(\S+)", text))
        wanted = {"nodes": "3", "ntasks-per-node": str(gpus), "gpus-per-node": str(gpus), "cpus-per-task": "8"}
        assert asked.items() >= {**wanted, "mem": "32G"}.items()
        assert all(" # " in line for line in re.findall("(?m)^#SBATCH .*", text)), "the purpose of each directive"

    def test_site_option_replaces_gpu_request(self, capsys):
        text = rendered(capsys, "options.gpus-per-node=false", 'options.gres="gpu:4"', spec="single")
        assert re.search(r"#SBATCH --gres=gpu:4 +# .*\bsite\b", text)


@pytest.mark.parametrize("settings", [[], ["placement=per-rank"], ["placement=node-by-node"]])
def test_pyxis_options_precede_program_started_by_srun(capsys, settings):
    text = rendered(capsys, "container=pyxis", *settings)
    for launch in re.findall(r"(?ms)^launch_\w+\(\) \{\n(.*?)^\}", text):
        before = launch.index('"${container[@]}"')
        assert all(before < launch.index(word) for word in ("sh ", "bash ", "torchrun", "python3") if word in launch)
    launch = re.search(r"(?ms)^launch_horovod\(\) \{\n(.*?)^\}", rendered(capsys, *settings))[1]
    assert launch.index("lib/") < launch.index('"${container[@]}"')


class TestDevicesPerRank:
    @pytest.mark.parametrize(
        ("settings", "gpus", "cpus"),
        [
            ([], 8, 96),  # the whole node: four ranks with two GPUs each
            (["devices_per_rank=3"], 6, 72),  # two ranks of three
            (["ranks_per_node=2"], 4, 48),  # the ranks' own
            (["ranks_per_node=2", "devices_per_rank=1"], 2, 24),
            (["ranks_per_node=16", "devices_per_rank=1"], 8, 96),  # two ranks share a GPU
            (["backend=single", "nodes=1"], 2, 24),
            (["placement=per-rank"], 8, 24),  # of a task, which is a rank
        ],
    )
    def test_slurm_request_follows_devices_per_rank(self, capsys, settings, gpus, cpus):
        text = rendered(capsys, *settings, spec="split", site="roce")
        found = re.findall(r"#SBATCH --(?:gpus-per-node|cpus-per-task)=(\d+)", text)
        assert list(map(int, found)) == [gpus, cpus]


@pytest.mark.parametrize(
    ("spec", "site", "loop"),
    [
        ("ddp", "example", "srun_node_by_node"),
        ("horovod-gloo", "cray", "srun_node_by_node"),
        ("single", "example", "srun_node_by_node"),
        ("ddp", "torque", "ssh_each_node 0"),  # as always
    ],
)
def test_node_by_node_placement_launches_in_loop_over_nodes(capsys, spec, site, loop):
    text = rendered(capsys, "placement=node-by-node", spec=spec, site=site)
    launches = text.split("\nlaunch_")[1:]
    assert all(f"\n    {loop} \\\n" in launch for launch in launches)
    assert "#SBATCH --ntasks-per-node=2" not in text


class TestDask:
    """A Dask client: it requests what a one-node job script requests at the site."""

    def request(self, capsys, *settings, site="example"):
        text = rendered(capsys, *settings, spec="dask", site=site)
        return json.loads(text.partition("<<'END_OF_REQUEST'\n")[2].partition("\nEND_OF_REQUEST")[0])

    def test_dask_request_for_slurm_node_matches_job_script(self, capsys):
        found = self.request(capsys, "minutes=90", "interface=ib0")
        job = rendered(capsys, "minutes=90", "nodes=1")
        scripts = set(re.findall(r"(?m)^#SBATCH (--\S+)", job))
        client = {"--job-name={name}", "--output={logs}/%j.log", "--no-requeue", "--deadline=now+{last}seconds"}
        gone = {"--job-name=ddp", "--signal=B:USR1@180", "--requeue", "--open-mode=append"}
        assert set(found["directives"]) == (scripts - gone) | client
        assert (found["cluster"], found["seconds"], found["interface"]) == ("SLURMCluster", 5400, "ib0")

    def test_dask_request_for_pbs_node(self, capsys):
        found = self.request(capsys, "nodes=7", site="pbs")
        assert found["cluster"] == "PBSCluster"
        assert_names(" ".join(found["directives"]), "-N {name} -j oe -r n", "-l select=1:ncpus=", "-o {logs}/")

    def test_dask_request_for_torque_node_of_tutorial(self, capsys, tmp_path):
        site = tmp_path / "mine.toml"
        fields = ['scheduler = "pbs"', 'pbs = "torque"', 'node_properties = ["c18a"]', 'options = {mem = "32gb"}']
        site.write_text("\n".join(['name = "mine"', *fields]))
        settings = ("device=cpu", "nodes=5", "ranks_per_node=12", "cpus_per_gpu=1")
        asked = " ".join(self.request(capsys, *settings, site=str(site))["directives"])
        assert_names(asked, "-l nodes=1:ppn=12:c18a ", "-l mem=32gb", "-l walltime=01:00:00 ", "-j oe ")
        text = rendered(capsys, *settings, spec="dask", site=str(site))
        assert_names(text, '"${SLIPWAY_NODES:=5}"', '"${SLIPWAY_RANKS_PER_NODE:=12}"', "\ndirectives_cpus=12 ")

    def test_dask_prologue_loads_modules_of_site(self, capsys):
        found = self.request(capsys, site="modules-proxies")
        modules = load(str(ROOT / "jobscripts" / "sites" / "modules-proxies.toml"), [], Site).modules
        assert len(modules) > 1
        assert found["prologue"] == ["module purge", *(f"module load {name}" for name in modules)]

    def test_dask_request_is_valid_json_with_any_option(self, capsys):
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
    def test_conflicting_dask_settings_are_refused(self, capsys, site, setting, slug, values):
        refused(capsys, slug, *values, settings=[setting], spec="dask", site=site)


@pytest.mark.parametrize(
    ("job", "settings", "slug", "values"),
    [
        ("ddp@example", ["node=3"], "unknown-key", [" node=3", "'node'", "'nodes'"]),
        (
            "ddp@exampel",
            [],
            "unknown-name",
            ["'exampel'", "'example'", "amd, cray, example, ", "`jobgen site --detect --output exampel.toml`"],
        ),
        ("dpp@example", [], "unknown-name", ["'dpp'", "'ddp'", "cpu, dask, ddp, "]),
        ("nowhere.toml@example", [], "cannot-read", ["nowhere.toml", os.strerror(errno.ENOENT)]),
        ("ddp@example", ["nodes=two"], "bad-value", [" nodes=two: nodes ", "'two'"]),
        ("ddp@example", ["nodes=1e9"], "bad-value", ["nodes ", "1000000000.0"]),
        ("ddp@example", ['options.comment="a\\nrm"'], "bad-value", ["options.comment", r"'\n'"]),
        ("ddp@example", ["options.mem=[]"], "bad-value", [" options.mem=[]: options.mem "]),
        ("ddp@example", ["resume=3", "resume=now"], "bad-value", [" resume=now: resume "]),
        ("ddp@example", ["mem=lots"], "bad-value", ["mem", "'lots'", "'480G'"]),
        (
            "ddp@example",
            ["gpu_request=slots"],
            "bad-value",
            ["'slots'", "'gpus-per-node'", "'gres'", "'gpus-per-task'"],
        ),
        (
            "ddp@example",
            ["container=docker"],
            "bad-value",
            ["'docker'", "'apptainer'", "'podman'", "'pyxis'", "'singularity'"],
        ),
        ("ddp@example", ["scheduler=dask"], "bad-value", ["'dask'", "'local'", "'pbs'", "'slurm'"]),
        (
            "ddp@example",
            ["env.PATH=/opt/b"],
            "bad-site",
            ["PATH", "[env]", " path"],
        ),  # every node has a PATH, which takes precedence
        ("ddp@example", ["resume=chain"], "bad-site", ["resume = 'chain'", "slurm", "'requeue'", "'none'"]),
        ("ddp@example", ['node_properties=["a100"]'], "bad-site", ["node_properties", "options.constraint"]),
        ("ddp@pbs", ["gpu_type=a100"], "bad-site", ["gpu_type", "node_properties"]),
        ("ddp@torque", ["remote_shell=ssh -o 'x"], "unclosed-quote", ["torque", "remote_shell", '"ssh -o \'x"']),
        ("venv_build@example", ["venv=modules"], "nothing-to-build", ["'modules'", " venv=.venv"]),
        ("image_build@example", ["container=podman"], "nothing-to-build", ["podman"]),
        ("ddp@example", ["backend=single"], "conflicting-settings", ["'single'", " nodes=1"]),
        ("ddp@example", ["minutes=4"], "time-too-short", ["minutes = 4 ", "save_seconds = 120 ", " minutes="]),
        # launchers
        (
            "ddp@example",
            ["container=pyxis", "launcher=mpirun"],
            LAUNCHER,
            ["container = 'pyxis'", "mpirun", " launcher=srun", " container=none"],
        ),
        (
            "horovod@cray",
            ["nodes=2"],
            LAUNCHER,
            ["`jobgen render horovod-gloo --site jobscripts/sites/cray.toml`"],
        ),
        ("ddp-mpirun@cray", ["nodes=2"], LAUNCHER, ["`jobgen render ddp --site jobscripts/sites/cray.toml`"]),
        ("horovod@pbs", ["launcher=ssh"], LAUNCHER, ["`jobgen render horovod-gloo", " launcher=mpirun"]),
        ("horovod-srun@pbs", ["nodes=2"], LAUNCHER, [" launcher=mpirun", " launcher=ssh"]),
        ("split@mpirun", ["placement=node-by-node"], LAUNCHER, ["'node-by-node'", "mpirun", " launcher=ssh"]),
        ("horovod-srun@example", ["placement=node-by-node"], LAUNCHER, ["'node-by-node'", "MPI"]),
        # machines without a scheduler
        ("ddp@laptop", [], "no-scheduler", ["ddp", "laptop", "`jobgen render ddp-local"]),
        ("ddp-ranks@laptop", ["nodes=1"], "no-scheduler", ["laptop", "--output ddp.sh && bash ddp.sh`"]),
        ("ddp-local@laptop", ["placement=node-by-node"], "no-scheduler", ["laptop"]),
        # GPUs
        ("ddp@example", ["gpus_per_node=0"], "no-gpu", ["gpus_per_node = 0", " ranks_per_node="]),
        (
            "ddp@example",
            ["gpu_type=a100_1g.5gb"],
            "mig-slices",
            ["'a100_1g.5gb'", " 2.32 ", "`jobgen render single --site "],
        ),
        (
            "ddp@example",
            ["placement=per-rank", "ranks_per_node=8", "gpu_request=gpus-per-task"],
            "too-few-gpus",
            [" 8 ", " 2 ", "'gpus-per-task'", "ranks_per_node"],
        ),
        (
            "split@example",
            ["devices_per_rank=3"],
            "too-few-gpus",
            [" 1 ", " 3 ", " 2 ", "devices_per_rank", "gpus_per_node"],
        ),
        ("split@example", ["ranks_per_node=2"], "too-few-gpus", [" 2 ", " 4 ", "devices_per_rank", "gpus_per_node"]),
        ("single@example", ["devices_per_rank=3"], "too-few-gpus", [" 1 ", " 3 ", " 2 ", "gpus_per_node"]),
        ("split@example", ["gpus_per_node=0"], "too-few-gpus", [" 2 ", " 0 ", "gpus_per_node"]),
        (
            "ddp-local@laptop",
            ["ranks_per_node=0", "devices_per_rank=2"],
            "too-few-gpus",
            [" 2 ", "devices_per_rank", "gpus_per_node", "1", " ranks_per_node="],
        ),
    ],
)
def test_job_that_cannot_run_is_refused_with_remedy(capsys, job, settings, slug, values):
    spec, _, site = job.partition("@")
    refused(capsys, slug, *values, settings=settings, spec=spec, site=site)


class TestRefusals:
    def test_no_site_is_suggested_for_dissimilar_name(self, capsys):
        text = refused(capsys, "unknown-name", "'mine'", site="mine")
        assert re.findall("'(.*?)'", text) == ["mine"]

    @pytest.mark.parametrize(
        ("setting", "choices"),
        [
            ("backend=foo", ["ddp", "horovod", "single"]),
            ("placement=x", ["per-node", "per-rank", "node-by-node"]),
            ("resume=later", ["", "requeue", "chain", "none"]),
            ("scheduler=lsf", ["local", "pbs", "slurm"]),
            ("accelerator=nvida", ["nvidia", "amd", "none", "nvidia"]),  # and which one was meant
        ],
    )
    def test_invalid_choice_is_refused_with_valid_choices(self, capsys, setting, choices):
        key, _, value = setting.partition("=")
        text = refused(capsys, "bad-value", f" {setting}: {key} ", settings=[setting])
        assert re.findall("'(.*?)'", text) == [value, *choices]

    def test_invalid_value_is_reported_with_its_source(self, capsys, tmp_path):
        """In the file, unless a command-line setting replaced the value."""
        (tmp_path / "my.toml").write_text('name = "my"\nresume = "later"\nbinds = [1]\n')
        site = str(tmp_path / "my.toml")
        refused(capsys, "bad-value", f"{site}: resume ", "'later'", site=site)
        refused(capsys, "bad-value", f"{site}: binds[0] ", settings=["resume=none"], site=site)

    def test_unwritable_output_is_refused(self, capsys, tmp_path):
        assert main(["render", "ddp", "--site", "example", "--output", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "cannot-write", tmp_path, os.strerror(errno.EISDIR))

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
    def test_numbers_out_of_range_are_refused(self, capsys, setting, least):
        key, _, value = setting.partition("=")
        text = refused(capsys, "bad-value", f"{key} ", settings=[setting])
        assert re.findall(r"-?\d+", text) == [value, value, least, "1000000"]


class TestCheck:
    """``jobgen check``: whether scripts match the output of the commands in their headers."""

    def written(self, folder, name, *options):
        path = folder / name
        assert main(["render", "ddp", "--site", "example", *options, "--output", str(path)]) == 0
        return path

    def test_check_accepts_scripts_that_are_up_to_date(self, tmp_path):
        self.written(tmp_path, "ddp.job")
        self.written(tmp_path, "alone.job", "--standalone")
        self.written(tmp_path, "set.job", "--set", "nodes=7", "--set", "options.comment=two words")
        assert main(["check", str(tmp_path)]) == 0

    def test_check_prints_diff_of_edited_script(self, tmp_path, capsys):
        path = self.written(tmp_path, "ddp.job", "--standalone")
        path.write_text(path.read_text().replace("--nodes=2", "--nodes=3"))
        assert main(["check", str(tmp_path)]) == 1
        command = "jobgen render jobscripts/specs/ddp.toml --site jobscripts/sites/example.toml --standalone --output"
        out, err = capsys.readouterr()
        assert_warning(err, "stale-script", f"{path} ", f"{command} {path}")
        assert err.count("\n") == 1
        assert [line[:19] for line in out.splitlines()[3:]] == ["-#SBATCH --nodes=3 ", "+#SBATCH --nodes=2 "]

    def test_check_reports_script_of_earlier_version_as_stale(self, tmp_path, capsys):
        path = self.written(tmp_path, "mine.job")
        self.written(tmp_path, "other.job")
        path.write_text(path.read_text().replace("By jobgen ", "By jobgen 0.0.7-"))
        assert main(["check", str(path)]) == 1
        assert_warning(capsys.readouterr().err, "stale-script", path, f"jobgen 0.0.7-{VERSION} ", f" {VERSION})")
        assert main(["check", str(tmp_path / "other.job")]) == 0
        assert main(["check", str(tmp_path / "gone.job")]) == 78
        assert_error(capsys.readouterr().err, "cannot-read", f"{tmp_path}/gone.job", os.strerror(errno.ENOENT))

    @pytest.mark.parametrize("header", ["", "# Generated:    rm -rf x", "# Generated:    jobgen render 'x"])
    def test_check_refuses_script_not_written_by_jobgen(self, tmp_path, capsys, header):
        (tmp_path / "mine.job").write_text(f"#!/bin/bash\n{header}\n")
        assert main(["check", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "no-job-script", tmp_path / "mine.job", "`jobgen render`")

    def test_check_refuses_folder_without_scripts(self, tmp_path, capsys):
        assert main(["check", str(tmp_path)]) == 78
        assert_error(capsys.readouterr().err, "no-job-script", tmp_path)
