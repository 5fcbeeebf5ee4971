"""`apptainer sign` and `verify`, with a key made for the test."""

import shutil

import pytest


@pytest.fixture
def signed(root, tmp_path):
    """Return a signed copy of the image, and the folder with the signing key."""
    copy = tmp_path / "signed.sif"
    shutil.copy(root.image, copy)
    keys = {"APPTAINER_KEYSDIR": str(tmp_path / "keys")}
    who = ("--name", "Test", "--email", "test@example.invalid", "--comment", "", "--password", "", "--push=false")
    made = root.run("key", "newpair", *who, env=keys)
    assert made.returncode == 0, made.stderr
    done = root.run("sign", str(copy), env=keys)
    assert done.returncode == 0, done.stderr
    return copy, keys


def test_verify_accepts_signed_image_and_refuses_modified_one(root, signed):
    copy, keys = signed
    done = root.run("verify", "--local", str(copy), env=keys)
    assert done.returncode == 0, done.stderr
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert root.run("verify", "--local", str(copy), env=keys).returncode != 0


def test_verify_refuses_unsigned_image(root, tmp_path):
    done = root.run("verify", "--local", root.image, env={"APPTAINER_KEYSDIR": str(tmp_path / "none")})
    assert done.returncode != 0
