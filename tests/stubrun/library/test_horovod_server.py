"""Rendezvous server of Horovod's ranks on the first node: horovod_server.py."""

import signal
import socket
import subprocess
import sys

import pytest

from bash_library import LIB, answered


@pytest.mark.horovod
class TestHorovodServer:
    @pytest.fixture
    def server(self, tmp_path):
        pytest.importorskip("horovod")
        words = [sys.executable, LIB / "horovod_server.py", tmp_path / "answer", "127.0.0.1", "2", "2"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            yield process
            process.kill()

    def ask(self, port):
        connection = socket.create_connection(("127.0.0.1", port), timeout=300)
        connection.sendall(b"GET /global/0 HTTP/1.0\r\n\r\n")
        return connection

    def port(self, server, folder):
        assert server.stdout.readline() == "\n"
        return int(answered(folder / "answer")[0])

    def test_server_runs_until_reader_closes(self, server, tmp_path):
        with self.ask(self.port(server, tmp_path)) as connection:
            assert b"404" in connection.recv(100)
        server.stdout.close()
        assert server.wait(300) == 0

    # regression: the system reset some ranks' connections, and Horovod aborts after that
    def test_stopped_server_queues_connections_of_200_ranks(self, server, tmp_path):
        port = self.port(server, tmp_path)
        server.send_signal(signal.SIGSTOP)
        ranks = [self.ask(port) for _ in range(200)]
        server.send_signal(signal.SIGCONT)
        for connection in ranks:
            with connection:
                assert b"404" in connection.recv(100)
