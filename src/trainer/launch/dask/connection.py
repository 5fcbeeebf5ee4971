"""Connection of a step to the nodes: addresses and TLS files in the attempt's Dask folder."""

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
    """Content of ``workers.json``."""

    scheduler: str
    """Address of Dask's scheduler."""
    workers: list[str]
    """Addresses of Dask's workers, in the order of the nodes."""

    @classmethod
    def read(cls, folder: Path) -> Connection:
        """Read ``workers.json`` from ``folder``.

        Raises:
            OSError: if the file cannot be read.
            MsgspecError: if its content is not valid.
        """
        return msgspec.json.decode((folder / WORKERS).read_bytes(), type=cls)

    def write(self, folder: Path) -> None:
        """Write ``workers.json`` to ``folder``."""
        write_atomically(folder / WORKERS, msgspec.json.encode(self).decode())


def make_security(folder: Path) -> Security:
    """Create a TLS key and certificate, and write them to ``folder``, readable by their owner only.

    Raises:
        ConfigError: if Dask cannot pass the path to its workers.
    """
    if shlex.quote(str(folder)) != str(folder):
        raise ConfigError(
            "bad-path",
            f"Dask starts its workers with a shell command, which the path {str(folder)!r} would break: set "
            f"SLIPWAY_OUTPUT to a path of letters, digits, dots, dashes and underscores.",
        )
    made = Security.temporary()
    for name, text in ((CA, made.tls_ca_file), (CERTIFICATE, made.tls_client_cert), (KEY, made.tls_client_key)):
        (folder / name).touch(mode=0o600, exist_ok=False)
        (folder / name).write_text(str(text), encoding="ascii")
    return security_of(folder)


def security_of(folder: Path) -> Security:
    """Return Dask's security settings with the TLS files in ``folder``, the same for each role."""
    ca, certificate, key = (str(folder / name) for name in (CA, CERTIFICATE, KEY))
    roles = {
        f"tls_{role}_{part}": path
        for role in ("client", "scheduler", "worker")
        for part, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=ca, **roles)


def remove_key(folder: Path) -> None:
    """Remove the TLS files in ``folder``."""
    for name in (CA, CERTIFICATE, KEY):
        (folder / name).unlink(missing_ok=True)
