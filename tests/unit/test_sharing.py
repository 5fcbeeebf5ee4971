"""jobgen.run.sharing: whether nodes see a path, from the mounted file systems and exports of the login node."""
# ruff: noqa: S108 -- paths are only compared, except a private folder in /dev/shm

import tempfile
from pathlib import Path

import pytest

from jobgen.render.files import job_of
from jobgen.run import sharing
from jobgen.run.sharing import EXPORTS, MOUNTS, Mount, check_shared, exports_in, mounts_in, place_of
from messages import assert_names, messages

MOUNTINFO = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
25 24 0:23 / /dev/shm rw,relatime shared:4 - tmpfs tmpfs rw
40 27 0:40 / /home rw shared:20 master:1 - nfs4 head:/home rw,vers=4.2
41 27 0:41 / /home/my\\040disk rw - xfs /dev/vdb rw
42 27 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/s rw
43 27 0:43 / /run/user/1000 rw - tmpfs tmpfs rw
44 27 0:44 / /mnt/sshfs rw - fuse.sshfs me@host: rw
45 27 0:45 / /over rw - ext4 /dev/vdc rw
46 45 0:46 / /over rw - beegfs beegfs_nodev rw
47 27 0:47 / /odd rw - newfs x rw
a line without separator
"""
ETAB = """\
/srv\t10.0.0.0/24(rw,sync,wdelay)
/with\\040blank\t*(rw)

"""
OWN = ["/tmp", "/scratch/local"]


@pytest.fixture
def machine(monkeypatch):
    """Return a function that plants the mounted file systems and exports of this machine."""

    def plant(mountinfo, etab=""):
        read = {MOUNTS: mountinfo, EXPORTS: etab}
        monkeypatch.setattr(sharing, "_text", read.get)
        sharing._this_machine.cache_clear()

    yield plant
    sharing._this_machine.cache_clear()


def checked(capsys, path, *settings, site="example", environment=None, what="the script", instead=""):
    """Return the texts of the error and of the warning; "" without."""
    job = job_of("ddp-local" if site == "laptop" else "ddp", site, list(settings))
    errors = list(check_shared(str(path), what, job, environment or {}, instead=instead))
    assert {error.slug for error in errors} <= {"not-shared"}
    assert {error.exit_code for error in errors} <= {78}
    warnings = messages(capsys.readouterr().err)
    assert {warning[:2] for warning in warnings} <= {("warning", "not-shared")}
    return "".join(map(str, errors)), "".join(warning.text for warning in warnings)


def test_mounts_are_read_from_mountinfo_with_escaped_blanks():
    mounts = mounts_in(MOUNTINFO)
    assert mounts[:2] == [Mount("/", "ext4"), Mount("/dev/shm", "tmpfs")]
    assert Mount("/home/my disk", "xfs") in mounts
    assert len(mounts) == 10
    assert mounts_in("") == []


def test_exports_are_first_words_of_etab():
    assert exports_in(ETAB) == ["/srv", "/with blank"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/home/me/x.py", ("/home", "nfs4", False, False)),
        ("/home/my disk/x.py", ("/home/my disk", "xfs", False, True)),
        ("/home/my disks/x.py", ("/home", "nfs4", False, False)),
        ("/homes/x.py", ("/", "ext4", False, True)),
        ("/dev/shm/x.py", ("/dev/shm", "tmpfs", True, False)),
        ("/run/user/1000", ("/run/user/1000", "tmpfs", True, False)),
        ("/tmp/x.py", ("/tmp", "", True, False)),
        ("/tmpx/x.py", ("/", "ext4", False, True)),
        ("/scratch/local/x.py", ("/scratch", "lustre", False, False)),
        ("/mnt/sshfs/x.py", ("/mnt/sshfs", "fuse.sshfs", False, False)),
        ("/over/x.py", ("/over", "beegfs", False, False)),
        ("/odd/x.py", ("/odd", "newfs", False, False)),
        ("/srv/x.py", ("/", "ext4", False, False)),
        ("/with blank/x.py", ("/", "ext4", False, False)),
    ],
)
def test_place_follows_from_file_system_folder_and_exports(path, place):
    assert place_of(path, mounts_in(MOUNTINFO), exports_in(ETAB), OWN) == place


def test_without_mountinfo_only_known_folders_count():
    assert place_of("/home/me", [], [], OWN) == ("/", "", False, False)
    assert place_of("/tmp/me", [], [], OWN).is_private


def test_path_in_real_tmpfs_is_refused(capsys):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        error, warning = checked(capsys, Path(folder, "x.py"))
    assert_names(error, "the script", folder, "/dev/shm", "tmpfs")
    assert warning == ""


def test_path_on_local_disk_of_this_machine_is_a_warning(capsys, machine):
    machine(MOUNTINFO)
    error, warning = checked(capsys, "/opt/env", what="the environment")
    assert error == ""
    assert_names(warning, "the environment", "/opt/env", "ext4")


@pytest.mark.parametrize("path", ["/home/me/x.py", "/scratch/x.py", "/srv/x.py"])
def test_path_on_shared_or_exported_disk_passes_silently(capsys, machine, path):
    machine(MOUNTINFO, ETAB)
    assert checked(capsys, path) == ("", "")


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp"])
def test_path_below_folder_of_each_machine_is_refused(capsys, machine, folder):
    machine("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    error, _ = checked(capsys, f"{folder}/x.py", what="the environment", instead="use the image a.sif")
    assert_names(error, folder, "a.sif")


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        (["local_disk=/local/$USER"], {"USER": "me"}),
        (["local_disk=/elsewhere"], {"SLIPWAY_LOCAL_DISK": "/local/me"}),
    ],
)
def test_path_on_local_disk_of_site_is_refused(capsys, machine, settings, environment):
    machine("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    error, _ = checked(capsys, "/local/me/x.py", *settings, environment=environment)
    assert_names(error, "/local/me")


def test_local_disk_with_variable_of_nodes_is_left_out(capsys, machine):
    machine(MOUNTINFO)
    assert checked(capsys, "/home/me/x.py", "local_disk=$ON_NODES_ONLY") == ("", "")


def test_link_into_tmpfs_and_link_in_tmp_are_refused(capsys, machine, tmp_path):
    machine(f"40 1 0:40 / / rw - nfs4 head:/ rw\n25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n"
            f"26 24 0:24 / {tmp_path}/memory rw - tmpfs tmpfs rw\n")  # fmt: skip
    (tmp_path / "link").symlink_to("/dev/shm")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "link").symlink_to(tmp_path)
    assert_names(checked(capsys, tmp_path / "link" / "x.py")[0], "/dev/shm")
    assert_names(checked(capsys, tmp_path / "memory" / "link" / "x.py")[0], f"{tmp_path}/memory")
    assert checked(capsys, tmp_path / "x.py") == ("", "")


def test_site_without_queue_is_not_checked(capsys):
    assert checked(capsys, "/dev/shm/x.py", site="laptop") == ("", "")


def test_root_file_system_of_this_machine_is_found():
    assert place_of("/", sharing._this_machine()[0], [], []).kind
