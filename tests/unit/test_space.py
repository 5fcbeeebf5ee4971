"""Space available to a run: free disk space or remaining quota, read from stub programs with real output.

The outputs come from public documents: NREL's of Eagle (a project over its limit), Mila's milatools (a user whose
folder has a long name), LRZ's check_lfs_quota (a server that does not answer), PrisonPC's of an NFS home (quota
--raw-grace), and quota.c of quota-tools 4 for the columns of that.
"""

import os
import subprocess
import time
from types import SimpleNamespace

import pytest
import torch

from messages import slugs
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.space import QUOTA_SCRIPT, warn_if_low_space

MILA = """\
/home/mila/n/normandf
                95747836       0 104857600       -  908722       0 1048576       -
uid 1471600598 is using default block quota setting
uid 1471600598 is using default file quota setting
"""
NO_LUSTRE = "lfs quota: /tmp not on a mounted Lustre filesystem\n"
NO_ACCESS = "Unexpected quotactl error: Permission denied or worse, and so on and on\n"
NO_QUOTA = "Disk quotas for user root (uid 0): none\n"
EAGLE = "/projects/csc000 3165308*   3072    4096       -  161915       0       0       -\n"
DEGRADED = "        /univ_1 [10200224]       0 20200224       -   17724       0       0       -\n"
DAY = 24 * 3600


def nfs(used="1744*", *, soft=1000, hard=81920, grace=0):
    """Return the output of quota for a user's home on a server."""
    return f"""\
Disk quotas for user prisoner (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
    nfs:/home/prisoners    {used}  {soft}   {hard} {grace:>7}     297       0       0       0
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Return a function that puts a program first on PATH that records its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def stub(name, code):
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$*" >>"$0.calls"\n{code}\n')
        path.chmod(0o755)
        return folder / f"{name}.calls"

    return stub


def answers(**texts):
    """Return the code of an lfs that prints ``user``, ``group`` and ``project`` as their quotas."""
    flags = {"user": "-u", "group": "-g", "project": "-p 110255"}
    cases = [f"'quota -q {flags[whose]}'*) printf '%s' '{text}' ;;" for whose, text in texts.items()]
    project = "110255 P" if "project" in texts else "0 -"
    return f"case $* in 'project -d'*) echo '{project} /projects/csc000' ;; {' '.join(cases)} esac"


def left(folder):
    done = subprocess.run(["sh", QUOTA_SCRIPT, folder], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
    return done.stdout


class TestQuota:
    def test_quota_is_unknown_without_quota_programs(self, stub, tmp_path):
        assert left(tmp_path) == "- - - -\n"

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            ({"user": MILA}, "9109764 user 139854 user"),
            ({"project": EAGLE}, "0 project - -"),
            ({"group": DEGRADED}, "10000000 group - -"),
            ({"user": MILA, "group": DEGRADED, "project": EAGLE}, "0 project 139854 user"),
            ({"user": MILA, "group": DEGRADED}, "9109764 user 139854 user"),
            ({"user": "  /sbb 900 1000 2000 - 10 0 0 -\n"}, "1100 user - -"),
            ({"user": "  /sbb 900 1000 0 - 10 20 0 -\n"}, "100 user 10 user"),  # only a soft limit
            ({"user": "  /sbb 1500* 1000 2000 6d23h59m52s 10 0 0 -\n"}, "500 user - -"),
            ({"user": "  /sbb 1500* 1000 2000 604792 10 0 0 -\n"}, "500 user - -"),  # a later one, in seconds
            ({"user": "  /sbb 1500* 1000 2000 expired 10 0 0 -\n"}, "0 user - -"),
            ({"user": "  /sbb 1500* 1000 2000 none 10 0 0 -\n"}, "0 user - -"),
            ({"user": "  /sbb 5000000000000 0 9000000000000 - 10 0 0 -\n"}, "4000000000000 user - -"),
            ({"user": NO_LUSTRE}, "- - - -"),
            ({"user": NO_ACCESS}, "- - - -"),
        ],
    )
    def test_free_space_of_lustre_quota(self, stub, tmp_path, texts, said):
        stub("lfs", answers(**texts))
        assert left(tmp_path) == f"{said}\n"

    def test_lustre_project_not_inherited_by_new_files_is_ignored(self, stub, tmp_path):
        stub("lfs", answers(project=EAGLE).replace("110255 P", "110255 -"))
        assert left(tmp_path) == "- - - -\n"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (nfs(), "80176 user - -"),
            (nfs(grace=int(time.time()) + DAY), "80176 user - -"),
            (nfs(grace=int(time.time()) - DAY), "0 user - -"),
            (nfs("81920*"), "0 user - -"),
            (nfs("90000*"), "0 user - -"),
            (nfs("744"), "81176 user - -"),
            (NO_QUOTA, "- - - -"),
        ],
        ids=["under", "in-grace", "after-grace", "soft-limit", "hard-limit", "far-under", "no-quota"],
    )
    def test_free_space_of_quota_program(self, stub, tmp_path, text, said):
        stub("quota", f"case $* in *--user*) cat <<'END'\n{text}END\n;; esac; exit 1")  # as it does over a limit
        assert left(tmp_path) == f"{said}\n"

    def test_quota_is_queried_for_owner_and_group_of_new_files(self, stub, tmp_path):
        asked = [stub(name, "") for name in ("quota", "lfs")]
        mount = subprocess.check_output(["df", "--output=target", tmp_path], text=True).splitlines()[-1]
        folder = tmp_path / "a b"
        folder.mkdir()
        other = next((group for group in os.getgroups() if group != os.getgid()), 4711 if os.getuid() == 0 else None)
        if other:
            os.chown(folder, -1, other)
        for mode, group in ((0o770, os.getgid()), (0o2770, other or os.getgid())):
            folder.chmod(mode)  # files get the folder's group only if it is set-group-ID
            left(folder)
            quota, lfs = (set(path.read_text().splitlines()) for path in asked)
            fixed = f"--verbose --no-wrap --raw-grace --filesystem={mount}"
            assert quota == {f"--user {fixed} {os.getuid()}", f"--group {fixed} {group}"}
            assert lfs >= {f"quota -q -u {os.getuid()} {folder}", f"quota -q -g {group} {folder}"}
            for path in asked:
                path.unlink()

    def test_hanging_quota_programs_are_stopped(self, stub, tmp_path):
        stub("lfs", "trap '' TERM; sleep 600")
        stub("quota", f"case $* in *--user*) cat <<'END'\n{nfs()}END\n;; *) sleep 600 ;; esac")
        began = time.monotonic()
        assert left(tmp_path) == "80176 user - -\n"
        assert time.monotonic() - began < 300


def named(_folder, amount, room, count, *sizes):
    """Return the value that a warning names, its unit, its owner, and the needed amount: bytes are in GB."""
    assert count == 3
    whose = next(word for word in ("user", "group", "project", "free") if word in str(room).split())
    if isinstance(amount, float):
        return round(amount * 1e9), "bytes", whose, round(sizes[-1] * 1e9)
    return amount, "inodes", whose, *sizes


class TestWarning:
    """Three checkpoints of 2000 bytes each: 6000 bytes and 9 inodes."""

    @pytest.fixture
    def warnings(self, tmp_path, caplog, monkeypatch):
        """Return a function that returns bytes, inodes and owner in the warnings for such a disk and quota."""

        def warnings(free=10**9, inodes=10**6, quota="- - - -"):
            found = SimpleNamespace(f_bavail=free, f_frsize=1, f_files=inodes, f_favail=inodes)
            monkeypatch.setattr("os.statvfs", lambda _: found)
            caplog.clear()
            checkpoint = Checkpoint({"model": {"w": torch.zeros(500)}}, Header(Position()))
            warn_if_low_space(checkpoint, tmp_path, keep=1, quota=quota)
            assert set(slugs(caplog.text)) <= {"low-disk-space"}
            assert all(str(tmp_path) in text for text in caplog.messages)
            return [named(*record.args) for record in caplog.records]

        return warnings

    @pytest.mark.parametrize(
        ("disk", "expected"),
        [
            ({"quota": "6 user 9 user"}, []),
            ({"quota": "5 user 9 user"}, [(5 * 1024, "bytes", "user", 6000)]),
            ({"quota": "6 user 8 project"}, [(8, "inodes", "project", 9)]),
            ({"free": 5000, "quota": "6 user - -"}, [(5000, "bytes", "free", 6000)]),
            ({"inodes": 8}, [(8, "inodes", "free", 9)]),
            ({"inodes": 0, "quota": "- - 3 group"}, [(3, "inodes", "group", 9)]),
            ({"inodes": 0}, []),  # a file system that does not count inodes
        ],
    )
    def test_warning_uses_smaller_of_free_disk_and_quota(self, warnings, disk, expected):
        assert warnings(**disk) == expected

    @pytest.mark.parametrize("quota", ["", "nonsense", "a 1 b 2", "1 2 3", "-5 user -5 user"])
    def test_invalid_quota_text_is_ignored(self, warnings, quota):
        assert warnings(quota=quota) == []

    def test_quota_is_queried_if_job_script_provides_none(self, warnings, stub):
        assert warnings(quota=None) == []
        stub("quota", f"case $* in *--user*) cat <<'END'\n{nfs('81918')}END\n;; esac; exit 1")
        assert warnings(quota=None) == [(2 * 1024, "bytes", "user", 6000)]
