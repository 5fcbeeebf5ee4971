"""Scripts that build have the modules, proxies and tasks of those that train in the result."""

import re
from pathlib import Path

import pytest

from jobgen.cli import main

ROOT = Path(__file__).resolve().parents[2]
TRAIN, BUILD = ("ddp", "horovod"), ("venv_build", "image_build")


@pytest.fixture
def script_of(capsys, monkeypatch):
    """Return a function that renders a spec at a site."""
    monkeypatch.chdir(ROOT)

    def render(spec, site):
        assert main(["render", spec, "--site", site]) == 0
        return capsys.readouterr().out

    return render


@pytest.mark.parametrize("spec", [*TRAIN, *BUILD])
def test_script_loads_modules_of_site_with_their_versions(script_of, spec):
    found = re.findall(r"(?m)^load_modules .*?(?= +#)", script_of(spec, "modules-proxies"))
    assert found == ["load_modules 1 apptainer/1.3 python/3.11"]


@pytest.mark.parametrize("spec", [*TRAIN, *BUILD])
def test_script_exports_proxies_of_site(script_of, spec):
    found = re.findall(r"(?m)^export (\w+_proxy)=\S*:-(.*)}\"$", script_of(spec, "modules-proxies"))
    proxy = "http://proxy.example.org:3128"
    assert dict(found) == {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": "localhost,.example.org"}


def test_torchrun_needs_a_task_for_each_node_and_horovod_one_for_each_gpu(script_of):
    found = {spec: dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=(\d+) ", script_of(spec, "example"))) for spec in TRAIN}
    assert {spec: (of["ntasks-per-node"], of["gpus-per-node"]) for spec, of in found.items()} == {
        "ddp": ("1", "2"),
        "horovod": ("2", "2"),
    }
