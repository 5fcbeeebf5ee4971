"""MNIST is downloaded beforehand on a node with a network, for the other nodes; CIFAR-10 uses the same code.

torchvision fetches it, and checks its own checksums: the process under test has torchvision's addresses and checksums
replaced by those of a small set on a server of this machine.
"""

import gzip
import hashlib
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from messages import assert_error
from mnist_files import write_mnist
from support import output_of, train

SCRIPT = """
import sys
from trainer.__main__ import main
from trainer.model.torchvision_on_cpu import import_torchvision
for name, value in {replaced}.items():
    setattr(import_torchvision().datasets.MNIST, name, value)
sys.exit(main())
"""


@contextmanager
def served(folder):
    """Serve ``folder`` over HTTP on loopback; yield the address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def fetch(resources, mirror, data, log, *, code=0):
    """Download MNIST from a mirror to the folder ``data`` as in docs/howto/data.md; return the output."""
    with served(mirror) as url:
        program = SCRIPT.format(replaced={"mirrors": [url], "resources": resources})
        flags = ["--dataset", "mnist", "--download", "--data-dir", str(data), "--dry-run"]
        return output_of([sys.executable, "-c", program, *flags], log, code=code, no_proxy="127.0.0.1")


def small_mnist(folder):
    """Write the files of an MNIST mirror; return them and their checksums."""
    folder.mkdir()
    resources = []
    for path in write_mnist(folder.with_name("whole"), train=30, test=20).iterdir():
        archive = folder / f"{path.name}.gz"
        archive.write_bytes(gzip.compress(path.read_bytes()))
        resources.append((archive.name, hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()))
    return resources


def test_dry_run_downloads_dataset_for_later_offline_training(tmp_path):
    resources = small_mnist(tmp_path / "mirror")
    assert "dry run: " in fetch(resources, tmp_path / "mirror", tmp_path / "data", tmp_path / "log")
    flags = ["--dataset", "mnist", "--data-dir", str(tmp_path / "data"), "--max-steps", "1", "--no-figures"]
    assert "20 validation samples" in train("single", 1, tmp_path / "run", *flags)  # without --download


def test_download_with_wrong_checksum_is_refused(tmp_path):
    resources = small_mnist(tmp_path / "mirror")
    (tmp_path / "mirror" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"damaged"))
    said = fetch(resources, tmp_path / "mirror", tmp_path / "data", tmp_path / "log", code=78)
    assert_error(said.splitlines()[-1], "no-data", "MNIST", f"'{tmp_path}/data'", "Error downloading", "network")
