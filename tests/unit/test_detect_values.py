"""`jobgen site --detect`: the meaning of single answers, on recorded login nodes with one change each."""

import errno
import os
import re
import stat
from typing import NamedTuple

import pytest

import recorded
from jobgen.base.job import Site
from jobgen.cli import main
from jobgen.detect import ask, detect
from jobgen.detect.draft import Draft
from jobgen.detect.gpus import Gpus, gpus_of, maker
from jobgen.detect.parsing import is_plain
from jobgen.detect.pbs.facts import size_of
from jobgen.detect.slurm.facts import FOREVER, minutes_of
from jobgen.resolve.load import load
from messages import assert_error, assert_names

pytestmark = pytest.mark.usefixtures("in_the_project")


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Return a function that detects a recorded cluster after replacing text of the recording."""

    def found(kind, *pairs, **env):
        def edit(text):
            for old, new in pairs:
                assert old in text, old
                text = text.replace(old, new)
            return text

        with monkeypatch.context() as patch:
            recorded.login_node(kind, tmp_path, patch, edit=edit)
            for name, value in env.items():
                patch.setenv(name, value)
            draft = detect()
        (tmp_path / "mine.toml").write_text(draft.text, encoding="utf-8")
        return load(str(tmp_path / "mine.toml"), [], Site), draft

    return found


class TestParsing:
    @pytest.mark.parametrize(
        ("gres", "expected"),
        [
            ("(null)", []),
            ("", []),
            ("gpu:2", [("", 2)]),
            ("gpu", [("", 1)]),
            ("gpu:tesla", [("tesla", 1)]),
            ("gpu:a100:4(S:0-1)", [("a100", 4)]),
            ("gpu:a100:4(S:0,2),nvme:1", [("a100", 4)]),
            ("nvme:1,gpu:nvidia_a100-sxm4-80gb:8(S:0-7),shard:64", [("nvidia_a100-sxm4-80gb", 8)]),
            ("gpu:(null):3(IDX:0-2)", [("", 3)]),
            ("gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:0-1)", [("a100", 2), ("a100_1g.5gb", 14)]),
            ("gpu:tesla:no_consume:2", [("tesla", 2)]),
            ("gpumem:80G,gpu:v100:0", []),
            ("gpu:a b:2,gpu:$(id):3,gpu:²", []),
        ],
    )
    def test_gpus_are_parsed_from_gres(self, gres, expected):
        assert [*gpus_of(gres)] == [Gpus(*pair) for pair in expected]

    @pytest.mark.parametrize(
        ("name", "is_slice"), [("1g.5gb", True), ("a100_3g.20gb", True), ("nvidia_h100_80gb_hbm3_4g.40gb", True),
                               ("a100", False), ("nvidia_a100-sxm4-80gb", False), ("", False)],
    )  # fmt: skip
    def test_mig_slices_are_recognized_by_gpu_type(self, name, is_slice):
        assert Gpus(name, 1).is_slice is is_slice

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["a100"], "nvidia"),
            (["nvidia_a100-sxm4-80gb"], "nvidia"),
            (["rtx6000"], "nvidia"),
            (["GeForce GTX 1080 Ti"], "nvidia"),
            (["tesla"], "nvidia"),
            (["gh200"], "nvidia"),
            (["h100-nvl"], "nvidia"),
            (["1g.10gb"], "nvidia"),
            (["mi250"], "amd"),
            (["amd_mi100"], "amd"),
            (["mi300a"], "amd"),
            (["pvc"], "intel"),
            (["a100", "mi210"], ""),
            (["AMD_EPYC_7763", "x1005"], ""),  # one processor
            (["a64fx", "rome", "haswell", "e5-2660v3", "ib"], ""),
            ([""], ""),
        ],
    )
    def test_gpu_maker_is_derived_from_names(self, names, expected):
        assert maker(names) == expected

    @pytest.mark.parametrize(
        ("limit", "minutes"),
        [
            ("30:00", 30),
            ("4:00:00", 240),
            ("1-00:00:00", 1440),
            ("infinite", FOREVER),
            ("n/a", FOREVER),
            ("²:00", FOREVER),
        ],
    )
    def test_slurm_time_limits_are_parsed_to_minutes(self, limit, minutes):
        assert minutes_of(limit) == minutes

    @pytest.mark.parametrize(
        ("text", "size"), [("480gb", 480 << 30), ("527672492kb", 527672492 << 10), ("7", 0), ("²kb", 0)]
    )
    def test_pbs_sizes_are_parsed_to_bytes(self, text, size):
        assert size_of(text) == size


class Case(NamedTuple):
    """A recorded login node with a change, and the expected result."""

    kind: str
    edits: list = []
    env: dict = {}
    values: dict = {}
    """Expected values of the site; a key of a table as TABLE.KEY."""
    asked: tuple = ()
    """Fields that become questions."""
    not_asked: tuple = ()
    texts: tuple = ()
    """Text that the draft holds."""
    absent: tuple = ()
    """Text that the draft must not hold."""


def policy(partition, field, value):
    """Return the edit that sets the limits of a partition of typed-gres."""
    old = f"PartitionName={partition} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL"
    return old, old.replace(f"{field}=ALL", f"{field}={value}")


VNODE = (
    "zeus1[{number}]\n     state = free\n     resources_available.host = zeus1\n"
    "     resources_available.ncpus = 16\n     resources_available.ngpus = 1\n     resources_available.mem = 60gb\n"
    "     resources_available.queue_list = q_gpu\n     resources_available.gpu_cap = sm_86\n\n"
)
VNODES = "".join(VNODE.format(number=number) for number in range(8))
QMGR = """$ qmgr -c 'print server'
create queue gpu
set queue gpu queue_type = Execution
set server default_queue = gpu
$ pbsnodes -a"""
NO_NAMESPACES = ("--map-root-user true\n", "--map-root-user true\n[exit 1]\n[error] unshare: no\n")
APPTAINER = "apptainer --version\napptainer version 1.3.4"
CASES = {
    "all GPUs are slices: a job takes one": Case(
        "mig",
        [("gpu:a100:4(S:0-1)|a[02-03]", "gpu:a100_2g.20gb:12(S:0-1)|a[02-03]")],
        values={"gpus_per_node": 1, "gpu_type": "a100_2g.20gb", "cpus_per_gpu": 128 // 12},
        texts=("MIG",),
    ),
    "whole GPUs beside slices in a node": Case(
        "mig",
        [("gpu:a100:4(S:0-1)|a[02-03]", "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)|a[02-03]")],
        values={"gpus_per_node": 2, "gpu_type": "a100", "cpus_per_gpu": 64},
    ),
    "select/linear": Case(
        "typed-gres",
        [("select/cons_tres", "select/linear"), ("23.11.10", "23.02.7")],
        values={"gpu_request": "gres"},
        absent=("20.11",),
    ),
    "select/cons_res": Case(
        "typed-gres",
        [("select/cons_tres", "select/cons_res"), ("23.11.10", "23.02.7")],
        values={"gpu_request": "gres"},
        absent=("20.11",),
    ),
    "select/cray_aries of Slurm 18": Case(
        "typed-gres",
        [("select/cons_tres", "select/cray_aries"), ("23.11.10", "18.08.9")],
        values={"gpu_request": "gres"},
        texts=("20.11",),
    ),
    "an unknown plugin": Case(
        "typed-gres",
        [("select/cons_tres", "select/other")],
        values={"gpu_request": "gpus-per-node"},
        asked=("gpu_request",),
    ),
    "an account that is needed and not known": Case(
        "typed-gres",
        [("dsai|smith1||normal,qos_gpu|normal\n", "")],
        values={"options.account": None},
        asked=("options.account",),
    ),
    "no accounting": Case(
        "typed-gres",
        [("associations,limits,qos,safe", "none"), ("accounting_storage/slurmdbd", "accounting_storage/none")],
        not_asked=("options.account",),
    ),
    "an account in the environment": Case(
        "typed-gres",
        env={"SBATCH_ACCOUNT": "other"},
        values={"options.account": "other"},
        texts=("SBATCH_ACCOUNT",),
    ),
    "another variable of sbatch": Case(
        "typed-gres", env={"SBATCH_PARTITION": "h100"}, texts=("SBATCH_PARTITION=h100",)
    ),
    "a partition for other accounts": Case(
        "typed-gres",
        [policy("a100", "AllowAccounts", "jones2")],
        values={"options.partition": "l40s"},
        texts=("interactive, h100, nvl",),
    ),
    "a partition with its own quality of service": Case(
        "typed-gres",
        [policy("a100", "AllowQos", "qos_gpu")],
        values={"options.qos": "qos_gpu", "cpu_options.qos": None},
    ),
    "a quality of service that is not that of jobs without GPUs": Case(
        "typed-gres",
        [policy("a100", "AllowQos", "qos_gpu"), policy("cpu", "AllowQos", "normal")],
        values={"options.qos": "qos_gpu", "cpu_options.qos": False},
    ),
    "GPUs that Slurm does not count": Case(
        "cpu-only",
        [("PartitionName=devel", "PartitionName=gpu-v100"), ("devel|up", "gpu-v100|up")],
        values={"accelerator": "none"},
        asked=("accelerator",),
        texts=(" gpu-v100.\n",),
    ),
    "GPUs of an unknown maker": Case(
        "typed-gres",
        [("gpu:a100:8", "gpu:pvc:8"), ("epyc7443,a100", "epyc7443")],
        values={"accelerator": "none"},
        texts=("NVIDIA", "AMD"),
    ),
    "a default partition for tests": Case(
        "typed-gres",
        [("cpu*|up", "cpu|up"), ("interactive|up|3-00:00:00|4", "interactive*|up|30:00|40")],
        values={"options.partition": "a100"},
    ),
    "accounts of another cluster in the same database": Case(
        "typed-gres",
        [("dsai|smith1||", "rockfish|smith1||normal|normal\nDSAI|smith2||"), ("/scratch/smith1", "/scratch/smith")],
        values={"options.account": "smith2"},
        absent=("smith1",),
    ),
    "nodes with less memory for each core": Case("typed-gres", values={"cpu_options.mem": False}),
    "partitions that are down today": Case(
        "typed-gres",
        [(f"|{state}|", "|down*|") for state in ("mixed", "idle", "allocated")],
        values={"gpus_per_node": 8},
    ),
    "variables that change what commands print": Case(
        "typed-gres",
        env={"SINFO_FORMAT": "%N", "SINFO_PARTITION": "cpu", "SCONTROL_FUTURE": "1"},
        values={"options.partition": "a100"},
    ),
    "a queue that takes fewer GPUs than a node has": Case(
        "openpbs",
        [
            (
                "resources_max.ngpus = 99\n    resources_max.walltime = 24",
                "resources_max.ngpus = 2\n    resources_max.walltime = 24",
            )
        ],
        values={"options.q": "gpu", "gpus_per_node": 2},
    ),
    "qmgr says what qstat does not": Case(
        "torque",
        [
            ("$ qstat -Q -f\n", "$ qstat -Q -f\n[exit 1]\n[error] qstat: not allowed\n$ old\n"),
            ("$ pbsnodes -a", QMGR),
        ],
        values={"options.q": "gpu"},
        texts=("qstat -Q -f: qstat: not allowed.",),
    ),
    "GPUs that TORQUE does not count": Case(
        "torque",
        [("     gpus = 2\n", "")],
        values={"accelerator": "none"},
        asked=("accelerator",),
        texts=(" gpu.\n",),
    ),
    "a proxy with a password": Case(
        "typed-gres",
        env={"http_proxy": "http://alice:secret@proxy:3128", "no_proxy": "localhost"},
        values={"env": {"no_proxy": "localhost"}},
        asked=("env.http_proxy",),
        absent=("secret",),
    ),
    "a scheduler that is a module": Case(
        "typed-gres",
        env={"LOADEDMODULES": "gcc/13.1.0:slurm/23.11.10:cuda/12"},
        values={"purge_modules": False},
        texts=("\npurge_modules = false # ", "slurm/23.11.10"),
    ),
    "settings that do not reach a job": Case(
        "typed-gres", env={"SBATCH_EXPORT": "NONE"}, texts=("SBATCH_EXPORT=NONE",)
    ),
    "singularity is a link to apptainer": Case(
        "typed-gres",
        [(APPTAINER, "singularity --version\napptainer version 1.2.5")],
        values={"container": "apptainer"},
    ),
    "apptainer": Case("typed-gres", values={"container": "apptainer"}),
    "singularity-ce": Case(
        "typed-gres",
        [(APPTAINER, "singularity --version\nsingularity-ce version 4.1.3")],
        values={"container": "singularity"},
    ),
    "an old singularity": Case(
        "typed-gres", [(APPTAINER, "singularity --version\n3.1.1-1.el7")], values={"container": "singularity"}
    ),
    "podman alone": Case(
        "typed-gres",
        [(APPTAINER, "podman --version\npodman version 4.9.4-rhel")],
        values={"container": "podman"},
        asked=("container",),
    ),
    "warnings before a version": Case(
        "typed-gres",
        [(APPTAINER, APPTAINER.replace("\n", "\nWARNING: no squashfuse\n"))],
        texts=('container = "apptainer" # apptainer --version: apptainer version 1.3.4\n',),
    ),
    "packages for PyTorch are not PyTorch": Case(
        "accounts-modules",
        [
            (
                "PyTorch/2.1.2-foss",
                "PyTorch-Lightning/2.2.1-foss-2023a\nPyTorch-Geometric/2.5.0\nTorchvision/0.17\nPyTorch/2.1.2-foss",
            )
        ],
        values={"modules": ("PyTorch/2.1.2-foss-2023a-CUDA-12.1.1",)},
    ),
}


def value_of(site, key):
    """Return a value of a site; None if a table does not have the key."""
    field, _, name = key.partition(".")
    value = getattr(site, field)
    return value.get(name) if name else value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_changed_command_output_changes_detected_values(found, case):
    site, draft = found(case.kind, *case.edits, **case.env)
    assert {key: value_of(site, key) for key in case.values} == case.values
    assert {*case.asked} <= {*draft.asked}
    assert not {*case.not_asked} & {*draft.asked}
    assert_names(draft.text, *case.texts)
    assert [text for text in case.absent if text in draft.text] == []


class TestPbs:
    def test_pbs_vnodes_count_as_one_node(self, found):
        site, draft = found("openpbs", ("zero22\n     Mom", f"{VNODES}zero22\n     Mom"))
        assert (site.gpus_per_node, site.cpus_per_gpu) == (4, 8)
        line = next(line for line in draft.text.splitlines() if line.startswith("gpus_per_node"))
        assert re.findall(r"\b\d+\b", line) == ["4", "3", "4", "8"]  # the smallest of 3 nodes

    @pytest.mark.parametrize(
        ("groups", "is_open"), [("meta-admins", False), ("users", True), ("+users", True), ("+users,-meta", False)]
    )
    def test_pbs_queue_is_offered_only_to_its_groups(self, found, groups, is_open):
        lines = [f"acl_groups = {groups}", "resources_min.ngpus = 1", "default_chunk.queue_list = q_gpu"]
        _, draft = found("openpbs", ("acl_groups = meta-admins", "\n    ".join(lines)))
        assert ("gpu_long, maintenance" in draft.text) is is_open


class TestMachine:
    def test_hanging_login_profile_is_reported(self, found, monkeypatch):
        monkeypatch.setattr(recorded, "PROFILE", "sleep 60\n")
        monkeypatch.setattr(ask, "LIMIT", 1.0)
        site, draft = found("mig")
        assert site.container == "none"
        assert re.search(r"(?m)^# .*bash --login -c", draft.text)

    @pytest.mark.parametrize("mode", [0o755, 0o4755])
    def test_containers_without_namespaces_need_setuid_starter(self, tmp_path, found, mode):
        starter = tmp_path / "libexec" / "apptainer" / "bin" / "starter-suid"
        starter.parent.mkdir(parents=True)
        starter.touch()
        starter.chmod(mode)
        _, draft = found("typed-gres", NO_NAMESPACES)
        assert ("container" in draft.asked) == (not mode & stat.S_ISUID)

    @pytest.mark.parametrize(
        ("kind", "edit", "program", "name"),
        [
            ("machine", ("", ""), "bsub", "LSF"),
            ("torque", ("[error] Version", "GE"), "qconf", "Grid Engine"),
        ],
    )
    def test_unsupported_scheduler_is_refused(self, tmp_path, monkeypatch, capsys, *, kind, edit, program, name):
        recorded.login_node(kind, tmp_path, monkeypatch, edit=lambda text: text.replace(*edit))
        (tmp_path / "bin" / program).symlink_to("/bin/true")
        assert main(["site", "--detect"]) == 78
        out, err = capsys.readouterr()
        assert out == ""
        assert_error(err, "unknown-scheduler", name, program)


class TestDraftFile:
    def test_draft_is_written_to_new_file_and_existing_is_refused(self, tmp_path, monkeypatch, capsys):
        recorded.login_node("typed-gres", tmp_path, monkeypatch)
        path = tmp_path / "mine.toml"
        assert main(["site", "--detect", "--name", "Große Maschine", "--output", str(path)]) == 0
        assert load(str(path), [], Site).name == "Große Maschine"
        out, err = capsys.readouterr()
        assert (out, err[:11]) == ("", "jobgen: 15 ")
        assert err.endswith(f" {path}: options.partition, interface, output\n")
        path.write_text("answers")
        assert main(["site", "--detect", "--output", str(path)]) == 78
        assert_error(capsys.readouterr().err, "file-exists", path)
        assert path.read_text() == "answers"

    @pytest.mark.parametrize(
        ("words", "code", "slug", "values"),
        [
            (["--name", ""], 2, "bad-flag-value", ["--name ''"]),
            (["--name", "a\nb"], 2, "bad-flag-value", [r"--name 'a\nb'"]),
            (["--output", "/nowhere/mine.toml"], 78, "cannot-write", ["/nowhere/mine.toml", os.strerror(errno.ENOENT)]),
            (["--output", "/"], 78, "file-exists", ["/ "]),
        ],
    )
    def test_invalid_detect_options_give_one_line_error(self, capsys, words, code, slug, values):
        assert main(["site", "--detect", *words]) == code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert_error(err, slug, *values)

    def test_site_without_detect_is_usage_error(self, capsys):
        with pytest.raises(SystemExit, match="2"):
            main(["site"])
        assert_error(capsys.readouterr().err, "bad-arguments", "--detect")

    def test_draft_values_are_escaped_as_toml(self, tmp_path):
        draft = Draft()
        values = {"name": "a\"b\\c'd é", "modules": ('x"', "y"), "gpus_per_node": 3, "purge_modules": False}
        for key, value in values.items():
            draft.add(key, value, "a\nb\x1b[31m")
        (tmp_path / "mine.toml").write_text(draft.text("head"))
        site = load(str(tmp_path / "mine.toml"), [], Site)
        assert {key: getattr(site, key) for key in values} == values

    @pytest.mark.parametrize("name", ["a b", "$(id)", "-n", "", "a\nb", "a" * 200, "x'y", "é"])
    def test_unsafe_text_is_not_a_plain_name(self, name):
        assert not is_plain(name)
