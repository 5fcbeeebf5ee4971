"""Dockerfile and apptainer.def are equivalent as spython reads them, and their defaults are the pins."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch

import pytest
from spython.main.parse.parsers import get_parser

from messages import assert_names
from support import ROOT, pins

DEFINITION = (ROOT / "apptainer.def").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()

ONLY_APPTAINER = {"BOOTSTRAP", "BIND_TARGETS"}
"""For Docker the name of a base includes its source; only Apptainer needs existing bind targets."""


VARIANTS = sorted(path.stem for path in (ROOT / "containers" / "pins").glob("*.env"))


def versions(lock: str) -> dict[str, str]:
    text = (ROOT / "containers" / "locks" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def section(name: str) -> list[str]:
    text = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.DOTALL | re.MULTILINE)
    assert text, name
    return [line.strip() for line in text.group(1).splitlines() if line.strip()]


ARGUMENTS = dict(line.split("=", 1) for line in section("arguments"))
ARGS = {name: value.strip('"') for name, value in re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE)}


@pytest.fixture(scope="module")
def docker():
    (recipe,) = get_parser("docker")(str(ROOT / "Dockerfile")).recipe.values()
    return recipe


@pytest.fixture(scope="module")
def apptainer(tmp_path_factory):
    # spython has no templates: {{ X }} becomes ${X}, as in Dockerfile. `Bootstrap:` must be a word that it knows.
    text = DEFINITION.replace("{{ BOOTSTRAP }}", ARGUMENTS["BOOTSTRAP"]).replace(
        "{{ BASE_IMAGE }}", ARGUMENTS["BASE_IMAGE"]
    )
    path = tmp_path_factory.mktemp("recipe") / "apptainer.def"
    path.write_text(re.sub(r"\{\{ (\w+) \}\}", r"${\1}", text))
    (recipe,) = get_parser("singularity")(str(path)).recipe.values()
    return recipe


def test_recipes_have_same_base_image(docker, apptainer):
    assert docker.fromHeader.strip() == apptainer.fromHeader


def test_recipes_have_same_arguments_and_defaults():
    assert {name: value for name, value in ARGUMENTS.items() if name not in ONLY_APPTAINER} == ARGS


def test_recipes_copy_same_files(docker, apptainer):
    assert docker.files == [line.split() for line in apptainer.files]


def test_recipes_set_same_environment(docker, apptainer):
    assert docker.environ == apptainer.environ


def test_recipes_run_same_install_scripts(docker, apptainer):
    def commands(recipe) -> list[str]:
        return [line for line in recipe.install if "/containers/install/" in line]

    assert commands(docker) == commands(apptainer)
    assert len(commands(docker)) == len(list((ROOT / "containers" / "install").glob("[0-9]*.sh")))


def test_recipes_set_same_labels(docker, apptainer):
    assert [label.split("=", 1) for (label,) in docker.labels] == [label.split(" ", 1) for label in apptainer.labels]


def test_recipes_have_same_entry_point(docker, apptainer):
    (entry,) = docker.entrypoint
    assert apptainer.cmd == f'exec {entry} "$@"'


def test_post_section_exports_environment_of_image(docker):
    """%post runs without %environment, which Docker's RUN has."""
    exports = [line.removeprefix("export ") for line in section("post") if line.startswith("export ")]
    assert [export for export in exports if "{{" not in export] == docker.environ


def test_recipe_defaults_are_pins_of_default_variant():
    pinned = pins(ARGS["VARIANT"])
    for name in ("BASE_IMAGE", "TORCH_VERSION", "CUDA_VERSION", "HOROVOD_VERSION"):
        assert ARGS[name] == pinned[name], name


def test_recipe_version_is_project_version():
    assert f'version = "{ARGS["VERSION"]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_base_tag_is_dated_and_digest_is_complete(variant):
    tag, image = pins(variant)["BASE_TAG"], pins(variant)["BASE_IMAGE"]
    assert re.search(r":\w+-\d{8}(-slim)?$", tag)
    assert image == tag or re.fullmatch(rf"{tag.rsplit(':', 1)[0]}@sha256:[0-9a-f]{{64}}", image)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_lock_same_versions_of_shared_packages(variant):
    """Packages in both locks have equal versions, so that a result depends only on CUDA."""
    cpu, other = versions("cpu"), versions(variant)
    assert cpu == {name: other.get(name) for name in cpu}


@pytest.mark.parametrize("variant", VARIANTS)
def test_build_lock_matches_pinned_cuda_compiler(variant):
    wheels = dict(wheel.split("==") for wheel in pins(variant).get("CUDA_COMPILER", "").split())
    locked = versions(f"{variant}-build") if wheels else {}
    assert locked.keys() == wheels.keys()
    assert [name for name, pin in wheels.items() if not fnmatch(locked[name], pin)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_pinned_cuda_version_is_that_of_torch(variant):
    locked = versions(variant)
    runtime = [locked[name] for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12") if name in locked]
    releases = [version.rsplit(".", 1)[0] for version in runtime]
    assert pins(variant)["CUDA_VERSION"] == (releases[0] if releases else "none")


@pytest.mark.parametrize("variant", ["cuda", "cuda12"])
def test_locked_nccl_is_new_enough_to_find_roce_gid(variant):
    """From 2.21 on, according to docs/reference/site.md and the site roce."""
    (nccl,) = [version for name, version in versions(variant).items() if name.startswith("nvidia-nccl-")]
    assert tuple(map(int, nccl.split(".")[:2])) >= (2, 21)


@pytest.mark.parametrize(
    ("named", "values"),
    [(["rocm"], ["rocm", "cpu"]), (["cuda12", "rocm"], ["rocm", "cpu"]), (["--upgrade"], ["--upgrade"])],
)
def test_lock_refuses_unknown_variant(named, values):
    done = subprocess.run([ROOT / "build" / "lock", *named], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert_names(done.stderr.splitlines()[-1], "lock: error: ", *values)


def test_pip_config_passes_settings_of_pip_install_to_builds(tmp_path):
    """[install] takes precedence over [global], other sections do not count; variables take precedence over both."""
    lines = [f"[{name}]\nindex-url = https://{name}.example\n" for name in ("global", "install", "download")]
    more = "[install]\nextra-index-url =\n    https://one.example\n    https://two.example\n"
    (tmp_path / "pip.conf").write_text("".join(lines).replace("[install]\n", more))
    env = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    env |= {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}

    def settings(**more: str) -> dict[str, str]:
        text = subprocess.check_output([ROOT / "build" / "pip-config", "settings"], env=env | more, text=True)
        return dict(line.split("=", 1) for line in text.splitlines())

    assert settings()["PIP_INDEX_URL"] == "https://install.example"
    assert settings()["PIP_EXTRA_INDEX_URL"] == "https://one.example https://two.example"
    assert settings(PIP_INDEX_URL="https://here.example")["PIP_INDEX_URL"] == "https://here.example"


def test_documented_definition_adds_packages_and_replaces_none(tmp_path):
    """Its %post runs here, in this environment: with an installed package, and with another version of torch."""
    page = (ROOT / "docs" / "howto" / "packages.md").read_text()
    head, post = re.search(r"```\n(Bootstrap: .*?)\n\n%post\n(.*?)```", page, re.DOTALL).groups()
    assert head == "Bootstrap: localimage\nFrom: slipway.sif"
    assert "PATH=/opt/venv/bin:" in DEFINITION
    post = post.replace("/opt/venv/bin/python", sys.executable).replace("cd /tmp", f"cd '{tmp_path}'")
    for package, code in (("numpy", 0), ("torch==0.1", 1)):
        script = post.replace("pip install", "pip install --dry-run --no-index").replace("einops", package)
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    # a machine may also have its own constraints, which pip merges: torch<=2.14,==2.13.0
    assert re.search(r"The user requested \(constraint\) torch\S*==", done.stdout + done.stderr)


def test_recipe_sets_no_nccl_openmp_or_mpi_variables(docker):
    assert not [entry for entry in docker.environ if re.match(r"(NCCL|OMP|OMPI|MKL|GLOO|UCX|HOROVOD)_", entry)]


def test_install_scripts_are_numbered_short_and_executable():
    for script in (ROOT / "containers" / "install").glob("*.sh"):
        assert script.stat().st_mode & 0o111, script
        assert len(script.read_text().splitlines()) <= 80, script


@pytest.mark.parametrize("unpacked", [True, False])
def test_buildah_uses_unpacked_or_system_signature_policy(tmp_path, unpacked):
    """If Podman is installed, Debian's buildah is unpacked without the policy that both need."""
    programs, root = tmp_path / "bin", tmp_path / "root"
    policy = root / "etc" / "containers" / "policy.json"
    for folder in (programs, root / "usr" / "bin", policy.parent):
        folder.mkdir(parents=True)
    for name in ("bash", "cat", "dirname", "mkdir", "realpath"):
        (programs / name).symlink_to(shutil.which(name))
    if unpacked:
        policy.touch()
    for path, text in {
        programs / "id": "#!/bin/sh\necho 0\n",
        tmp_path / "build" / "debs": f"#!/bin/sh\necho {root}\n",
        root / "usr" / "bin" / "buildah": '#!/bin/sh\necho "$@"\n',
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(ROOT / "build" / "buildah", tmp_path / "build")
    env = {"PATH": str(programs), "HOME": str(tmp_path), "SCRATCH": str(tmp_path)}
    said = subprocess.check_output(["bash", tmp_path / "build" / "buildah", "push", "x"], env=env, text=True)
    assert said == f"push --signature-policy {policy if unpacked else '/etc/containers/policy.json'} x\n"
