"""The commands that the committed scripts launch on two nodes of two GPUs, outermost first."""

import pytest

from stubs import DONE, launches_of, payload_of


def launched(project, script, **env):
    """Return the outermost command of the only launch of a script."""
    ended = project.run(script, **env, **DONE)
    assert ended.code == 0, ended.err
    return ended, next(words for words in launches_of(ended) if words[0] in {"srun", "mpirun"})


def test_srun_starts_one_torchrun_on_each_node(project):
    ended, words = launched(project, "ddp.job")
    own = words[: words.index("sh")]
    assert (own[0], {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= {*own}) == ("srun", True)
    options = {"--nnodes=2", "--nproc-per-node=2", "--master-addr=10.0.0.1", "--master-port=24711"}
    assert (payload_of(ended)[0], options <= {*payload_of(ended)}) == ("torchrun", True)


def test_mpirun_starts_one_torchrun_on_each_node(project):
    ended, words = launched(project, "ddp-mpirun.job")
    assert (words[0], words[words.index("--map-by") + 1]) == ("mpirun", "ppr:1:node:OVERSUBSCRIBE")
    options = {"--nnodes=2", "--nproc-per-node=2", "--master-addr=10.0.0.1", "--master-port=24711"}
    assert (payload_of(ended)[0], options <= {*payload_of(ended)}) == ("torchrun", True)


def test_mpirun_starts_all_ranks_of_horovod_without_torchrun(project):
    ended, words = launched(project, "horovod.job")
    assert (words[0], words[words.index("--map-by") + 1]) == ("mpirun", "ppr:2:node:OVERSUBSCRIBE")
    assert words[words.index("python3") + 1 : words.index("python3") + 3] == ["-m", "trainer"]
    assert words[words.index("--backend") + 1] == "horovod"
    assert ended.of("torchrun") == []


def test_srun_starts_a_task_for_each_rank_of_horovod(project):
    _, words = launched(project, "horovod-srun.job")
    own = words[: words.index("apptainer")]
    assert (own[0], {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2"} <= {*own}) == ("srun", True)


@pytest.mark.parametrize(("script", "program"), [("ddp.job", "torchrun"), ("horovod.job", "python3")])
def test_launcher_starts_container_which_starts_program(project, script, program):
    """With the image of SLIPWAY_IMAGE; without a container, the environment's Python comes first on PATH."""
    (project.folder / "other.sif").touch()
    _, words = launched(project, script, SLIPWAY_IMAGE="other.sif")
    places = [words.index(word) for word in ("apptainer", str(project.folder / "other.sif"), program)]
    assert places == sorted(places)
    ended, words = launched(project, script, USE_CONTAINER="0")
    assert ("apptainer" in words, program in words) == (False, True)
    assert ended.env["PATH"].startswith(f"{project.folder}/.venv/bin:")
