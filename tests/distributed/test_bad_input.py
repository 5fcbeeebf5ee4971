"""A user's mistake gives a one-line error: what, where, what to do. test_config_cli.py tests flags and files."""

import pytest

from messages import assert_error, slugs
from slipway.base.slugs import SLUGS
from support import TRAINER, launch_words, output_of, verdict

TINY = ["--synthetic-shape", "1", "4", "4"]
CASES = {
    "unknown model": (["--arch", "resnet17"], "unknown-name", ["'resnet17'", "'resnet18'"]),
    "no data": (["--dataset", "cifar10", "--data-dir", "nowhere"], "no-data", ["'nowhere'", "--download"]),
    "no image folder": (["--dataset", "imagefolder", "--data-dir", "nowhere"], "no-data", ["nowhere"]),
    "images too small": (["--dataset", "synthetic", *TINY], "image-size", ["6 x 6", "4 x 4"]),
    "no GPU": (["--device", "cuda"], "no-gpu", ["--device cuda"]),
    "no ranks": (["--backend", "ddp"], "ranks-not-named", ["RANK, WORLD_SIZE, LOCAL_RANK", "torchrun"]),
    "compression without horovod": (["--fp16-compression"], "conflicting-settings", ["fp16_compression", "horovod"]),
    "ranks of another backend": (
        ["--nproc-per-node", "2", "--backend", "single"],
        "conflicting-settings",
        ["--nproc-per-node", "single"],
    ),
    "a hundred ranks for each CPU": (["--nproc-per-node", "99999"], "too-few-cpus", ["99999"]),
    "a rank for each of no GPUs": (["--nproc-per-node", "auto"], "no-gpu", ["--nproc-per-node auto", " 0 "]),
    "no number of ranks": (["bad.toml"], "bad-value", ["'all'", "auto"]),
    "sync_bn without ranks": (["--sync-bn"], "conflicting-settings", ["sync_bn", "--backend ddp"]),
    "nothing to resume": (["--resume", "nowhere"], "no-checkpoint", ["nowhere"]),
    "unwritable output": (["--output-dir", "/proc/run"], "cannot-write", ["/proc/run"]),
    "weights of another model": (["--weights", "bad.safetensors"], "bad-weights", ["--weights bad.safetensors"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gives_one_line_error_and_exit_code_78(case, tmp_path, table):
    flags, slug, values = CASES[case]
    (tmp_path / "bad.toml").write_text('[launch]\nnproc_per_node = "all"')
    (tmp_path / "bad.safetensors").write_text("not tensors")
    words = [*TRAINER, *[str(tmp_path / flag) if flag.startswith("bad.") else flag for flag in flags]]
    if "--output-dir" not in flags:
        words += ["--output-dir", str(tmp_path / "run")]
    assert SLUGS[slug].exit_code == 78
    said = output_of(words, tmp_path / "log", code=78).replace(f"{tmp_path}/", "")
    (line,) = [line for line in said.splitlines() if line.startswith("trainer:")]
    assert_error(said, slug, *values)
    table(f"bad input: {case}", [("exit 78", line)])


@pytest.mark.horovod
@pytest.mark.parametrize("backend", ["single", "horovod"])
def test_separate_worlds_of_one_rank_are_refused(backend, tmp_path):
    """mpirun over another MPI library starts N worlds of one rank; each would train alone and exit with 0."""
    words = [*TRAINER, "--backend", backend, "--output-dir", str(tmp_path / "run")]
    said = output_of(words, tmp_path / "log", code=78, TRAINER_WORLD_SIZE="2")
    assert_error(said, "wrong-world-size", " 1 ", " 2 ", "TRAINER_WORLD_SIZE")


@pytest.mark.parametrize(
    ("flags", "name", "slug"),
    [
        ([], "SLURM_STEP_NUM_TASKS", "separate-processes"),
        ([], "PMI_SIZE", "separate-processes"),
        (["--nproc-per-node", "2"], "SLURM_STEP_NUM_TASKS", "nested-launch"),
    ],
)
def test_processes_started_without_rank_variables_are_refused(flags, name, slug, tmp_path):
    words = [*TRAINER, *flags, "--output-dir", str(tmp_path / "run")]
    assert_error(output_of(words, tmp_path / "log", code=78, **{name: "2"}), slug, name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("launcher", "ranks", "flags", "slug"),
    [
        ("single", 1, ["--arch", "resnet17"], "unknown-name"),
        ("single", 1, ["--dist-backend", "gloo"], "conflicting-settings"),
        ("forked", 2, ["--resume", "nowhere"], "no-checkpoint"),
        ("forked", 2, ["--sync-bn", "--device", "cpu"], "no-gpu"),
    ],
)
def test_verdict_of_configuration_error_is_failed_with_slug(launcher, ranks, flags, slug, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    words = [*launch_words(launcher, ranks), *flags, "--output-dir", str(out)]
    said = output_of(words, tmp_path / "log", code=78, TRAINER_ATTEMPT="3")
    begin = f"failed 0 {slug}: "
    line = verdict(out, 3)
    assert line.startswith(begin)
    assert f"error[{slug}]: {line.removeprefix(begin)}" in said


def test_error_of_all_ranks_is_reported_once(tmp_path):
    words = [*launch_words("forked", 2), "--resume", "nowhere", "--output-dir", str(tmp_path / "run")]
    assert slugs(output_of(words, tmp_path / "log", code=78)) == ["no-checkpoint"]
