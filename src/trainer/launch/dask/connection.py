"""How a step reaches the nodes: addresses, and the key of the attempt, in files of its folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from distributed import Security
from slipway.base.files import write_atomically
from trainer.config.errors import ConfigError

WORKERS = "workers.json"
CA, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"


class Connection(msgspec.Struct, frozen=True):
    """What ``workers.json`` holds."""

    scheduler: str
    """Address of Dask's scheduler."""
    workers: list[str]
    """Those of its workers, in the order of the nodes."""

    @classmethod
    def read(cls, folder: Path) -> Connection:
        """Return what ``write`` has left in ``folder``.

        Raises:
            OSError: if there is none.
            MsgspecError: if it is none.
        """
        return msgspec.json.decode((folder / WORKERS).read_bytes(), type=cls)

    def write(self, folder: Path) -> None:
        """Write it down."""
        write_atomically(folder / WORKERS, msgspec.json.encode(self).decode())


def make_security(folder: Path) -> Security:
    """Make a key, and write it where only its owner can read it.

    Raises:
        ConfigError: for a path that Dask cannot hand to its workers.
    """
    if shlex.quote(str(folder)) != str(folder):
        raise ConfigError(
            "bad-path",
            f"Dask starts its workers by a line of a shell, which {str(folder)!r} would break: set SLIPWAY_OUTPUT to a "
            f"path of letters, digits, dot, dash and underscore.",
        )
    made = Security.temporary()
    for name, text in ((CA, made.tls_ca_file), (CERTIFICATE, made.tls_client_cert), (KEY, made.tls_client_key)):
        (folder / name).touch(mode=0o600, exist_ok=False)
        (folder / name).write_text(str(text), encoding="ascii")
    return security_of(folder)


def security_of(folder: Path) -> Security:
    """Return the TLS files of ``folder``, for every role."""
    ca, certificate, key = (str(folder / name) for name in (CA, CERTIFICATE, KEY))
    roles = {
        f"tls_{role}_{part}": path
        for role in ("client", "scheduler", "worker")
        for part, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=ca, **roles)


def remove_key(folder: Path) -> None:
    """Remove it, once nobody needs it any more."""
    for name in (CA, CERTIFICATE, KEY):
        (folder / name).unlink(missing_ok=True)
