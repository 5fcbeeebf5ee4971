"""Helpers of the library that run on the nodes: free_port.py, head_address.py, try_head.py, and the preflight's."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bash_library import LIB, answered, run
from messages import assert_error


@pytest.mark.parametrize(
    "name", ["answer.py", "free_port.py", "head_address.py", "try_head.py", "check_gpus.py", "count_gpus.py"]
)
def test_helpers_import_only_standard_library(name):
    imports = set(re.findall(r"(?m)^(?:import|from) (\w+)", (LIB / name).read_text()))
    assert imports <= {*sys.stdlib_module_names, "answer", "slipway_gpu"}


class TestFreePort:
    @pytest.fixture
    def port(self, tmp_path):
        """Return a function that runs the port search, and returns exit code, port and messages."""
        answer = tmp_path / "answer"

        def port(first):
            done = run(sys.executable, str(LIB / "free_port.py"), str(answer), str(first))
            assert done.stdout == ""
            return done.returncode, int(answered(answer)[0]) if answer.exists() else None, done.stderr

        return port

    def test_port_in_use_is_skipped(self, port):
        with socket.create_server(("127.0.0.1", 21000)):
            assert port(21000)[1] > 21000

    def test_ephemeral_ports_are_skipped_if_possible(self, port):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        code, found, err = port(last - 10)
        assert (code, found > last) == (0, True)
        code, found, err = port(first)  # if all ports are ephemeral, one of those is better than none
        assert (code, found >= first, err) == (0, True, "")

    def test_no_free_port_gives_one_line_error(self, port):
        code, found, err = port(65536)
        assert (code, found, len(err.splitlines())) == (1, None, 1)


INTERFACES = {
    "10.0.0.1": "eth0",
    "10.1.0.1": "br0",
    "10.2.0.1": "bond0",
    "192.168.122.1": "virbr0",
    "172.17.0.1": "docker0",
    "10.88.0.1": "cni-podman0",
    "10.3.0.1": "veth1",
    "fd00::1": "eth0",
}
"""eth0 is hardware, br0 a bridge on it; the others lead to virtual machines or containers."""


class TestHeadAddress:
    @pytest.fixture
    def head_address(self, tmp_path, monkeypatch):
        """Return the module, which sees these interfaces."""
        monkeypatch.setattr(sys, "path", [*sys.path])
        spec = importlib.util.spec_from_file_location("head_address", LIB / "head_address.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in {*INTERFACES.values()}:
            (tmp_path / name).mkdir()
        for name in ("br0", "virbr0", "docker0", "cni-podman0"):
            (tmp_path / name / "bridge").mkdir()
        for name, lower in {"br0": "bond0", "bond0": "eth0", "docker0": "veth1"}.items():
            (tmp_path / name / f"lower_{lower}").symlink_to(tmp_path / lower)
        (tmp_path / "eth0" / "device").mkdir()
        monkeypatch.setattr(module, "INTERFACES", tmp_path)
        return module

    @pytest.mark.parametrize(
        ("found", "chosen"),
        [
            ("fe80::1%eth0 169.254.3.4 192.168.122.1 172.17.0.1 10.0.0.1", "10.0.0.1"),
            ("10.88.0.1 10.1.0.1", "10.1.0.1"),
            ("10.2.0.1 10.0.0.1", "10.2.0.1"),  # in the resolver's order
            ("10.3.0.1 10.0.0.1", "10.0.0.1"),
            ("127.0.1.1 10.3.0.1", "10.3.0.1"),  # all that a node has that is itself a container
            ("192.168.122.7 10.0.0.1", "192.168.122.7"),  # not by the number: no bridge here has this address
            ("fd00::1", "fd00::1"),
            ("fe80::1%eth0 169.254.3.4", ""),
            ("192.168.122.1 172.17.0.1 10.88.0.1", ""),
        ],
    )
    def test_address_is_chosen_by_interface_kind(self, head_address, found, chosen):
        address, why = head_address.choose(found.split(), INTERFACES)
        assert address == chosen
        assert all(word in why for word in found.split()) or chosen

    def test_addresses_include_loopback_interface(self, head_address):
        assert head_address.addresses()["127.0.0.1"] == "lo"

    @pytest.fixture
    def head(self, tmp_path):
        answer = tmp_path / "answer"
        words = [sys.executable, LIB / "head_address.py", answer, "token", "21500", "2000", "given", "127.0.0.1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "\n"
            yield process, answer
            process.kill()

    def try_head(self, meeting):
        words = (sys.executable, str(LIB / "try_head.py"), "echo", "a b")
        done = run(*words, MASTER_ADDR="127.0.0.1", TRAINER_PROBE_ADDRESS=meeting)
        return done.returncode, done.stdout, done.stderr

    def test_nodes_probe_address_and_report_no_network(self, head):
        process, answer = head
        address, port = answered(answer)[1:]
        assert address == "127.0.0.1"
        with socket.create_connection((address, int(port))):  # one that does not answer does not stop others
            assert self.try_head(f"{port} token") == (0, "a b\n", "")
        code, out, err = self.try_head(f"{port} other")
        assert (code, out) == (78, "")
        assert_error(err, "no-network", "127.0.0.1", port, "MASTER_ADDR")
        answer.unlink()
        assert process.wait(10) == 0
        assert_error(self.try_head(f"{port} token")[2], "no-network", "127.0.0.1", port, "refused")

    def test_head_address_exits_if_reader_closes(self, head):
        head[0].stdout.close()
        assert head[0].wait(10) == 0

    def test_port_in_use_is_reported(self, tmp_path):
        with socket.create_server(("", 0)) as server:
            port = str(server.getsockname()[1])
            done = run(sys.executable, str(LIB / "head_address.py"), str(tmp_path / "a"), "t", port, "1", "x", "x")
        assert (done.returncode, answered(tmp_path / "a")) == (0, ["taken"]), done


def test_preflight_refuses_missing_path(place):
    words = ["sh", str(LIB / "preflight.sh"), "cpu", str(place)]
    assert run(*words).returncode == 0
    done = run(*words, f"{place}/gone")
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert_error(done.stderr, "cannot-read", f"{place}/gone ")


class TestCheckGpus:
    def gpus(self, device, **env):
        return run(sys.executable, str(LIB / "check_gpus.py"), device, **env)

    def test_missing_driver_is_refused_only_for_cuda(self):
        libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        if Path("/dev/kfd").exists() or "libcuda.so.1" in libraries:
            pytest.skip("has a driver")
        done = self.gpus("cuda")
        assert (done.returncode, len(done.stderr.splitlines())) == (78, 1)
        assert_error(done.stderr, "no-gpu", "libcuda.so.1", "SLIPWAY_DEVICE=cpu")
        assert self.gpus("auto").returncode == 0

    def test_gpus_found_by_driver_are_accepted(self, libcuda):
        done = self.gpus("cuda", LD_LIBRARY_PATH=str(libcuda), STANDIN_CUDA="12020 80 80")
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize(
        ("machine", "slug", "values"),
        [
            ({"STANDIN_CUDA": "12020"}, "no-gpu", []),
            ({"STANDIN_CUDA": "12020", "STANDIN_INIT": "0"}, "no-gpu", []),
            ({"STANDIN_CUDA": "12020 80", "STANDIN_INIT": "802"}, "broken-gpu", ["(802)"]),
        ],
    )
    def test_driver_without_working_gpu_is_refused(self, libcuda, machine, slug, values):
        done = self.gpus("cuda", LD_LIBRARY_PATH=str(libcuda), **machine)
        assert done.returncode == 78
        assert_error(done.stderr, slug, "SLIPWAY_DEVICE=cuda", "SLIPWAY_DEVICE=cpu", *values)
