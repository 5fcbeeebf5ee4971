"""MNIST and CIFAR-10 are fetched beforehand, on a node with a network, and are there for the others.

torchvision fetches them, and checks its own checksums: the process under test has torchvision's addresses and checksums
replaced by those of a small set on a server of this machine.
"""

import gzip
import hashlib
import pickle
import sys
import tarfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from messages import assert_error
from mnist_files import write_mnist
from support import started, train

SCRIPT = """
import sys
from trainer.__main__ import main
from trainer.torchvision_on_cpu import import_torchvision
for name, value in {replaced}.items():
    setattr(import_torchvision().datasets.{dataset}, name, value)
sys.exit(main())
"""


@contextmanager
def served(folder):
    """Serve the files of ``folder`` over HTTP on loopback; yield the address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def fetch(dataset, replaced, data, log):
    """Fetch ``dataset`` into the folder ``data`` as docs/data.md says; return the exit code and what is said."""
    name = {"mnist": "MNIST", "cifar10": "CIFAR10"}[dataset]
    words = [sys.executable, "-c", SCRIPT.format(dataset=name, replaced=repr(replaced))]
    flags = ["--dataset", dataset, "--download", "--data-dir", str(data), "--dry-run"]
    with started([*words, *flags], log, no_proxy="127.0.0.1") as launch:
        return launch.wait(), launch.output


def md5(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def small_mnist(folder):
    """Write what a mirror of MNIST holds; return what torchvision is told of it."""
    resources = []
    for path in write_mnist(folder.with_name("whole"), train=30, test=20).iterdir():
        archive = folder / f"{path.name}.gz"
        archive.write_bytes(gzip.compress(path.read_bytes()))
        resources.append((archive.name, md5(archive)))
    return lambda url: {"mirrors": [url], "resources": resources}


def small_cifar10(folder):
    """Write what the server of CIFAR-10 holds; return what torchvision is told of it."""
    batches = folder.with_name("whole") / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3072), dtype=np.uint8)
    rows = {"data": pixels, "labels": [*range(10)] * 2}
    (batches / "train").write_bytes(pickle.dumps(rows))
    (batches / "test").write_bytes(pickle.dumps(rows))
    (batches / "meta").write_bytes(pickle.dumps({"names": [f"class {number}" for number in range(10)]}))
    with tarfile.open(folder / "small.tar.gz", "w:gz") as archive:
        archive.add(batches, batches.name)
    return lambda url: {
        "url": f"{url}small.tar.gz",
        "filename": "small.tar.gz",
        "tgz_md5": md5(folder / "small.tar.gz"),
        "train_list": [["train", md5(batches / "train")]],
        "test_list": [["test", md5(batches / "test")]],
        "meta": {"filename": "meta", "key": "names", "md5": md5(batches / "meta")},
    }


@pytest.mark.parametrize(("dataset", "small"), [("mnist", small_mnist), ("cifar10", small_cifar10)])
def test_a_dry_run_fetches_the_set_for_trainings_without_a_network(tmp_path, dataset, small):
    (tmp_path / "mirror").mkdir()
    replaced = small(tmp_path / "mirror")
    with served(tmp_path / "mirror") as url:
        code, said = fetch(dataset, replaced(url), tmp_path / "data", tmp_path / "log")
    assert (code, "dry run: " in said) == (0, True), said
    if dataset == "mnist":  # torchvision would check the files of CIFAR-10 against its own list
        flags = ["--dataset", dataset, "--data-dir", str(tmp_path / "data"), "--max-steps", "1", "--no-figures"]
        assert "20 validation samples" in train("single", 1, tmp_path / "run", *flags)  # without --download


def test_a_file_that_is_damaged_on_its_way_is_refused(tmp_path):
    (tmp_path / "mirror").mkdir()
    replaced = small_mnist(tmp_path / "mirror")
    (tmp_path / "mirror" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"damaged"))
    with served(tmp_path / "mirror") as url:
        code, said = fetch("mnist", replaced(url), tmp_path / "data", tmp_path / "log")
    assert code == 78
    assert_error(said.splitlines()[-1], "no-data", "MNIST", f"'{tmp_path}/data'", "Error downloading", "network")
