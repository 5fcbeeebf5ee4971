"""Ranks that a job script starts, one process each: they meet only at the address in its variables."""

import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from messages import assert_error, assert_names, messages, slugs
from support import (
    DIGITS,
    ROOT,
    TRAINER,
    digest,
    free_port,
    output_of,
    started,
    status,
    train,
    training,
    unshared,
)

FLAGS = ["--epochs", "1", "--no-figures", "--backend", "ddp"]


def rank_of(ranks, rank, tmp_path, *flags, program=TRAINER, **env):
    """Start a rank as a job script would."""
    words = [*program, str(DIGITS), "--output-dir", str(tmp_path / "run"), *FLAGS, *flags]
    place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    return started(words, tmp_path / f"{rank}.log", **place, **env)


def test_ranks_join_at_master_addr_and_listen_only_there(tmp_path):
    port = free_port()
    with ExitStack() as stack:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # The second rank is not started at first: rank 0 waits, so its store can be inspected.
        first = stack.enter_context(rank_of(2, 0, tmp_path, **env))
        first.until(lambda: listening(port), "the store")
        # 127.0.0.1 in the kernel's notation; 00000000 would be all interfaces
        assert listening(port) == {"0100007F"}
        second = stack.enter_context(rank_of(2, 1, tmp_path, **env))
        assert (first.wait(), second.wait()) == (0, 0)
    assert status(tmp_path / "run")["state"] == "done"


def listening(port):
    """Return the IPv4 addresses with a listening socket at ``port`` (proc(5), net/tcp)."""
    return {address for address, number, _ in listeners() if number == port}


def listeners(net=Path("/proc/net")):
    """Yield address, port and inode of each listening TCP socket."""
    for table in ("tcp", "tcp6"):
        for line in (net / table).read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A":
                address, _, number = row[1].partition(":")
                yield address, int(number, 16), row[9]


IMPATIENT = """
import sys
from slipway.dist import torch_distributed
from trainer.__main__ import main
torch_distributed.FIRST_WARNING_SECONDS, torch_distributed.WARNING_INTERVAL_SECONDS = 1, 0.5
sys.exit(main())
"""
"""The trainer, modified to report after a second, not half a minute, that it waits."""


def test_rank_waiting_for_rank_0_warns_with_its_address(tmp_path):
    port = free_port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ExitStack() as stack:
        waiting = stack.enter_context(rank_of(2, 1, tmp_path, program=[sys.executable, "-c", IMPATIENT], **env))
        waiting.until(lambda: slugs(waiting.output) == ["waiting-for-ranks"] * 3, "three warnings")
        first = stack.enter_context(rank_of(2, 0, tmp_path, **env))
        assert (first.wait(), waiting.wait()) == (0, 0)
    for message in messages(waiting.output):
        assert_names(message.text, "rank 1 of 2 ", f"127.0.0.1:{port}", "MASTER_ADDR:MASTER_PORT")
        assert re.search(r" \d+ s$", message.text)
    assert slugs(first.output) == []


def test_ranks_join_through_file_on_shared_disk(tmp_path):
    with ExitStack() as stack:
        flags = ["--init-method", (tmp_path / "store").as_uri()]
        launches = [stack.enter_context(rank_of(2, rank, tmp_path, *flags)) for rank in range(2)]
        assert [launch.wait() for launch in launches] == [0, 0]
    assert status(tmp_path / "run")["state"] == "done"


def test_torchrun_on_two_machines_matches_one_with_two_ranks(tmp_path):
    """As in docs/howto/two-machines.md: started manually with the machine's number; here both are this machine."""
    flags = ["--max-steps", "10", "--no-figures"]
    train("torchrun", 2, tmp_path / "one", *flags)
    page = (ROOT / "docs" / "howto" / "two-machines.md").read_text(encoding="utf-8")
    command = re.search(r"^\$ (torchrun --nnodes 2 --node-rank 0 .*)$", page, flags=re.MULTILINE)[1]
    command = command.replace("10.0.0.1", "127.0.0.1").replace("29500", str(free_port()))
    with ExitStack() as stack:
        machines = []
        for number in range(2):
            words = command.replace("--node-rank 0", f"--node-rank {number}").split()
            out = ["--output-dir", str(tmp_path / "two"), *flags]
            machines.append(stack.enter_context(started([*words, *out], tmp_path / f"{number}.log")))
        assert [machine.wait() for machine in machines] == [0, 0]
    one, two = (digest(tmp_path / name / "checkpoints" / "latest") for name in ("one", "two"))
    assert one == two


MACHINES = """
ip link set lo up
unshare --net sleep 600 &
other=/proc/$!/ns/net
trap "kill $!" EXIT
until [ "$(readlink $other)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
ip link add one type veth peer name two netns $!
ip address add 10.0.0.1/24 dev one
ip link set one up
nsenter --net=$other sh -c 'ip link set lo up; ip address add 10.0.0.2/24 dev two; ip link set two up'
GLOO_SOCKET_IFNAME=one bash -c "$1" & first=$!
GLOO_SOCKET_IFNAME=two nsenter --net=$other bash -c "$2" & second=$!
wait $first
wait $second
"""
"""Script that runs two commands in separate networks, whose only connection is a cable, as two machines are."""


def has_networks():
    """Return whether this user can create networks here."""
    words = [*unshared("net"), "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"]
    return bool(shutil.which("ip")) and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_networks(), reason="cannot create networks here")
def test_torchrun_in_two_networks_matches_one_machine(tmp_path):
    """The command of docs/guide.md, unchanged but for the number of the machine and its network interface."""
    flags = ["--max-steps", "10", "--no-figures"]
    train("torchrun", 2, tmp_path / "one", *flags)
    page = (ROOT / "docs" / "howto" / "two-machines.md").read_text(encoding="utf-8")
    command = re.search(r"^\$ (torchrun --nnodes 2 --node-rank 0 .*)$", page, flags=re.MULTILINE)[1]
    command = shlex.join([*command.split(), "--output-dir", str(tmp_path / "two"), *flags])
    commands = [command.replace("--node-rank 0", f"--node-rank {number}") for number in range(2)]
    output_of([*unshared("net"), "bash", "-ec", MACHINES, "-", *commands], tmp_path / "log")
    one, two = (digest(tmp_path / name / "checkpoints" / "latest") for name in ("one", "two"))
    assert one == two


def test_missing_master_addr_is_reported(tmp_path):
    with rank_of(1, 0, tmp_path) as launch:
        assert launch.wait() == 78
    assert_error(launch.output, "ranks-not-named", "env://", "MASTER_ADDR and MASTER_PORT", "torchrun")


def test_error_of_port_in_use_matches_job_script_pattern(tmp_path):
    """The job script then restarts the ranks at another port (port_was_taken)."""
    library = (ROOT / "jobscripts" / "lib" / "launch.bash").read_text(encoding="utf-8")
    pattern = re.search(r'grep --quiet "(port: .*EADDRINUSE)"', library)[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with rank_of(2, 0, tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) as launch:
            assert launch.wait() == 1, "another attempt may help"
    assert re.search(pattern.replace("$MASTER_PORT", port), launch.output)
    assert_error(launch.output, "cannot-join", f"('127.0.0.1', {port})", "in use")


@pytest.mark.horovod
def test_horovod_without_launcher_trains_as_single_rank(tmp_path):
    said = train("single", 1, tmp_path / "run", "--backend", "horovod", "--epochs", "1", "--no-figures")
    assert "1 rank(s) on cpu" in said


def test_spawned_ranks_listen_only_on_loopback(tmp_path):
    with training("spawn", 2, tmp_path / "run", "--epochs", "100000") as launch:
        launch.until(lambda: "epoch 1" in launch.output, "the first epoch")
        owned = {address for pid in launch.pids() for address in listening_of(pid)}
        assert owned == {"0100007F"}
        launch.process.terminate()
        assert launch.wait() == 75


def listening_of(pid):
    """Return the IPv4 addresses on which process ``pid`` listens; none if it has ended."""
    process, links = Path(f"/proc/{pid}"), set()
    try:
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # just closed
                links.add(str(link.readlink()))
        return {address for address, _, inode in listeners(process / "net") if f"socket:[{inode}]" in links}
    except (FileNotFoundError, ProcessLookupError):
        return set()
