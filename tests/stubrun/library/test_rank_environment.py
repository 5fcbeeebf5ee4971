"""A rank's environment, the program that it runs, and the checks before the launch."""

import re

import pytest

from bash_library import LIB, assert_dies
from messages import messages, numbers, slugs


def environment(bash, code, **env):
    """Return the variables that a process has after a call, by name."""
    lines = bash(f"{code}; env", **env).out.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


COMMON = {"OMP_NUM_THREADS": "4", "DEVICES_PER_RANK": "1", "TRITON_CACHE_DIR": "/s/triton", "PYTHONNOUSERSITE": "1"}
RANK = {"DATA": "a b", "TRAINER_WORLD_SIZE": "4", "TRAINER_ATTEMPT": "2", "GPUS_PER_NODE": "2", "CPUS_PER_RANK": "4"}


def test_export_rank_environment_sets_rank_plan_and_caches(bash):
    env = environment(bash, "scratch=/s data='a b'; export_rank_environment", PYTHONPATH="/x", PYTHONSTARTUP="/y")
    assert (COMMON | RANK | {"TORCHINDUCTOR_CACHE_DIR": "/s/inductor"}).items() <= env.items()
    assert not {"PYTHONPATH", "PYTHONSTARTUP", "TRAINER_BOUND_GPUS"} & env.keys()


def test_export_job_environment_sets_no_rank_plan(bash):
    """A shell gets no plan of ranks: a torchrun started in it would be refused because of it."""
    env = environment(bash, "scratch=/s; export_job_environment")
    assert (COMMON | {"TMPDIR": "/s"}).items() <= env.items()
    assert [name for name in env if name.startswith("TRAINER_") or name == "RUN_DIR"] == []


# regression: a folder of the submission, or of the first node's prolog, was exported to ranks that lack it
@pytest.mark.parametrize("folder", ["/gone", "$PWD/disk", "/a,b:c"])
def test_tmpdir_is_replaced_by_scratch_with_warning(bash, folder):
    code, out, err = bash(f"export TMPDIR={folder}; scratch=/s; export_job_environment; sh -c 'echo \"$TMPDIR\"'")
    assert (code, out, err.count("\n")) == (0, "/s\n", 1)


BOUND = (
    "scratch=/s devices_per_rank=2 bound_backends=(horovod); export_rank_environment; echo ${TRAINER_BOUND_GPUS-none}"
)


@pytest.mark.parametrize(
    ("code", "out"),
    [
        # ranks that are bound to their GPUs
        *[
            (
                f"BACKEND={backend} {BOUND}",
                bound,
            )
            for backend, bound in (("ddp", "none"), ("horovod", "2"))
        ],
        # a user script with or without an adapter
        *[
            (f"SLIPWAY_ADAPT={adapt} SLIPWAY_SCRIPT=mine.py; choose_program; echo ${{PYTHONPATH-none}}", path)
            for adapt, path in ((0, "none"), (1, str(LIB)))
        ],
        ('check_mpi echo "Open MPI 4"; echo "$TRAINER_MPI"', "Open MPI 4"),
    ],
)
def test_variables_for_bound_gpus_adapter_and_mpi(bash, code, out):
    assert bash(code).out == f"{out}\n"


@pytest.mark.parametrize(
    ("given", "count", "named", "address"),
    [
        ("rendezvous=1", 2, "(n1, n2)", "10.0.0.1:4444"),
        ("rendezvous=1 BACKEND=horovod", 2, "(n1, n2)", "10.0.0.1:5555"),
        ("BACKEND=horovod", 2, "(n1, n2)", ""),  # over MPI
        ("nodes=(a1 a2 a3 a4 a5 a6 a7 a8 a9) nnodes=9", 9, "(a1, a2, a3, a4, a5, a6, a7, a8, ...)", ""),
    ],
)
def test_log_ranks_prints_counts_nodes_and_rendezvous(bash, given, count, named, address):
    meet = "MASTER_ADDR=10.0.0.1 MASTER_PORT=4444 HOROVOD_GLOO_RENDEZVOUS_PORT=5555"
    code, out, err = bash(f"{meet} {given}; log_ranks")
    before, found, after = err.partition(named)
    assert (code, out, err.count("\n"), numbers(before), found) == (0, "", 1, [4, 2, count], named)
    assert re.findall(r"[\d.]+:\d+", after) == ([address] if address else [])


@pytest.mark.parametrize(
    ("settings", "arguments", "first", "last"),
    [
        ("data=/d", ["--lr", "a b"], ["-m", "trainer", "{}/c.toml"], ["--data-dir", "/d", "--lr", "a b"]),
        (
            "SLIPWAY_DEVICES_PER_RANK=2 devices_per_rank=2",
            ["--lr", "1"],
            ["-m", "trainer", "{}/c.toml"],
            ["--devices-per-rank", "2", "--lr", "1"],
        ),
        ("SLIPWAY_PROFILER=nsys", [], [f"{LIB}/profile_rank.py", "-m", "trainer"], []),
        ("SLIPWAY_SCRIPT='my train.py'", ["x"], ["my train.py", "x"], ["my train.py", "x"]),
        ("SLIPWAY_SCRIPT='-m package.train'", [], ["-m", "package.train"], ["-m", "package.train"]),
        ("SLIPWAY_PROFILER=nsys SLIPWAY_SCRIPT=mine.py", [], [f"{LIB}/profile_rank.py", "mine.py"], ["mine.py"]),
    ],
)
def test_choose_program_builds_rank_command(bash, place, settings, arguments, first, last):  # noqa: PLR0917 -- fixtures
    code = f'{settings}; choose_program "$@"; printf "%s\\n" "${{program[@]}}"'
    words = bash(code, *arguments).out.splitlines()
    assert words[: len(first)] == [word.replace("{}", str(place)) for word in first]
    assert words[len(words) - len(last) :] == last
    assert "SLIPWAY_SCRIPT" not in settings or len(words) == 2


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("", "--numa-binding=node"),
        *[
            (setting, "")
            for setting in (
                "BACKEND=horovod",
                "SLIPWAY_DEVICE=cpu",
                "SLIPWAY_DEVICE=auto gpus_per_node=0",
                "numa_binding=",
                "devices_per_rank=2",
            )
        ],
    ],
)
def test_numa_binding_option_is_set_if_supported(bash, settings, options):
    numactl = {"numactl": '[ "$1" = --physcpubind=+0 ]' if options else "exit 1"}
    code = f'numa_binding=node\n{settings}\nchoose_numa_binding; echo "${{numa_options[@]}}"'
    code, out, err = bash(code, programs=numactl)
    assert (code, out, err.count("\n")) == (0, f"{options}\n", int("devices_per_rank" in settings))


@pytest.mark.parametrize(
    ("code", "slug", "values", "lines"),
    [
        (
            "numa_binding=node; PATH=${PATH%%:*}; choose_numa_binding",
            "no-numactl",
            ["numa_binding", "numactl", "USE_CONTAINER=0"],
            2,
        ),
        (
            "SLIPWAY_PROFILER=nsys; check_profiler",
            "no-profiler",
            ["SLIPWAY_PROFILER=nsys", "PATH", "USE_CONTAINER=0"],
            2,
        ),
        (
            "check_mpi bash -c 'echo broken; exit 1'",
            "no-mpi",
            ["`jobgen submit horovod-gloo --site SITE`", "bash ", " broken"],
            1,
        ),
    ],
)
def test_missing_numactl_profiler_or_mpi_is_refused(bash, code, slug, values, lines):
    assert_dies(bash(code), slug, *values, lines=lines)


@pytest.mark.parametrize(("settings", "said"), [("", ""), ("SLIPWAY_PROFILER=nsys; ", "Nsight 1\n")])
def test_check_profiler_prints_version(bash, settings, said):
    assert bash(f"{settings}check_profiler", programs={"nsys": "echo Nsight 1"})[:2] == (0, said)


class TestPreflight:
    RUN = "trainer_arguments=(c.toml --x); preflight"

    @pytest.mark.parametrize(
        ("code", "out"),
        [
            (RUN, "-m trainer.launch.preflight c.toml --x "),
            (
                (
                    f"TRAINER_PROBE_ADDRESS='1 x' first_node_is_probed=1; {RUN}; "
                    "echo ${TRAINER_PROBE_ADDRESS-none}$first_node_is_probed"
                ),
                f"{LIB}/try_head.py python3 -m trainer.launch.preflight c.toml --x none\n",
            ),
        ],
        ids=["alone", "after the nodes tried the head node"],
    )
    def test_preflight_command_line(self, bash, code, out):
        assert bash(code, programs={"python3": 'printf "%s " "$@"'}).out == out

    @pytest.mark.parametrize(
        ("program", "values"), [("exit 1", []), ("exec sleep 600", [" 1 ", "SLIPWAY_PREFLIGHT_SECONDS"])]
    )
    def test_failed_or_timed_out_preflight_is_reported(self, bash, program, values):
        done = bash(f"SLIPWAY_PREFLIGHT_SECONDS=1; {self.RUN}", programs={"python3": program})
        assert_dies(done, "node-not-ready", *values)

    def test_missing_bind_path_of_user_script_is_refused(self, bash):
        own = "SLIPWAY_SCRIPT=t.py bind_paths=(/usr /gone) program=(t.py); preflight"
        code, _, err = bash(own, programs={"python3": ""})
        assert (code, set(slugs(err)), slugs(err)[-1]) == (78, {"cannot-read", "node-not-ready"}, "node-not-ready")
        assert "/gone " in messages(err)[0].text
