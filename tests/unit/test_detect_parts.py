"""`jobgen site --detect`: what single answers mean, on recorded login nodes that are changed in one place."""

import errno
import os
import re
import stat

import pytest

import recorded
from jobgen.cli import main
from jobgen.detect import ask, detect
from jobgen.detect.draft import Draft
from jobgen.detect.gpus import Gpus, gpus_of, maker
from jobgen.detect.pbs.facts import size_of
from jobgen.detect.slurm.facts import FOREVER, minutes_of
from jobgen.detect.words import is_plain
from jobgen.load import load
from jobgen.model import Site
from messages import assert_error
from support import ROOT


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


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


class TestNames:
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
    def test_gpus(self, gres, expected):
        assert [*gpus_of(gres)] == [Gpus(*pair) for pair in expected]

    @pytest.mark.parametrize(
        ("name", "is_slice"), [("1g.5gb", True), ("a100_3g.20gb", True), ("nvidia_h100_80gb_hbm3_4g.40gb", True),
                               ("a100", False), ("nvidia_a100-sxm4-80gb", False), ("", False)],
    )  # fmt: skip
    def test_slices(self, name, is_slice):
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
            (["AMD_EPYC_7763", "x1005"], ""),  # a processor
            (["a64fx", "rome", "haswell", "e5-2660v3", "ib"], ""),
            ([""], ""),
        ],
    )
    def test_makers(self, names, expected):
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
    def test_time_limits(self, limit, minutes):
        assert minutes_of(limit) == minutes

    @pytest.mark.parametrize(
        ("text", "size"), [("480gb", 480 << 30), ("527672492kb", 527672492 << 10), ("7", 0), ("²kb", 0)]
    )
    def test_sizes(self, text, size):
        assert size_of(text) == size


class TestSlurm:
    def test_where_all_gpus_are_slices_a_job_takes_one(self, found):
        site, draft = found("mig", ("gpu:a100:4(S:0-1)|a[02-03]", "gpu:a100_2g.20gb:12(S:0-1)|a[02-03]"))
        assert (site.gpus_per_node, site.gpu_type) == (1, "a100_2g.20gb")
        assert site.cpus_per_gpu == 128 // 12
        assert "MIG" in draft.text

    def test_whole_gpus_beside_slices_in_a_node_are_counted_apart(self, found):
        gres = "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)"
        site, _ = found("mig", ("gpu:a100:4(S:0-1)|a[02-03]", f"{gres}|a[02-03]"))
        assert (site.gpus_per_node, site.gpu_type, site.cpus_per_gpu) == (2, "a100", 64)

    @pytest.mark.parametrize(
        ("plugin", "version", "option"),
        [
            ("select/linear", "23.02.7", "gres"),
            ("select/cons_res", "23.02.7", "gres"),
            ("select/cray_aries", "18.08.9", "gres"),
        ],
    )
    def test_gpus_are_asked_for_as_the_plugin_knows_them(self, found, plugin, version, option):
        edits = [("select/cons_tres", plugin), ("23.11.10", version)]
        site, draft = found("typed-gres", *edits)
        assert site.gpu_request == option
        assert ("20.11" in draft.text) == version.startswith("18")

    def test_an_unknown_plugin_is_a_question(self, found):
        site, draft = found("typed-gres", ("select/cons_tres", "select/other"))
        assert site.gpu_request == "gpus-per-node"
        assert "gpu_request" in draft.asked

    def test_an_account_that_is_needed_and_not_known_is_a_question(self, found):
        site, draft = found("typed-gres", ("dsai|smith1||normal,qos_gpu|normal\n", ""))
        assert "account" not in site.options
        assert "options.account" in draft.asked

    def test_without_accounting_there_is_no_question(self, found):
        edits = [("associations,limits,qos,safe", "none"), ("accounting_storage/slurmdbd", "accounting_storage/none")]
        _, draft = found("typed-gres", *edits)
        assert "options.account" not in draft.asked

    def test_an_account_in_the_environment_wins(self, found):
        site, draft = found("typed-gres", SBATCH_ACCOUNT="other")
        assert site.options["account"] == "other"
        assert "SBATCH_ACCOUNT" in draft.text

    def test_other_variables_that_win_are_named(self, found):
        _, draft = found("typed-gres", SBATCH_PARTITION="h100")
        assert "SBATCH_PARTITION=h100" in draft.text

    def test_a_partition_that_is_for_other_accounts_is_not_chosen(self, found):
        old = "PartitionName=a100 AllowGroups=ALL AllowAccounts=ALL"
        site, draft = found("typed-gres", (old, old.replace("AllowAccounts=ALL", "AllowAccounts=jones2")))
        assert site.options["partition"] == "l40s"
        assert "interactive, h100, nvl" in draft.text

    def test_a_partition_with_its_own_quality_of_service_names_it(self, found):
        old = "PartitionName=a100 AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL"
        site, _ = found("typed-gres", (old, old.replace("AllowQos=ALL", "AllowQos=qos_gpu")))
        assert site.options["qos"] == "qos_gpu"
        assert "qos" not in site.cpu_options

    def test_jobs_without_gpus_drop_a_quality_of_service_that_is_not_theirs(self, found):
        edits = [(f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
                  f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos={qos}")
                 for name, qos in (("a100", "qos_gpu"), ("cpu", "normal"))]  # fmt: skip
        site, _ = found("typed-gres", *edits)
        assert (site.options["qos"], site.cpu_options["qos"]) == ("qos_gpu", False)

    def test_gpus_that_slurm_does_not_count_are_a_question(self, found):
        site, draft = found("cpu-only", ("PartitionName=devel", "PartitionName=gpu-v100"), ("devel|up", "gpu-v100|up"))
        assert site.accelerator == "none"
        assert "accelerator" in draft.asked
        assert re.search(r"(?m)^# .*\bgpu-v100\.$", draft.text)

    def test_gpus_of_a_maker_that_scripts_do_not_know(self, found):
        site, draft = found("typed-gres", ("gpu:a100:8", "gpu:pvc:8"), ("epyc7443,a100", "epyc7443"))
        assert site.accelerator == "none"
        assert "NVIDIA" in draft.text
        assert "AMD" in draft.text

    def test_a_default_partition_for_tests_is_not_for_work(self, found):
        edits = [("cpu*|up", "cpu|up"), ("interactive|up|3-00:00:00|4", "interactive*|up|30:00|40")]
        site, _ = found("typed-gres", *edits)
        assert site.options["partition"] == "a100"

    def test_accounts_of_another_cluster_in_the_same_database_are_not_taken(self, found):
        site, draft = found("typed-gres", ("dsai|smith1||", "rockfish|smith1||normal|normal\nDSAI|smith2||"))
        assert site.options["account"] == "smith2"
        assert "smith1" not in draft.text.replace("/scratch/smith1", "")

    def test_nodes_with_less_memory_for_each_core_get_the_default(self, found):
        assert found("typed-gres")[0].cpu_options["mem"] is False

    def test_a_partition_that_is_down_today_is_still_there(self, found):
        edits = [(f"|{state}|", "|down*|") for state in ("mixed", "idle", "allocated")]
        site, _ = found("typed-gres", *edits)
        assert site.gpus_per_node == 8

    def test_variables_that_change_what_commands_print_do_not(self, found):
        site, _ = found("typed-gres", SINFO_FORMAT="%N", SINFO_PARTITION="cpu", SCONTROL_FUTURE="1")
        assert site.options["partition"] == "a100"


class TestPbs:
    def test_vnodes_are_parts_of_one_node(self, found):
        has = ("host = zeus1", "ncpus = 16", "ngpus = 1", "mem = 60gb", "queue_list = q_gpu", "gpu_cap = sm_86")
        lines = "".join(f"     resources_available.{text}\n" for text in has)
        vnodes = "".join(f"zeus1[{number}]\n     state = free\n{lines}\n" for number in range(8))
        site, draft = found("openpbs", ("zero22\n     Mom", f"{vnodes}zero22\n     Mom"))
        assert (site.gpus_per_node, site.cpus_per_gpu) == (4, 8)
        line = next(line for line in draft.text.splitlines() if line.startswith("gpus_per_node"))
        assert re.findall(r"\b\d+\b", line) == ["4", "3", "4", "8"]  # of 3 nodes the smallest

    def test_a_queue_that_takes_fewer_gpus_than_a_node_has(self, found):
        site, _ = found(
            "openpbs",
            (
                "resources_max.ngpus = 99\n    resources_max.walltime = 24",
                "resources_max.ngpus = 2\n    resources_max.walltime = 24",
            ),
        )
        assert (site.options["q"], site.gpus_per_node) == ("gpu", 2)

    @pytest.mark.parametrize(
        ("groups", "is_open"), [("meta-admins", False), ("users", True), ("+users", True), ("+users,-meta", False)]
    )
    def test_queues_are_for_their_groups(self, found, groups, is_open):
        lines = [f"acl_groups = {groups}", "resources_min.ngpus = 1", "default_chunk.queue_list = q_gpu"]
        _, draft = found("openpbs", ("acl_groups = meta-admins", "\n    ".join(lines)))
        assert ("gpu_long, maintenance" in draft.text) is is_open

    def test_what_qstat_does_not_say_qmgr_may(self, found):
        lines = ["$ qmgr -c 'print server'", "create queue gpu", "set queue gpu queue_type = Execution"]
        manager = "\n".join([*lines, "set server default_queue = gpu", ""])
        fault = "qstat: not allowed"
        edits = [
            ("$ qstat -Q -f\n", f"$ qstat -Q -f\n[exit 1]\n[error] {fault}\n$ old\n"),
            ("$ pbsnodes -a", f"{manager}$ pbsnodes -a"),
        ]
        site, draft = found("torque", *edits)
        assert site.options["q"] == "gpu"
        assert f"qstat -Q -f: {fault}." in draft.text

    def test_gpus_that_torque_does_not_count_are_a_question(self, found):
        site, draft = found("torque", ("     gpus = 2\n", ""))
        assert site.accelerator == "none"
        assert "accelerator" in draft.asked
        assert re.search(r"(?m)^# .*\bgpu\.$", draft.text)


class TestMachine:
    def test_a_proxy_with_a_password_is_a_question(self, found):
        site, draft = found("typed-gres", http_proxy="http://alice:secret@proxy:3128", no_proxy="localhost")
        assert site.env == {"no_proxy": "localhost"}
        assert "secret" not in draft.text
        assert "env.http_proxy" in draft.asked

    def test_a_scheduler_that_is_a_module_is_not_purged(self, found):
        site, draft = found("typed-gres", LOADEDMODULES="gcc/13.1.0:slurm/23.11.10:cuda/12")
        assert site.purge_modules is False
        assert re.search(r"(?m)^purge_modules = false # .*slurm/23\.11\.10", draft.text)

    def test_settings_that_do_not_reach_a_job_are_named(self, found):
        assert "SBATCH_EXPORT=NONE" in found("typed-gres", SBATCH_EXPORT="NONE")[1].text

    @pytest.mark.parametrize(
        ("program", "said", "container"),
        [
            ("singularity", "apptainer version 1.2.5", "apptainer"),
            ("apptainer", "apptainer version 1.3.4", "apptainer"),
            ("singularity", "singularity-ce version 4.1.3", "singularity"),
            ("singularity", "3.1.1-1.el7", "singularity"),
        ],
    )
    def test_a_link_is_what_it_leads_to(self, found, program, said, container):
        site, _ = found("typed-gres", ("apptainer --version\napptainer version 1.3.4", f"{program} --version\n{said}"))
        assert site.container == container

    def test_podman_comes_last_and_is_a_question(self, found):
        edit = ("apptainer --version\napptainer version 1.3.4", "podman --version\npodman version 4.9.4-rhel")
        site, draft = found("typed-gres", edit)
        assert site.container == "podman"
        assert "container" in draft.asked

    def test_warnings_before_a_version_are_none(self, found):
        old = "--version\napptainer version 1.3.4"
        _, draft = found("typed-gres", (old, old.replace("\n", "\nWARNING: no squashfuse\n")))
        assert 'container = "apptainer" # apptainer --version: apptainer version 1.3.4\n' in draft.text

    def test_packages_for_pytorch_are_not_pytorch(self, found):
        new = "PyTorch-Lightning/2.2.1-foss-2023a\nPyTorch-Geometric/2.5.0\nTorchvision/0.17\nPyTorch/2.1.2-foss"
        site, _ = found("accounts-modules", ("PyTorch/2.1.2-foss", new))
        assert site.modules == ("PyTorch/2.1.2-foss-2023a-CUDA-12.1.1",)

    def test_a_profile_that_hangs_is_named(self, found, tmp_path, monkeypatch):
        monkeypatch.setattr(recorded, "PROFILE", "sleep 60\n")
        monkeypatch.setattr(ask, "LIMIT", 1.0)
        site, draft = found("mig")
        assert site.container == "none"
        assert re.search(r"(?m)^# .*bash --login -c", draft.text)

    @pytest.mark.parametrize("mode", [0o755, 0o4755])
    def test_without_namespaces_a_setuid_starter_will_do(self, tmp_path, found, mode):
        starter = tmp_path / "libexec" / "apptainer" / "bin" / "starter-suid"
        starter.parent.mkdir(parents=True)
        starter.touch()
        starter.chmod(mode)
        _, draft = found(
            "typed-gres", ("--map-root-user true\n", "--map-root-user true\n[exit 1]\n[error] unshare: no\n")
        )
        assert ("container" in draft.asked) == (not mode & stat.S_ISUID)

    def test_a_cluster_of_another_scheduler_is_refused(self, tmp_path, monkeypatch, capsys):
        recorded.login_node("machine", tmp_path, monkeypatch)
        (tmp_path / "bin" / "bsub").symlink_to("/bin/true")
        assert main(["site", "--detect"]) == 78
        out, err = capsys.readouterr()
        assert out == ""
        assert_error(err, "unknown-scheduler", "LSF", "bsub")

    def test_a_cluster_of_grid_engine_is_no_pbs(self, tmp_path, monkeypatch, capsys):
        recorded.login_node("torque", tmp_path, monkeypatch, edit=lambda text: text.replace("[error] Version", "GE"))
        (tmp_path / "bin" / "qconf").symlink_to("/bin/true")
        assert main(["site", "--detect"]) == 78
        assert_error(capsys.readouterr().err, "unknown-scheduler", "Grid Engine", "qconf")


class TestFile:
    def test_the_draft_goes_into_a_file_that_is_not_there_yet(self, tmp_path, monkeypatch, capsys):
        recorded.login_node("typed-gres", tmp_path, monkeypatch)
        path = tmp_path / "mine.toml"
        assert main(["site", "--detect", "--name", "Große Maschine", "--output", str(path)]) == 0
        assert load(str(path), [], Site).name == "Große Maschine"
        out, err = capsys.readouterr()
        assert (out, err[:11]) == ("", "jobgen: 15 ")
        assert err.endswith(f" {path}: interface, output\n")
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
    def test_mistakes_are_answered_in_a_line(self, capsys, words, code, slug, values):
        assert main(["site", "--detect", *words]) == code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert_error(err, slug, *values)

    def test_there_is_nothing_else_to_do_yet(self, capsys):
        with pytest.raises(SystemExit, match="2"):
            main(["site"])
        assert_error(capsys.readouterr().err, "bad-arguments", "--detect")

    def test_a_value_is_toml_whatever_is_in_it(self, tmp_path):
        draft = Draft()
        values = {"name": "a\"b\\c'd é", "modules": ('x"', "y"), "gpus_per_node": 3, "purge_modules": False}
        for key, value in values.items():
            draft.add(key, value, "a\nb\x1b[31m")
        (tmp_path / "mine.toml").write_text(draft.text("head"))
        site = load(str(tmp_path / "mine.toml"), [], Site)
        assert {key: getattr(site, key) for key in values} == values

    @pytest.mark.parametrize("name", ["a b", "$(id)", "-n", "", "a\nb", "a" * 200, "x'y", "é"])
    def test_what_is_no_name_is_not_taken_for_one(self, name):
        assert not is_plain(name)
