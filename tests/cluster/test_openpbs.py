"""A real OpenPBS on the cluster: what it is, and what job scripts may count on.

`build/openpbs` compiles it; without that, or OPENPBS_SOURCE to do it from, all of this is skipped.
"""

import shlex
import sys
import time
from pathlib import Path

import pytest

from clusters import Cluster, OpenPbs

pytestmark = pytest.mark.prove  # the first one may have to compile it

BOTH_NODES = "#PBS -q gpu -j oe -l select=2:ncpus=8:ngpus=2:mpiprocs=2 -l place=scatter"
ONE_CORE = "#PBS -q cpu -j oe -l select=1:ncpus=1"
NODES = ("node1", "node2")


@pytest.fixture
def job(openpbs, users_folder):
    """Return a function that submits these lines as a script."""

    def job(*lines, arguments=(), **options):
        script = users_folder / "job.pbs"
        script.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
        return openpbs.submit(script, *arguments, out=users_folder / "run", **options)

    return job


def processes_of(user, cluster):
    """Return the processes that a user has on the nodes."""
    return [
        line
        for node in NODES
        for line in cluster.control("on", node, "ps", "-eo", "user,args").splitlines()
        if line.startswith(user)
    ]


@pytest.mark.parametrize("user", ["alice", "root"])
def test_a_job_has_both_nodes_and_its_settings(job, users_folder, user):
    arguments = ["--name", "it's a \"test\", isn't it?", "$HOME", "two\nlines"]
    running = job(
        BOTH_NODES,
        'cd "$PBS_O_WORKDIR" && id --user --name && pwd',
        'for node in $(sort --unique "$PBS_NODEFILE"); do ssh "$node" hostname; done',
        'printf \'%s\' "$SLIPWAY_ARGS" >"$PBS_JOBID.arguments"',
        arguments=arguments,
        user=user,
    )
    fields = running.wait(60)
    assert running.exit_code == 0, running.output
    assert running.output.splitlines() == [user, str(users_folder), *NODES]
    assert running.log == users_folder / f"job.pbs.o{running.number.removesuffix('.head')}"
    assert fields["Resource_List.ngpus"] == "4"
    assert shlex.split((users_folder / f"{running.number}.arguments").read_text()) == arguments


def test_mpirun_starts_a_process_on_each_node(job, openpbs):
    mpirun = Path(sys.executable).with_name("mpirun")
    readable = f"test -x {shlex.quote(str(mpirun))} && echo yes || :"
    if openpbs.cluster.run("sh", "-c", readable, CLUSTER_AS="alice") != "yes\n":
        pytest.skip(f"alice cannot reach {mpirun}: clone to a folder that all users can enter")
    running = job(
        BOTH_NODES,
        f'{shlex.quote(str(mpirun))} --hostfile "$PBS_NODEFILE" --map-by ppr:1:node'
        " sh -c 'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)'",
    )
    running.wait(60)
    assert running.exit_code == 0, running.output
    assert sorted(running.output.splitlines()) == ["0 of 2 on node1", "1 of 2 on node2"]


def test_the_jobs_of_an_array_have_numbers_in_brackets(job, openpbs):
    array = job(ONE_CORE, 'echo "$PBS_JOBID $PBS_ARRAY_INDEX"', qsub=("-J", "1-2"))
    assert array.number.endswith("[].head")
    array.wait(60)
    for index in ("1", "2"):
        number = array.number.replace("[]", f"[{index}]")
        assert openpbs.job(number).output == f"{number} {index}\n"


def test_what_it_refuses_of_arrays(job):
    """So ``jobgen sweep`` submits a single trial as an ordinary job, arrays with -r y, and chained jobs just wait."""
    array = job(ONE_CORE, "sleep 5", qsub=("-J", "0-1"))
    task = array.number.replace("[]", "[1]")
    for options, said in (
        (("-J", "0-0"), "illegal -J value"),
        (("-r", "n", "-J", "0-1"), "cannot submit non-rerunable Array Job"),
        (("-W", f"depend=afterany:{task}"), "cannot have dependancy on subjob or range"),
    ):
        with pytest.raises(AssertionError, match=said):
            job(ONE_CORE, "true", qsub=options)
    array.wait(60)


def test_an_array_has_a_limit_of_tasks_at_once(job, openpbs):
    array = job(ONE_CORE, 'cd "$PBS_O_WORKDIR"', "date +%s.%N; sleep 2; date +%s.%N", qsub=("-J", "0-3%2"))
    array.wait(90)
    times = [openpbs.job(array.number.replace("[]", f"[{index}]")).output.split() for index in range(4)]
    for begun, _ in times:
        assert sum(began <= begun < ended for began, ended in times) <= 2


def test_a_job_submits_another(job, openpbs):
    first = job(
        ONE_CORE,
        'cd "$PBS_O_WORKDIR"',
        'if [ "$STEP" = 1 ]; then STEP=2 qsub -V job.pbs; else echo "step $STEP"; fi',
        STEP="1",
    )
    first.wait(60)
    assert first.exit_code == 0, first.output
    second = openpbs.job(first.output.strip())
    second.wait(60)
    assert second.output == "step 2\n"


SAVE = "trap 'echo saving; sleep 3; echo saved; exit 7' TERM USR1"
WAIT = ("sleep 600 & echo ready", "wait")


def test_the_output_is_seen_while_it_runs_and_qdel_sends_term(job, openpbs):
    running = job(ONE_CORE, SAVE, *WAIT)
    running.until("ready", limit=30)
    assert running.state == "R"
    openpbs.run("qdel", running.number)
    running.wait(20)
    assert running.output.splitlines()[-1] == "saved"
    assert running.exit_code == 256 + 15  # whatever the script itself ends with
    assert processes_of("alice", openpbs.cluster) == []


def test_qsig_ends_the_login_shell_and_with_it_the_script_in_its_trap(job, openpbs):
    running = job(ONE_CORE, SAVE, *WAIT)
    running.until("ready", limit=30)
    openpbs.run("qsig", "-s", "USR1", running.number)
    running.wait(20)
    assert "saved" not in running.output
    assert running.exit_code == 256 + 10


def test_kill_follows_term_after_ten_seconds(job, openpbs):
    running = job(ONE_CORE, "trap '' TERM", "echo ready", "for _ in {1..600}; do sleep 0.1; done")
    running.until("ready", limit=30)
    openpbs.run("qdel", running.number)
    began = time.monotonic()
    running.wait(30)
    assert 8 < time.monotonic() - began < 16
    assert processes_of("alice", openpbs.cluster) == []


def test_the_time_limit_is_a_term_too(job):
    running = job(ONE_CORE, SAVE, *WAIT, qsub=("-l", "walltime=3"))
    running.wait(30)
    assert running.output.splitlines()[-1] == "saved"
    assert running.exit_code == -29
    assert running.fields["comment"].endswith("exceeded resource walltime")


def test_a_node_comes_back_and_nothing_is_left_behind(tmp_path_factory, openpbs_prefix):
    on_machine = [Path(path) for path in ("/etc/pbs.conf", "/opt/pbs", "/var/spool/pbs")]
    before = [path.exists() for path in on_machine]
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder, folder)
    try:
        pbs = OpenPbs(cluster, openpbs_prefix)
        cluster.control("kill", "node2")
        cluster.control("boot", "node2")
        pbs.control("boot", openpbs_prefix, "node2")
        deadline = time.monotonic() + 30
        while pbs.run("pbsnodes", "-a").count("state = free") < len(NODES):
            assert time.monotonic() < deadline, pbs.run("pbsnodes", "-a")
            time.sleep(0.5)
        numbers = [(folder / "run" / f"{node}.pid").read_text().strip() for node in ("head", *NODES)]
        nodes = {Path(f"/proc/{number}/ns/pid").readlink() for number in numbers}
        assert {"pbs_server.bin", "pbs_sched", "pbs_comm", "pbs_mom", "postgres"} <= set(programs_in(nodes))
    finally:
        cluster.close()
    assert programs_in(nodes) == []
    assert [path.exists() for path in on_machine] == before


def programs_in(namespaces):
    """Return the names of the programs that run in these PID namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "pid").readlink() in namespaces:
                found.append((process / "comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return found
