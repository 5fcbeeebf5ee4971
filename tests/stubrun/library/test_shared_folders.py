"""Parts of the library, the clone or the run folder that other users can write are neither run nor used."""

import os

import pytest

from bash_library import assert_ended, give_rights
from messages import messages

USER, GROUP = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())
ANN = f"[ $1 = passwd ] && echo ann:x:{USER}:{GROUP}::/: || echo ann:x:{GROUP}:"
"""A stub of getent: the group is the user's private one."""


@pytest.fixture
def file(open_folder):
    """Return a file that its owner's group may write."""
    file = open_folder / "file"
    file.touch()
    os.chown(file, USER, GROUP)
    file.chmod(0o664)
    return file


@pytest.mark.parametrize(("mode", "refused"), [(0o644, False), (0o666, True), (0o646, True), (0o664, True)])
def test_refuse_shared_by_file_mode(bash, file, mode, refused):
    file.chmod(mode)
    done = bash(f'refuse_shared {USER} "$@"', str(file.parent), str(file), programs={"getent": "exit 2"})
    assert_ended(done, "writable-by-others" * refused, file, GROUP, f"chmod -R go-w '{file.parent}'")


# regression: a clone under umask 002, the default where each user has a private group, was refused
@pytest.mark.parametrize(
    ("group", "others", "private"),
    [
        (f"ann:x:{GROUP}:", "", True),
        (f"ann:x:{GROUP}:ann", "", True),
        (f"ann:x:{GROUP}:ann,bob", "", False),
        (f"ann:x:{GROUP}:bob", "", False),
        (f"team:x:{GROUP}:", "", False),
        # regression: the user whose primary group it is was not among its members
        (f"ann:x:{GROUP}:", f"echo bob:x:1{USER}:{GROUP}::/:", False),
        (f"ann:x:{GROUP}:", f"echo bob:x:1{USER}:1{GROUP}::/:", True),
        (f"ann:x:{GROUP}:", f"echo nna:x:{USER}:{GROUP}::/:", True),
        (f"ann:x:{GROUP}:", "exit 3", True),  # a directory that lists no users
    ],
)
def test_only_private_group_of_owner_may_write(bash, stub, file, group, others, private):  # noqa: PLR0917 -- fixtures
    stub("getent", f'[ "$*" != passwd ] || {{ {others or ":"}; exit; }}\n{ANN.partition("||")[0]} || echo {group}')
    assert bash(f"refuse_shared {USER} {file}").code == (0 if private else 78)
    assert (bash(f"is_private {GROUP} {USER}").code == 0) == private


@pytest.mark.parametrize(
    ("code", "user", "ended"),
    [
        # regression: a directory that lists 100,000 users takes minutes
        ("timeout() {{ return 124; }}; refuse_shared {user} {file}", USER, 0),
        ("awk() {{ return 127; }}; refuse_shared {user} {file}", USER, 78),
        ("is_private {group} 0", 0, 1),  # root shares its group
        ("is_private 0 {user}", USER, 1),
        ("refuse_shared '' {file} {file}.gone", USER, 78),
    ],
)
def test_exit_code_if_private_group_cannot_be_verified(bash, file, code, user, ended):
    programs = {"getent": ANN.replace(str(USER), str(user))}
    assert bash(code.format(user=USER, group=GROUP, file=file), programs=programs).code == ended


def test_users_and_groups_are_looked_up_once_per_script(bash, file, place):
    programs = {"getent": f'echo "$*" >>asked; {ANN}'}
    call = f'refuse_shared {USER} "$@"'
    assert bash(f"{call}; {call}", *[str(file)] * 9, programs=programs).code == 0
    assert sorted((place / "asked").read_text().splitlines()) == [f"group {GROUP}", "passwd", f"passwd {USER}"]


@pytest.mark.parametrize(("rights", "refused"), [(0o7, True), (0o4, False)])
def test_acl_that_lets_others_write_is_refused(bash, file, rights, refused):
    give_rights(file, 23456, rights)
    done = bash(f"refuse_shared {USER} {file}", programs={"getent": ANN})
    assert_ended(done, "writable-by-others" * refused, file)


# regression: file systems that show mode 777 for every file (SMB, WSL's drvfs) could not be used at all
@pytest.mark.parametrize(
    ("trusted", "accepted"),
    [
        *[(f"{{}}/{name}", True) for name in ("a b", "a b/run", "link")],
        *[(f"{{}}/{name}", False) for name in ("a", "gone", "a b/run/x")],
        *[(name, False) for name in ("", "/", ".", "..")],
    ],
)
def test_only_trusted_folder_may_be_writable_by_others(bash, open_folder, trusted, accepted):
    run = open_folder / "a b" / "run"
    run.mkdir(parents=True)
    (open_folder / "link").symlink_to(open_folder / "a b")
    (open_folder / "a").mkdir()
    for path in (run.parent, run):
        path.chmod(0o777)
    words = str(run), trusted.format(open_folder)
    checks = 'refuse_shared "" "$1"; refuse_shared_above "$1"; RUN_DIR=$1; require_private_folder'
    done = bash(f"SLIPWAY_TRUSTED_FOLDER=$2; {checks}", *words)
    assert_ended(done, "writable-by-others" * (not accepted), run, "SLIPWAY_TRUSTED_FOLDER")
    assert bash('SLIPWAY_TRUSTED_FOLDER=$2; is_trusted "$1"', *words).code == int(not accepted)


@pytest.mark.parametrize(
    ("before", "chmod", "ended"),
    [("", 'exec /bin/chmod "$@"', (0, "644\n")), ("", "exit 1", (1, "")),
     ("SLIPWAY_TRUSTED_FOLDER=$1; ", "exit 1", (0, "664\n"))],
)  # fmt: skip
def test_failed_chmod_is_ignored_in_trusted_folder(bash, file, before, chmod, ended):
    code = f'{before}change_mode go-w "$1/file"; stat --format=%a "$1/file"'
    assert bash(code, str(file.parent), programs={"chmod": chmod})[:2] == ended


@pytest.mark.parametrize(
    ("code", "out", "refused"),
    [
        ("require_private_folder", "", False),
        ("rm -r run/logs; chmod 777 run; require_private_folder 2>/dev/null; stat --format=%a run", "755\n", False),
        ("chmod 757 run; require_private_folder", "", True),
    ],
)
def test_require_private_folder_fixes_mode_or_refuses(bash, place, code, out, refused):
    assert_ended(bash(code), "writable-by-others" * refused, place / "run", out=out)


# regression: under a default ACL, which overrides the umask, others could write logs, verdicts and checkpoints
@pytest.mark.parametrize(
    ("rights", "code", "named"),
    [
        (0o5, "require_private_folder", []),
        (0o7, "require_private_folder", ["/own", "chmod 700", "SLIPWAY_OUTPUT"]),
        (0o7, "mkdir own/logs; chmod 700 own; require_private_folder", []),  # no other user can enter it
        (None, "mkdir own/logs; chmod 777 own/logs; require_private_folder", ["/own/logs"]),
        (None, "mkdir own/logs; refuse_shared_files", []),
    ],
)
def test_run_folder_with_writable_default_acl_is_refused(bash, place, rights, code, named):
    (place / "own").mkdir(0o755)
    if rights is not None:
        give_rights(place / "own", 23456, rights, "default")
    done = bash(f"umask go-w; RUN_DIR=$PWD/own; {code}")
    assert_ended(done, "writable-by-others" * bool(named), *named)
    assert [path.name for path in (place / "own").iterdir()] == ["logs"] * ("logs" in code)


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        ({"a": 0o777}, "error"),
        ({"a": 0o775}, "warning"),
        ({"a": 0o2775, "a/b": 0o2770}, "warning"),
        ({"a": 0o757, "a/b": 0o2775}, "error"),
        ({"a": 0o1777, "a/b": 0o1775}, ""),
        ({"": 0o700, "a": 0o777}, ""),
        ({"a": 0o777, "a/b": 0o700}, "error"),
        ({"a": 0o755, "a/b": 0o2755}, ""),
    ],
)
def test_parent_folder_writable_by_others_is_refused_or_warned(bash, open_folder, folders, said):
    (open_folder / "a" / "b" / "run").mkdir(parents=True)
    for name, mode in folders.items():
        (open_folder / name).chmod(mode)
    call = 'refuse_shared_above "$1"; refuse_shared_above "$1"'  # the same warning appears once
    done = bash(call, str(open_folder / "a" / "b" / "run"), programs={"getent": "exit 2"})
    assert done.code == (78 if said == "error" else 0)
    assert [message[:2] for message in messages(done.err)] == [(said, "writable-by-others")] * bool(said)
    assert (f"{open_folder}/a" in done.err, done.err.count("\n")) == (bool(said), bool(said))


# regression: a link was taken for a world-writable folder, and its target was not checked
@pytest.mark.parametrize(("shared", "named"), [("", []), ("a", ["/a"]), ("a/b", ["a/b"])])
def test_symlink_target_is_checked_for_write_access(bash, open_folder, shared, named):
    (open_folder / "a" / "b" / "clone").mkdir(parents=True)
    (open_folder / "link").symlink_to("a/b")
    (open_folder / shared).chmod(0o777 if shared else 0o755)
    call = 'cd "$1"; refuse_shared_above "$PWD"'
    assert_ended(bash(call, f"{open_folder}/link/clone"), "writable-by-others" * bool(shared), *named)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_shared_project_folder_is_accepted(bash, open_folder):
    (open_folder / "run").mkdir()
    open_folder.chmod(0o2770)
    os.chown(open_folder, 12345, 12345)
    assert bash('refuse_shared_above "$1"', str(open_folder / "run")) == (0, "", "")
