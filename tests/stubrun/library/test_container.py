"""The container command line before each command: Apptainer, SingularityCE, Podman, Pyxis."""

import os
import re

import pytest

from bash_library import LIB, assert_ended
from jobgen.base.shell import array, command
from jobgen.runtimes import container_of
from messages import assert_warning

SHOW = 'printf "%s\\n" "${container[@]}"'


def use(runtime, *options, paths="", site=False):
    """Return the script lines that set ``container`` for GPU options and bind paths."""
    words = command(container_of(runtime).words([array("container_options")] * site + [*options]))
    return f"bind_paths=({paths}); set_binds; container=({words}); {command(['trim_container_command', *options])}"


@pytest.fixture(autouse=True)
def config(place):
    (place / "c.toml").touch()


PLUGIN = {"srun": "echo --container-image=..."}


@pytest.mark.parametrize(
    ("code", "runtime", "programs", "slug", "values"),
    [
        ("touch i.sif; check_inputs", "apptainer", {}, "no-container-runtime", ["apptainer", "USE_CONTAINER=0"]),
        ("touch i.sif; check_inputs", "apptainer", {"apptainer": ""}, "", []),
        (
            "USE_CONTAINER=0; check_inputs",
            "apptainer",
            {},
            "no-environment",
            ["SLIPWAY_VENV", "/venv/bin/python", "USE_CONTAINER=1"],
        ),
        (use("apptainer", paths="/gone"), "apptainer", {}, "cannot-read", ["/gone "]),
        (
            "SLIPWAY_IMAGE=docker://debian; check_image",
            "apptainer",
            {},
            "image-not-local",
            ["`apptainer pull my.sif docker://debian`"],
        ),
        ("PATH=/nowhere; check_image", "podman", {}, "no-container-runtime", ["podman", "USE_CONTAINER=0"]),
        ("check_image", "podman", {"podman": "exit 3"}, "", []),
        ("touch i.sif; check_image", "podman", {"podman": ""}, "image-not-local", ["docker-archive:", "/i.sif"]),
        ("check_image", "pyxis", PLUGIN, "no-image", ["/i.sif ", "`enroot import`"]),
        ("SLIPWAY_IMAGE=docker://nvcr.io#nvidia/pytorch:1; check_image", "pyxis", PLUGIN, "", []),
        (
            "touch i.sif; check_image",
            "pyxis",
            {"srun": "echo usage"},
            "no-container-runtime",
            ["--container-image", "USE_CONTAINER=0"],
        ),
        ("bind_paths=(/a:b); set_bind_options", "pyxis", {}, "bad-path", ["/a:b: "]),
    ],
)
def test_missing_image_runtime_or_environment_is_refused(bash, code, runtime, programs, slug, values):  # noqa: PLR0917 -- fixtures
    assert_ended(bash(code, runtime=runtime, programs=programs), slug, *values)


def test_check_inputs_sets_image_and_data_paths(bash, place):
    code = 'touch i.sif; SLIPWAY_DATA=$PWD; check_inputs; printf "%s\\n" "$image" "$data"'
    assert bash(code, programs={"apptainer": ""}).out == f"{place}/i.sif\n{place}\n"


QUOTED = r'type=bind,"source=.*/d","destination=.*/d"'


# data are mounted as an image only if they are one
@pytest.mark.parametrize(
    ("given", "mount", "data"),
    [
        ("data=$PWD/d data_kind=folder", QUOTED, "{}/d"),
        (
            "data=$PWD/x data_kind=squashfs mount_point=/s/mounted",
            r'type=bind,"source=.*/x","destination=/s/mounted",image-src=/,ro',
            "/s/mounted",
        ),
        ("data=/s/data/x data_kind=folder", "", "/s/data/x"),  # the copy need not be on this machine
    ],
)
def test_data_folder_or_squashfs_is_mounted(bash, place, given, mount, data):
    show = f'SLIPWAY_DEVICE=cpu; {use("apptainer", "--nv")}; printf "%s\\n" "${{container[@]}}" "data is $data"'
    *words, last = bash(f"mkdir d; {given} scratch=/s; {show}").out.splitlines()
    assert last == f"data is {data.replace('{}', str(place))}"
    mounts = [word for word in words if re.fullmatch(r'.*/(d|x|mounted)"(,image-src=/,ro)?', word)]
    assert [bool(re.fullmatch(mount, word)) for word in mounts] == [True] * bool(mount)


def test_apptainer_command_line(bash, place):
    words = bash(f"{use('apptainer', '--nv', paths='/usr')}; {SHOW}").out.splitlines()
    assert words[:5] == ["apptainer", "run", "--no-eval", f"--pwd={place}", "--nv"]
    assert words[-1] == f"{place}/i.sif"
    assert 'type=bind,"source=/usr","destination=/usr"' in words


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ('container_options=(--env "A=a b")', "--env|A=a b|--nv|--mount|"),
        ("container_options=(); SLIPWAY_DEVICE=cpu", "--mount|"),
        ("container_options=(); USE_CONTAINER=0", ""),
    ],
)
def test_container_command_has_site_and_gpu_options(bash, settings, options):
    words = use("apptainer", "--nv", site=True)
    out = bash(f'{settings}; {words}; printf "%s|" "${{container[@]:4}}"').out
    assert out.startswith(options) if options else out == "|"


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_singularity_command_line_matches_apptainer(bash, runtime):
    assert bash(f'{use(runtime)}; echo "${{container[*]:0:3}}"').out == f"{runtime} run --no-eval\n"


class TestPodman:
    USE = use("podman", "--device=nvidia.com/gpu=all", paths="/usr")
    SHOW = f'image=localhost/my:1; {USE}; "${{container[@]}}" python3 x'

    def test_podman_command_line_and_exit_code(self, bash, place):
        code, out, _ = bash(self.SHOW, runtime="podman", programs={"podman": 'printf "%s\\n" "$@"; exit 3'})
        words = out.splitlines()
        assert (code, words[:2]) == (3, ["--cgroup-manager=cgroupfs", "run"])
        assert words[-5:] == ["localhost/my:1", "sh", f"{LIB}/podman_init.sh", "python3", "x"]
        options = {"--rm", "--network=host", "--ipc=host", "--cgroups=no-conmon", "--entrypoint=", "--label=slipway="}
        options |= {f"--workdir={place}", "--device=nvidia.com/gpu=all", 'type=bind,"source=/usr","destination=/usr"'}
        options |= {"--env=HOME"}  # every variable except those that locate the host's programs
        assert options <= set(words)
        assert not {"--env=PATH", "--env=LD_LIBRARY_PATH"} & set(words)
        assert len(words) == len(set(words) | {"--mount"}) + words.count("--mount") - 1  # it refuses one path twice
        assert ("--userns=keep-id" in words) == (os.geteuid() != 0)

    @pytest.mark.parametrize(("before", "interactive"), [("", True), ("unset -v terminal; ", False)])
    def test_only_shell_container_is_interactive(self, bash, before, interactive):
        out = bash(before + self.SHOW, runtime="podman", programs={"podman": 'printf "%s\\n" "$@"'}).out
        assert ("--interactive" in out.splitlines()) == interactive

    # regression: without a folder, or after its removal, the containers of all the user's jobs were removed
    @pytest.mark.parametrize(
        ("code", "removed"),
        [
            ("clean_up_job", ""),
            ("scratch=$PWD/s; mkdir s; clean_up_job", "rm --force --time=0 4711 "),
            ("remove_containers /s", "rm --force --time=0 4711 "),
        ],
    )
    def test_only_containers_of_attempt_are_removed(self, bash, code, removed):
        podman = (
            'case "$*" in *label=slipway=*/s) echo 4711 ;; ps*) echo 1 ;; *) printf "%s " "$@" >>"$HOME/removed"; esac'
        )
        code = f'touch "$HOME/removed"; ({code}) && cat "$HOME/removed"'
        assert bash(code, runtime="podman", programs={"podman": podman})[:2] == (0, removed)


COUNT = "trap 'n=$((n + 1))' TERM; n=0; echo ready >ready; for i in 1 2 3 4 5; do sleep 0.2; done; exit $n"
END_TWICE = """sh "$lib/podman_init.sh" sh -c "$1" &
until [ -f ready ]; do sleep 0.05; done
kill $!
sleep 0.3
kill $!
wait $! || echo $?
wait $! || echo $?
"""


@pytest.mark.parametrize(
    ("code", "out"),
    [
        (f"{END_TWICE}", "1"),
        (f"export SLURM_JOB_ID=1; {END_TWICE}", ""),
        ('echo typed | sh "$lib/podman_init.sh" cat', "typed"),
    ],
)
def test_podman_init_forwards_only_first_sigterm(bash, code, out):
    assert bash(code, COUNT).out.splitlines()[-1:] == [out] * bool(out)


@pytest.mark.parametrize(
    ("before", "head_node"),
    [
        ("", ["--export=ALL", "--nodelist=n1"]),
        ("unset terminal; ", ["--export=ALL", "--nodelist=n1", "--cpu-bind=none", "--gres=none"]),
    ],
)  # the second: in a script that is not a shell
def test_pyxis_command_line(bash, before, head_node):
    words = command(container_of("pyxis").words(["--container-writable"]))
    show = f'set_bind_options; container=({words}); printf "%s\\n" "${{container[@]}}" "${{on_head_node[@]}}"'
    out = bash(f"{before}bind_paths=(/a/b / '/c d') image=docker://x#y; cd /usr; {show}", runtime="pyxis").out
    assert out.splitlines() == [
        "--container-image=x#y", "--container-workdir=/usr", "--container-mounts=/a/b:/a/b,/c d:/c d",
        "--no-container-entrypoint", "--container-writable",
        "srun", "--overlap", "--nodes=1", "--ntasks=1", *head_node,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "programs", "runtime", "out"),
    [
        ("choose_container", {}, "apptainer", "0\n"),
        ("touch i.sif; choose_container", {"apptainer": "exit 1"}, "apptainer", "0\n"),
        ("touch i.sif; choose_container", {"apptainer": "exit 0"}, "apptainer", "1\n"),
        ("SLIPWAY_IMAGE=docker://x; choose_container", {"apptainer": "exit 0"}, "apptainer", "0\n"),
        ("SLIPWAY_IMAGE=docker://x; choose_container", {"podman": "exit 0"}, "podman", "1\n"),
        ("SLIPWAY_IMAGE=localhost/x; choose_container", {"podman": "exit 1"}, "podman", "0\n"),
        ("image_runs || USE_CONTAINER=no", {"podman": "exit 3"}, "podman", "no\n"),
    ],
)
def test_container_is_used_if_image_runs(bash, code, programs, runtime, out):
    code = f'USE_CONTAINER=; {code}; echo "$USE_CONTAINER"'
    assert bash(code, scheduler="local", runtime=runtime, programs=programs).out == out


@pytest.mark.parametrize("before", ["", "touch i.sif; "])
def test_missing_or_unusable_image_is_reported(bash, place, before):
    code = f"USE_CONTAINER=; {before}choose_container"
    err = bash(code, scheduler="local", programs={"apptainer": "exit 1"}).err
    assert_warning(err, "no-image", f"{place}/i.sif", f"{place}/venv")


@pytest.mark.parametrize(
    ("image", "code"),
    [("docker://x", 0), ("oci-archive:x", 0), ("localhost/x:1", 0), ("x.sif", 1), ("a/localhost/x", 1)],
)
def test_image_name_is_distinguished_from_path(bash, image, code):
    assert bash(f"SLIPWAY_IMAGE={image}; image_is_name").code == code


@pytest.mark.parametrize(
    ("container", "slug"),
    [
        ("", ""),
        ('echo banner; exec "$@"', ""),
        ('"$@"', ""),
        ("set -e; echo bye", "bad-entry-point"),
        ('"$@"; echo bye', "bad-entry-point"),
        ('"$@" || exit 0', "bad-entry-point"),
        ("exit 255", ""),  # for the next step, which receives its task
    ],
)
def test_entry_point_that_drops_exit_code_is_refused(bash, container, slug):
    code = f"entry_point_is_checked=''; container=({'run' if container else ''}); check_entry_point >/dev/null; "
    done = bash(f"{code}check_entry_point; echo on", programs={"run": container})
    assert_ended(done._replace(err=done.err if slug else ""), slug, "i.sif", out="on\n")
