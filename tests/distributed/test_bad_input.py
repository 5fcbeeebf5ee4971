"""What a user gets wrong is answered in one line: what, where, and what to do."""

import pytest

from support import TRAINER, launch_words, started, verdict

CONFIG = "bad.toml"
TINY = ["--synthetic-shape", "1", "4", "4"]
CASES = {
    "unknown key": ([CONFIG], "[train]\nbatchsize = 32", 78, "Did you mean 'batch_size'?"),
    "impossible value": ([CONFIG], "[optim]\nlr = -1", 78, "optim.lr: Expected `float` > 0"),
    "wrong choice": ([CONFIG], '[optim]\noptimizer = "adamv"', 78, "Did you mean 'adam"),
    "not TOML": ([CONFIG], "epochs: 3", 78, "is not valid TOML"),
    "no such file": (["nowhere.toml"], "", 78, "cannot read the configuration nowhere.toml"),
    "unknown model": (["--arch", "resnet17"], "", 78, "Did you mean 'resnet18'?"),
    "no data": (["--dataset", "cifar10", "--data-dir", "nowhere"], "", 78, "--download fetches it"),
    "no image folder": (["--dataset", "imagefolder", "--data-dir", "nowhere"], "", 78, "no folder nowhere"),
    "images too small": (["--dataset", "synthetic", *TINY], "", 78, "at least 6 x 6 pixels"),
    "no GPU": (["--device", "cuda"], "", 78, "torch sees no GPU"),
    "no ranks": (["--backend", "ddp"], "", 78, "RANK, WORLD_SIZE, LOCAL_RANK not set. Start it with torchrun"),
    "compression without horovod": (["--fp16-compression"], "", 78, "is of --backend horovod"),
    "ranks of another backend": (["--nproc-per-node", "2", "--backend", "single"], "", 78, "starts ddp ranks"),
    "a hundred ranks for each CPU": (["--nproc-per-node", "99999"], "", 78, "ranks can be started"),
    "a rank for each of no GPUs": (["--nproc-per-node", "auto"], "", 78, "give the number of ranks, as --nproc"),
    "no number of ranks": ([CONFIG], '[launch]\nnproc_per_node = "all"', 78, "'all' is not one of a number, auto"),
    "sync_bn without ranks": (["--sync-bn"], "", 78, "needs --backend ddp"),
    "nothing to resume": (["--resume", "nowhere"], "", 78, "neither a checkpoint"),
    "unwritable output": (["--output-dir", "/proc/run"], "", 78, "cannot write to the run folder /proc/run"),
    "weights of another model": (["--weights", "bad.safetensors"], "", 78, "--weights bad.safetensors cannot be read"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_is_wrong(case, tmp_path, table):
    flags, content, code, answer = CASES[case]
    (tmp_path / CONFIG).write_text(content)
    (tmp_path / "bad.safetensors").write_text("not tensors")
    words = [*TRAINER, *[str(tmp_path / flag) if flag.startswith("bad.") else flag for flag in flags]]
    if "--output-dir" not in flags:
        words += ["--output-dir", str(tmp_path / "run")]
    with started(words, tmp_path / "log") as launch:
        assert launch.wait() == code, launch.output
    errors = [line for line in launch.output.splitlines() if line.startswith("trainer:")]
    said = launch.output.replace(f"{tmp_path}/", "")
    assert len(errors) == 1, launch.output
    assert "Traceback" not in said
    assert answer in said
    table(f"bad input: {case}", [(f"exit {code}", errors[0].replace(f"{tmp_path}/", ""))])


def test_an_unknown_flag_is_a_usage_error(tmp_path):
    with started([*TRAINER, "--epoch", "3"], tmp_path / "log") as launch:
        assert launch.wait() == 2
    assert launch.output == "trainer: unknown flag --epoch; did you mean --epochs?\n"


@pytest.mark.horovod
@pytest.mark.parametrize("backend", ["single", "horovod"])
def test_copies_of_rank_0_of_1_are_refused(backend, tmp_path):
    """mpirun over another MPI library starts N worlds of one rank; each would train alone and exit with 0."""
    words = [*TRAINER, "--backend", backend, "--output-dir", str(tmp_path / "run")]
    with started(words, tmp_path / "log", TRAINER_WORLD_SIZE="2") as launch:
        assert launch.wait() == 78
    assert "the world has 1 ranks, but 2 were planned" in launch.output


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "SLURM_STEP_NUM_TASKS"),
        ([], "PMI_SIZE"),
        (["--nproc-per-node", "2"], "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_copies_that_a_launcher_started_without_naming_them_are_refused(flags, name, tmp_path):
    words = [*TRAINER, *flags, "--output-dir", str(tmp_path / "run")]
    with started(words, tmp_path / "log", **{name: "2"}) as launch:
        assert launch.wait() == 78
    assert name in launch.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("launcher", "ranks", "flags"),
    [
        ("single", 1, ["--arch", "resnet17"]),
        ("single", 1, ["--dist-backend", "gloo"]),
        ("forked", 2, ["--resume", "nowhere"]),
        ("forked", 2, ["--sync-bn", "--device", "cpu"]),
    ],
)
def test_the_job_script_reads_in_the_verdict_that_trying_again_cannot_help(launcher, ranks, flags, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    words = [*launch_words(launcher, ranks), *flags, "--output-dir", str(out)]
    with started(words, tmp_path / "log", TRAINER_ATTEMPT="3") as launch:
        assert launch.wait() != 0
    line = verdict(out, 3)
    assert line.startswith("failed 0 ")
    assert line.removeprefix("failed 0 ") in launch.output


def test_every_rank_fails_alike_and_rank_0_speaks_for_all(tmp_path):
    words = [*launch_words("forked", 2), "--resume", "nowhere", "--output-dir", str(tmp_path / "run")]
    with started(words, tmp_path / "log") as launch:
        assert launch.wait() != 0
    assert launch.output.count("neither a checkpoint") == 1
