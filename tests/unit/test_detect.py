"""`jobgen site --detect` on recorded login nodes: values found, open questions, and the scripts that result.

Each recording (tests/unit/clusters) has a ``site.toml`` written by an expert of that cluster.
"""

import subprocess
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from jobgen.base.job import Site
from jobgen.cli import main
from jobgen.detect import Detected, detect
from jobgen.detect.ask import Asker
from jobgen.resolve.load import load
from recorded import CLUSTERS, HOST, commands_of, login_node

SHELLCHECK = ["shellcheck", "--norc", "--exclude=SC1090,SC1091,SC2015,SC2016,SC2034,SC2119,SC2120,SC2329"]
"""As for the committed scripts; also, for a site without GPUs, trim_container_command takes no option."""

OUTCOMES = {
    "accounts-modules": (17, {"resume"}, set()),
    "amd": (14, {"output"}, set()),
    "cloud": (10, {"local_disk", "output"}, set()),
    "condo": (15, set(), set()),
    "cpu-only": (13, set(), set()),
    "cray": (19, {"options.constraint"}, set()),
    "gres-only": (10, {"local_disk"}, set()),
    "machine": (7, set(), set()),
    "mig": (13, set(), set()),
    "openpbs": (10, {"local_disk", "node_properties", "output"}, set()),
    "pbspro": (12, {"container", "cpus_per_gpu", "directives", "local_disk", "options.A", "output"}, {"modules"}),
    "pyxis": (10, {"output"}, set()),
    "routed": (12, {"cpu_options.partition", "options.partition", "output"}, set()),
    "torque": (9, {"output"}, set()),
    "typed-gres": (15, set(), set()),
}
"""For each cluster: number of right values, fields that become questions, fields that are wrong or missing."""


def edited(kind):
    """Return the edits applied to a recording before it is replayed."""

    def edit(text):
        if kind == "condo":
            rows = "".join(
                f"pi{n}|up|7-00:00:00|2|mixed|32|1:32:1|256000|200000|CPU_GEN:RME|(null)|sh03-20n{n}\n"
                for n in range(220)
            )
            facts = "".join(f"PartitionName=pi{n} AllowGroups=sh_g{n} State=UP PreemptMode=OFF\n" for n in range(220))
            text = text.replace("owners|up", f"{rows}owners|up", 1)
            text = text.replace("PartitionName=owners", f"{facts}PartitionName=owners", 1)
        return text

    return edit


class Drafted(NamedTuple):
    """A draft, its file, and the commands that were run for it."""

    draft: Detected
    path: Path
    commands: set[tuple[str, ...]]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Return the drafts detected on each recorded cluster, using real processes."""
    found, ask = {}, Asker.run
    for kind in OUTCOMES:
        folder, commands = tmp_path_factory.mktemp(kind), set()
        with pytest.MonkeyPatch.context() as patch:
            login_node(kind, folder, patch, edit=edited(kind))
            seen = commands.add
            patch.setattr(Asker, "run", lambda self, *words, seen=seen, **how: seen(words) or ask(self, *words, **how))
            draft = detect()
        (folder / "mine.toml").write_text(draft.text, encoding="utf-8")
        found[kind] = Drafted(draft, folder / "mine.toml", commands)
    return found


pytestmark = pytest.mark.usefixtures("in_the_project")


def values_of(path):
    """Return the values of a site file that differ from the defaults, those of tables as ``table.key``."""
    site, plain = load(str(path), [], Site), Site(name="", resume="requeue")
    site = msgspec.structs.replace(site, resume=site.resume or "requeue")  # the sites without it are Slurm's
    found = {}
    for name in Site.__struct_fields__:
        value = getattr(site, name)
        if isinstance(value, dict):
            found |= {f"{name}.{key}": part for key, part in value.items()}
        elif value != getattr(plain, name):
            found[name] = value
    return found


def compared(found, path, kind):
    """Return the keys of a draft that are right, those that are questions, and the remaining ones."""
    known, drafted = values_of(CLUSTERS / kind / "site.toml"), values_of(path)
    known = {key: HOST if value == "HOST" else value for key, value in known.items()}
    differing = {key for key in {*known, *drafted} if known.get(key) != drafted.get(key)}
    right = {*found.found, *drafted} - differing
    asked = differing & {*found.asked}
    return right, asked, differing - asked


@pytest.mark.parametrize("kind", OUTCOMES)
def test_detected_values_are_correct_or_become_questions(drafts, kind):
    right, asked, wrong = compared(drafts[kind].draft, drafts[kind].path, kind)
    assert (len(right), asked, wrong) == OUTCOMES[kind], sorted(right)


def test_every_recorded_cluster_is_compared():
    assert {path.name for path in CLUSTERS.iterdir() if path.is_dir()} == {*OUTCOMES}


@pytest.mark.parametrize("kind", OUTCOMES)
def test_each_value_has_source_comment_and_each_question_is_printed(drafts, kind):
    draft = drafts[kind].draft
    for before, line in pairwise(draft.text.splitlines()):
        assert len(line) <= 120
        if " = " in line and not line.startswith("#"):
            assert " # " in line or before.startswith("# "), line
    assert "No answer" not in draft.text
    assert draft.text.count("?") >= len(draft.asked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OUTCOMES)
def test_script_rendered_from_draft_passes_shellcheck(drafts, kind, tmp_path):
    spec = "ddp-local" if kind == "machine" else "ddp"
    for name, options in (("plain", []), ("standalone", ["--standalone"])):
        words = ["render", spec, "--site", str(drafts[kind].path), *options, "--output", str(tmp_path / name)]
        assert main(words) == 0
        subprocess.run(["bash", "-n", tmp_path / name], check=True)
    done = subprocess.run([*SHELLCHECK, tmp_path / "standalone"], capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if "SC" in line and "hare " not in line]
    assert (done.returncode, found) == (0, []), done.stdout[:2000]


@pytest.mark.parametrize("kind", OUTCOMES)
def test_every_recorded_command_is_used(drafts, kind):
    recorded = {tuple(words) for words, _ in commands_of(CLUSTERS / kind / "login.txt") if words[0] != "module"}
    assert recorded - drafts[kind].commands == set()
