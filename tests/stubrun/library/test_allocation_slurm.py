"""Resources of a Slurm job: nodes, cores, GPUs; and a script inside salloc."""

import pytest

from bash_library import SRUN, assert_dies, assert_ended
from messages import numbers, slugs

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),6"}


@pytest.fixture(autouse=True)
def scontrol(stub):
    stub("scontrol", "printf '%s\\n' n1 n2")


@pytest.mark.parametrize(
    ("settings", "env", "plan"),
    [
        ("", {"SLURM_GPUS_ON_NODE": "4"}, "4 8"),
        ("", {"SLURM_JOB_GPUS": "0,1,5"}, "3 6"),
        ("SLIPWAY_RANKS_PER_NODE=1; ", {}, "0 2"),
    ],
)
def test_find_allocation_from_slurm_variables(bash, settings, env, plan):
    show = 'find_allocation; echo "${nodes[@]} $nnodes $head_node $cpus $first_port $gpus_per_node $world_size"'
    assert bash(settings + show, **env, **SLURM).out == f"n1 n2 2 n1 6 24711 {plan}\n"


@pytest.mark.parametrize("broken", ["exit 1", "exit 0"])
def test_missing_hostnames_from_scontrol_are_refused(bash, broken):
    found = bash("find_allocation", programs={"scontrol": broken}, **SLURM)
    assert_dies(found, "no-nodes", "scontrol", "n[1-2]", lines=2)


# regression: a job submitted from inside one was refused, too
@pytest.mark.parametrize(("number", "refused"), [("4711", True), ("4700", False)])
def test_heterogeneous_job_is_refused_but_not_its_child_jobs(bash, number, refused):
    env = {"SLURM_HET_SIZE": "3", "SLURM_JOB_ID_HET_GROUP_0": number, "SLURM_GPUS_ON_NODE": "4"}
    found = bash("find_allocation", **env, **SLURM)
    assert slugs(found.err) == ["scheduler-silent", *["heterogeneous-job"] * refused]
    assert found.code == 78 * refused


class TestInsideSalloc:
    SHOW = 'interactive=1 run_mark=ab; find_allocation; echo "$gpus_per_node ${#on_head_node[@]} ${srun_options[*]}"'

    @pytest.mark.parametrize(
        ("env", "program", "shown"),
        [
            ({}, SRUN, "3 11 "),
            ({}, f"echo of TaskProlog; echo 9; export SLURM_GPUS_ON_NODE=3; {SRUN}; echo 8", "3 11 "),
            ({"SLURM_GPUS_ON_NODE": "4"}, SRUN, "3 11 "),  # of the job in which salloc was started
            ({"SLURM_GPUS_ON_NODE": "4", "SLURMD_NODENAME": "n1"}, SRUN, "4 0 "),
        ],
    )
    def test_gpus_are_counted_on_first_node(self, bash, env, program, shown):
        options = "--export=ALL --job-name=slipway-step-ab --mem=0 --overlap\n"
        srun = {"srun": f"export SLURM_GPUS_ON_NODE=3; {program}"}
        assert bash(self.SHOW, programs=srun, **env, **SLURM)[:2] == (0, shown + options)

    def test_interactive_job_uses_gpus_of_one_task_on_first_node(self, bash):
        srun = {"srun": f'echo "$*" >>asked; export SLURM_GPUS_ON_NODE=3; {SRUN}'}
        words = bash(f"({self.SHOW}) >/dev/null; cat asked", programs=srun, **SLURM).out.partition(" sh -c ")[0].split()
        assert {"--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--nodelist=n1"} <= {*words}

    @pytest.mark.parametrize("broken", ["exit 1", "echo of TaskProlog", "echo 'slipway-gpus nodes[$(id)]'"])
    def test_first_node_without_gpu_count_answer_is_refused(self, bash, broken):
        assert_dies(bash(self.SHOW, programs={"srun": broken}, **SLURM), "node-not-ready", "n1", lines=2)

    def test_batch_job_queries_no_node(self, bash):
        code, _, err = bash("find_allocation; set_up_interactive_job", **SLURM, SLURM_JOB_GPUS="0")
        assert (code, slugs(err)) == (0, ["scheduler-silent"])


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_signal_in_interactive_job_stops_run_without_requeue(bash, place, scheduler):
    code, out, err = bash("interactive=1; handle_stop_signal; resubmit requeue || echo no", scheduler=scheduler)
    assert (code, out, slugs(err)) == (0, "no\n", ["no-requeue"])
    assert (place / "run" / "STOP").read_text() == "user\n"


@pytest.mark.parametrize(
    ("record", "gpus", "option"),
    [
        ("Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1)", 2, "--gres=gpu:2"),
        ("TRES=cpu=16,node=2,gres/gpu=4", 2, "--gres=gpu:2"),
        ("TresPerTask=gres:gpu:1", 2, "--gres=gpu:2"),
        ("Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=shard:2(0/8)", 2, ""),  # not a whole one
        ("Partition=gpu Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=", 0, ""),  # they belong to another job
        ("", 2, ""),  # no answer
    ],
)
def test_gpu_count_and_gres_option_follow_slurm_record(bash, record, gpus, option):
    show = "SLIPWAY_RANKS_PER_NODE=1; find_allocation; unset_inherited_slurm_variables; find_gpu_options; "
    show += 'echo "$gpus_per_node ${gpu_options[*]}"'
    env = {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1", "slurm_record": record and f"JobId=4711 {record}"}
    assert bash(show, **env, **SLURM)[1] == f"{gpus} {option}\n"


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        (["Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:1)"], [3]),
        (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:2-3)"], [2, 2]),
        (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)"], [2, 1]),
        (["Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1g.5gb:2(IDX:0-1)", "Nodes=n2 CPU_IDs=0 Mem=0 GRES="], [2, 0]),
        (["NumNodes=2 GRES=gpu:9", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(0/8),craynetwork:1"], [0]),
        (["NodeList=n[1-2]"], []),
    ],
)
def test_gpus_of_nodes_are_parsed_and_uneven_gpus_refused(bash, lines, counts):
    record = "\n   ".join(["JobId=4711 JobName=ddp", *lines])
    assert [*map(int, bash("gpus_of_nodes", slurm_record=record)[1].split())] == counts
    found = bash("SLIPWAY_RANKS_PER_NODE=2; find_allocation; echo yes", slurm_record=record, **SLURM)
    uneven = len({*counts}) > 1
    assert_ended(found._replace(err=found.err if uneven else ""), "uneven-gpus" * uneven, out="yes\n")
    assert not uneven or numbers(found.err) == counts


# regression: if Slurm has no GPU configuration, the job lost its choice of GPUs
@pytest.mark.parametrize(
    ("device", "given", "out", "said"),
    [
        ("auto", "", "2,3 ", ["kept-variable"]),
        ("cpu", "", "2,3 ", []),
        ("auto", "gpu:1(IDX:0)", "2,3 0", []),
        ("cpu", "gpu:1(IDX:0)", "2,3 0", []),
    ],
)
def test_user_set_cuda_visible_devices_is_kept(bash, device, given, out, said):
    env = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "0"}
    record = f"JobId=4711 Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES={given}"
    show = (
        f'SLIPWAY_DEVICE={device}; unset_inherited_slurm_variables; echo "$CUDA_VISIBLE_DEVICES ${{SLURM_JOB_GPUS-}}"'
    )
    done = bash(show, slurm_record=record, **env)
    assert (done.code, done.out, slugs(done.err)) == (0, f"{out}\n", said)


# Slurm refuses a step that requests more GPUs than a node has
@pytest.mark.parametrize(
    ("device", "least", "options"), [("cuda", "gpu:1(IDX:0)", "--gres=gpu:1"), ("cpu", "", "--gres=none")]
)
def test_steps_request_gpus_of_smallest_node(bash, device, least, options):
    lines = ["JobId=4711", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", f"Nodes=n2 CPU_IDs=0 Mem=0 GRES={least}"]
    record = "\n   ".join(lines)
    run = f'SLIPWAY_RANKS_PER_NODE=1 SLIPWAY_DEVICE={device}; find_allocation; echo "${{gpu_options[@]}}"'
    assert bash(run, slurm_record=record, **SLURM)[:2] == (0, f"{options}\n")


@pytest.mark.parametrize(
    ("before", "restarts", "refused"),
    [("", "1", False), ("mkdir -p runs/ddp-90_3; touch runs/ddp-90_3/job.sh; ", "1", True),
     ("mkdir -p runs/ddp-90_3; touch runs/ddp-90_3/job.sh; ", "", False)],
)  # fmt: skip
def test_requeued_array_task_unknown_to_slurm_starts_no_second_run(bash, before, restarts, refused):
    """If it has begun a run, it begins no other."""
    task = {"SLURM_RESTART_COUNT": restarts, "SLURM_ARRAY_JOB_ID": "90", "SLURM_ARRAY_TASK_ID": "3"}
    done = bash(f"{before}run_dir=$PWD/runs/ddp-4711; refuse_lost_task", **task)
    assert_ended(done, "scheduler-silent" * refused, "/runs/ddp-90_3/job.sh")
