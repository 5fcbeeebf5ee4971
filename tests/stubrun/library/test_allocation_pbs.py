"""What a job of PBS was given, by the record of the server: nodes, cores, GPUs, time."""

import shlex
import shutil
import time

import pytest

from bash_library import LIB, assert_dies
from messages import numbers, slugs


@pytest.fixture
def pbs(bash, place):
    """Return ``bash`` as a job of PBS on two nodes."""
    (place / "nodes").write_text("n1\nn1\nn2\n")
    env = {"PBS_JOBID": "4711.head", "PBS_NODEFILE": str(place / "nodes")}
    return lambda code, *words: bash(code, *words, scheduler="pbs", **env)


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        ("printf '    Resource_List.%s\\n' 'ncpus = 10' 'ngpus = 8' 'walltime = 01:00:00'", "5 4 8"),
        *[(broken, "8 2 4") for broken in ("exit 1", "exit 0", "echo x")],
    ],
)
def test_find_allocation(pbs, stub, said, plan):
    stub("qstat", said)
    show = 'find_allocation; echo "${nodes[@]} $nnodes $head_node $first_port $cpus $gpus_per_node $world_size"'
    assert pbs(show).out == f"n1 n2 2 n1 24711 {plan}\n"


# once: as many as the directives ask for, though the job was submitted without
@pytest.mark.parametrize(
    ("record", "gpus"),
    [
        (["exec_vnode = (n1:ncpus=8)+(n2:ncpus=8)", "Resource_List.ncpus = 16"], 0),
        (["exec_vnode = (n1:ngpus=4)+(n2:ngpus=4)"], 4),
        (["Resource_List.nodes = 2:ppn=8"], 0),  # Torque
        (["Resource_List.nodes = n1:ppn=8:gpus=3:shared+n2:gpus=3"], 3),
        ([], 2),  # of the directives: that says nothing
    ],
)
def test_gpus_of_a_job_are_what_its_record_says(pbs, stub, record, gpus):
    lines = ["exec_host = n1/0+n2/0", *record, "Resource_List.walltime = 01:00:00"]
    stub("qstat", f"printf '    %s\\n' {shlex.join(lines)}")
    found = pbs('find_allocation; echo "$gpus_per_node"')
    if gpus:
        assert found == (0, f"{gpus}\n", "")
    else:
        assert_dies(found, "no-gpu", "SLIPWAY_RANKS_PER_NODE")


# once: no word, and PBS killed the job before it had saved
@pytest.mark.parametrize(("limit", "said"), [("", ["no-time-limit"]), ("x", ["no-time-limit"]), ("3600", [])])
def test_a_time_limit_that_cannot_be_read_is_told(pbs, stub, limit, said):
    stub("qstat", f"echo '    queue = gpu'; echo '    Resource_List.walltime = {limit}'")
    code, _, err = pbs("find_allocation")
    assert (code, slugs(err)) == (0, said)


OPENPBS = "    exec_host = {}\n    exec_vnode = {}\n    Resource_List.ngpus = 4"


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (OPENPBS.format("n1/0*8+n2/0*8", "(n1:ncpus=8:ngpus=3:mem=9kb)+(n2:ncpus=8:ngpus=1)"), [1, 3]),
        (OPENPBS.format("n1/0+n1/1+n2/0", "(n1:ngpus=1)+(n1:ngpus=1)+(n2:ngpus=2)"), [2, 2]),  # two chunks a host
        (OPENPBS.format("n1/0+n2/0", "(n1[0]:ngpus=1+n1[1]:ngpus=1)+(n2[0]:ngpus=2)"), [2, 2]),  # vnodes
        (OPENPBS.format("n1/0+n2/0", "(n1:ncpus=8:ngpus=4)+(n2:ncpus=8)"), [0, 4]),
        (OPENPBS.format("n1/0+n2/0", "(n1:ngpus=4)"), []),  # nobody knows whose that is
        ("    exec_host = n1/0-3+n2/0-3\n    exec_gpus = n1-gpu/1+n1-gpu/0+n2-gpu/0", [1, 2]),  # Torque
        ("    exec_host = n1/0+n2/0\n    exec_gpus = n2-gpu/0", [0, 1]),
        ("    exec_host = n1/0+n2/0", []),
    ],
)
def test_gpus_of_nodes_of_pbs(bash, stub, place, said, counts):
    assert sorted(map(int, bash('gpus_of_nodes <<<"$1"', said, scheduler="pbs")[1].split())) == counts
    (place / "nodes").write_text("n1\nn2\n")
    stub("qstat", f"echo {shlex.quote(said)}")
    found = bash("find_allocation; echo yes", scheduler="pbs", PBS_JOBID="4711", PBS_NODEFILE=str(place / "nodes"))
    if len({*counts}) < 2:
        assert found[1] == "yes\n"
    else:
        assert_dies(found, "uneven-gpus")
        assert sorted(numbers(found[2])) == counts


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [("2:ppn=8:gpus=2", "2"), ("n1:gpus=1:ppn=4+n2:gpus=1", "1"), ("2:ppn=8", "0"), ("", "")],
)
def test_gpus_asked_for(bash, nodes, expected):
    line = f"    Resource_List.nodes = {nodes}" if nodes else "    Resource_List.ncpus = 8"
    assert bash('gpus_asked_for <<<"$1"', line, scheduler="pbs")[1].strip() == expected


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        ("share_of_node Resource_List.ncpus 7", "5"),
        ("share_of_node Resource_List.ngpus 7", "0"),
        ("share_of_node Resource_List.gone 7", "7"),
        ("job_field other", "3"),
    ],
)
def test_fields_of_the_record(bash, call, printed):
    record = "    Resource_List.ncpus = 10\n    Resource_List.ngpus = 0\n    other = 3"
    assert bash(f'{call} <<<"$1"', record, scheduler="pbs").out == f"{printed}\n"


def test_ask_for_job_of_a_server_that_hangs(bash, stub, tmp_path):
    stub("qstat", "exec sleep 600")
    copy = tmp_path / "lib"
    shutil.copytree(LIB, copy)
    text = (copy / "pbs.bash").read_text()
    (copy / "pbs.bash").write_text(text.replace("ANSWER_SECONDS=20", "ANSWER_SECONDS=1"))
    assert bash("ask_for_job || echo $?", scheduler="pbs", lib=copy, PBS_JOBID="1")[1] == "124\n"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *[(f"echo '    Resource_List.walltime = {limit}'", "no") for limit in ("01:00:00", "", "unlimited")],
        ("echo '    Resource_List.walltime = 00:02:10'", "yes"),
        ("exit 1", "no"),
    ],
)
def test_time_is_nearly_up_by_the_limit_of_the_server(bash, stub, said, expected):
    stub("qstat", said)
    nearly = "time_is_nearly_up && echo yes || echo no"
    assert bash(nearly, scheduler="pbs", PBS_JOBID="1").out == f"{expected}\n"


class TestTimeLeft:
    """Once: inside qsub -I a script took the job's whole time for its own, and PBS killed it without a save."""

    @pytest.fixture(params=["resources_used.walltime", "stime", "start_time"], autouse=True)
    def qstat(self, stub, request):
        said = "00:50:00" if request.param.startswith("resources") else time.ctime(time.time() - 3000)
        record = f"    Resource_List.walltime = 01:00:00\n    {request.param} = {said}"
        stub("qstat", f"echo {shlex.quote(record)}")

    @pytest.mark.parametrize("code", ["find_allocation", "SECONDS=3000; find_allocation; time_is_nearly_up || :"])
    def test_of_an_interactive_job(self, pbs, code):
        planned = 'time_left <<<"$job_record"; echo $((save_at - SECONDS))'
        left, save = map(int, pbs(f"interactive=1; {code}; {planned}").out.split())
        assert (550 < left <= 600, 550 - 140 < save <= 600 - 140) == (True, True)

    def test_too_short_for_a_save(self, pbs):
        assert_dies(pbs("interactive=1 save_seconds=600; find_allocation"), "time-too-short", "600")

    def test_a_batch_job_begins_with_its_script(self, pbs):
        """Whatever the server says of an earlier run of it."""
        assert 3550 < int(pbs('find_allocation; time_left <<<"$job_record"').out) <= 3600


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("    Resource_List.walltime = 01:00:00\n    stime = x", "3600\n"),
        ("    resources_used.walltime = 00:50:00", ""),
    ],
)
def test_time_left_by_a_record_that_says_little(bash, said, left):
    assert bash('SECONDS=0 interactive=1; time_left <<<"$1"', said, scheduler="pbs").out == left


# once: every 20 s, 180 times an hour
@pytest.mark.parametrize(
    ("moment", "ended"),
    [
        ((3600, 100, ""), "no 0 100"),  # until the next question
        ((3600, 200, "01:00:00"), "no 1 200"),
        ((300, 100, ""), "no 0 60"),  # until the time is up
        ((300, 160, "00:05:00"), "yes 1 1"),
        ((300, 160, "00:10:00"), "no 1 200"),  # an administrator has given it more
        ((300, 160, ""), "yes 1 1"),  # the server is silent: its last word holds
        ((3600, 210, "00:05:40"), "yes 1 1"),  # an administrator has taken some away
        (("", 100, ""), "no 0 100"),
        (("", 200, "00:05:00"), "yes 1 1"),
    ],
)
def test_the_server_is_asked_every_200_s_and_at_the_end(bash, stub, moment, ended):
    limit, now, said = moment
    stub("qstat", f"echo >>asked; echo '    Resource_List.walltime = {said}'")
    code = f"SECONDS=0; plan_save '{limit}'; SECONDS={now}; time_is_nearly_up && up=yes || up=no; "
    code += 'touch asked; echo "$up $(wc -l <asked) $pause"'
    assert bash(code, scheduler="pbs", PBS_JOBID="1")[1] == f"{ended}\n"


def test_watch_time_limit(bash, stub):
    assert bash("watch_time_limit") == bash("watch_time_limit", scheduler="local") == (0, "", "")
    stub("qstat", "echo '    Resource_List.walltime = 00:02:10'")
    wait = "trap 'echo warned; exit' USR1; watch_time_limit; while :; do sleep 0.05; done"
    assert bash(wait, scheduler="pbs", PBS_JOBID="1")[1] == "warned\n"
    stub("qstat", "echo '    Resource_List.walltime = 09:00:00'")
    began = time.monotonic()
    assert bash("watch_time_limit; sleep 0.3", scheduler="pbs", PBS_JOBID="1")[0] == 0
    assert time.monotonic() - began < 300  # it ends with the script


@pytest.mark.parametrize(("arguments", "words"), [("--a 'b  c' *", "<3><--a><b  c><*>"), ("", "<0>"), ("it's", None)])
def test_arguments_are_read_as_a_shell_reads_them(bash, arguments, words):
    read = 'SLIPWAY_ARGS=$1; read_arguments; printf "<%s>" "${#arguments[@]}" "${arguments[@]}"'
    code, out, _ = bash(read, arguments, scheduler="pbs")
    assert (code, out) == ((0, words) if words else (78, ""))
