"""Where the ranks of a job meet: the address and port of the head node, and Horovod's server."""

import re

import pytest

from bash_library import ADDRESS_ANSWER, ANSWER, assert_dies
from messages import assert_error

SERVER = "; echo; exec sleep 600 >/dev/null 2>&1"
"""A helper that has answered, and serves until it is ended."""


class TestAddress:
    SHOW = """choose_rendezvous >/dev/null; end_server; echo "$MASTER_ADDR ${TRAINER_MEETING-none}" """

    @pytest.fixture(autouse=True)
    def programs(self, stub):
        stub("getent", "echo '10.0.0.1 STREAM n1'; echo '10.0.0.1 DGRAM'; echo 10.0.0.2 STREAM")
        stub("python3", f'{ADDRESS_ANSWER}answer "$2" address "$7" "$4"{SERVER}')

    @pytest.mark.parametrize(
        ("env", "meeting", "asked"),
        [
            ({}, "10.0.0.1 24711", "T 24711 2000  10.0.0.1 10.0.0.2"),
            ({"MASTER_PORT": "1024"}, "10.0.0.1 1024", "T 1024 1  10.0.0.1 10.0.0.2"),
            ({"MASTER_ADDR": "head-ib0"}, "head-ib0 24711", "T 24711 2000 head-ib0 head-ib0"),
        ],
    )
    def test_it_is_chosen_on_the_head_node_unless_it_is_set(self, bash, tmp_path, env, meeting, asked):
        assert re.fullmatch(f"{meeting} [0-9a-f]{{16}}\n", bash(self.SHOW, **env).out)
        assert re.sub("[0-9a-f]{16}", "T", (tmp_path / "asked").read_text()) == f"{asked}\n"

    def test_on_one_node_nobody_asks(self, bash, stub, tmp_path):
        assert bash(f"nnodes=1; {self.SHOW}").out == "10.0.0.1 none\n"
        assert not (tmp_path / "asked").exists()
        stub("getent", "echo '127.0.1.1 STREAM n1'")
        assert bash(f"nnodes=1; {self.SHOW}").out == "127.0.1.1 none\n"

    @pytest.mark.parametrize(
        ("found", "values"), [("echo '127.0.1.1 STREAM n1'", ["127.0.1.1"]), ("exit 2", []), ("exit 0", [])]
    )
    def test_a_head_node_that_has_none(self, bash, stub, found, values):
        stub("getent", found)
        assert_dies(bash("choose_rendezvous"), "no-master-address", "n1", "MASTER_ADDR", *values)

    @pytest.mark.parametrize(
        ("said", "slug"),
        [
            ("none '10.0.0.1 is of virbr0'", "no-master-address"),
            ("taken", "no-free-port"),
            ("address 10.0.0.9 24711", "no-master-address"),
            ("address 10.0.0.1 bye", "no-master-address"),
            ("address 10.0.0.1", "no-master-address"),
            ("", "no-master-address"),
        ],
    )
    def test_an_answer_that_is_no_address(self, bash, stub, said, slug):
        stub("python3", f'{ADDRESS_ANSWER}answer "$2" {said}{SERVER}')
        code, _, err = bash("trap end_server EXIT; choose_rendezvous >/dev/null; echo on")
        assert code == 78
        assert_error(err, slug, "n1" if slug != "no-free-port" else "24711", "MASTER_ADDR" if " " in said else "")

    @pytest.mark.parametrize("call", ["export_meeting x y", "choose_address 127.0.0.1 ::1"])
    def test_addresses_of_which_none_can_be_reached(self, bash, call):
        assert_dies(bash(call), "no-master-address", "n1", "MASTER_ADDR")

    def test_without_one_a_restart_is_another_death(self, bash):
        assert_dies(bash("no_master why"), "no-master-address", "why")
        code, out, err = bash("restarts=1; no_master why || echo on")
        assert (code, out) == (0, "on\n")
        assert_error(err, "no-master-address", "why")

    @pytest.mark.parametrize(("given", "found"), [("", "10.0.0.1"), ("10.0.0.8", "10.0.0.8")])
    def test_a_restart_looks_for_it_again_unless_it_was_set(self, bash, stub, given, found):
        stub("python3", f'{ADDRESS_ANSWER}answer "$2" address "$7"')
        assert bash(f"given_address={given}; find_master; echo $MASTER_ADDR").out == f"{found}\n"


@pytest.mark.parametrize("port", ["abc", "0", "22", "1023", "70000", "a[$(touch executed)]", "-1"])
def test_a_port_of_the_users_is_checked(bash, place, port):
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
def test_choose_port(bash, stub, given, port, answer):
    stub("python3", ANSWER + answer)
    assert bash(f'{given}choose_port 24711 >/dev/null; echo "$MASTER_PORT"').out == f"{port}\n"


def test_a_head_node_without_a_free_port(bash, stub):
    stub("python3", "exit 1")
    assert_dies(bash("choose_port 24711"), "no-free-port", "n1", code=1)


@pytest.mark.parametrize(
    "said", ["bye", "", "0", "65536", "123456", "nodes[$(touch executed)]", "1; touch executed", "5' '6"]
)
def test_choose_port_refuses_what_is_no_port(said, bash, stub, tmp_path):
    stub("python3", ANSWER + f"answer \"$2\" '{said}'")
    code, out, _ = bash('choose_port 24711 || exit; echo "$((MASTER_PORT + 1))"')
    assert (code, out) == (1, "")
    assert bash('answer=("$1"); answer_is_port || echo no', said)[1] == "no\n"
    assert not [*tmp_path.rglob("executed")]


class TestHorovodServer:
    START = "MASTER_ADDR=x; start_horovod_server >/dev/null; end_server; "

    def test_it_serves_until_it_is_ended(self, bash, stub):
        stub("python3", f'{ANSWER}answer "$2" 5555{SERVER}')
        code = "BACKEND=horovod rendezvous=1 master_is_found=1 MASTER_ADDR=10.0.0.1; open_rendezvous >/dev/null"
        code += '; echo "$HOROVOD_GLOO_RENDEZVOUS_PORT"; kill -0 "$server" && end_server; ls "$log_dir"'
        assert bash(code)[:2] == (0, "5555\n")
        assert bash("open_rendezvous") == (0, "", "")

    @pytest.mark.parametrize(("env", "seconds"), [({}, 600), ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}, 60)])
    def test_ranks_wait_for_each_other(self, bash, stub, env, seconds):
        """Horovod's 30 s ended ranks that started later than others."""
        stub("python3", f'{ANSWER}answer "$2" 5555{SERVER}')
        assert bash(f'{self.START}echo "$HOROVOD_GLOO_TIMEOUT_SECONDS"', **env).out == f"{seconds}\n"

    def test_what_an_entry_point_prints_is_no_answer(self, bash, stub):
        printed = "printf '\n== CUDA ==\n4\n'; head --bytes=100000 /dev/zero | tr '\\0' 4; "  # a pipe holds 64 KiB
        stub("python3", f'{printed}{ANSWER}answer "$2" 5555{SERVER}')
        assert bash(f'{self.START}echo "$HOROVOD_GLOO_RENDEZVOUS_PORT"').out == "5555\n"

    @pytest.mark.parametrize("program", ["exit 1", "echo 5555", f'{ANSWER}answer "$2" bye{SERVER}'])
    def test_one_that_does_not_start(self, bash, stub, program):
        stub("python3", program)
        ended = bash("MASTER_ADDR=x; start_horovod_server >/dev/null || { end_server; exit 1; }")
        assert_dies(ended, "no-rendezvous", code=1)

    def test_one_that_never_answers(self, bash, stub):
        stub("python3", "exec sleep 600 >/dev/null 2>&1")
        # 142: as `read -t` ends after a second
        silent = "seconds=0; read() { ((++seconds < 200)) && return 142; }; MASTER_ADDR=x; start_horovod_server"
        ended = bash(f"trap end_server EXIT; {silent}; echo it waits for ever")
        assert_dies(ended, "no-rendezvous", code=1)
        assert ended.out == ""
