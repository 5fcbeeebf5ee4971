"""The site of a command without --site: SLIPWAY_SITE, the user's default, the centre's, the only site, or an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.render.header import origin_of
from jobgen.resolve import search
from jobgen.resolve.search import DefaultSite, default_site
from messages import assert_error, assert_names, refused

ROOT = Path(__file__).resolve().parents[2]
STUDY = ["--output", "set", "--dry-run", "--limit", "inf"]
COMMANDS = {
    "render": ["render", "ddp"],
    "submit": ["submit", "ddp", "--dry-run"],
    "shell": ["shell", "--dry-run"],
    "study": ["study", "ddp", "--ranks", "1", "--cpus", "1", *STUDY],
    "sweep": ["sweep", "ddp", "--seeds", "2", *STUDY],
}


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Work in a folder with a project; return the folders of sites of the user, of SLIPWAY_SITES and the centre."""
    (tmp_path / "clone").mkdir()
    for name in ("configs", "build", "containers"):
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    (tmp_path / "clone" / "jobscripts" / "sites").mkdir(parents=True)
    for name in ("lib", "specs"):
        (tmp_path / "clone" / "jobscripts" / name).symlink_to(ROOT / "jobscripts" / name)
    monkeypatch.chdir(tmp_path / "clone")
    for name in [*(name for name in os.environ if name.startswith("SLIPWAY_")), "XDG_CONFIG_HOME"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLIPWAY_SITES", f"{tmp_path}/first::{tmp_path}/second")
    monkeypatch.setattr(search, "CENTRE", tmp_path / "centre")
    found = [tmp_path / name for name in ("home/.config/slipway/sites", "first", "second", "centre")]
    for folder in found:
        folder.mkdir(parents=True)
    return found


def written(path, name="mine"):
    path.write_text(f'name = "{name}"\ncontainer = "none"\n')
    return path


def default():
    found = default_site(os.environ)
    return found and found.site


class TestLookup:
    def test_nothing_is_default_without_sites(self):
        assert default_site(os.environ) is None

    def test_missing_folders_have_no_default(self, folders):
        for folder in folders:
            folder.rmdir()
        assert default_site(os.environ) is None

    def test_sites_of_clone_and_of_jobgen_are_not_default(self):
        written(Path("jobscripts/sites/default.toml"))
        written(Path("jobscripts/sites/mine.toml"))
        assert default_site(os.environ) is None

    def test_first_default_file_is_used_by_path(self, folders):
        for folder in reversed(folders):
            path = written(folder / "default.toml")
            assert default_site(os.environ) == DefaultSite(str(path), str(path))

    def test_variable_takes_precedence(self, folders, monkeypatch):
        written(folders[0] / "default.toml")
        for value in ("example", "other/x.toml"):
            monkeypatch.setenv("SLIPWAY_SITE", value)
            assert default_site(os.environ) == DefaultSite(value, "SLIPWAY_SITE")
        monkeypatch.setenv("SLIPWAY_SITE", "")
        assert default() == str(folders[0] / "default.toml")

    @pytest.mark.parametrize("number", range(4))
    def test_only_site_is_default(self, folders, number):
        path = written(folders[number] / "mine.toml")
        assert default_site(os.environ) == DefaultSite("mine", str(path))

    def test_site_of_same_name_in_two_folders_counts_once(self, folders):
        for folder in folders[1:]:
            written(folder / "mine.toml")
        assert default_site(os.environ) == DefaultSite("mine", str(folders[1] / "mine.toml"))

    def test_several_sites_without_default_are_refused(self, folders):
        written(folders[0] / "mine.toml")
        written(folders[3] / "cluster.toml")
        with refused("several-sites", "cluster, mine", folders[0] / "default.toml", "SLIPWAY_SITE", "--site", code=78):
            default_site(os.environ)
        (folders[0] / "default.toml").symlink_to(folders[3] / "cluster.toml")
        assert default() == "cluster"

    def test_link_resolves_to_name_of_target_in_search_folders(self, folders):
        written(folders[0] / "mine.toml")
        (folders[0] / "default.toml").symlink_to("mine.toml")
        assert default_site(os.environ) == DefaultSite("mine", str(folders[0] / "default.toml"))

    def test_name_of_other_site_in_clone_is_not_used(self, folders):
        path = written(folders[0] / "mine.toml")
        written(Path("jobscripts/sites/mine.toml"), "other")
        assert default() == str(path)

    def test_link_to_file_elsewhere_resolves_to_path_of_target(self, folders, tmp_path):
        path = written(tmp_path / "cluster.toml")
        (tmp_path / "real").mkdir()
        folders[0].rmdir()
        folders[0].symlink_to(tmp_path / "real")  # so that the link's .. is not that of its path
        (folders[0] / "default.toml").symlink_to("../cluster.toml")
        assert default() == str(path)

    def test_dangling_and_cyclic_links_are_refused(self, folders):
        link = folders[0] / "default.toml"
        link.symlink_to("nowhere.toml")
        written(folders[3] / "default.toml")
        with refused("cannot-read", link, "nowhere.toml", code=78):
            default_site(os.environ)
        link.unlink()
        link.symlink_to("default.toml")
        with refused("cannot-read", link, code=78):
            default_site(os.environ)
        link.rename(folders[0] / "mine.toml")
        (folders[3] / "default.toml").unlink()
        with refused("cannot-read", folders[0] / "mine.toml", code=78):
            default_site(os.environ)

    @pytest.mark.parametrize("mode", [0o000, 0o444])
    def test_folder_without_permission_is_skipped_or_refused(self, folders, mode):
        """Root passes permissions by a capability, so this runs without it."""
        written(folders[0] / "mine.toml")
        written(folders[1] / "cluster.toml")
        folders[0].chmod(mode)
        program = "import sys; from jobgen.resolve import search; search.CENTRE = search.Path(sys.argv[1]); "
        program += "from jobgen.cli import main; sys.exit(main(['render', 'ddp']))"
        setpriv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        words = [*setpriv, sys.executable, "-c", program, folders[3]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        try:
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
        finally:
            folders[0].chmod(0o755)
        if mode:  # its names can be read
            assert_error(done.stderr, "several-sites", "cluster, mine")
        else:
            assert done.returncode == 0
            assert_names(done.stderr, "cluster")

    def test_relative_folder_gives_absolute_path(self, folders, monkeypatch, tmp_path):
        monkeypatch.setenv("SLIPWAY_SITES", "../first")
        written(folders[1] / "default.toml")
        assert default() == str(tmp_path / "first" / "default.toml")


class TestCommands:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_command_without_site_uses_default_and_names_it(self, folders, capsys, monkeypatch, command):
        monkeypatch.setenv("USE_CONTAINER", "0")
        path = written(folders[3] / "cluster.toml", "cluster")
        main(COMMANDS[command])
        by_default = capsys.readouterr()
        words = COMMANDS[command]
        main([words[0], "--site", "cluster", *words[1:]])
        named = capsys.readouterr()
        assert by_default.out == named.out
        first, _, rest = by_default.err.partition("\n")
        assert rest == named.err
        assert_names(first, "cluster", path)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_command_without_default_is_refused_with_remedy(self, capsys, command):
        assert main(COMMANDS[command]) == 78
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert_error(err, "no-site", "--site", "`jobgen site --detect --save`")

    def test_given_site_needs_no_default_and_prints_no_note(self, folders, capsys):
        (folders[0] / "default.toml").symlink_to("nowhere.toml")
        assert main(["render", "ddp", "--site", "example"]) == 0
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("value", "slug", "code"), [("gone.toml", "cannot-read", 78), ("nobody", "unknown-name", 78)]
    )
    def test_variable_that_names_no_site_is_refused(self, capsys, monkeypatch, value, slug, code):
        monkeypatch.setenv("SLIPWAY_SITE", value)
        assert main(["render", "ddp"]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert_error(err, slug, value)
        assert_names(err.splitlines()[0], value, "SLIPWAY_SITE")

    @pytest.mark.parametrize("kind", ["name", "link", "file", "variable"])
    def test_script_of_default_site_is_reproduced_without_default(self, folders, capsys, monkeypatch, kind):
        path, expected = written(folders[0] / "mine.toml"), "mine"
        if kind == "link":
            (folders[0] / "default.toml").symlink_to("mine.toml")
        elif kind == "file":
            shutil.move(path, folders[0] / "default.toml")
            expected = str(folders[0] / "default.toml")
        elif kind == "variable":
            monkeypatch.setenv("SLIPWAY_SITE", str(path))
            expected = str(path)
        assert main(["render", "ddp", "--output", "mine.job"]) == 0
        text = Path("mine.job").read_text()
        assert origin_of(text).split()[:5] == ["jobgen", "render", "jobscripts/specs/ddp.toml", "--site", expected]
        if kind == "link":
            (folders[0] / "default.toml").unlink()
        monkeypatch.delenv("SLIPWAY_SITE", raising=False)
        written(folders[1] / "other.toml")  # now there are several
        capsys.readouterr()
        assert main(["check", "mine.job"]) == 0
        assert capsys.readouterr() == ("", "")

    def test_check_refuses_header_without_site(self, folders, capsys):
        written(folders[0] / "mine.toml")
        assert main(["render", "ddp", "--output", "mine.job"]) == 0
        text = Path("mine.job").read_text()
        Path("mine.job").write_text(text.replace(" --site mine", ""))
        capsys.readouterr()
        assert main(["check", "mine.job"]) == 78
        assert_error(capsys.readouterr().err, "no-job-script", "mine.job")
