"""Messages of a script on standard error, and how an error ends it; its version; old versions of Bash."""

import re
import shutil
import subprocess

import pytest

from bash_library import LIB
from messages import slugs


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("log 'a  b' c", (0, "", "x.job: a  b c\n")),
        ("error no-gpu x && echo 7", (0, "7\n", "x.job: error[no-gpu]: x\n")),
        (
            'warn node-lost y z; echo "$last_message"',
            (0, "warning[node-lost]: y z\n", "x.job: warning[node-lost]: y z\n"),
        ),
        ("die no-gpu x  'y  z'; echo no", (78, "", "x.job: error[no-gpu]: x y  z\n")),
        ("die stopped-early x", (75, "", "x.job: error[stopped-early]: x\n")),
        ("abort_before_launch stopped-early 'a b'", (75, "", "x.job: error[stopped-early]: a b\n")),
        ("log_reason 'no-data: x: y'", (0, "", "x.job: error[no-data]: x: y\n")),
        ("log_reason 'x y'", (0, "", "x.job: error[rank-failed]: x y\n")),
    ],
)
def test_messages_and_exit_codes_of_errors(bash, code, ended):
    assert bash(code) == ended


def test_library_identity_changes_with_files(bash, tmp_path):
    copy = tmp_path / "lib"
    shutil.copytree(LIB, copy)
    first = bash("library_identity", lib=copy)[1]
    assert re.fullmatch(r"library \d+\.\d+\.\d+ \(sha256 [0-9a-f]{12}\)\n", first)
    with (copy / "name_rank.sh").open("a") as file:
        file.write("\n")
    assert bash("library_identity", lib=copy)[1] != first


@pytest.mark.parametrize(("version", "code"), [("3 2", 78), ("4 3", 78), ("4 4", 0), ("5 0", 0)])
def test_old_bash_is_refused_before_sourcing_library(version, code):
    text = (LIB / "job.bash").read_text()
    check = re.search(r"(?ms)^if \(\(BASH_VERSINFO.*?^fi\n", text)[0].replace("BASH_VERSINFO", "version")
    script = f"version=({version})\n{check}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, slugs(done.stderr)) == (code, ["old-bash"] * (code == 78))
    assert ("4.4" in done.stderr) == (code == 78)
    assert text.index("BASH_VERSINFO") < text.index("\nsource ")
