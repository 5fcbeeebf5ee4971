"""Every error and warning that a user can get, by its slug: exit code, when it occurs, and what to do.

The sentence that a program prints stands where it is raised. docs/errors.md is generated from this table, `jobgen
explain SLUG` prints an entry, and jobscripts/lib/errors.bash holds the exit codes for job scripts. This file needs no
torch, and Python 3.9.
"""

from typing import Dict, NamedTuple, Optional

from slipway.base.contract import EXIT_CONFIG, EXIT_STOPPED, EXIT_USAGE

EXIT_FAILED = 1
"""Exit code of an error that no rule tells more about."""
WARNING = None
"""In place of an exit code: the program continues."""


class Message(NamedTuple):
    """What a slug stands for."""

    exit_code: Optional[int]
    """Of the program that ends with it; None if it is only a warning. Some errors are warnings, too."""
    when: str
    """When it occurs."""
    remedy: str
    """What to do about it."""

    @property
    def outcome(self) -> str:
        """What becomes of the program, as a sentence."""
        return "A warning: the program continues." if self.exit_code is None else f"Exit code {self.exit_code}."


GROUPS: Dict[str, Dict[str, Message]] = {
    "Command lines": {
        "bad-arguments": Message(
            EXIT_USAGE,
            "A command line cannot be parsed.",
            "Compare it with the usage line, or `COMMAND --help`.",
        ),
        "unknown-command": Message(
            EXIT_USAGE,
            "The first word of a `trainer` command line is neither a command nor a configuration file.",
            "Check the spelling and the path; `trainer --help` lists the commands.",
        ),
        "unknown-flag": Message(
            EXIT_USAGE,
            "A command has no such flag.",
            "Check the spelling: the error names the nearest flag. `--help` lists all.",
        ),
        "unexpected-argument": Message(
            EXIT_USAGE,
            "An argument belongs to no flag, or is one too many.",
            "Put the value after its flag, quote a value that contains blanks, or leave it out.",
        ),
        "missing-argument": Message(
            EXIT_USAGE,
            "A command needs one more argument or flag.",
            "Add what the error names.",
        ),
        "bad-flag-value": Message(
            EXIT_USAGE,
            "The value of a flag is missing, or not one that the flag takes.",
            "Choose a value of the kind that the error names.",
        ),
        "flag-conflict": Message(
            EXIT_USAGE,
            "Two flags exclude each other, or one is set twice.",
            "Leave out one of the two.",
        ),
        "unclosed-quote": Message(
            EXIT_CONFIG,
            "`SLIPWAY_ARGS`, or `options`, `directives` or `remote_shell` in the site's file, has a quote that is not "
            "closed (No closing quotation), or ends in a backslash.",
            "Close the quote, or write `\\\\` for a backslash. An apostrophe is a quote, too: put double quotes around "
            "the word.",
        ),
        "misplaced-arguments": Message(
            EXIT_CONFIG,
            "`SLIPWAY_ARGS` is set for a script that takes its arguments on its command line.",
            "Put them after the script's name: `sbatch ddp.job --epochs 5`.",
        ),
        "not-confirmed": Message(
            EXIT_USAGE,
            "A command would use more node hours than its limit and was not confirmed. Nothing was submitted.",
            "Add `--yes`, or raise `--limit`.",
        ),
        "bad-axis": Message(
            EXIT_USAGE,
            "`jobgen sweep --set` names no key that can vary, or values that the key cannot have.",
            "Write `KEY=VALUE,VALUE`, or `KEY=uniform:LOW:HIGH` with `--random`; see docs/sweeps.md.",
        ),
        "bad-rungs": Message(
            EXIT_USAGE,
            "`--rungs` or `--keep` does not describe a successive halving.",
            "Give two or more increasing epochs, and `--keep 2` or more: the best one of so many goes on.",
        ),
        "nothing-to-vary": Message(
            EXIT_USAGE,
            "A sweep varies nothing, no point of a study's grid fits the nodes, or the spec does not train.",
            "For a sweep give several values (`--set KEY=A,B`) or `--seeds N`. For a study choose numbers of "
            "ranks that divide evenly among the nodes; the lines above say what was left out. Or use a spec "
            "that trains, such as `ddp`.",
        ),
        "export-format": Message(
            EXIT_USAGE,
            "A model cannot be exported to a file with that suffix.",
            "Use one of the suffixes that the error names.",
        ),
    },
    "Configurations, sites and settings": {
        "unknown-name": Message(
            EXIT_CONFIG,
            "Nothing has the given name: a site, spec, model, data set, optimizer or schedule.",
            "Check the spelling: the error lists the names.",
        ),
        "unknown-key": Message(
            EXIT_CONFIG,
            "A configuration, site or spec has a key that does not exist, or stands in the wrong section.",
            "Check the spelling: the error names the nearest key, or its section.",
        ),
        "bad-value": Message(
            EXIT_CONFIG,
            "The value of a key or setting is not one that it can have.",
            "Change it to what the error names. docs/contract.md lists the settings of job scripts, "
            "docs/sites.md the keys of sites.",
        ),
        "bad-toml": Message(
            EXIT_CONFIG,
            "A file is not valid TOML.",
            "Correct the line that the error names. Text needs quotes, tables stand in `[brackets]`.",
        ),
        "conflicting-settings": Message(
            EXIT_CONFIG,
            "Settings are mutually exclusive, one needs another that is missing, or the backend does not "
            "support one (such as sync_bn under Horovod).",
            "Change, add or leave out the setting that the error names, or choose another `--backend`.",
        ),
        "bad-site": Message(
            EXIT_CONFIG,
            "A field of a site does not apply to its scheduler, or would have no effect.",
            "Use the field that the error names; see docs/sites.md.",
        ),
        "launcher-conflict": Message(
            EXIT_CONFIG,
            "The launcher (srun, mpirun, ssh ...) cannot start the ranks at this site: it does not fit the "
            "scheduler, the container, the MPI or `placement`.",
            "Do what the message says: another launcher (`--set launcher=ssh`), `--set container=none`, no "
            "`placement`, or a spec that needs no MPI (`jobgen render horovod-gloo`).",
        ),
        "wrong-backend": Message(
            EXIT_CONFIG,
            "`BACKEND` names a backend that this job script cannot launch.",
            "Use the script for that backend: the error has the command.",
        ),
        "nothing-to-build": Message(
            EXIT_CONFIG,
            "`image_build` or `venv_build` at a site that uses no such image or environment.",
            "Set `container` or `venv` for this job, as the error says.",
        ),
        "bad-name": Message(
            EXIT_CONFIG,
            "A name of an object or metric has characters that are not allowed, or is reserved.",
            "Use letters, digits, '_', '.' and '-', and a name that is not taken.",
        ),
        "unknown-setting": Message(
            WARNING,
            "A variable looks like a setting (`SLIPWAY_...`), and there is none of that name. It has no effect.",
            "Check the spelling in docs/contract.md.",
        ),
        "taken-name": Message(
            WARNING,
            "A variable that is set outside, often by a profile (`export scratch=...`), has the name of one that job "
            "scripts use themselves. They do not read it, and what they start does not see it.",
            "If your program reads it, give it another name, such as one in upper case, there and where it is set.",
        ),
        "kept-variable": Message(
            WARNING,
            "A variable that the job would set was set outside, and is kept.",
            "Unset it before you submit, if that was not meant.",
        ),
        "no-script": Message(
            EXIT_CONFIG,
            "The configuration or script that the job should train is missing, or cannot be read from this machine.",
            "Correct `SLIPWAY_CONFIG` or `SLIPWAY_SCRIPT`; the path is relative to the folder of submission.",
        ),
    },
    "Files": {
        "cannot-read": Message(
            EXIT_CONFIG,
            "A file or folder is missing or cannot be read (No such file or directory, Permission denied).",
            "Check the path, its permissions, and that its disk is mounted on that node. In a container, add the "
            "folder to `binds` in the site's file. If it is a template of jobgen, install Slipway again.",
        ),
        "cannot-write": Message(
            EXIT_CONFIG,
            "A file or folder cannot be created or written.",
            "Check permissions, free space and quota, or name another folder: `--output-dir` of the trainer, "
            "`Session(folder=...)` or `RUN_DIR` of a script, `SLIPWAY_OUTPUT` of a job.",
        ),
        "cannot-remove": Message(
            WARNING,
            "A file or folder that is no longer needed could not be removed.",
            "Remove it by hand.",
        ),
        "disk-full": Message(
            EXIT_FAILED,
            "A file system takes no more writes: it is full, over quota, read-only, or not yours to write.",
            "Free space or quota, or correct the permissions, then continue the run.",
        ),
        "file-exists": Message(
            EXIT_CONFIG,
            "The file or folder to be made exists already. Nothing is overwritten.",
            "Name another one, or remove it.",
        ),
        "not-a-folder": Message(
            EXIT_CONFIG,
            "The path must be a folder, and is not.",
            "Name a folder.",
        ),
        "bad-path": Message(
            EXIT_CONFIG,
            "A path contains characters that a script, a container or an archive cannot carry, or is of the "
            "wrong kind.",
            "Rename it, or name another one.",
        ),
        "bad-record": Message(
            EXIT_CONFIG,
            "A file that Slipway has written is damaged, was edited, or is of another version.",
            "Use the version that wrote it, or start in a new folder.",
        ),
        "incomplete-install": Message(
            EXIT_CONFIG,
            "Files of the package or clone are missing, or a template was edited.",
            "Install slipway again, or in a clone see `git status` and restore the files: `git checkout -- PATH`.",
        ),
        "no-library": Message(
            EXIT_CONFIG,
            "A job script does not find its library, jobscripts/lib, or `SLIPWAY_LIB` names a folder without job.bash, "
            "or one that you may not list.",
            "Unset `SLIPWAY_LIB` if you set it, and submit in a clone; or generate the script by "
            "`jobgen render --standalone`.",
        ),
        "no-clone": Message(
            EXIT_CONFIG,
            "The job builds an image or environment, and was not submitted in a clone of the project.",
            "Submit it in a clone: `git clone`, `cd`, then the same command.",
        ),
    },
    "Schedulers and jobs": {
        "unknown-scheduler": Message(
            EXIT_CONFIG,
            "`jobgen site --detect` runs on a cluster of a scheduler that Slipway does not support.",
            "Slipway supports Slurm, PBS and single machines; docs/adding.md says how to add a scheduler.",
        ),
        "no-scheduler": Message(
            EXIT_CONFIG,
            "The command or spec needs a scheduler that queues jobs, and the site is one machine.",
            "Choose a site with a scheduler, or run the command that the error names.",
        ),
        "no-scheduler-command": Message(
            EXIT_CONFIG,
            "A command of the scheduler (sbatch, qsub, salloc) is not on PATH.",
            "Run it on a login node, or load the scheduler's module. `--dry-run` shows the script, but ends with 78.",
        ),
        "scheduler-silent": Message(
            EXIT_CONFIG,
            "A command of the scheduler failed, or did not answer in time.",
            "Run the command by hand to see its error, and try again later. A job script of Slurm that got no answer "
            "does not compare the GPUs of its nodes. A task of an array is then called by its own number, not "
            "ARRAY_TASK, and refused if it was requeued: continue a run that it has begun before by "
            "`sbatch RUN_DIR/job.sh`. Such a `job.sh` is refused, as it may be a copy, unless `SLIPWAY_RUN_DIR` names "
            "its folder, or the job was requeued.",
        ),
        "submission-refused": Message(
            EXIT_CONFIG,
            "The scheduler refused a job.",
            "Read its message above: often account, partition or a limit of the queue. Run the same command "
            "again afterwards.",
        ),
        "no-job-number": Message(
            EXIT_CONFIG,
            "The scheduler accepted a job and printed no job number.",
            "Look for the job in the queue, and cancel it if it is not wanted.",
        ),
        "no-such-job": Message(
            EXIT_CONFIG,
            "Neither the scheduler nor the output folder knows the job.",
            "Run the command in the folder from which the job was submitted, or name its run folder.",
        ),
        "no-such-run": Message(
            EXIT_CONFIG,
            "The given name is neither a run folder nor a job.",
            "Name a run folder (`runs/NAME`) or a job number.",
        ),
        "several-runs": Message(
            EXIT_CONFIG,
            "The given name or job number belongs to several runs.",
            "Name one of the run folders that the error lists.",
        ),
        "no-log": Message(
            EXIT_CONFIG,
            "No log of the run can be found here.",
            "Run the command where the job was submitted, or name the run folder.",
        ),
        "already-ended": Message(
            EXIT_CONFIG,
            "The job to cancel has ended.",
            "None needed; `jobgen status` shows how it ended.",
        ),
        "no-job-script": Message(
            EXIT_CONFIG,
            "The file or folder is not a job script that `jobgen render` wrote, or the spec makes no job.",
            "Name a script of jobscripts/, or generate one by `jobgen render`.",
        ),
        "stale-script": Message(
            WARNING,
            "A generated script differs from what its spec and site give: it was edited, they were, or another "
            "version made it.",
            "Generate it again by the command in the warning, and move edits into its spec, its site or `--set`.",
        ),
        "not-a-job": Message(
            EXIT_CONFIG,
            "The spec makes no job that the command can use.",
            "Choose another spec; `jobgen list` shows what each one runs.",
        ),
        "unsupported-option": Message(
            EXIT_CONFIG,
            "The scheduler has no equivalent of an option.",
            "Leave it out; `--dry-run` shows the script.",
        ),
        "no-terminal": Message(
            EXIT_CONFIG,
            "An interactive job needs a terminal.",
            "Run the command in a terminal, or submit a job instead.",
        ),
        "different-study": Message(
            EXIT_CONFIG,
            "The folder holds another sweep or study than the command line describes.",
            "Repeat the command as it was, or name another `--output`.",
        ),
        "too-many-trials": Message(
            EXIT_CONFIG,
            "A sweep has more trials than the scheduler takes in one job array.",
            "Submit fewer; then run the command again with more: it adds the rest.",
        ),
        "time-too-short": Message(
            EXIT_CONFIG,
            "The time limit of the job leaves no time to train before the save at its end.",
            "Ask for more time (`minutes`), or keep less for the save (`save_seconds`).",
        ),
        "no-time-limit": Message(
            WARNING,
            "PBS names no time limit of the job, or one that cannot be read. When that comes the ranks have "
            "not saved, and no next job is submitted.",
            "Submit the job with `-l walltime=HH:MM:SS`.",
        ),
        "heterogeneous-job": Message(
            EXIT_CONFIG,
            "A heterogeneous job of Slurm has parts that differ, and a run needs equal nodes.",
            "Submit it as one part.",
        ),
        "no-nodes": Message(
            EXIT_CONFIG,
            "The scheduler does not name the nodes of the job, or fewer than it has.",
            "Submit the script by `sbatch` or `qsub`, again if that is done; started by hand it needs an allocation.",
        ),
        "too-few-nodes": Message(
            EXIT_CONFIG,
            "`SLIPWAY_SPARES` leaves no node to train on.",
            "Ask for more nodes, or lower it.",
        ),
        "too-many-nodes": Message(
            EXIT_CONFIG,
            "A script for one process (`single`) got several nodes.",
            "Ask for one node (`--nodes=1`), or use a script for several, such as `ddp`.",
        ),
        "environment-left": Message(
            WARNING,
            "The scheduler did not pass the environment of the submission on to the job (`SBATCH_EXPORT=NONE`).",
            "Submit by `jobgen submit`, which writes settings into the script, or with `sbatch --export=ALL`.",
        ),
        "no-kill-missing": Message(
            WARNING,
            "Spare nodes or `SLIPWAY_SHRINK` need a Slurm job that survives the loss of a node, and this one does not.",
            "Submit by `jobgen submit`, or with `sbatch --no-kill`.",
        ),
        "no-notify-program": Message(
            EXIT_CONFIG,
            "`SLIPWAY_NOTIFY` is not an executable file on the node.",
            "Set it to the path of an executable file that nodes can read.",
        ),
    },
    "Images and environments": {
        "no-image": Message(
            EXIT_CONFIG,
            "The image of the job is missing, or cannot be read from this machine.",
            "Build it (`jobgen submit image_build`, `make image`), set `SLIPWAY_IMAGE` to an image on a disk of "
            "all nodes, or use an environment: `USE_CONTAINER=0`.",
        ),
        "image-not-local": Message(
            EXIT_CONFIG,
            "`SLIPWAY_IMAGE` has a form that this container runtime cannot run, or that each process would "
            "convert anew.",
            "Convert it once by the command that the error names, and set `SLIPWAY_IMAGE` to the result.",
        ),
        "no-container-runtime": Message(
            EXIT_CONFIG,
            "The node lacks the program that runs the image: apptainer, podman, or Slurm's Pyxis.",
            "Name its module (`modules`) or its folder (`path`) in the site's file, or use an environment: "
            "`USE_CONTAINER=0`.",
        ),
        "bad-entry-point": Message(
            EXIT_CONFIG,
            "The image's entry point (its run script) ignores the command that the job runs in it, or loses the "
            "command's exit code: whatever the job runs there would seem to succeed.",
            'Let the entry point end with `exec "$@"`, build the image without one, or use an environment: '
            "`USE_CONTAINER=0`.",
        ),
        "no-environment": Message(
            EXIT_CONFIG,
            "The Python environment of the job (venv, conda, modules) is missing, lacks packages, or cannot import "
            "torch.",
            "Build it (`jobgen submit venv_build --site SITE`, in a clone), or set `SLIPWAY_VENV` to a complete one, "
            "for conda the folder that `conda env list` shows. With modules, name Python's in the site's file. If "
            "torch cannot be imported (ModuleNotFoundError, ImportError), install it again, or rebuild the image. "
            "`USE_CONTAINER=1` uses the image instead; a Dask client needs an environment all the same.",
        ),
        "no-modules": Message(
            EXIT_CONFIG,
            "The environment modules that the job needs are not in the site's file, cannot be loaded on the "
            "node, or take the scheduler's commands off PATH.",
            "Correct `modules` or `purge_modules` in the site's file; `module avail` on a node lists what can "
            "be loaded.",
        ),
        "no-wheelhouse": Message(
            EXIT_CONFIG,
            "The folder of wheels from which the job should install is missing; or `SLIPWAY_VENV=local` has none, "
            "and the site does not let its nodes download.",
            "Fill one by `make wheelhouse`, and set `SLIPWAY_WHEELHOUSE` to it. Without one, `downloads = true` in the "
            "site's file lets each node download; for `venv_build.job`, unset `SLIPWAY_WHEELHOUSE`.",
        ),
        "no-cuda-home": Message(
            EXIT_CONFIG,
            "`SLIPWAY_NCCL_PATH` names an NCCL of the site, and `CUDA_HOME` no CUDA to build Horovod with.",
            "Load the site's module of CUDA, or set `CUDA_HOME`.",
        ),
        "build-failed": Message(
            EXIT_CONFIG,
            "An image or environment could not be built, or what was built does not work.",
            "Read the lines above the error: often the network or free space; `WHEELHOUSE` installs without a network.",
        ),
        "old-bash": Message(
            EXIT_CONFIG,
            "The Bash of the node is older than 4.4.",
            "Load a newer Bash, or run on nodes that have one.",
        ),
        "old-python": Message(
            EXIT_CONFIG,
            "This Python is too old for the command.",
            "Run it in the image, or in an environment of `build/setup`.",
        ),
        "missing-package": Message(
            EXIT_CONFIG,
            "This Python lacks a package that the command needs.",
            "Run it in the image or in an environment of `build/setup`, or install the package.",
        ),
        "no-compiler": Message(
            EXIT_CONFIG,
            "`--compile` needs a C++ compiler, and there is none.",
            "Use an image or node with one, name it in `CXX`, or leave `--compile` out.",
        ),
        "no-horovod": Message(
            EXIT_CONFIG,
            "Horovod is missing, or was built for another torch.",
            "Build it by `build/setup horovod`, use the image, or train with `--backend ddp`.",
        ),
        "no-mpi": Message(
            EXIT_CONFIG,
            "There is no mpirun on the node, or it does not answer.",
            "Load the module of the MPI (`modules` of the site), or take Horovod over Gloo, which needs none: "
            "`jobgen submit horovod-gloo`.",
        ),
        "mpi-mismatch": Message(
            EXIT_CONFIG,
            "The MPI that starts the ranks and the one in the image or environment do not work together.",
            "Use versions that match, or Horovod over Gloo: `jobgen render horovod-gloo`.",
        ),
        "mpi-as-root": Message(
            EXIT_CONFIG,
            "Open MPI's mpirun refuses to run as root, and the job's user is root.",
            "Submit as an ordinary user. Where root is all there is, such as a container or a test machine, set "
            "`OMPI_ALLOW_RUN_AS_ROOT=1` and `OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1`.",
        ),
        "no-numactl": Message(
            EXIT_CONFIG,
            "The site binds ranks to cores (`numa_binding`), and the program numactl, by which torchrun does that, is "
            "missing on a node or in the image, or may not do it there.",
            "Install numactl: in the image (those of `make image` have it), or on the nodes with `USE_CONTAINER=0`; or "
            "leave `numa_binding` out of the site's file and generate the script anew. A container without the right "
            "to read NUMA policies (`get_mempolicy`) says: This system does not support NUMA policy.",
        ),
        "no-profiler": Message(
            EXIT_CONFIG,
            "The profiler of `SLIPWAY_PROFILER` does not run on every node.",
            "Put it on PATH there: in the image, or by a module with `USE_CONTAINER=0`.",
        ),
    },
    "GPUs and ranks": {
        "no-gpu": Message(
            EXIT_CONFIG,
            "GPUs are asked for, and torch sees none.",
            "Ask the scheduler for GPUs, run the container with `--nv`, or train on the CPU: `--device cpu`, "
            "`SLIPWAY_DEVICE=cpu`.",
        ),
        "too-few-gpus": Message(
            EXIT_CONFIG,
            "There are fewer GPUs than the ranks need.",
            "Start fewer ranks (`--nproc-per-node`, `SLIPWAY_RANKS_PER_NODE`, `ranks_per_node`), or ask for more GPUs.",
        ),
        "uneven-gpus": Message(
            EXIT_CONFIG,
            "The scheduler gave the nodes of a job different numbers of GPUs, such as 2 and 1 for `--gpus=3`; a run "
            "starts the same number of ranks on each node. With `SLIPWAY_DEVICE=cpu`, or where the smallest number "
            "suffices for the ranks of a node, `SLIPWAY_RANKS_PER_NODE` lets it start.",
            "Request GPUs per node: `--gpus-per-node` or `--gres` under Slurm, `select=NODES:ngpus=GPUS` with "
            "`place=scatter` under OpenPBS, `nodes=NODES:gpus=GPUS` under Torque.",
        ),
        "too-few-cpus": Message(
            EXIT_CONFIG,
            "`--nproc-per-node` asks for far more ranks than there are CPUs for this process.",
            "Start at most as many ranks as the error says, or request more CPUs (`--cpus-per-task`).",
        ),
        "broken-gpu": Message(
            EXIT_CONFIG,
            "A GPU or its driver fails at the first use.",
            "Look at `nvidia-smi` on that node, exclude the node (`sbatch --exclude`), and tell its administrator.",
        ),
        "gpu-mismatch": Message(
            EXIT_CONFIG,
            "The NVIDIA driver is too old for the CUDA version of torch or the image, or torch has no kernels "
            "for the GPU's compute capability (`no kernel image is available`). `jobgen` only warns.",
            "Build the variant that the message names (`SLIPWAY_VARIANT=cuda12 jobgen submit image_build`, "
            "`VARIANT=cuda12 make train`), have the driver updated, hide the GPU with `CUDA_VISIBLE_DEVICES`, "
            "or train on the CPU: `--device cpu`, `SLIPWAY_DEVICE=cpu`.",
        ),
        "mig-slices": Message(
            EXIT_CONFIG,
            "The GPUs of the job are MIG instances, between which NCCL cannot communicate.",
            "Train one rank on one instance (`jobgen submit single`), or request whole GPUs.",
        ),
        "idle-gpus": Message(
            WARNING,
            "The job holds more GPUs than its ranks use.",
            "Start more ranks (`SLIPWAY_RANKS_PER_NODE`), or ask for fewer GPUs.",
        ),
        "ranks-not-named": Message(
            EXIT_CONFIG,
            "Several ranks are expected, but RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT is not set.",
            "Start it by torchrun, by `--nproc-per-node N`, or by a job script, which set them.",
        ),
        "bad-rank-variables": Message(
            EXIT_CONFIG,
            "RANK, WORLD_SIZE, LOCAL_RANK or TRAINER_ATTEMPT is not a whole number, or `0 <= LOCAL_RANK <= RANK "
            "< WORLD_SIZE` does not hold.",
            "Unset those that your shell or an outer job has set (`env | grep -E 'RANK|WORLD_SIZE|TRAINER_'`), "
            "and let torchrun or the job script set them.",
        ),
        "joins-other-ranks": Message(
            EXIT_CONFIG,
            "A script of your own joins other ranks than those that the job started.",
            "Take rank and number of ranks from `RANK` and `WORLD_SIZE`. If the script starts ranks of its own, "
            "set `SLIPWAY_RANKS_PER_NODE=1`; if it uses Horovod, set `BACKEND=horovod`.",
        ),
        "separate-processes": Message(
            EXIT_CONFIG,
            "A launcher started several processes, and each would train alone.",
            "Select the backend of the launcher: `--backend ddp` or `--backend horovod`. In a script, join the "
            "process group, or call `hvd.init()`, before the Session. To train alone, unset the variable that "
            "the error names.",
        ),
        "ranks-not-connected": Message(
            WARNING,
            "The ranks of a script of your own did not form one group: each trained alone.",
            "Call `torch.distributed.init_process_group()` or `hvd.init()` in the script, with the variables "
            "that the job sets.",
        ),
        "wrong-world-size": Message(
            EXIT_CONFIG,
            "The ranks that met are more or fewer than the job script planned.",
            "See whether every node started, and use an MPI whose version matches that of the image.",
        ),
        "nested-launch": Message(
            EXIT_CONFIG,
            "`--nproc-per-node` is set, and another launcher (torchrun, srun, mpirun) has started this process: each "
            "rank would start ranks.",
            "Use one of the two. If no launcher is running, unset the variable that the error names.",
        ),
        "cannot-start-rank": Message(
            EXIT_FAILED,
            "A process of a rank cannot be started.",
            "Raise the limits of processes and memory (`ulimit -a`), or start fewer ranks.",
        ),
        "cannot-join": Message(
            EXIT_FAILED,
            "A rank could not join the process group (`init_process_group`) within the timeout.",
            "See in the logs whether another rank or node failed first; check network, firewall and "
            "`MASTER_ADDR`. `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` choose the interface.",
        ),
        "waiting-for-ranks": Message(
            WARNING,
            "A rank has waited for the others in `init_process_group` for 30 s; repeated each minute. After the "
            "timeout it ends with cannot-join.",
            "See in the logs whether a rank or node failed or has not started. Otherwise check `MASTER_ADDR`, "
            "the firewall, and `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME`; `NCCL_DEBUG=INFO` shows how NCCL "
            "connects.",
        ),
        "lost-peer": Message(
            EXIT_FAILED,
            "A rank lost its connection to another (NCCL or Gloo: connection reset, closed by peer).",
            "This is a consequence: find the rank or node that failed first in logs/N/stderr.log.",
        ),
        "no-network": Message(
            EXIT_CONFIG,
            "A node cannot reach the head node.",
            "Check the interface (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`), firewall and `MASTER_ADDR`.",
        ),
        "no-master-address": Message(
            EXIT_CONFIG,
            "The first node has no address at which the others can reach it: its name stands for loopback, link-local "
            "addresses, or those of a bridge for virtual machines or containers.",
            "Set `MASTER_ADDR`, or have the node's name resolved to an address of the cluster's network.",
        ),
        "no-free-port": Message(
            EXIT_CONFIG,
            "No free port was found on the first node, or it could not be asked.",
            "Read the lines above; set `MASTER_PORT` to a port that is free there.",
        ),
        "port-taken": Message(
            WARNING,
            "The port of the ranks' meeting point was taken by another program; the launch is repeated with "
            "another one.",
            "None needed. If it recurs, set `MASTER_PORT` to a free port.",
        ),
        "no-rendezvous": Message(
            EXIT_CONFIG,
            "Horovod's rendezvous server did not start on the first node.",
            "Read the lines above: often the image or environment lacks Horovod.",
        ),
        "selftest-failed": Message(
            EXIT_CONFIG,
            "`--selftest` found ranks, GPUs or connections that do not work.",
            "Exclude the node that the error names, and tell its administrator.",
        ),
    },
    "Nodes, restarts and requeues": {
        "node-not-ready": Message(
            EXIT_CONFIG,
            "A node could not do what the job needs before its launch: the lines above say which node, and why.",
            "Correct what they name, or exclude the node (`sbatch --exclude`). A slow node needs more "
            "`SLIPWAY_PREFLIGHT_SECONDS`.",
        ),
        "launch-refused": Message(
            EXIT_CONFIG,
            "The launcher (srun, mpirun, torchrun) refused its command line: an invalid option, not enough slots. No "
            "rank was started, and the job is not restarted.",
            "Read logs/N/stderr.log in the run folder, and correct the options of the site's file (`srun_options`, "
            "`mpirun_options`) or the request for nodes.",
        ),
        "slow-nodes": Message(
            WARNING,
            "Nodes do not answer within `SLIPWAY_PREFLIGHT_SECONDS`; they are asked once more.",
            "If it is the rule there, raise `SLIPWAY_PREFLIGHT_SECONDS`.",
        ),
        "step-repeated": Message(
            WARNING,
            "A process was killed while the job was prepared, and that step is run once more.",
            "None needed. If it recurs, check the node's memory (`sacct`), or exclude it.",
        ),
        "node-lost": Message(
            WARNING,
            "A node starts no process, and the scheduler reports it down, drained or not responding; or the first "
            "node gave no sign of life. The job leaves the node out, and restarts on the others if it can.",
            "Tell the node's administrator; `SLIPWAY_SPARES` keeps nodes ready to replace one.",
        ),
        "node-silent": Message(
            WARNING,
            "Asked twice, a node started no process in time, but the scheduler does not report it down. The job leaves "
            "it out until the next restart.",
            "If the node or the scheduler's controller is only slow, raise `SLIPWAY_PROBE_SECONDS`.",
        ),
        "launcher-stuck": Message(
            WARNING,
            "srun began to end all ranks, since one had failed, and did not end itself within 30 s: it may wait for a "
            "node that is down. The job script kills it.",
            "None needed: the script then asks each node to start a process, and restarts the ranks if it can.",
        ),
        "node-suspect": Message(
            WARNING,
            "A process was killed on the same node for the second time. The job leaves the node out.",
            "Tell the node's administrator.",
        ),
        "rank-failed": Message(
            EXIT_FAILED,
            "A rank or the launcher exited with an error and recorded no cause. The job ends with the same exit "
            "code, often 1, or restarts.",
            "Read logs/N/stderr.log in the run folder: the first traceback there is the cause.",
        ),
        "rank-killed": Message(
            WARNING,
            "A process of an attempt was killed by a signal, on the node that the warning names.",
            "Often memory ran out there: see logs/N/stderr.log and the scheduler's accounting (`sacct`).",
        ),
        "stopped-early": Message(
            EXIT_STOPPED,
            "A signal (SIGTERM of `scancel`, preemption, Ctrl-C) or the launcher's death ended the job, or a rank, "
            "before it could save.",
            "Submit `job.sh` of the run folder again to continue from the last checkpoint, if there is one. If there "
            "is no `job.sh`, submit the first script again; without a job, repeat the command.",
        ),
        "restarted": Message(
            WARNING,
            "The job started its ranks again from the last checkpoint, after a rank, launcher or node died.",
            "None needed; the warning before it names the cause. `SLIPWAY_MAX_RESTARTS` limits it.",
        ),
        "no-restart": Message(
            WARNING,
            "An attempt died and is not started again: too often, without progress, or with too few nodes.",
            "Correct the cause that the log names, then submit `job.sh` of the run folder again.",
        ),
        "fewer-nodes": Message(
            WARNING,
            "The run continues on fewer nodes (`SLIPWAY_SHRINK=1`): the same samples, but sums in another order.",
            "None needed; the next job has all nodes again.",
        ),
        "requeued": Message(
            WARNING,
            "The job continues in a further job: it was out of time, preempted, or lost a node.",
            "None needed; `jobgen status` follows it. `SLIPWAY_MAX_REQUEUES` limits it.",
        ),
        "no-requeue": Message(
            WARNING,
            "The job could continue in a further job, and does not: the limit is reached, the attempt saved no further "
            "step, or the scheduler refuses.",
            "Submit `job.sh` of the run folder again to continue.",
        ),
        "old-ranks": Message(
            WARNING,
            "Ranks of an earlier attempt may still run, since not every node could be asked to end them.",
            "If GPUs stay busy, end them on the node that is named, or have it drained.",
        ),
        "cannot-stop": Message(
            WARNING,
            "The file STOP could not be written, so the ranks are not asked to save before the end of the job's time.",
            "Check free space and quota of the run folder.",
        ),
        "no-local-disk": Message(
            EXIT_CONFIG,
            "`SLIPWAY_LOCAL_DISK` is not a folder on the node.",
            "Set it to one, such as /tmp.",
        ),
        "staging-failed": Message(
            EXIT_CONFIG,
            "Image or data could not be copied to the local disk of every node (`SLIPWAY_STAGE=1`).",
            "See which node failed above, and why. Disk too small or full: use another `SLIPWAY_LOCAL_DISK`, or wait "
            "for the other jobs on that node; what they reserve counts as used. Dangling symbolic link, loop, or "
            "permission denied: repair or remove what is named. Or set `SLIPWAY_STAGE=0`.",
        ),
        "staged-in-memory": Message(
            WARNING,
            "The local disk to which image and data are copied is memory (tmpfs), and counts as memory of the job.",
            "Ask for that much more memory, set `SLIPWAY_LOCAL_DISK` to a disk, or set `SLIPWAY_STAGE=0`.",
        ),
        "scratch-left": Message(
            WARNING,
            "A folder of a job on the local disk of a node could not be removed.",
            "Remove it by hand, on the nodes of that job.",
        ),
    },
    "Dask clients": {
        "nodes-missing": Message(
            EXIT_STOPPED,
            "When `SLIPWAY_WAIT_SECONDS` were over, fewer than `SLIPWAY_MIN_NODES` nodes of a Dask client had started.",
            "See why the jobs are pending (`squeue --me`, `qstat`), then start the script again with more "
            "`SLIPWAY_WAIT_SECONDS`, fewer `SLIPWAY_MIN_NODES` or fewer `SLIPWAY_NODES`.",
        ),
        "nodes-late": Message(
            EXIT_STOPPED,
            "The nodes of a Dask client arrived so late that no time is left to train before the save.",
            "Ask for more time (`minutes`), or accept fewer nodes (`SLIPWAY_MIN_NODES`).",
        ),
        "nodes-lost": Message(
            EXIT_CONFIG,
            "Jobs of a Dask client ended that should hold nodes, and too few are left.",
            "Read the log that the error quotes: often an account, a limit of the queue, or an environment that "
            "is missing there.",
        ),
        "jobs-left": Message(
            EXIT_CONFIG,
            "Jobs of a Dask client did not end.",
            "Cancel them by hand: the error has the command.",
        ),
        "dask-scheduler-gone": Message(
            EXIT_FAILED,
            "Dask's scheduler, which runs in the client (`dask.sh`), has ended, or did not answer within 10 s.",
            "See in the client's output whether it was killed (login nodes limit memory and CPU time); then run "
            "`bash RUN_DIR/job.sh` again, in tmux or in a small job.",
        ),
        "dask-scheduler-silent": Message(
            EXIT_CONFIG,
            "Dask's scheduler cannot be reached from a node.",
            "Check the network between the client's machine and the nodes, and its firewall.",
        ),
    },
    "Run folders and checkpoints": {
        "folder-in-use": Message(
            EXIT_CONFIG,
            "Another process uses the run folder, or the folder of a sweep or study. It may also be a job of another "
            "cluster, or a process of another machine, that has noted no end in logs/N/process, and that cannot be "
            "asked for here. As a warning: the scheduler does not answer, and an earlier job may still run.",
            "Wait for its end, stop it, or name another folder. The lock of a process that died expires in a minute. "
            "If a job elsewhere ended without recording it (by SIGKILL, say), record it: "
            "`echo ended >>RUN_DIR/logs/N/process`. Another "
            "hostname is another machine: give a container that runs the script a fixed one (`--hostname`).",
        ),
        "folder-holds-run": Message(
            EXIT_CONFIG,
            "The output folder holds a run, and this command does not continue it.",
            "Continue it by `--resume auto` or its `job.sh`, or name another folder.",
        ),
        "folder-holds-other-files": Message(
            EXIT_CONFIG,
            "`SLIPWAY_RUN_DIR` is a folder that holds files, but no run, or a `lib` or `input.toml` that no job has "
            "written.",
            "Set it to a new folder, or to that of a run.",
        ),
        "not-your-folder": Message(
            EXIT_CONFIG,
            "The run folder belongs to another user, or you cannot write it.",
            "Set `SLIPWAY_RUN_DIR` or `SLIPWAY_OUTPUT` to a folder of your own.",
        ),
        "writable-by-others": Message(
            EXIT_CONFIG,
            "Others own or can write what a job runs as you: the run folder, its `job.sh`, `lib` or `input.toml`, the "
            "library, a clone that is built from, the folder of a sweep, or a folder above them, or above a job's "
            "folder on SLIPWAY_LOCAL_DISK or what is built, without the sticky bit. Your group counts too (umask "
            "002), unless it has your name and no other member, and is no other user's primary group. Or they could "
            "write what a job makes in the run folder, by a default ACL that new files inherit whatever the umask, and "
            "can enter it. As a warning: the group can write a folder of yours above, such as that of a project.",
            "Look at what is in it, then `chmod -R go-w` the folder that the error names. If another user owns a "
            "library that you trust, name it by `SLIPWAY_LIB`. On a disk that shows one mode for all files and ignores "
            "`chmod` (SMB, WSL), set `SLIPWAY_TRUSTED_FOLDER` to a folder in which you trust whoever can write. "
            "After a default ACL: `chmod 700` the run folder, or `setfacl --remove-default`. "
            "After the warning: `chmod g-w`, unless you trust all members of the group.",
        ),
        "run-folder-moved": Message(
            EXIT_CONFIG,
            "The run folder of a kept `job.sh` is not where it was, or the one that is submitted, or in "
            "`SLIPWAY_RUN_DIR`, is of another run folder, such as a copy. As a warning: a job that was started before "
            "finds no attempt in its run folder, and begins at step 0.",
            "Set `SLIPWAY_RUN_DIR` to where it is now. A copy is not continued while its original is there.",
        ),
        "not-a-file": Message(
            EXIT_CONFIG,
            "Something else has the name of a file of the run folder.",
            "Move it away.",
        ),
        "lost-folder": Message(
            EXIT_FAILED,
            "The lock of the run folder was removed, or another run took the folder over.",
            "See by `jobgen status` which run has the folder now. Never remove the lock of a run that trains.",
        ),
        "different-run": Message(
            EXIT_CONFIG,
            "The settings differ from those with which the run began, so resuming would not reproduce an "
            "uninterrupted run.",
            "Restore the settings that the error names, or start a new run in another folder.",
        ),
        "different-data": Message(
            EXIT_CONFIG,
            "The data differ from those with which the run, the evaluation or the archive began.",
            "Use the same data, or start anew in another folder.",
        ),
        "different-model": Message(
            EXIT_CONFIG,
            "The model differs from that of the checkpoint.",
            "Name the model that was trained.",
        ),
        "different-state": Message(
            EXIT_CONFIG,
            "What the script passes to its Session differs from what the checkpoint holds.",
            "Build the same models, optimizers and schedulers as before, or start anew in another folder.",
        ),
        "different-ranks": Message(
            EXIT_CONFIG,
            "A run that was saved within an epoch continues on another number of ranks, with a sampler that "
            "cannot follow. Or objects of the Session differed between the ranks.",
            "Use the same number of ranks, or `slipway.Sampler`.",
        ),
        "damaged-checkpoint": Message(
            EXIT_CONFIG,
            "A checkpoint fails its checksum or is incomplete; or no valid one is left.",
            "A run resumes from its newest valid checkpoint (`trainer --resume auto`; a Session does so by itself; "
            "Lightning resumes from the one before if you move the damaged one out of the folder). If none is valid, "
            "move the folder away and start anew.",
        ),
        "damaged-best": Message(
            EXIT_CONFIG,
            "The checkpoint with the best metric fails its checksum or is incomplete. The run resumes nevertheless, "
            "from its newest valid checkpoint.",
            "Move the damaged one out of the run folder and start the script again: `session.load_best` then takes the "
            "next best. To export another one, name it: `slipway export CHECKPOINT FILE`.",
        ),
        "older-checkpoint": Message(
            EXIT_CONFIG,
            "The run in this folder has newer checkpoints than the one that was named.",
            "Continue from it in another folder: `--resume CHECKPOINT --output-dir OTHER`.",
        ),
        "newer-format": Message(
            EXIT_CONFIG,
            "The checkpoint was written by a newer version of Slipway.",
            "Use that version.",
        ),
        "no-checkpoint": Message(
            EXIT_CONFIG,
            "There is no checkpoint yet, or the path holds none.",
            "Name a run folder that has `checkpoints/`, or one of the checkpoints in it.",
        ),
        "no-best-checkpoint": Message(
            EXIT_CONFIG,
            "The best checkpoint is asked for, and no metric was recorded to choose it by.",
            "Leave out `--best` or `session.load_best`, or name the metric in the run (`best=`).",
        ),
        "not-saved": Message(
            EXIT_FAILED,
            "The last checkpoint of a run could not be written.",
            "Free space or quota, or restore your permissions on the folder, then continue the run: the checkpoint "
            "before it is valid.",
        ),
        "checkpoint-not-written": Message(
            WARNING,
            "A checkpoint could not be written. Training continues, and the next one is tried.",
            "Check free space, quota and the disk.",
        ),
        "checkpoint-set-aside": Message(
            WARNING,
            "A run resumed before its newest checkpoint, which was renamed so that it does not count as newest. Or the "
            "folder was copied by a program that follows links (`cp -rL`, `scp -r`): `latest` and `best` were whole "
            "checkpoints, and are links again.",
            "Remove it when you do not need it.",
        ),
        "checkpoint-ignored": Message(
            WARNING,
            "`--resume CHECKPOINT` in a run folder that has checkpoints of its own: the run continues from the newest "
            "of those.",
            "None if a job was requeued, or if you continue this run. To start from the given checkpoint, as in "
            "fine-tuning, name another `--output-dir`.",
        ),
        "low-disk-space": Message(
            WARNING,
            "The disk or quota has too little space or inodes left for the checkpoints to come.",
            "Free some, keep fewer (`--keep`), or take another folder.",
        ),
        "not-a-run": Message(
            EXIT_CONFIG,
            "The path is neither a run folder nor a checkpoint.",
            "Name a folder with `checkpoints/`, or one of the checkpoints in it.",
        ),
        "missing-config": Message(
            EXIT_CONFIG,
            "The configuration of a run is missing beside its checkpoint.",
            "Name a copy of the run's `config.toml` by `--config`.",
        ),
        "checkpoint-of-script": Message(
            EXIT_CONFIG,
            "The checkpoint was written by a script with a Session, and this command is for runs of the trainer.",
            "Continue it by that script; `slipway export` writes its weights.",
        ),
        "several-models": Message(
            EXIT_CONFIG,
            "The checkpoint holds several models, and the file takes one.",
            "Choose one by `--model`.",
        ),
        "no-such-model": Message(
            EXIT_CONFIG,
            "The checkpoint holds no model of that name.",
            "Choose one that the error lists.",
        ),
        "not-only-tensors": Message(
            EXIT_CONFIG,
            "The state of a model holds more than tensors, which a .safetensors file cannot.",
            "Export to a .pt file.",
        ),
        "bad-weights": Message(
            EXIT_CONFIG,
            "A file of weights cannot be read, or does not fit the model.",
            "Name a state_dict of the same model, saved by `torch.save` or safetensors.",
        ),
        "cannot-append": Message(
            WARNING,
            "Lines of a log such as metrics.jsonl cannot be written now. They are kept in memory, and written later.",
            "Check free space, quota and the disk.",
        ),
        "damaged-metrics": Message(
            WARNING,
            "Lines of metrics.jsonl are not records. They were left out, and a copy of the file was kept.",
            "Look at the copy if you miss records.",
        ),
        "left-out": Message(
            WARNING,
            "`trainer report` cannot read a file of a run, or part of it is invalid. The page shows the rest.",
            "Look at the file that the warning names, if you miss something on the page.",
        ),
    },
    "Training": {
        "diverged": Message(
            EXIT_FAILED,
            "The loss, a weight or a logged value became NaN or infinite; that step is not saved.",
            "Resume with a lower `--lr`, with `--clip-grad`, or with `--amp bf16` or `--amp none` in place of fp16. If "
            "a script has a GradScaler, pass it to the Session, which allows such values in the steps that it skips.",
        ),
        "out-of-memory": Message(
            EXIT_CONFIG,
            "CUDA out of memory (torch.OutOfMemoryError), or `--memory` computed that a rank needs more than "
            "its device has.",
            "Use a smaller `--batch-size`, more `--grad-accum-steps`, `--recompute` or `--split`; `--dry-run "
            "--memory` measures.",
        ),
        "memory-unknown": Message(
            EXIT_CONFIG,
            "`--memory` cannot compute the model on the meta device.",
            "Leave out `--memory`, or train a few steps and read the peak in the log.",
        ),
        "unused-parameters": Message(
            EXIT_CONFIG,
            "Parameters got no gradient in a step, and DistributedDataParallel waits for them.",
            "Use them in each step, freeze them by `requires_grad_(False)`, or pass `--find-unused-parameters`; "
            "in a script, `DistributedDataParallel(..., find_unused_parameters=True)`.",
        ),
        "batch-too-small": Message(
            EXIT_FAILED,
            "Batch norm got a single sample.",
            "Choose a `--batch-size` that leaves each micro-batch two samples or more.",
        ),
        "image-size": Message(
            EXIT_CONFIG,
            "The model cannot take images of this size.",
            "Resize them (`--image-size`), or choose another model.",
        ),
        "bad-plugin": Message(
            EXIT_CONFIG,
            "A model or data set of yours cannot be imported, fails, or returns something else than the trainer needs.",
            "Correct what the error names; docs/your-own.md has an example of each.",
        ),
        "bad-split": Message(
            EXIT_CONFIG,
            "The model cannot be cut into stages there.",
            "Name modules that are called once, one after the other, and pass one tensor; see docs/split.md.",
        ),
        "bad-stage-devices": Message(
            EXIT_CONFIG,
            "`--stage-devices` names devices that do not exist, or not one for each stage.",
            "Write one of cpu, cuda:0, cuda:1 ... for each stage, or leave it out.",
        ),
        "no-blocks": Message(
            EXIT_CONFIG,
            "`--recompute` (activation checkpointing) finds no blocks: modules with children of their own, such as "
            "residual blocks, in an nn.Sequential or nn.ModuleList.",
            "Leave out `--recompute` for small models such as `mlp` and `mnist-cnn`. In a model of your own, group "
            "layers into modules, and put those into an nn.Sequential or nn.ModuleList. With `--split`, cut between "
            "blocks, not inside them.",
        ),
        "replicas-differ": Message(
            EXIT_FAILED,
            "The weights of the ranks are no longer equal (`--verify-replicas`).",
            "Exclude the node that the error names and resume: a GPU or its memory may be faulty; `--selftest` "
            "tests the nodes.",
        ),
        "slow-bf16": Message(
            WARNING,
            "The device emulates bf16, which is slow: a GPU before Ampere, or a CPU without AVX-512 BF16, AMX or "
            "ARM's bf16.",
            "Use `--amp auto` for a new run, `--amp none`, or a device that computes in bf16. On such a CPU a step can "
            "take minutes, and a signal is answered after it.",
        ),
        "unsafe-fused-optimizer": Message(
            WARNING,
            "Under GradScaler the optimizer's fused implementation changes its state in steps that are skipped.",
            "Build the optimizer with `foreach=True` or `fused=False`.",
        ),
        "nothing-compiled": Message(
            WARNING,
            "`--compile` found nothing in the model to compile.",
            "Leave `--compile` out, or see why the model's `forward` opts out of torch.compile.",
        ),
        "compiled-code-lost": Message(
            WARNING,
            "What torch.compile made in an earlier attempt cannot be read or kept: the next attempt compiles again.",
            "Check free space and quota; nothing else is needed.",
        ),
        "bad-profile": Message(
            EXIT_CONFIG,
            "`--profile` or `--profile-ranks` names steps or ranks that do not exist.",
            "Write `--profile FIRST-LAST`, and ranks from 0 to the number of ranks less one.",
        ),
        "no-profile": Message(
            WARNING,
            "A profile could not be written, or the attempt ended before the steps that `--profile` names.",
            "Name earlier steps, or check the disk.",
        ),
        "figure-not-drawn": Message(
            WARNING,
            "A figure could not be drawn or kept. Model and records are complete.",
            "Correct what the warning names; `trainer report RUN` draws the figures of a run anew.",
        ),
        "different-random-numbers": Message(
            WARNING,
            "The checkpoint was written by a version that draws random numbers differently, so dropout etc. "
            "differ from there on.",
            "None needed if that is acceptable; otherwise finish the run with the version that began it.",
        ),
        "unexpected-error": Message(
            EXIT_FAILED,
            "An error for which Slipway has no explanation; its traceback stands above it.",
            "If it comes from your model, data or script, correct it there; otherwise report it with the traceback.",
        ),
    },
    "Data": {
        "no-data": Message(
            EXIT_CONFIG,
            "The data set is not in the data folder.",
            "Check `--data-dir`, and that its disk is mounted and bound into the container; download it on a "
            "node with a network.",
        ),
        "bad-data-file": Message(
            EXIT_CONFIG,
            "`SLIPWAY_DATA` is a file that the job cannot mount, unpack or read, or that is damaged.",
            "If the error says damaged, copy the file again. Otherwise use a folder, an archive of `trainer pack`, a "
            "SquashFS image with Apptainer or SingularityCE and `USE_CONTAINER=1`, or a tar with `SLIPWAY_STAGE=1`; "
            "see docs/data.md.",
        ),
        "no-images": Message(
            EXIT_CONFIG,
            "A folder or archive of images holds none.",
            "It must hold one folder for each class, with image files; see docs/data.md.",
        ),
        "data-unreadable": Message(
            EXIT_CONFIG,
            "A file of the data cannot be read.",
            "Check permissions and the disk; replace or remove the file that the error names.",
        ),
        "damaged-archive": Message(
            EXIT_CONFIG,
            "A packed data set is damaged or incomplete.",
            "Copy it again, or pack it anew by `trainer pack`.",
        ),
        "damaged-image": Message(
            WARNING,
            "An image cannot be decoded. It is left out.",
            "Repair or remove the file; `--bad-image-share` sets the share of bad images that is tolerated.",
        ),
        "too-many-bad-images": Message(
            EXIT_FAILED,
            "More images cannot be decoded than `--bad-image-share` allows.",
            "Repair or remove the files that the log names, or raise `--bad-image-share`.",
        ),
        "classes-differ": Message(
            EXIT_CONFIG,
            "train/ and val/ hold different classes.",
            "Give each class a folder in both.",
        ),
        "class-too-small": Message(
            EXIT_CONFIG,
            "A class has too few samples to hold some out for validation.",
            "Add samples, or set `val_fraction` to 0 and give a validation part.",
        ),
        "lost-worker": Message(
            EXIT_FAILED,
            "A DataLoader worker was killed, exited unexpectedly, or could not hand over its batch.",
            "Often memory ran out: lower `--workers` or the batch size, ask for more memory, or enlarge /dev/shm.",
        ),
    },
    "Sessions": {
        "session-arguments": Message(
            EXIT_CONFIG,
            "`slipway.Session(...)` got nothing to save, or an argument of it, or of a method, has a value that it "
            "cannot have.",
            "Pass what trains by name, and look at docs/reference.md.",
        ),
        "session-not-open": Message(
            EXIT_FAILED,
            "A Session is used outside its `with` block, twice at once, or not in the main thread.",
            "Open one Session by `with slipway.Session(...) as session:` in the main thread, and use it there.",
        ),
        "session-thread": Message(
            EXIT_FAILED,
            "A Session is opened in a thread. It listens to signals, which only the main thread can.",
            "Open it in the main thread.",
        ),
        "folder-used-twice": Message(
            EXIT_CONFIG,
            "A second Session of a process has the folder of the first one, whose run it would continue: the folds of "
            "a cross-validation, or trials one after the other. A warning if the first one has failed.",
            "Give each its folder: `Session(folder=...)`, within RUN_DIR if that is set. To continue a run that is "
            "done, begin another process.",
        ),
        "other-command": Message(
            WARNING,
            "The arguments of the script, or its file, are not those with which the run in the folder was begun. The "
            "run continues all the same; if it is done, it is not trained again.",
            "None needed if that is meant. For another run name another folder: `Session(folder=...)`, or RUN_DIR.",
        ),
        "lightning-inexact": Message(
            WARNING,
            "A training by Lightning's Trainer may end with other weights than one that was not stopped: it is resumed "
            "in mid-epoch on another number of ranks, or where no batches can be skipped; or it uses "
            "ReduceLROnPlateau, of which Lightning leaves out a step at each resume.",
            "Keep the number of ranks, or use `slipway.Session`, which is exact.",
        ),
        "not-resumed": Message(
            EXIT_FAILED,
            "Lightning's Trainer did not start from the checkpoint of the run folder.",
            "Pass `ckpt_path` to `trainer.fit` as the error says, or name another folder.",
        ),
        "batches-not-called": Message(
            EXIT_FAILED,
            "`session.batches` is not called in each epoch as before, or not iterated at once.",
            "Call `session.batches(loader)` in each epoch of `session.epochs`, and iterate it there.",
        ),
        "after-load-best": Message(
            EXIT_FAILED,
            "`session.load_best` has put the best weights into the models, and a loop of the Session continues.",
            "Call it after all loops over `session.epochs`, `batches` and `steps`; test the best weights without them.",
        ),
        "two-passes": Message(
            EXIT_FAILED,
            "Two results of `session.batches` are iterated at a time, by `zip`, `itertools.chain` or a nested loop.",
            "Side by side: `session.batches(zip(a, b))`. One after the other: a loop for each. Within a batch: iterate "
            "the second loader without the session.",
        ),
        "uneven-passes": Message(
            EXIT_FAILED,
            "Some ranks call `session.batches` where others do not, as in a validation by rank 0 alone.",
            "Call it on all ranks; on one rank alone, iterate the loader itself.",
        ),
        "nested-loops": Message(
            EXIT_FAILED,
            "`session.steps` and `session.epochs`, or `session.batches`, are nested in each other.",
            "Iterate `session.batches(range(k))` for k iterations of an epoch. A loop within a batch or a step is a "
            "plain one.",
        ),
        "peeked-elsewhere": Message(
            EXIT_FAILED,
            "`slipway.peek` returned another place than that at which the Session resumes: the newest checkpoint is "
            "damaged, which `peek` does not see, or another job has saved since. What the script built by it may not "
            "fit the older state.",
            "Start the script again, or let the job do so. The damaged checkpoint is set aside, so that `peek` and the "
            "Session agree.",
        ),
        "parameters-not-given": Message(
            EXIT_CONFIG,
            "An optimizer trains parameters of a module that the Session was not given, so that they would not be "
            "saved.",
            "Pass that module too, or a single tensor as `nn.ParameterList([tensor])`.",
        ),
        "optimizer-not-given": Message(
            WARNING,
            "An optimizer steps that the Session was not given, or one within the steps of another whose "
            "`state_dict` does not hold its state: a resumed run would begin without that state.",
            'Pass it too: `Session(optimizer={"a": a, "b": b})`.',
        ),
        "no-optimizer-step": Message(
            EXIT_FAILED,
            "No optimizer that the Session knows has stepped. A warning if weights change all the same; an error if "
            "the run ends like this. Until one steps, the run is saved only when an epoch ends.",
            "Pass the optimizer that steps: the inner one, if another wraps it.",
        ),
        "unknown-metric": Message(
            EXIT_FAILED,
            "`best=` names a metric, or `session.mean` a mean, of which the script gives no value.",
            "Compare the name with those that `session.metrics` or `session.mean` gets.",
        ),
        "not-a-number": Message(
            EXIT_FAILED,
            "What is passed to `session.log`, `session.mean` or `session.metrics` is not a number.",
            "Pass a float, or a tensor of one element.",
        ),
        "mean-outside-batches": Message(
            EXIT_FAILED,
            "`session.mean` adds a value outside of a loop over `session.batches`.",
            "Iterate `session.batches(loader)` there, for a validation too. In other loops, which are never resumed "
            "in the middle, average in variables.",
        ),
        "numbered-from-zero": Message(
            WARNING,
            "In a resumed epoch, `enumerate` or `zip` numbers the batches as if the epoch began now.",
            "Write `enumerate(session.batches(loader), session.batch)`.",
        ),
        "no-state-dict": Message(
            EXIT_FAILED,
            "An object to be saved has no `state_dict` and `load_state_dict`.",
            "Pass an object that has both.",
        ),
        "unsavable-state": Message(
            EXIT_FAILED,
            "The state of an object holds what a checkpoint cannot: a sparse, quantized, nested or complex128 tensor, "
            "a tensor subclass, or an object that is not plain data.",
            "Let `state_dict` return dense tensors of usual dtypes, numbers, text, lists and dictionaries. Register a "
            "buffer that the script can rebuild with `persistent=False`.",
        ),
        "unresumable-state": Message(
            WARNING,
            "The script has changed an object since the Session opened, in a way that the object of the next attempt "
            "cannot load: it would refuse the checkpoint.",
            "Make the change before the Session opens if the run has reached it: `slipway.peek(folder)` says "
            "whether it has.",
        ),
        "not-restored": Message(
            WARNING,
            "A value that no `state_dict` contains differs from the one with which the run began, or a module or an "
            "optimizer holds an object that has changed and is not plain data, so the resumed run may come to other "
            "results.",
            "Seed what computes it, or save it: `register_buffer` in a module, or `Session(extra=...)`.",
        ),
        "scheduler-not-given": Message(
            WARNING,
            "A learning-rate scheduler works on an optimizer and was not given to the Session, so it begins anew in "
            "each attempt.",
            "Pass it: `Session(scheduler=scheduler)`. Ignore this if the script computes the learning rate by itself.",
        ),
        "sharded-model": Message(
            EXIT_FAILED,
            "A model or an optimizer is sharded over the ranks (FSDP, DTensor, ZeroRedundancyOptimizer); a Session "
            "cannot save it.",
            "Use DistributedDataParallel and an optimizer that each rank has whole, or save without a Session, by "
            "`torch.distributed.checkpoint`.",
        ),
        "sampler-batch-size": Message(
            EXIT_FAILED,
            "`slipway.Sampler` is used in a loader without a batch size.",
            "Give `DataLoader` a `batch_size` with it.",
        ),
        "no-ddp-model": Message(
            WARNING,
            "Several ranks run, and no model given to the Session is in DistributedDataParallel: each rank may train "
            "alone.",
            "Wrap the model, and give the wrapped one to the Session. Ignore this if the script averages gradients "
            "itself.",
        ),
        "rank-state-not-saved": Message(
            EXIT_CONFIG,
            "An object that is given to a Session differs between the ranks, and is too large to be saved for each: a "
            "warning at the save, and an error where the run would be resumed.",
            "Keep the object alike on all ranks: average it, or wrap the model in DistributedDataParallel.",
        ),
        "model-before-batches": Message(
            WARNING,
            "A run was saved within an epoch, and code of that epoch before its batches has called a model in the "
            "resumed attempt: with later weights than those at which the epoch began. Rollouts, pseudo-labels and "
            "scores of samples differ then; a validation only prints other numbers.",
            "Compute it if `session.batch` is 0, and keep the result in `extra`.",
        ),
        "module-not-given": Message(
            WARNING,
            "A module that the script has made before its loops changes while it trains, and was not given to the "
            "Session: an average of weights, a teacher, a target network, a loss with buffers or counters. It begins "
            "anew in each attempt.",
            'Pass it: `Session(model={"model": model, "teacher": teacher})`, or `extra=`. Ignore this for a metric '
            "that each epoch resets before it uses it.",
        ),
        "reads-ahead": Message(
            WARNING,
            "In a loop over `session.batches`, no optimizer steps in the first one to four bodies, and one does in "
            "each later one: the script seems to fetch batches before it trains on them, as a prefetcher around "
            "`session.batches` does. A run that is resumed within the pass leaves out those that were fetched.",
            "Prefetch within: `session.batches(prefetch(loader))`. Ignore this if the first batch is skipped on "
            "purpose.",
        ),
        "ranks-differ": Message(
            WARNING,
            "The parameters of a model in DistributedDataParallel, or of one under Horovod, are not equal on all ranks "
            "when a Session saves them: the ranks train different models. A resumed run continues with those of rank "
            "0.",
            "An optimizer has stepped after a backward pass under `no_sync`, or code has changed weights on some ranks "
            "only. Leave `no_sync` for the last backward pass before a step.",
        ),
        "rank-state-changed": Message(
            WARNING,
            "A run in which generators, or buffers of a model, differed between the ranks continues with another "
            "number of ranks; or a module has an attribute that may be the earlier number of ranks. Generators of "
            "further ranks are seeded anew.",
            "None needed, unless results must be bitwise the same: then use the same number of ranks. Let modules "
            "call `get_world_size()` when they need the number.",
        ),
        "epoch-without-batches": Message(
            WARNING,
            "An epoch of a Session did not use `session.batches`, so its steps count as one, and it cannot "
            "resume within it.",
            "Iterate `session.batches(loader)`.",
        ),
        "early-workers": Message(
            WARNING,
            "DataLoader workers were started before the Session, so a signal to all processes (Ctrl-C, "
            "`scancel`) ends them while the run still needs them.",
            "Iterate the loader first inside the Session.",
        ),
        "changed-loader": Message(
            WARNING,
            "A setting, a counter or data (a tensor, an array, a list of numbers) of a loader, its data set or its "
            "sampler had changed while the script trained, and the resumed attempt has another value of it.",
            "Set it in every epoch before `session.batches`, as in `data.augment = epoch < 5`. What a sampler counts "
            "in `__iter__` must follow from the epoch: `set_epoch`. Another state that changes by itself belongs in "
            "`extra`; what a sampler draws its order from may then change between epochs, not within them.",
        ),
        "unsaved-generator": Message(
            WARNING,
            "A generator that was given to a loader, or to its sampler, continues from pass to pass, and the loader is "
            "iterated without `session.batches`, as for a validation or within `zip`.",
            "Leave the generator out, or seed it before each pass. For a validation, `extra=generator` saves it.",
        ),
        "slow-resume": Message(
            WARNING,
            "A loader has no index, so on resume the batches that were trained are fetched again and dropped.",
            "Use a map-style dataset, if that takes too long.",
        ),
        "epoch-repeated": Message(
            WARNING,
            "The number of ranks changed within an epoch, and `repeat_epoch=True`: the epoch begins anew.",
            "None needed; `slipway.Sampler` divides the rest of an epoch instead.",
        ),
        "unknown-tracker": Message(
            EXIT_CONFIG,
            "`SLIPWAY_TRACKERS`, or `trackers=` of a Session, names an experiment tracker that Slipway does not "
            "support.",
            "Choose tensorboard, wandb or mlflow; log to any other from your own script.",
        ),
        "tracker-not-installed": Message(
            EXIT_CONFIG,
            "The package of a tracker is missing.",
            "Install it into the environment or image: `pip install wandb`, `mlflow-skinny` or `tensorboard`.",
        ),
        "tracker-silent": Message(
            WARNING,
            "A tracker does not answer in time. Training continues; metrics.jsonl has all records.",
            "Check the network of the node, or use the tracker's offline mode.",
        ),
        "tracker-ended": Message(
            WARNING,
            "A tracker or TensorBoard failed. Training continues; metrics.jsonl has all records.",
            "Correct what the warning names, and start again if you need it.",
        ),
    },
    "Reasons of attempts that did not fail": {
        "complete": Message(
            0,
            "Training reached its last epoch or step.",
            "None needed: the run folder holds checkpoints and figures.",
        ),
        "time-limit": Message(
            EXIT_STOPPED,
            "The attempt saved and stopped before the time limit of its job.",
            "None needed if the job was requeued; otherwise submit `job.sh` of the run folder again.",
        ),
        "user": Message(
            EXIT_STOPPED,
            "Somebody asked the run to stop, by `jobgen cancel` or the file STOP. It saved first.",
            "Submit `job.sh` of the run folder again to continue.",
        ),
        "signal": Message(
            EXIT_STOPPED,
            "A signal stopped the attempt, as of `scancel`, `qdel` or Ctrl-C. It saved first.",
            "Submit `job.sh` of the run folder again to continue.",
        ),
        "launcher": Message(
            EXIT_STOPPED,
            "The launcher of the ranks died, and they saved and stopped.",
            "See in logs/N/stderr.log why it died, then continue the run.",
        ),
    },
}
"""The entries, by subject."""
SLUGS: Dict[str, Message] = {slug: entry for group in GROUPS.values() for slug, entry in group.items()}
