"""Resources of a PBS job by the server's record: nodes, cores, GPUs, time."""

import shlex
import shutil
import time

import pytest

from bash_library import LIB, assert_dies, assert_ended
from messages import numbers, slugs


@pytest.fixture
def pbs(bash, place):
    """Return a function that runs Bash as a PBS job on two nodes with this server record."""
    (place / "nodes").write_text("n1\nn1\nn2\n")
    env = {"PBS_JOBID": "4711.head", "PBS_NODEFILE": str(place / "nodes"), "scheduler": "pbs"}
    return lambda code, said, *words: bash(code, *words, programs={"qstat": said}, **env)


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        ("printf '    Resource_List.%s\\n' 'ncpus = 10' 'ngpus = 8' 'walltime = 01:00:00'", "5 4 8"),
        *[(broken, "8 2 4") for broken in ("exit 1", "exit 0", "echo x")],
    ],
)
def test_find_allocation_from_qstat_or_directives(pbs, said, plan):
    show = 'find_allocation; echo "${nodes[@]} $nnodes $head_node $first_port $cpus $gpus_per_node $world_size"'
    assert pbs(show, said).out == f"n1 n2 2 n1 24711 {plan}\n"


# regression: the number in the directives, although the job was submitted without
@pytest.mark.parametrize(
    ("record", "gpus"),
    [
        (["exec_vnode = (n1:ncpus=8)+(n2:ncpus=8)", "Resource_List.ncpus = 16"], 0),
        (["exec_vnode = (n1:ngpus=4)+(n2:ngpus=4)"], 4),
        (["Resource_List.nodes = 2:ppn=8"], 0),  # Torque
        (["Resource_List.nodes = n1:ppn=8:gpus=3:shared+n2:gpus=3"], 3),
        ([], 2),  # from the directives, which are no evidence
    ],
)
def test_gpu_count_is_read_from_job_record(pbs, record, gpus):
    lines = ["exec_host = n1/0+n2/0", *record, "Resource_List.walltime = 01:00:00"]
    found = pbs('find_allocation; echo "$gpus_per_node"', f"printf '    %s\\n' {shlex.join(lines)}")
    assert_ended(found, "" if gpus else "no-gpu", "SLIPWAY_RANKS_PER_NODE", out=f"{gpus}\n")


# regression: no message, and PBS killed the job before it had saved
@pytest.mark.parametrize(("limit", "said"), [("", ["no-time-limit"]), ("x", ["no-time-limit"]), ("3600", [])])
def test_unreadable_walltime_gives_warning(pbs, limit, said):
    code, _, err = pbs("find_allocation", f"echo '    queue = gpu'; echo '    Resource_List.walltime = {limit}'")
    assert (code, slugs(err)) == (0, said)


OPENPBS = "    exec_host = {}\n    exec_vnode = {}\n    Resource_List.ngpus = 4"


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (OPENPBS.format("n1/0*8+n2/0*8", "(n1:ncpus=8:ngpus=3:mem=9kb)+(n2:ncpus=8:ngpus=1)"), [1, 3]),
        (OPENPBS.format("n1/0+n1/1+n2/0", "(n1:ngpus=1)+(n1:ngpus=1)+(n2:ngpus=2)"), [2, 2]),  # two chunks per host
        (OPENPBS.format("n1/0+n2/0", "(n1[0]:ngpus=1+n1[1]:ngpus=1)+(n2[0]:ngpus=2)"), [2, 2]),  # vnodes
        (OPENPBS.format("n1/0+n2/0", "(n1:ncpus=8:ngpus=4)+(n2:ncpus=8)"), [0, 4]),
        (OPENPBS.format("n1/0+n2/0", "(n1:ngpus=4)"), []),  # nobody knows whose that is
        ("    exec_host = n1/0-3+n2/0-3\n    exec_gpus = n1-gpu/1+n1-gpu/0+n2-gpu/0", [1, 2]),  # Torque
        ("    exec_host = n1/0+n2/0\n    exec_gpus = n2-gpu/0", [0, 1]),
        ("    exec_host = n1/0+n2/0", []),
    ],
)
def test_gpus_of_nodes_are_parsed_and_uneven_gpus_refused(pbs, said, counts):
    found = pbs('gpus_of_nodes <<<"$1"', "exit 1", said).out
    assert sorted(map(int, found.split())) == counts
    found = pbs("find_allocation; echo yes", f"echo {shlex.quote(said)}")
    uneven = len({*counts}) > 1
    assert_ended(found._replace(err=found.err if uneven else ""), "uneven-gpus" * uneven, out="yes\n")
    assert not uneven or sorted(numbers(found.err)) == counts


RECORD = "    Resource_List.ncpus = 10\n    Resource_List.ngpus = 0\n    other = 3"
LIMIT = "    Resource_List.walltime = 01:00:00\n    stime = x"


@pytest.mark.parametrize(
    ("call", "record", "printed"),
    [
        ("requested_gpus", "    Resource_List.nodes = 2:ppn=8:gpus=2", "2"),
        ("requested_gpus", "    Resource_List.nodes = n1:gpus=1:ppn=4+n2:gpus=1", "1"),
        ("requested_gpus", "    Resource_List.nodes = 2:ppn=8", "0"),
        ("requested_gpus", "    Resource_List.ncpus = 8", ""),
        ("share_of_node Resource_List.ncpus 7", RECORD, "5"),
        ("share_of_node Resource_List.ngpus 7", RECORD, "0"),
        ("share_of_node Resource_List.gone 7", RECORD, "7"),
        ("job_field other", RECORD, "3"),
        ("SECONDS=0 interactive=1; time_left", LIMIT, "3600"),
        ("SECONDS=0 interactive=1; time_left", "    resources_used.walltime = 00:50:00", ""),
    ],
)
def test_job_record_fields_are_parsed(bash, call, record, printed):
    assert bash(f'{call} <<<"$1"', record, scheduler="pbs").out.strip() == printed


def test_hung_qstat_is_killed_at_timeout(bash, tmp_path):
    shutil.copytree(LIB, tmp_path / "lib")
    text = (LIB / "pbs.bash").read_text().replace("ANSWER_SECONDS=20", "ANSWER_SECONDS=1")
    (tmp_path / "lib" / "pbs.bash").write_text(text)
    hangs = {"qstat": "exec sleep 600"}
    assert bash("query_job", scheduler="pbs", lib=tmp_path / "lib", PBS_JOBID="1", programs=hangs).code == 124


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *[(f"echo '    Resource_List.walltime = {limit}'", "no") for limit in ("01:00:00", "", "unlimited")],
        ("echo '    Resource_List.walltime = 00:02:10'", "yes"),
        ("exit 1", "no"),
    ],
)
def test_time_is_nearly_up_uses_walltime_of_server(pbs, said, expected):
    assert pbs("time_is_nearly_up && echo yes || echo no", said).out == f"{expected}\n"


# regression: inside qsub -I a script counted the whole time of the job as its own; PBS killed it without a save
@pytest.mark.parametrize("began", ["resources_used.walltime", "stime", "start_time"])
class TestTimeLeft:
    @pytest.fixture
    def said(self, began):
        since = "00:50:00" if began.startswith("resources") else time.ctime(time.time() - 3000)
        return f"printf '    %s\\n' 'Resource_List.walltime = 01:00:00' '{began} = {since}'"

    @pytest.mark.parametrize("code", ["find_allocation", "SECONDS=3000; find_allocation; time_is_nearly_up || :"])
    def test_interactive_job_counts_time_from_job_start(self, pbs, said, code):
        planned = 'time_left <<<"$job_record"; echo $((save_at - SECONDS))'
        left, save = map(int, pbs(f"interactive=1; {code}; {planned}", said).out.split())
        assert (550 < left <= 600, 550 - 140 < save <= 600 - 140) == (True, True)

    def test_time_left_too_short_for_save_is_refused(self, pbs, said):
        assert_dies(pbs("interactive=1 save_seconds=600; find_allocation", said), "time-too-short", "600")

    def test_batch_job_counts_time_from_script_start(self, pbs, said):
        """Whatever the server reports of an earlier run of it."""
        assert 3550 < int(pbs('find_allocation; time_left <<<"$job_record"', said).out) <= 3600


# regression: every 20 s, 180 times an hour
@pytest.mark.parametrize(
    ("moment", "ended"),
    [
        ((3600, 100, ""), "no 0 100"),  # until the next query
        ((3600, 200, "01:00:00"), "no 1 200"),
        ((300, 100, ""), "no 0 60"),  # until the time is up
        ((300, 160, "00:05:00"), "yes 1 1"),
        ((300, 160, "00:10:00"), "no 1 200"),  # an administrator has extended it
        ((300, 160, ""), "yes 1 1"),  # the server is silent: its last answer holds
        ((3600, 210, "00:05:40"), "yes 1 1"),  # an administrator has shortened it
        (("", 100, ""), "no 0 100"),
        (("", 200, "00:05:00"), "yes 1 1"),
    ],
)
def test_walltime_is_queried_every_200_s_and_at_deadline(pbs, moment, ended):
    limit, now, said = moment
    code = f"SECONDS=0; plan_save '{limit}'; SECONDS={now}; time_is_nearly_up && up=yes || up=no; "
    code += 'touch asked; echo "$up $(wc -l <asked) $pause"'
    assert pbs(code, f"echo >>asked; echo '    Resource_List.walltime = {said}'").out == f"{ended}\n"


@pytest.mark.parametrize(
    ("scheduler", "limit", "out"),
    [
        ("slurm", "", "ended\n"),
        ("local", "", "ended\n"),
        ("pbs", "09:00:00", "ended\n"),
        ("pbs", "00:02:10", "warned\n"),
    ],
)
def test_time_limit_watcher_signals_only_pbs_script_near_limit(bash, scheduler, limit, out):
    code = "trap 'echo warned; exit' USR1; watch_time_limit; for i in {1..40}; do sleep 0.05; done; echo ended"
    qstat = {"qstat": f"echo '    Resource_List.walltime = {limit}'"}
    assert bash(code, scheduler=scheduler, PBS_JOBID="1", programs=qstat)[:2] == (0, out)


@pytest.mark.parametrize(
    ("arguments", "ended"), [("--a 'b  c' *", (0, "<3><--a><b  c><*>")), ("", (0, "<0>")), ("it's", (78, ""))]
)
def test_slipway_args_are_split_with_shell_quoting(bash, arguments, ended):
    read = 'SLIPWAY_ARGS=$1; read_arguments; printf "<%s>" "${#arguments[@]}" "${arguments[@]}"'
    assert bash(read, arguments, scheduler="pbs")[:2] == ended
