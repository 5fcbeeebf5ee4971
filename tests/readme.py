"""All commands in README.md and docs/, in reading order, and the test that runs each.

A command is a line after ``$`` in a fence, or a code span of several words. Each is in one of the tables below, or is
run: in a fresh clone (``HERE``, tests/docs), on the test cluster (``ON_CLUSTER``, ``ON_NODE``,
tests/cluster/test_readme.py), or as a dry run on a stub login node (``DRY_RUNS``, tests/unit/test_documented_runs.py).
Decision records contain no commands.
"""

import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_PAGES_OF_COMMANDS = ("decisions/", "reference/jobgen", "reference/trainer", "reference/slipway", "reference/errors")
"""Records of decisions, and pages that build/generate writes from parsers and slugs."""


def pages_of(navigation: list) -> Iterator[str]:
    """Yield the pages of the site in reading order, from the ``nav`` of zensical.toml."""
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            (content,) = entry.values()
            yield from pages_of(content if isinstance(content, list) else [content])


NAVIGATION = [*pages_of(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in NAVIGATION if not name.startswith(NO_PAGES_OF_COMMANDS)),
]


def python_of(page: str, number: int = 0) -> str:
    """Return the Python file that a page asks its reader to save, by number; by default the first."""
    return re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))[number]


SCRIPT = python_of("howto/from-one-gpu")
MINE = python_of("howto/own-model")
SESSION = python_of("howto/session")
FSDP = python_of("howto/fsdp")
CLASSIFY = python_of("howto/evaluate")
LIGHTNING, FABRIC, ACCELERATE = (python_of("howto/frameworks", number) for number in range(3))

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
COMMAND = re.compile(r"([A-Z_]+=\S* )*[a-z.][\w./-]* ")
SHELLS = {"console", "bash", "sh"}

ELSEWHERE = {
    "apt-get install make python3-venv ca-certificates": ("build/fresh-chroot", "ca-certificates,make,python3,"),
    'python -m pip install ".[session]"': ("tests/wheel/test_wheel.py", '[*pip, "install", *folder.glob'),
    "python3 -m pip wheel --no-deps --wheel-dir wheels PATH/TO/slipway": (
        "tests/wheel/test_wheel.py",
        "(python3 -m pip wheel .*)",
    ),
    "sbatch --account=MINE --partition=GPU jobscripts/ddp.job": ("tests/cluster/test_jobs.py", "ddp.job"),
    "make test": (".ci/run", "\nmake test || status=1\n"),
    # docs/start/pbs.md
    "qsub jobscripts/mine-ddp.pbs": ("tests/cluster/clusters.py", '"/opt/pbs/bin/qsub", "-V", *qsub'),
    "qsub -q QUEUE -A PROJECT -l walltime=04:00:00 jobscripts/ddp.pbs": (
        "tests/cluster/clusters.py",
        '"/opt/pbs/bin/qsub", "-V", *qsub',
    ),
    "qsub -l walltime=04:00:00 jobscripts/mine-ddp.pbs": (
        "tests/cluster/clusters.py",
        '"/opt/pbs/bin/qsub", "-V", *qsub',
    ),
    'SLIPWAY_SCRIPT=my_train.py SLIPWAY_ARGS="--lr 0.1" qsub -V jobscripts/ddp.pbs': (
        "tests/cluster/clusters.py",
        '"/opt/pbs/bin/qsub", "-V", *qsub',
    ),
    "qsub runs/ddp-4711/job.sh": ("tests/cluster/clusters.py", '"-V", str(out / "job.sh")'),
    "qdel 4711": ("tests/cluster/test_openpbs_jobs.py", 'openpbs.run("qdel"'),
    # docs/howto
    "SLIPWAY_IMAGE=slipway-cuda.sif jobgen submit image_build --site mine": (
        "tests/stubrun/test_builds.py",
        'SLIPWAY_IMAGE=f"{job}.sif"',
    ),
    "SLIPWAY_IMAGE=slipway-cuda12.sif SLIPWAY_VARIANT=cuda12 jobgen submit image_build --site mine": (
        "tests/stubrun/test_builds.py",
        'SLIPWAY_IMAGE=f"{job}.sif"',
    ),
    "USE_CONTAINER=0 SLIPWAY_VENV=local SLIPWAY_WHEELHOUSE=wheelhouse jobgen submit ddp --site mine": (
        "tests/cluster/test_venv_builds.py",
        '"cpu", "example", "venv=local"',
    ),
    "jobgen run runs/my_train-4711": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "jobgen run runs/train-4711 --nodes 1": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "python examples/llm/memory.py": ("tests/distributed/test_llm_memory.py", "memory.main()"),
    "jobgen run runs/my_train-4711 --time 8:00:00": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "jobgen run OUTPUT_FOLDER/my_train-4711 --nodes 1": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "jobgen run runs/my_train-4711 --conda torch": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "jobgen run runs/my_train-4711 -- --lr 0.0005": (
        "tests/unit/test_jobgen_run.py",
        'Job(path, "--x").plan().lines()',
    ),
    "jobgen run runs/ddp-4711 -- --epochs 60": ("tests/unit/test_jobgen_run.py", 'Job(path, "--x").plan().lines()'),
    "jobgen run runs/ddp-4711 -- --lr 0.0005": ("tests/unit/test_jobgen_run.py", 'Job(path, "--x").plan().lines()'),
    "trainer runs/mine/config.toml --output-dir runs/again --resume runs/mine/checkpoints/step_00000046": (
        "tests/distributed/test_resume.py",
        'str(whole / "checkpoints" / "step_00000003")',
    ),
    "salloc --nodes=3 --gpus-per-node=4 --cpus-per-task=32 --time=1:00:00 --partition=gpu --account=example": (
        "tests/cluster/test_site.py",
        '"salloc", "--quiet", "--nodes=2", "--gpus-per',
    ),
    "bash three.job --lr 0.1": ("tests/cluster/test_site.py", "bash jobscripts/ddp.job --epochs 1"),
    "SLIPWAY_SCRIPT=my_train.py bash jobscripts/ddp.sh --lr 0.1": (
        "tests/stubrun/test_scripts.py",
        'project.run(script, "--lr", "1", SLIPWAY_SCRIPT="my train.py/"',
    ),
    "make docs": ("build/lint", "check build/docs"),
    "SLIPWAY_NODES=4 SLIPWAY_MIN_NODES=2 SLIPWAY_WAIT_SECONDS=900 bash dask.sh --epochs 20": (
        "tests/cluster/test_dask.py",
        'SLIPWAY_MIN_NODES="1"',
    ),
    "bash jobscripts/ddp.job": ("tests/cluster/test_site.py", "bash jobscripts/ddp.job --epochs 1"),
    ".venv/bin/pip install --target .jupyter jupyterlab": ("tests/cluster/test_readme.py", '"--target", ".jupyter"'),
    "apptainer run slipway.sif pip install --target .jupyter jupyterlab": (
        "tests/cluster/test_readme.py",
        '"--target", ".jupyter"',
    ),
    "ssh -N -J me@login.example.org -L 8899:127.0.0.1:8899 me@node17": (
        "tests/cluster/test_readme.py",
        "http://127.0.0.1:8899/",
    ),
    "apptainer pull pytorch-25.01.sif docker://nvcr.io/nvidia/pytorch:25.01-py3": (
        "tests/image/test_registry.py",
        "docker://pytorch/pytorch:2.13.0",
    ),
    "SLIPWAY_IMAGE=pytorch-25.01.sif SLIPWAY_SCRIPT=my_train.py jobgen submit ddp --site mine": (
        "tests/cluster/test_preflight.py",
        "test_user_script_runs_in_image_with_only_torch",
    ),
    "jobgen site --detect --output jobscripts/sites/mine.toml": (
        "tests/cluster/test_detect.py",
        '"site", "--detect", "--output"',
    ),
    "jobgen site --detect --save": ("tests/unit/test_saved_site.py", '"site", "--detect", "--save"'),
    "trainer report STUDY": ("tests/unit/test_report_study.py", "make_study(tmp_path"),
    "trainer report SWEEP": ("tests/unit/test_report_sweep.py", "make_sweep(tmp_path"),
    "SLIPWAY_VARIANT=cuda12 sbatch jobscripts/image_build.job": ("tests/stubrun/test_builds.py", "SLIPWAY_VARIANT="),
    "make image && make train": (".ci/run", "\nmake train # in the image now\n"),
    "make setup": ("build/test", "build/setup test"),
    "make setup && source .venv/bin/activate": ("build/test", "build/setup test"),
    "make cluster": ("tests/cluster/clusters.py", 'self.control("up", str(nodes))'),
    "make wheelhouse": ("tests/cluster/test_venv_builds.py", '"make", "wheelhouse"'),
    "SLIPWAY_WHEELHOUSE=wheelhouse SLIPWAY_VENV=.venv-nodes sbatch jobscripts/venv_build.job": (
        "tests/cluster/test_venv_builds.py",
        "venv_build.job",
    ),
    "jobgen submit venv_build --site mine": ("tests/cluster/test_venv_builds.py", "venv_build.job"),
    "SLIPWAY_HOROVOD=1 SLIPWAY_VENV=.venv-horovod jobgen submit venv_build --site mine": (
        "tests/stubrun/test_builds.py",
        '"venv_build.job", SLIPWAY_HOROVOD="1"',
    ),
    "SLIPWAY_VARIANT=cuda12 jobgen submit image_build --site mine": (
        "tests/stubrun/test_builds.py",
        "SLIPWAY_VARIANT=",
    ),
    "jobgen logs --follow": ("tests/unit/test_follow.py", 'main(["logs", "--follow", '),
    "sbatch jobscripts/image_build.job": ("tests/stubrun/test_builds.py", "image_build.job"),
    "jobgen submit image_build --site mine": ("tests/stubrun/test_builds.py", "image_build.job"),
    "make image": ("build/test", "build/image"),
    'make test PARTS="image in-image cluster" SYSTEM=1': (".ci/run", "image in-image cluster"),
    "make test SYSTEM=1": (".ci/run", "SYSTEM=1"),
    "make test-all": ("Makefile", "\ntest-all: "),
    "make test-all SYSTEM=1": ("Makefile", "\ntest-all: "),
    "make lint": ("build/test", "build/lint"),
    "make test-image VARIANT=cuda12": ("tests/image/test_variants.py", '"make", "test-image", f"VARIANT='),
    "make test-image": ("build/test", "in-image)"),
    "make gpu": ("build/test", "build/gpu"),
    "make image ROUTES=docker": ("tests/recipes/test_bad_input.py", "ROUTES=route"),
    "make image VARIANT=cuda BASE_IMAGE=registry.example/site/ubuntu:24.04": (
        "tests/recipes/test_bad_input.py",
        "BASE_IMAGE=base_archive",
    ),
    "apptainer build slipway.sif apptainer.def": (
        "tests/image/test_registry.py",
        '"build", "slipway.sif", "apptainer.def"',
    ),
    "apptainer build --build-arg BOOTSTRAP=docker-archive --build-arg BASE_IMAGE=base.tar slipway.sif apptainer.def": (
        "build/recipes",
        "BOOTSTRAP=",
    ),
    "docker build -t slipway .": ("tests/image/test_registry.py", '"bud", "--tag", "slipway", "."'),
    "apptainer inspect slipway.sif": ("tests/image/test_image.py", '"inspect"'),
    "apptainer build mine.sif mine.def": (
        "tests/recipes/test_image_recipes.py",
        "test_documented_definition_adds_packages",
    ),
    "apptainer sign slipway.sif": ("tests/image/test_signature.py", '"sign"'),
    "apptainer key newpair": ("tests/image/test_signature.py", '"newpair"'),
    "apptainer verify slipway.sif": ("tests/image/test_signature.py", '"verify"'),
    'SRC=src make run ARGS="trainer configs/digits.toml"': ("tests/image/test_image.py", '"build" / "run"'),
    'apptainer run --bind "$PWD/src:/opt/slipway/src:ro" slipway.sif ...': ("build/run", ":/opt/slipway/src:ro"),
    'apptainer run ... env HOME="$PWD" horovodrun ...': (
        "tests/image/test_ranks.py",
        '["env", f"HOME={job}", "horovod',
    ),
    "make pull IMAGE=docker://pytorch/pytorch:TAG": ("tests/image/test_registry.py", '"make", "pull", "IMAGE='),
    "apptainer exec --nv dist/pytorch-TAG.sif torchrun --standalone train.py": (
        "tests/image/test_registry.py",
        "containers/allreduce.py",
    ),
    "horovodrun --check-build": ("containers/smoke.sh", "horovodrun --check-build"),
    "python -m trainer.launch.preflight": ("tests/image/test_registry.py", '"trainer.launch.preflight"'),
    "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr 10.0.0.1 --master-port 29500 "
    "-m trainer configs/digits.toml --backend ddp": (
        "tests/distributed/test_rendezvous.py",
        "torchrun --nnodes 2 --node-rank 0 ",
    ),
    "jobgen sweep ddp --site example --set optim.lr=0.01,0.001 --set train.batch_size=64,128 --output sweeps/digits": (
        "tests/cluster/test_sweep.py",
        '"sweep", "cpu", "--site", self.site',
    ),
    "jobgen study ddp --site example --ranks 1,2,4 --cpus 2,4 --output studies/digits": (
        "tests/cluster/test_study.py",
        '"study", "ddp", "--site", "example"',
    ),
    "jobgen status sweeps/digits": ("tests/cluster/test_sweep.py", 'self.jobgen("status", "sweep")'),
    "jobgen status sweeps/digits/003": ("tests/cluster/test_sweep.py", 'jobgen("status", str(whole))'),
    "trainer configs/digits.toml --nproc-per-node auto": (
        "tests/unit/test_device.py",
        "ranks_for_gpus(settings(split, **launch)) == ranks",
    ),
    "jobgen run -m package.train": (
        "tests/cluster/test_run_command.py",
        '["-m", "package.train", "--name=mine",',
    ),
    "jobgen run configs/digits.toml --site mine": (
        "tests/cluster/test_run_command.py",
        '["small.toml", "--",',
    ),
    "jobgen run runs/my_train-4711 --nodes 1": (
        "tests/cluster/test_run_command.py",
        'login.follow("--nodes=2", f"runs/{run.name}")',
    ),
    "jobgen new mine": ("tests/distributed/test_new.py", "create("),
    "SLIPWAY_CONFIG=configs/aerial.toml SLIPWAY_DATA=aerial.zip sbatch jobscripts/ddp.job": (
        "tests/image/test_data.py",
        '"zip": {},',
    ),
    "mksquashfs data/aerial aerial.sqsh": ("tests/image/test_data.py", '[mksquashfs, folder, found["squashfs"]'),
    "SLIPWAY_CONFIG=configs/aerial.toml SLIPWAY_DATA=aerial.sqsh sbatch jobscripts/ddp.job": (
        "tests/image/test_data.py",
        '"squashfs": {},',
    ),
    "SLIPWAY_CONFIG=configs/aerial.toml SLIPWAY_DATA=aerial.tar SLIPWAY_STAGE=1 sbatch jobscripts/ddp.job": (
        "tests/image/test_data.py",
        '"tar, staged": {"SLIPWAY_STAGE": "1"},',
    ),
    "trainer configs/aerial.toml --weights resnet101.pt --normalise --lr 0.001": (
        "tests/unit/test_models.py",
        'torch.save(state, tmp_path / "resnet101.pt")',
    ),
    "trainer --dataset mnist --download --dry-run --data-dir data": (
        "tests/distributed/test_download.py",
        'flags = ["--dataset", "mnist", "--download", "--data-dir", str(data), "--dry-run"]',
    ),
    "trainer --dataset mnist --data-dir data --nproc-per-node 2": (
        "tests/distributed/test_example_configs.py",
        'train("spawn", 2, run, *flags, config=CONFIGS / "mnist-tutorial.toml")',
    ),
    "trainer configs/aerial.toml --nproc-per-node 2": (
        "tests/distributed/test_example_configs.py",
        'train("spawn", 2, run, "--data-dir", str(aerial), "--epochs", "1", config=CONFIGS / "aerial.toml")',
    ),
    # docs/tutorials/mnist-slurm.md
    "trainer configs/mnist-tutorial.toml --download --dry-run --data-dir data": (
        "tests/distributed/test_download.py",
        'flags = ["--dataset", "mnist", "--download", "--data-dir", str(data), "--dry-run"]',
    ),
    "trainer configs/mnist-tutorial.toml --data-dir data --nproc-per-node 2 --epochs 1": (
        "tests/distributed/test_example_configs.py",
        'train("spawn", 2, run, *flags, config=CONFIGS / "mnist-tutorial.toml")',
    ),
    "SLIPWAY_CONFIG=configs/mnist-tutorial.toml jobgen submit ddp-ranks --site mine": (
        "tests/cluster/test_preflight.py",
        '"SLIPWAY_DATA": str(tmp_path / name)',
    ),
    "SLIPWAY_CONFIG=configs/mnist-tutorial.toml jobgen study ddp --site mine --ranks 1,2,4 --cpus 2,4,8 --scaling weak "
    "--output studies/mnist": ("tests/cluster/test_advice.py", '"--scaling", "weak"'),
    "jobgen status studies/mnist": ("tests/cluster/test_study.py", 'jobgen("status", "study")'),
    "trainer report studies/mnist": ("tests/cluster/test_study.py", '"trainer", "report", study'),
    # docs/tutorials/dask-pbs.md
    "trainer make-data aerial data/aerial --per-class 40": (
        "tests/unit/test_make_data.py",
        'assert make("aerial", folder, "--per-class", 5) == 0',
    ),
    "trainer configs/aerial.toml --arch mnist-cnn --batch-size 32 --optimizer adamw --lr 0.001 --nproc-per-node 2 "
    "--output-dir runs/aerial": (
        "tests/distributed/test_example_configs.py",
        'flags = ["--data-dir", str(aerial), "--arch", "mlp", "--no-figures"]',
    ),
    "trainer configs/aerial.toml --nproc-per-node 2 --output-dir runs/resnet101": (
        "tests/distributed/test_example_configs.py",
        'train("spawn", 2, run, *flags, config=CONFIGS / "aerial.toml")',
    ),
    "trainer evaluate runs/aerial --output evaluated": (
        "tests/distributed/test_example_configs.py",
        '[*TRAINER, "evaluate", str(run), "--output", str(out)]',
    ),
    "trainer export runs/aerial aerial.pt": (
        "tests/unit/test_trained_run.py",
        "export([str(run), str(tmp_path / name)]) == 0",
    ),
    "SLIPWAY_CONFIG=configs/aerial.toml SLIPWAY_DATA=data/aerial USE_CONTAINER=0 bash dask.sh": (
        "tests/cluster/test_dask.py",
        'client("run", SLIPWAY_CONFIG=config(3), **THREADS)',
    ),
    "SLIPWAY_SCRIPT=my_train.py USE_CONTAINER=0 bash dask.sh": (
        "tests/cluster/test_dask.py",
        'client("run", SLIPWAY_SCRIPT=REPORT)',
    ),
    # docs/tutorials/slurm-gpus.md
    "USE_CONTAINER=0 sbatch eight.job": (
        "tests/cluster/test_split.py",
        'job = cluster_of_four.submit(script, out=tmp_path / "run", sbatch=() if settings else FOUR, **inside)',
    ),
    "USE_CONTAINER=0 SLIPWAY_SCRIPT=main.py sbatch eight.job --groups_size 2 --group_per_node 4": (
        "tests/cluster/test_split.py",
        "SLIPWAY_SCRIPT=DEVICES,",
    ),
    "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr node1 --master-port 8888 "
    "-m trainer configs/split-toy.toml --backend ddp": (
        "tests/distributed/test_rendezvous.py",
        "torchrun --nnodes 2 --node-rank 0 ",
    ),
    # docs/tutorials/model-parallel.md
    "OMP_NUM_THREADS=2 trainer configs/cpu.toml": (
        "tests/distributed/test_example_configs.py",
        '"--epochs", "8", config=CONFIGS / "cpu.toml", OMP_NUM_THREADS="2")',
    ),
    "USE_CONTAINER=0 sbatch mine-split.job": (
        "tests/cluster/test_split.py",
        'job = cluster_of_four.submit(script, out=tmp_path / "run", sbatch=() if settings else FOUR, **inside)',
    ),
    "trainer configs/split-toy.toml --nproc-per-node auto": (
        "tests/unit/test_device.py",
        "ranks_for_gpus(settings(split, **launch)) == ranks",
    ),
    "make wheelhouse VARIANT=cpu": ("tests/cluster/test_venv_builds.py", '"make", "wheelhouse", "VARIANT=cpu"'),
    "USE_CONTAINER=0 SLIPWAY_VARIANT=cpu SLIPWAY_WHEELHOUSE=wheelhouse SLIPWAY_CONFIG=configs/cpu.toml sbatch "
    "mine-cpu.job": ("tests/cluster/test_venv_builds.py", '"cpu", "example", "venv=local"'),
    # docs/tutorials/containers-horovod.md
    "jobgen submit horovod --site mine": ("tests/cluster/test_script_matrix.py", '("horovod.job", "horovod")'),
    "USE_CONTAINER=0 SLIPWAY_VENV=.venv-horovod jobgen submit horovod --site mine": (
        "tests/cluster/test_script_matrix.py",
        '("venv", "container"), ("library", "standalone")',
    ),
    "jobgen submit ddp-mpirun --site mine": ("tests/cluster/test_script_matrix.py", '("ddp-mpirun.job", "ddp")'),
    "jobgen render ddp --site gridengine --output jobscripts/ddp.sge": ("tests/docs/test_adding.py", '"gridengine"'),
}
"""Commands that need minutes or root: each with a test, or a file of CI, and the part of it that runs the command."""

NOWHERE = {
    "slipway export runs/llm exported --extra runs/llm/inputs/*.json": "needs an export to folders",
    "make prove": "runs the tests that `make test` leaves out, this one's neighbours among them",
    ".venv/bin/python -m pip install dask-jobqueue cryptography": "downloads what the tests' environment has",
    "pip install .": "downloads nothing but msgspec; tests/wheel installs the wheel",
    "python bench/report.py": "writes 200 runs first; tests/unit/test_report.py tests what it calls",
    "python bench/split_auto.py": "measures for minutes; tests/unit/test_pipeline_stages.py tests what it calls",
    "qsub -v SLIPWAY_SCRIPT=my_train.py jobscripts/mine-ddp.pbs": "the tests pass settings with -V",
    "qsub -v SLIPWAY_SCRIPT=my_train.py,USE_CONTAINER=0,SLIPWAY_VENV=.venv jobscripts/mine-ddp.pbs": (
        "the tests pass settings with -V"
    ),
    "qsub -I -l select=3:ncpus=32:ngpus=4:mpiprocs=4:ompthreads=8 -l place=scatter -l walltime=1:00:00 -q gpu": (
        "needs a terminal of a node"
    ),
    'cd "$PBS_O_WORKDIR" && SLIPWAY_ARGS="--lr 0.1" bash three.pbs': "needs a terminal of a PBS node",
    "qstat -f 4711": "needs a PBS",
    "qstat -xf 4711": "needs a PBS",
    "qrls 4711": "needs a PBS",
    "scontrol show job": "needs a job in the queue",
    "scontrol show job 4711": "needs a job in the queue",
    "scontrol release 4711": "needs a held job",
    "sacct -j 4711 --format=JobID,State,ExitCode,MaxRSS,ReqMem,NodeList": "needs slurmdbd",
    "srun --nodes=3 --ntasks-per-node=1 hostname": "needs the shell of an allocation",
    "jobgen shell --site mine --set devices_per_rank=4 --set options.jobid=4711 --set options.nodelist=node2": (
        "needs the number of an allocation"
    ),
    "jobgen shell --site mine -- ls /scratch/shared": "needs a site's shared folder",
    "conda activate torch": "needs conda",
    "USE_CONTAINER=0 SLIPWAY_VENV=conda:torch jobgen shell --site mine": "needs conda",
    "source ~/envs/torch/bin/activate": "names the reader's environment",
    "python3 -m venv --system-site-packages mine": "needs environment modules",
    "python3 -m venv /opt/jobgen && /opt/jobgen/bin/pip install .": "is the centre's folder",
    "SLIPWAY_IMAGE=pytorch-25.01.sqsh SLIPWAY_SCRIPT=my_train.py jobgen submit ddp --site mine": "needs Pyxis",
    "enroot import --output pytorch-25.01.sqsh docker://nvcr.io#nvidia/pytorch:25.01-py3": "needs Enroot",
    "podman build --tag slipway .": "needs Podman",
    "wandb sync runs/my_train-4711/wandb/offline-run-*": "needs an account at Weights & Biases",
    "tensorboard --logdir runs": "goes on until Ctrl-C",
    "make gpu-pack": "downloads wheels; tests/unit/test_gpu.py tests what it calls",
    'make gpu ARGS="bench start"': "runs benchmarks for minutes",
    "make image VARIANT=cuda": "an hour and 20 GB: built by hand; `make prove` tests what is there",
    "make image VARIANT=cuda12": "likewise",
    "make image VARIANT=cuda12 ROUTES=registry": "likewise; tests/image/test_registry.py builds the CPU image so",
    "make image VARIANT=cuda12 ROUTES=registry SCRATCH=/scratch/$USER/slipway-build": "likewise",
    "cp dist/slipway-cuda12.sif slipway.sif": "needs that image",
    'qmgr -c "set queue QUEUE kill_delay = 40"': "needs the administrator of a PBS",
    'qmgr -c "delete hook slipway"': "needs the administrator of a PBS",
    "qstat -Q -f": "needs a PBS",
    "qstat -Q -f QUEUE": "needs a PBS",
    "echo true | qsub -q QUEUE": "needs a node of a PBS",
    "git pull": "needs a remote repository",
    "git pull && /opt/jobgen/bin/pip install .": "likewise, and the centre's folder",
    "source .venv-jobgen/bin/activate && python -m pip install .": "the command of docs/start/site.md, again",
    "jobgen run runs/my_train-4711 --image slipway-old.sif": "needs an old image",
    "make locks": "asks an index for the newest packages, and changes the locks",
    "qstat --version": "needs a PBS; tests/cluster/test_openpbs_jobs.py has one, under other paths",
    "pbsnodes -a": "likewise",
    "module avail": "needs environment modules",
    "module avail apptainer": "needs environment modules",
    "module purge": "needs environment modules",
    "nvidia-smi topo -m": "needs an NVIDIA driver",
    "srun nvidia-smi": "needs an NVIDIA driver",
    "nvidia-ctk cdi generate": "needs NVIDIA's container toolkit",
    "enroot import": "needs Enroot",
    "srun --help": "of a cluster with Pyxis",
    "python -c \"import torch, torchvision; torch.save(torchvision.models.get_model('resnet101', weights='DEFAULT')"
    ".state_dict(), 'resnet101.pt')\"": "downloads weights; tests/unit/test_models.py starts from such a file",
    "watch jobgen status RUN": "goes on until Ctrl-C; what it repeats is in docs/howto/commands.md",
    "sacctmgr show associations user=$USER": "needs slurmdbd, which the test cluster does not have",
    "scontrol reconfigure": "is the administrator's; tests/cluster/test_slurm_epilogue.py runs it",
    "scontrol requeue": "is what tests/cluster/test_jobs.py sees the job scripts do",
    "ssh NODE true": "needs a site's remote shell; tests/cluster/test_launchers.py has one",
    "time ls -R .venv | wc -l": "measures a site's shared disk",
    "df --type=xfs --type=ext4": "lists a node's own disks, and fails where there is none",
}
"""Commands that no test runs, with the reason. Most of them query a cluster's properties."""

NO_COMMANDS = {
    "qstat -f",
    'place = "scatter:exclhost"',
    'launcher = "mpirun"',
    "trainer pack",
    "trainer report",
    "zip -0 -r",
    'venv = "local"',
    'split = "features.4"',
    'arch = "efficientnet_b0"',
    "time-limit JOB/ATTEMPT",
    "docker apptainer",
    "for step in session.steps(10_000)",
    "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ControlPath=none",
    'gpu_request = "gres"',
    "nothing wrong",
    "python -m",
    "python -u",
    "python SCRIPT",
    'binds = ["/scratch/shared"]',
    'venv = "modules"',
    "conda env list",
    "conda activate",
    "export scratch=...",
    "grep '^#SBATCH' three.job",
    "grep '^#PBS' three.pbs",
    "podman run",
    "nsys profile --trace=cuda,nvtx,osrt --sample=none",
    "apptainer run --nv ... IMAGE torchrun ...",
    "podman run --rm ... IMAGE torchrun ...",
    "srun --container-image=IMAGE ... torchrun ...",
    "srun --nodes=1 --nodelist",
    'placement = "node-by-node"',
    'sh "$lib/name_node.sh" SOURCE',
    'sh "$lib/name_rank.sh" SOURCE',
    "qrsh -inherit",
    'launcher = "NAME"',
    "takes_arguments = False",
    "request_stop user",
    "job_has_ended JOB",
    "foreign_job_has_ended JOB CLUSTER",
    "ended CODE",
    "resubmit METHOD",
    "run_launch launch_ddp",
    "out-of-time 4120 time-limit",
    "exec bash RUN_DIR/job.sh",
    "bash RUN_DIR/job.sh",
    'interface = "ib0"',
    "conda env config vars",
    "rank = dist.get_rank()",
    "trainer evaluate",
    "trainer export",
    "slipway export",
    "cp -a",
    "rsync -a",
    "torchrun --max-restarts",
    "python eval.py",
    "chmod o-w",
    "nodes_out_of_service NODE...",
}
"""Values of settings, names of commands, calls of functions, and parts of scripts."""

PROGRAMS = {
    *(
        "build/generate",
        "build/gpu",
        "build/setup",
        "jobgen",
        "make",
        "python",
        "python3",
        "slipway",
        "source",
        "trainer",
    ),
    *("chmod", "cp", "curl", "echo", "export", "getent", "ip", "realpath", "tar"),
    *("horovodrun", "mpirun", "torchrun"),
}
"""The first words of the commands that tests/docs runs."""

SPOKEN_OF = re.compile(
    r"jobgen [a-z]+( --standalone)?|make (pull|run)|qsub -[vVI]( NAME=VALUE,\.\.\.)?|"
    r"apptainer (exec|build|run( --no-eval)?)"
)
"""Commands that pages mention only by name."""

LOOKUPS = re.compile(r"(sbatch|mpirun) --version|(sinfo|squeue) .*|scontrol show .*|command -v .*|ip route get .*")
"""Queries that users run on a cluster before they describe it."""


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page in order: all lines of a fence, and code spans of several words.

    An indented fence is in a tab of the site if its language is console; in a list it holds a file.
    """
    found: list[str] = []
    text, end = page.read_text(encoding="utf-8"), 0
    for fence in [*FENCE.finditer(text), None]:
        spans = text[end : fence.start() if fence else None]
        words = [" ".join(span.replace("\\|", "|").split()) for span in SPAN.findall(spans)]
        found += [span for span in words if COMMAND.match(span) and not SPOKEN_OF.fullmatch(span)]
        if fence:
            end = fence.end()
            if fence[2] == "console" or (fence[2] in SHELLS and not fence[1]):
                lines = textwrap.dedent(fence[3]).splitlines()
                shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or fence[2] != "console"]
                found += [re.sub(" +# .*", "", line) for line in shown]
    return found


ALL = list(dict.fromkeys(command for page in PAGES for command in commands_of(page)))
COMMANDS = [command for command in ALL if command not in NO_COMMANDS]
_TESTED = [command for command in COMMANDS if command not in ELSEWHERE and command not in NOWHERE]
ON_CLUSTER = [
    command
    for command in _TESTED
    if re.search(r"(^| )(sbatch (?!--version)|jobgen (submit|status|logs|cancel) )", command)
    and "--dry-run" not in command
]
DRY_RUNS = [command for command in _TESTED if command.startswith("jobgen run ")]
ON_NODE = [command for command in _TESTED if "jobgen shell " in command and "--dry-run" not in command]
ASKED = [command for command in _TESTED if LOOKUPS.fullmatch(command)]
HERE = [command for command in _TESTED if command not in [*ON_CLUSTER, *ON_NODE, *DRY_RUNS, *ASKED]]

LEAVES = {
    "apptainer pull pytorch-25.01.sif docker://nvcr.io/nvidia/pytorch:25.01-py3": "pytorch-25.01.sif",
    "enroot import --output pytorch-25.01.sqsh docker://nvcr.io#nvidia/pytorch:25.01-py3": "pytorch-25.01.sqsh",
    "jobgen submit image_build --site mine": "slipway.sif",
    "make wheelhouse": "wheelhouse/torch.whl",
    "SLIPWAY_WHEELHOUSE=wheelhouse SLIPWAY_VENV=.venv-nodes sbatch jobscripts/venv_build.job": ".venv-nodes/bin/python",
    "SLIPWAY_HOROVOD=1 SLIPWAY_VENV=.venv-horovod jobgen submit venv_build --site mine": ".venv-horovod/bin/python",
}
"""Files that a command that runs elsewhere creates for later commands."""
NEEDED = {
    "make train": ".venv",
    "cp jobscripts/sites/example.toml jobscripts/sites/mine.toml": "jobscripts/sites/mine.toml",
    "trainer configs/digits.toml --output-dir runs/mine --resume auto": "runs/mine/checkpoints",
    "trainer make-data aerial data/aerial --per-class 10": "data/aerial",
    "trainer pack data/aerial aerial.zip": "aerial.zip",
    "trainer --dataset imagefolder --data-dir images --arch resnet18 --image-size 64 --ema-decay 0.99 "
    "--output-dir runs/photos": "runs/photos/checkpoints",
    "trainer export runs/photos photos.pt": "photos.pt",
}
"""Files that most commands need from an earlier command."""


def program(command: str) -> str:
    """Return the program of a command, which may start with variables."""
    return re.sub(r"^([A-Z_]+=\S* )*", "", command).split()[0]


def fresh_clone(folder: Path) -> Path:
    """Copy the files that a clone would hold after a commit of everything, and save the files of the pages."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file() or source.is_symlink():  # otherwise it is deleted here, but not yet in git
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / "my_train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "classify.py").write_text(CLASSIFY, encoding="utf-8")
    (folder / "my_session.py").write_text(SESSION, encoding="utf-8")
    (folder / "my_fsdp.py").write_text(FSDP, encoding="utf-8")
    (folder / "my_lightning.py").write_text(LIGHTNING, encoding="utf-8")
    (folder / "my_fabric.py").write_text(FABRIC, encoding="utf-8")
    (folder / "my_accelerate.py").write_text(ACCELERATE, encoding="utf-8")
    return folder


PYTHON = """#!/bin/bash
# A python3 that installs nothing: an environment that it makes holds links to the programs of another one.
case "$1 $2" in
    "-m venv")
        mkdir -p "$3/bin"
        ln -s {prefix}/bin/* "$3/bin"
        ln -sf "$0" "$3/bin/python"
        ln -sf "$0" "$3/bin/python3"
        ln -sf "$(type -P true)" "$3/bin/pip" # the other one would install into the other environment
        rm "$3/bin/activate"
        echo "PATH=$(realpath "$3")/bin:\\$PATH" >"$3/bin/activate"
        ;;
    "-m pip") ;;
    "-c import sysconfig"*) echo "$PWD/.venv/none" ;;
    *) exec {python} "$@" ;;
esac
"""


def without_downloads(folder: Path) -> Path:
    """Return a folder for PATH whose python3 makes an environment in no time, out of the one that the tests run in."""
    folder.mkdir()
    text = PYTHON.format(prefix=sys.prefix, python=sys.executable)
    (folder / "python3").write_text(text, encoding="utf-8")
    (folder / "python3").chmod(0o755)
    return folder
