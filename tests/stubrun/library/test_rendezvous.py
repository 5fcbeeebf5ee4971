"""Rendezvous of a job's ranks: address and port on the first node, and Horovod's server."""

import re

import pytest

from bash_library import ADDRESS_ANSWER, ANSWER, assert_dies
from messages import assert_error, slugs

SERVER = "; echo; exec sleep 600 >/dev/null 2>&1"
"""A helper that has answered, and runs until it is ended."""


ADDRESSES = "echo '10.0.0.1 STREAM n1'; echo '10.0.0.1 DGRAM'; echo 10.0.0.2 STREAM"
LOOPBACK = "echo '127.0.1.1 STREAM n1'"
CHOSEN = f'{ADDRESS_ANSWER}answer "$2" address "$7" "$4"{SERVER}'
SHOW = """choose_rendezvous >/dev/null; stop_server; echo "$MASTER_ADDR ${TRAINER_PROBE_ADDRESS-none}"
cat "$HOME/asked" """


@pytest.mark.parametrize(
    ("code", "getent", "env", "out"),
    [
        (SHOW, ADDRESSES, {}, "10.0.0.1 24711 T\nT 24711 2000  10.0.0.1 10.0.0.2\n"),
        (SHOW, ADDRESSES, {"MASTER_PORT": "1024"}, "10.0.0.1 1024 T\nT 1024 1  10.0.0.1 10.0.0.2\n"),
        (SHOW, ADDRESSES, {"MASTER_ADDR": "head-ib0"}, "head-ib0 24711 T\nT 24711 2000 head-ib0 head-ib0\n"),
        # one node needs none
        (f"nnodes=1; {SHOW}", ADDRESSES, {}, "10.0.0.1 none\n"),
        (f"nnodes=1; {SHOW}", LOOPBACK, {}, "127.0.1.1 none\n"),
        # a restart searches again
        ("given_address=10.0.0.8; find_master_address; echo $MASTER_ADDR", ADDRESSES, {}, "10.0.0.8\n"),
        ("restarts=1; fail_without_master why || echo on", ADDRESSES, {}, "on\n"),
    ],
)
def test_address_is_chosen_on_first_node_unless_set(bash, code, getent, env, out):
    done = bash(code, programs={"getent": getent, "python3": CHOSEN}, **env)
    assert re.sub("[0-9a-f]{16}", "T", done.out) == out
    assert ("no-master-address" in slugs(done.err)) == ("fail_without_master" in code)


def test_restart_finds_master_address_again(bash):
    programs = {"getent": ADDRESSES, "python3": f'{ADDRESS_ANSWER}answer "$2" address "$7"'}
    assert bash("given_address=; find_master_address; echo $MASTER_ADDR", programs=programs).out == "10.0.0.1\n"


@pytest.mark.parametrize(
    ("code", "getent", "values"),
    [
        ("choose_rendezvous", LOOPBACK, ["n1", "127.0.1.1", "MASTER_ADDR"]),
        ("choose_rendezvous", "exit 2", ["n1", "MASTER_ADDR"]),
        ("choose_rendezvous", "exit 0", ["n1", "MASTER_ADDR"]),
        ("export_probe_address x y", ADDRESSES, ["n1", "MASTER_ADDR"]),
        ("choose_address 127.0.0.1 ::1", ADDRESSES, ["n1", "MASTER_ADDR"]),
        ("fail_without_master why", ADDRESSES, ["why"]),
    ],
)
def test_first_node_without_usable_address_is_refused(bash, code, getent, values):
    assert_dies(bash(code, programs={"getent": getent, "python3": CHOSEN}), "no-master-address", *values)


@pytest.mark.parametrize(
    ("said", "slug", "values"),
    [
        ("none '10.0.0.1 is of virbr0'", "no-master-address", ["n1", "MASTER_ADDR"]),
        ("taken", "no-free-port", ["24711"]),
        ("address 10.0.0.9 24711", "no-master-address", ["n1", "MASTER_ADDR"]),
        ("address 10.0.0.1 bye", "no-master-address", ["n1", "MASTER_ADDR"]),
        ("address 10.0.0.1", "no-master-address", ["n1", "MASTER_ADDR"]),
        ("", "no-master-address", ["n1"]),
    ],
)
def test_invalid_address_answer_is_refused(bash, said, slug, values):
    programs = {"getent": "echo 10.0.0.1 STREAM n1", "python3": f'{ADDRESS_ANSWER}answer "$2" {said}{SERVER}'}
    done = bash("trap stop_server EXIT; choose_rendezvous >/dev/null; echo on", programs=programs)
    assert done.code == 78
    assert_error(done.err, slug, *values)


@pytest.mark.parametrize("port", ["abc", "0", "22", "1023", "70000", "a[$(touch executed)]", "-1"])
def test_invalid_master_port_is_refused_and_not_executed(bash, place, port):
    assert bash("choose_rendezvous", MASTER_ADDR="mine", MASTER_PORT=port)[0] == 78
    assert not (place / "executed").exists()


@pytest.mark.parametrize(
    ("given", "port", "answer"),
    [
        ("", "24711", 'answer "$2" "$3"'),
        ("port_is_given=1 MASTER_PORT=4; ", "4", 'answer "$2" "$3"'),
        # as published images do
        ("", "24711", 'printf "\n== CUDA ==\n\n4\n"; answer "$2" "$3"; echo 5'),
    ],
)
def test_choose_port_sets_given_or_free_port(bash, given, port, answer):
    code = f'{given}choose_port >/dev/null; echo "$MASTER_PORT"'
    assert bash(code, programs={"python3": ANSWER + answer}).out == f"{port}\n"


def test_no_free_port_on_first_node_is_reported(bash):
    assert_dies(bash("choose_port", programs={"python3": "exit 1"}), "no-free-port", "n1", code=1)


@pytest.mark.parametrize(
    "said", ["bye", "", "0", "65536", "123456", "nodes[$(touch executed)]", "1; touch executed", "5' '6"]
)
def test_choose_port_refuses_invalid_answer(said, bash, stub, tmp_path):
    stub("python3", ANSWER + f"answer \"$2\" '{said}'")
    code, out, _ = bash('choose_port || exit; echo "$((MASTER_PORT + 1))"')
    assert (code, out) == (1, "")
    assert bash('answer=("$1"); answer_is_port || echo no', said)[1] == "no\n"
    assert not [*tmp_path.rglob("executed")]


class TestHorovodServer:
    START = "MASTER_ADDR=x; start_horovod_server >/dev/null; stop_server; "
    OPEN = "BACKEND=horovod rendezvous=1 master_address_is_found=1 MASTER_ADDR=10.0.0.1; open_rendezvous >/dev/null; "
    ANSWERS = f'{ANSWER}answer "$2" 5555{SERVER}'
    PRINTS = "printf '\n== CUDA ==\n4\n'; head --bytes=100000 /dev/zero | tr '\\0' 4; "  # a pipe holds 64 KiB
    PORT = "$HOROVOD_GLOO_RENDEZVOUS_PORT"
    SECONDS = "$HOROVOD_GLOO_TIMEOUT_SECONDS"

    @pytest.mark.parametrize(
        ("code", "python", "out"),
        [
            (f'{OPEN}kill -0 "$server" && stop_server; ls "$log_dir"; echo {PORT}', ANSWERS, "5555\n"),
            ("open_rendezvous", "exit 1", ""),
            (f"{START}echo {SECONDS}", ANSWERS, "600\n"),  # Horovod's 30 s ended ranks that started later than others
            (f"export HOROVOD_GLOO_TIMEOUT_SECONDS=60; {START}echo {SECONDS}", ANSWERS, "60\n"),
            (f"{START}echo {PORT}", PRINTS + ANSWERS, "5555\n"),  # as an image's entry point does
        ],
    )
    def test_server_runs_until_stopped_and_exports_port(self, bash, code, python, out):
        assert bash(code, programs={"python3": python})[:2] == (0, out)

    @pytest.mark.parametrize(
        ("before", "python"),
        [
            ("", "exit 1"),
            ("", "echo 5555"),
            ("", f'{ANSWER}answer "$2" bye{SERVER}'),
            # one that never answers; 142: as `read -t` ends after a second
            ("seconds=0; read() { ((++seconds < 200)) && return 142; }; ", "exec sleep 600 >/dev/null 2>&1"),
        ],
    )
    def test_server_that_does_not_start_is_reported(self, bash, before, python):
        start = "trap stop_server EXIT; MASTER_ADDR=x; start_horovod_server >/dev/null; echo it waits for ever"
        ended = bash(before + start, programs={"python3": python})
        assert_dies(ended, "no-rendezvous", code=1)
        assert ended.out == ""
