"""Catalogue of all errors and warnings by slug: exit code, when it occurs, and what to do.

The code that raises an error contains the message that the program prints. build/generate writes
docs/reference/errors.md from this table, `jobgen explain SLUG` prints an entry, and jobscripts/lib/errors.bash holds
the exit codes for job scripts. This file needs Python 3.9 and no torch.
"""

from typing import Dict, NamedTuple, Optional

from slipway.base.contract import EXIT_CONFIG, EXIT_STOPPED, EXIT_USAGE

EXIT_FAILED = 1
"""Exit code of an error that has no more specific exit code."""
WARNING = None
"""Value used in place of an exit code: the program continues."""


class Message(NamedTuple):
    """Catalogue entry of a slug."""

    exit_code: Optional[int]
    """Exit code of the program that the error ends; None for a warning. Some errors also occur as warnings."""
    when: str
    """When it occurs."""
    remedy: str
    """What the user should do."""

    @property
    def outcome(self) -> str:
        """Effect on the program, as a sentence."""
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
            "Check the spelling and the path. `trainer --help` lists the commands.",
        ),
        "bad-program": Message(
            EXIT_USAGE,
            "What `jobgen run` or `jobgen.Job` shall run is neither a Python script, nor a module, nor a "
            "configuration of the trainer, nor a run folder.",
            "Give the path of a file that ends with .py or .toml, of a run folder with a job.sh, or `-m MODULE`.",
        ),
        "no-process-group": Message(
            WARNING,
            "A script that `jobgen run` starts in several ranks contains no word of DistributedDataParallel or of "
            "another way to train on several GPUs (Horovod, Accelerate, Lightning, ...). Each rank would train a copy "
            "of the model on all data, and write the same files. A script that imports modules next to it is not "
            "examined.",
            "Wrap the model with DistributedDataParallel (docs/howto/from-one-gpu.md; "
            "`jobgen new` writes an example), or run it with `--backend single --gpus-per-node 1`.",
        ),
        "starts-over": Message(
            WARNING,
            "`jobgen run FOLDER` continues a run whose script does not use `slipway.Session`, so the folder has no "
            "checkpoint of one. The program starts from its beginning, unless it loads a checkpoint of another kind.",
            "Train in a session (docs/howto/session.md). Or begin a new run.",
        ),
        "ignored-variable": Message(
            WARNING,
            "A variable of the submit command, such as SBATCH_TIMELIMIT, would replace an option of the job script. It "
            "is ignored.",
            "Unset it, and use the flag of jobgen, such as `--time`.",
        ),
        "ignored-flag": Message(
            WARNING,
            "A flag of `jobgen run` is for schedulers, and the site is one machine without a scheduler.",
            "Remove the flag, or choose another site with `--site`.",
        ),
        "unknown-flag": Message(
            EXIT_USAGE,
            "The command does not have this flag.",
            "Check the spelling: the error names the nearest flag. `--help` lists all flags.",
        ),
        "unexpected-argument": Message(
            EXIT_USAGE,
            "An argument does not belong to a flag, or there are too many arguments.",
            "Put the value after its flag, quote a value that contains blanks, or remove the argument.",
        ),
        "missing-argument": Message(
            EXIT_USAGE,
            "The command requires another argument or flag.",
            "Add the argument or flag that the error names.",
        ),
        "bad-flag-value": Message(
            EXIT_USAGE,
            "The value of a flag is missing or invalid.",
            "Use a value of the kind that the error names.",
        ),
        "flag-conflict": Message(
            EXIT_USAGE,
            "Two flags exclude each other, or one is set twice.",
            "Remove one of the two.",
        ),
        "unclosed-quote": Message(
            EXIT_CONFIG,
            "`SLIPWAY_ARGS`, or `options`, `directives` or `remote_shell` in the site file, contains an unclosed quote "
            "(No closing quotation) or ends in a backslash.",
            "Close the quote, or write `\\\\` for a backslash. An apostrophe also counts as a quote: put double quotes "
            "around the word.",
        ),
        "misplaced-arguments": Message(
            EXIT_CONFIG,
            "`SLIPWAY_ARGS` is set for a script that takes its arguments on the command line.",
            "Put the arguments after the script's name: `sbatch ddp.job --epochs 5`.",
        ),
        "not-confirmed": Message(
            EXIT_USAGE,
            "The command would use more node-hours than its limit and was not confirmed. Nothing was submitted.",
            "Add `--yes`, or raise `--limit`.",
        ),
        "bad-axis": Message(
            EXIT_USAGE,
            "`jobgen sweep --set` names a key that cannot vary, or values that are invalid for the key.",
            "Write `KEY=VALUE,VALUE`, or `KEY=uniform:LOW:HIGH` with `--random`; see docs/howto/sweeps.md.",
        ),
        "bad-rungs": Message(
            EXIT_USAGE,
            "`--rungs` or `--keep` does not describe a successive halving.",
            "Give two or more increasing epochs to `--rungs`, and 2 or more to `--keep`: of each N trials, the best "
            "one continues.",
        ),
        "nothing-to-vary": Message(
            EXIT_USAGE,
            "A sweep varies nothing, no point of a study's grid fits the nodes, or the spec does not train.",
            "For a sweep, give several values (`--set KEY=A,B`) or `--seeds N`. For a study, choose numbers of ranks "
            "that divide evenly among the nodes; the lines above list the points that were left out. Or use a spec "
            "that trains, such as `ddp`.",
        ),
        "export-format": Message(
            EXIT_USAGE,
            "A model cannot be exported to a file with this suffix.",
            "Use one of the suffixes that the error lists.",
        ),
    },
    "Configurations, sites and settings": {
        "unknown-name": Message(
            EXIT_CONFIG,
            "No site, spec, model, data set, optimizer or schedule has this name.",
            "Check the spelling: the error lists the available names.",
        ),
        "unknown-key": Message(
            EXIT_CONFIG,
            "A configuration, site or spec contains a key that does not exist, or that belongs in another section.",
            "Check the spelling: the error names the nearest key, or the key's section.",
        ),
        "bad-value": Message(
            EXIT_CONFIG,
            "The value of a key or setting is invalid.",
            "Use a value that the error allows. docs/reference/settings.md lists the settings of job scripts, "
            "docs/reference/site.md the fields of sites, docs/reference/spec.md those of specs, and "
            "docs/reference/trainer-config.md the keys of configurations.",
        ),
        "bad-toml": Message(
            EXIT_CONFIG,
            "A file is not valid TOML.",
            "Correct the line that the error names. Strings need quotes; table names go in `[brackets]`.",
        ),
        "conflicting-settings": Message(
            EXIT_CONFIG,
            "Settings exclude each other, a setting requires another one that is missing, or the backend does not "
            "support a setting (such as sync_bn under Horovod).",
            "Change, add or remove the setting that the error names, or choose another `--backend`.",
        ),
        "bad-site": Message(
            EXIT_CONFIG,
            "A field of a site does not apply to its scheduler, or would have no effect.",
            "Use the field that the error names; see docs/reference/site.md.",
        ),
        "no-site": Message(
            EXIT_CONFIG,
            "`jobgen` is used without `--site`, and neither you nor the centre has a default site.",
            "Run `jobgen site --detect --save` on a login node, which makes your default site, or add `--site`.",
        ),
        "several-sites": Message(
            EXIT_CONFIG,
            "`jobgen` is used without `--site`, and you or the centre have several sites, none of which is the "
            "default.",
            "Add `--site NAME`, set `SLIPWAY_SITE`, or make one the default: `cd ~/.config/slipway/sites && ln -s "
            "NAME.toml default.toml`.",
        ),
        "site-not-saved": Message(
            EXIT_CONFIG,
            "`jobgen site --detect --save` has no terminal to ask at, or you did not confirm. Nothing was saved.",
            "Run it at a terminal, or add `--yes`, which saves what was detected without questions.",
        ),
        "launcher-conflict": Message(
            EXIT_CONFIG,
            "The launcher (srun, mpirun, ssh ...) cannot start the ranks at this site: it does not work with the "
            "scheduler, the container runtime, the MPI or `placement`.",
            "Do what the error says: use another launcher (`--set launcher=ssh`), `--set container=none`, no "
            "`placement`, or a spec that needs no MPI (`jobgen render horovod-gloo`).",
        ),
        "wrong-backend": Message(
            EXIT_CONFIG,
            "`BACKEND` names a backend that this job script cannot launch.",
            "Use the job script for that backend: the error contains the command.",
        ),
        "nothing-to-build": Message(
            EXIT_CONFIG,
            "`image_build` or `venv_build` was requested at a site that does not use such an image or environment.",
            "Set `container` or `venv` for this job, as the error says.",
        ),
        "bad-name": Message(
            EXIT_CONFIG,
            "The name of an object or metric contains characters that are not allowed, or is reserved.",
            "Use letters, digits, '_', '.' and '-', and a name that is not reserved.",
        ),
        "unknown-setting": Message(
            WARNING,
            "A variable looks like a setting (`SLIPWAY_...`), but no setting has this name. It has no effect.",
            "Check the spelling in docs/reference/settings.md.",
        ),
        "taken-name": Message(
            WARNING,
            "A variable that was set outside the job, often in a shell profile (`export scratch=...`), has the name of "
            "a variable that job scripts use internally. The job script does not read it, and the programs that it "
            "starts do not see it.",
            "If your program reads the variable, rename it in both places, for example to upper case.",
        ),
        "kept-variable": Message(
            WARNING,
            "A variable that the job would set was set outside the job. The job keeps that value.",
            "If this was not intended, unset the variable before you submit.",
        ),
        "foreign-run": Message(
            EXIT_CONFIG,
            "Another user started the run that is to be continued.",
            "Begin a run of your own; a script can load that run's weights.",
        ),
        "no-script": Message(
            EXIT_CONFIG,
            "The configuration or script of the job is missing, or cannot be read from this machine.",
            "Correct `SLIPWAY_CONFIG` or `SLIPWAY_SCRIPT`. The path is relative to the folder of submission.",
        ),
        "bad-script": Message(
            EXIT_CONFIG,
            "The script of `jobgen run` is not valid Python for the Python of its environment.",
            "Correct the line that the error names. If only a newer Python accepts it, use an environment with that "
            "Python.",
        ),
    },
    "Files": {
        "cannot-read": Message(
            EXIT_CONFIG,
            "A file or folder is missing or cannot be read (No such file or directory, Permission denied).",
            "Check the path, its permissions, and that its disk is mounted on that node. For a container, add the "
            "folder to `binds` in the site file. If the file is a template of jobgen, reinstall Slipway.",
        ),
        "cannot-write": Message(
            EXIT_CONFIG,
            "A file or folder cannot be created or written.",
            "Check permissions, free space and quota, or use another folder: `--output-dir` of the trainer, "
            "`Session(folder=...)` or `RUN_DIR` of a script, `SLIPWAY_OUTPUT` of a job.",
        ),
        "cannot-remove": Message(
            WARNING,
            "A file or folder that is no longer needed could not be removed.",
            "Remove it manually.",
        ),
        "disk-full": Message(
            EXIT_FAILED,
            "A file system accepts no more writes: it is full, over quota, read-only, or you have no write permission.",
            "Free space or quota, or correct the permissions. Then continue the run.",
        ),
        "file-exists": Message(
            EXIT_CONFIG,
            "The file or folder to be created exists already. Nothing is overwritten.",
            "Use another name, or remove the file or folder.",
        ),
        "not-a-folder": Message(
            EXIT_CONFIG,
            "The path must be a folder, but is not one.",
            "Give the path of a folder.",
        ),
        "bad-path": Message(
            EXIT_CONFIG,
            "A path contains characters that a script, a container or an archive does not support, or is of the wrong "
            "kind.",
            "Rename it, or use another path.",
        ),
        "bad-record": Message(
            EXIT_CONFIG,
            "A file that Slipway wrote is damaged, was edited, or is of another version.",
            "Use the version that wrote it, or start in a new folder.",
        ),
        "incomplete-install": Message(
            EXIT_CONFIG,
            "Files of the package or clone are missing, or a template was edited.",
            "Reinstall Slipway. In a clone, run `git status` and restore the files: `git checkout -- PATH`.",
        ),
        "no-library": Message(
            EXIT_CONFIG,
            "A job script cannot find the script library, jobscripts/lib; or `SLIPWAY_LIB` names a folder without "
            "job.bash, or one that you cannot list.",
            "Unset `SLIPWAY_LIB` if you set it, and submit from a clone; or generate the job script with `jobgen "
            "render --standalone`.",
        ),
        "no-clone": Message(
            EXIT_CONFIG,
            "The job builds an image or environment, but was not submitted from a clone of the project.",
            "Submit it from a clone: `git clone`, `cd`, then the same command.",
        ),
    },
    "Schedulers and jobs": {
        "unknown-scheduler": Message(
            EXIT_CONFIG,
            "`jobgen site --detect` runs on a cluster whose scheduler Slipway does not support.",
            "Slipway supports Slurm, PBS and single machines. docs/contributing/adding.md describes how to add a "
            "scheduler.",
        ),
        "no-scheduler": Message(
            EXIT_CONFIG,
            "The command or spec requires a scheduler that queues jobs, but the site is a single machine.",
            "Choose a site with a scheduler, or run the command that the error names.",
        ),
        "no-scheduler-command": Message(
            EXIT_CONFIG,
            "A command of the scheduler (sbatch, qsub, salloc) is not on PATH.",
            "Run the command on a login node, or load the scheduler's module. `--dry-run >FILE` writes the job script, "
            "but exits with 78.",
        ),
        "scheduler-silent": Message(
            EXIT_CONFIG,
            "A command of the scheduler failed, or did not respond in time. It is a warning if a job script can "
            "continue without the answer. Under PBS, until `qstat` answers, the ranks do not save before the walltime, "
            "and no next job is submitted.",
            "Run the command manually to see its error, and retry later. Without an answer, a Slurm job script does "
            "not compare the GPUs of its nodes. It then names the run of an array task by the task's own job number "
            "instead of ARRAY_TASK, and refuses the task if it was requeued: continue a run that the task started "
            "earlier with `sbatch RUN_DIR/job.sh`. Such a `job.sh` is refused, because it may be a copy, unless "
            "`SLIPWAY_RUN_DIR` names its folder or the job was requeued.",
        ),
        "submission-refused": Message(
            EXIT_CONFIG,
            "The scheduler refused a job.",
            "Read the scheduler's message above. Common causes are the account, the partition or a limit of the queue. "
            "Then run the same command again.",
        ),
        "no-job-number": Message(
            EXIT_CONFIG,
            "The scheduler accepted a job but printed no job number.",
            "Find the job in the queue, and cancel it if it is not wanted.",
        ),
        "no-such-job": Message(
            EXIT_CONFIG,
            "Neither the scheduler nor the output folder has a record of the job.",
            "Run the command in the folder from which the job was submitted, or give the job's run folder.",
        ),
        "no-such-run": Message(
            EXIT_CONFIG,
            "The given name is neither a run folder nor a job.",
            "Give a run folder (`runs/NAME`) or a job number.",
        ),
        "several-runs": Message(
            EXIT_CONFIG,
            "The given name or job number belongs to several runs.",
            "Give one of the run folders that the error lists.",
        ),
        "unclear-newest": Message(
            EXIT_CONFIG,
            "`jobgen cancel` without an argument does not know for certain which run was submitted last. The newest "
            "job has no run folder in the output folder, and its script is not one of jobgen's, or it was requeued.",
            "Give the run folder or the job number; `jobgen list` shows both.",
        ),
        "no-log": Message(
            EXIT_CONFIG,
            "The command found no log of the run here.",
            "Run the command in the folder from which the job was submitted, or give the run folder.",
        ),
        "already-ended": Message(
            EXIT_CONFIG,
            "The job to cancel has already ended.",
            "None needed; `jobgen status` shows how it ended.",
        ),
        "no-job-script": Message(
            EXIT_CONFIG,
            "The file or folder is not a job script that `jobgen render` wrote, or the spec does not define a job.",
            "Use a script from jobscripts/, or generate one with `jobgen render`.",
        ),
        "stale-script": Message(
            WARNING,
            "A generated job script differs from the output of its spec and site: the script, the spec or the site was "
            "edited, or another version generated it.",
            "Regenerate it with the command in the warning, and move your edits into its spec, its site or `--set`.",
        ),
        "not-a-job": Message(
            EXIT_CONFIG,
            "The spec does not define a job that the command can use.",
            "Choose another spec of `jobscripts/specs`.",
        ),
        "unsupported-option": Message(
            EXIT_CONFIG,
            "The scheduler has no equivalent of an option.",
            "Remove the option; `--dry-run >FILE` writes the job script.",
        ),
        "no-terminal": Message(
            EXIT_CONFIG,
            "An interactive job needs a terminal.",
            "Run the command in a terminal, or submit a job instead.",
        ),
        "different-study": Message(
            EXIT_CONFIG,
            "The folder holds a different sweep or study than the command line describes.",
            "Repeat the original command, or use another `--output`.",
        ),
        "too-many-trials": Message(
            EXIT_CONFIG,
            "A sweep has more trials than the scheduler accepts in one job array.",
            "Submit fewer trials. Then run the command again with more: it adds the remaining ones.",
        ),
        "time-too-short": Message(
            EXIT_CONFIG,
            "The job's time limit leaves no time to train before the save at its end.",
            "Request more time (`minutes`), or reserve less for the save (`save_seconds`).",
        ),
        "no-time-limit": Message(
            WARNING,
            "PBS reports no time limit for the job, or one that cannot be read. At the limit, PBS ends the job without "
            "a save, and the job script submits no next job.",
            "Submit the job with `-l walltime=HH:MM:SS`.",
        ),
        "heterogeneous-job": Message(
            EXIT_CONFIG,
            "The components of a heterogeneous Slurm job differ, but a run needs identical nodes.",
            "Submit the job with one component.",
        ),
        "no-nodes": Message(
            EXIT_CONFIG,
            "The scheduler does not list the job's nodes, or lists fewer than the job has.",
            "Submit the job script with `sbatch` or `qsub`. If you did, submit it again. A manual start needs an "
            "allocation.",
        ),
        "too-few-nodes": Message(
            EXIT_CONFIG,
            "`SLIPWAY_SPARES` leaves no node for training.",
            "Request more nodes, or lower `SLIPWAY_SPARES`.",
        ),
        "too-many-nodes": Message(
            EXIT_CONFIG,
            "A job script for one process (`single`), or `jobgen shell`, was given several nodes. `jobgen shell` also "
            "refuses several ranks.",
            "Request one node (`--nodes=1`), or use a job script for several nodes, such as `ddp`. To work on several "
            "nodes interactively, write the job script with `jobgen run SCRIPT --nodes N --dry-run >FILE`, and run "
            "`bash FILE` inside salloc (PBS: `qsub -I`).",
        ),
        "environment-left": Message(
            WARNING,
            "The scheduler did not pass the submission environment on to the job (`SBATCH_EXPORT=NONE`).",
            "Submit with `jobgen submit`, which writes settings into the job script, or with `sbatch --export=ALL`.",
        ),
        "no-kill-missing": Message(
            WARNING,
            "Under Slurm, spare nodes and `SLIPWAY_SHRINK` require a job with `--no-kill`, which survives the loss of "
            "a node. This job does not have it.",
            "Submit with `jobgen submit`, or with `sbatch --no-kill`.",
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
            "The job's image is missing, or cannot be read from this machine.",
            "Build it (`jobgen submit image_build`, `make image`), set `SLIPWAY_IMAGE` to an image on a disk that all "
            "nodes share, or use an environment: `USE_CONTAINER=0`.",
        ),
        "image-not-local": Message(
            EXIT_CONFIG,
            "`SLIPWAY_IMAGE` has a form that this container runtime cannot run, or that each process would convert "
            "again.",
            "Convert the image once with the command that the error names, and set `SLIPWAY_IMAGE` to the result.",
        ),
        "no-container-runtime": Message(
            EXIT_CONFIG,
            "The node lacks the site's container runtime (`container` in the site file).",
            "Set its module (`modules`) or its folder (`path`) in the site file, or use an environment: "
            "`USE_CONTAINER=0`.",
        ),
        "bad-entry-point": Message(
            EXIT_CONFIG,
            "The image's entry point (its run script) ignores the job's command, or does not return the command's exit "
            "code. Every command in the image would then seem to succeed.",
            'End the entry point with `exec "$@"`, build the image without one, or use an environment: '
            "`USE_CONTAINER=0`.",
        ),
        "no-environment": Message(
            EXIT_CONFIG,
            "The job's Python environment (venv, conda, modules) is missing, lacks packages, or cannot import torch.",
            "Build it (`jobgen submit venv_build --site SITE`, in a clone), or set `SLIPWAY_VENV` to a complete "
            "environment. For conda, use the folder that `conda env list` shows. If the cluster uses environment "
            "modules, add the one that provides Python to the site file. If torch cannot be imported "
            "(ModuleNotFoundError, ImportError), reinstall it, or rebuild the image. `USE_CONTAINER=1` uses the image "
            "instead, but a Dask client always needs an environment.",
        ),
        "missing-import": Message(
            WARNING,
            "A script imports modules that the job's Python environment does not have. Only imports at the top level "
            "of the script are looked at, not those in `try`, `if` or functions.",
            "Install the packages that contain the modules into that environment. A job does not use `PYTHONPATH`, nor "
            "packages in `~/.local`: put modules of yours next to the script, or install them (`pip install -e .`).",
        ),
        "not-shared": Message(
            EXIT_CONFIG,
            "The script, the Python environment or the image is in a folder that each machine has separately: in "
            "memory (tmpfs), in /tmp, /var/tmp or /dev/shm, or on the site's `local_disk`. The nodes do not see it. It "
            "is a warning for a disk of this machine (ext4, xfs), which the nodes may see through NFS.",
            "Move it to a disk that all nodes share, such as the home folder, or use an image there. Create an "
            "environment again instead: it does not work after a move.",
        ),
        "no-modules": Message(
            EXIT_CONFIG,
            "The environment modules that the job needs are not in the site file, cannot be loaded on the node, or "
            "remove the scheduler's commands from PATH.",
            "Correct `modules` or `purge_modules` in the site file. `module avail` on a node lists the modules that "
            "can be loaded.",
        ),
        "no-wheelhouse": Message(
            EXIT_CONFIG,
            "The folder of wheels from which the job installs is missing. Or `SLIPWAY_VENV=local` has no such folder, "
            "and the site does not allow its nodes to download.",
            "Fill a folder with `make wheelhouse`, and set `SLIPWAY_WHEELHOUSE` to it. Without one, `downloads = true` "
            "in the site file lets each node download. For `venv_build.job`, unset `SLIPWAY_WHEELHOUSE`.",
        ),
        "no-cuda-home": Message(
            EXIT_CONFIG,
            "`SLIPWAY_NCCL_PATH` names an NCCL of the site, but `CUDA_HOME` does not name a CUDA toolkit to build "
            "Horovod with.",
            "Load the site's CUDA module, or set `CUDA_HOME`.",
        ),
        "build-failed": Message(
            EXIT_CONFIG,
            "An image or environment could not be built, or the result does not work.",
            "Read the lines above the error. Common causes are the network and free space; `WHEELHOUSE` installs "
            "without a network.",
        ),
        "old-bash": Message(
            EXIT_CONFIG,
            "The node's Bash is older than 4.4.",
            "Load a newer Bash, or run on nodes that have one.",
        ),
        "old-python": Message(
            EXIT_CONFIG,
            "This Python is too old for the command.",
            "Run the command in the image, or in an environment made by `build/setup`.",
        ),
        "missing-package": Message(
            EXIT_CONFIG,
            "This Python lacks a package that the command needs.",
            "Run the command in the image or in an environment made by `build/setup`, or install the package.",
        ),
        "no-compiler": Message(
            EXIT_CONFIG,
            "`--compile` needs a C++ compiler, but none was found.",
            "Use an image or node that has one, set `CXX` to one, or remove `--compile`.",
        ),
        "no-horovod": Message(
            EXIT_CONFIG,
            "Horovod is missing, or was built for another torch.",
            "Build it with `build/setup horovod`, use the image, or train with `--backend ddp`.",
        ),
        "no-mpi": Message(
            EXIT_CONFIG,
            "The node has no mpirun, or mpirun does not respond.",
            "Load the MPI module (`modules` of the site), or use Horovod over Gloo, which needs no MPI: `jobgen submit "
            "horovod-gloo`.",
        ),
        "mpi-mismatch": Message(
            EXIT_CONFIG,
            "The MPI that starts the ranks is incompatible with the MPI in the image or environment.",
            "Use versions that match, or Horovod over Gloo: `jobgen render horovod-gloo`.",
        ),
        "mpi-as-root": Message(
            EXIT_CONFIG,
            "Open MPI's mpirun refuses to run as root, and the job's user is root.",
            "Submit as an ordinary user. If only root exists, as in a container or on a test machine, set "
            "`OMPI_ALLOW_RUN_AS_ROOT=1` and `OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1`.",
        ),
        "no-numactl": Message(
            EXIT_CONFIG,
            "The site binds ranks to cores (`numa_binding`), for which torchrun uses the program numactl. numactl is "
            "missing on a node or in the image, or has no permission there.",
            "Install numactl in the image (the images of `make image` have it), or on the nodes with "
            "`USE_CONTAINER=0`. Or remove `numa_binding` from the site file and regenerate the job script. In a "
            "container that may not read NUMA policies (`get_mempolicy`), numactl prints: This system does not support "
            "NUMA policy.",
        ),
        "no-profiler": Message(
            EXIT_CONFIG,
            "The profiler in `SLIPWAY_PROFILER` does not run on every node.",
            "Put it on PATH there: in the image, or with `USE_CONTAINER=0` through a module.",
        ),
    },
    "GPUs and ranks": {
        "no-gpu": Message(
            EXIT_CONFIG,
            "GPUs are requested, but torch finds none.",
            "Request GPUs from the scheduler, run the container with `--nv`, or train on the CPU: `--device cpu`, "
            "`SLIPWAY_DEVICE=cpu`.",
        ),
        "too-few-gpus": Message(
            EXIT_CONFIG,
            "The ranks need more GPUs than are available.",
            "Request more GPUs (`--nodes`, `--gpus-per-node`), or start fewer ranks: `--nproc-per-node`, "
            "`SLIPWAY_RANKS_PER_NODE`, `ranks_per_node`.",
        ),
        "uneven-gpus": Message(
            EXIT_CONFIG,
            "The scheduler gave the job's nodes different numbers of GPUs, such as 2 and 1 for `--gpus=3`, but a run "
            "starts the same number of ranks on each node. The job can still start with `SLIPWAY_DEVICE=cpu`, or if "
            "`SLIPWAY_RANKS_PER_NODE` is set and the smallest number of GPUs suffices for the ranks of a node.",
            "Request GPUs per node: `--gpus-per-node` or `--gres` under Slurm, `select=NODES:ngpus=GPUS` with "
            "`place=scatter` under OpenPBS, `nodes=NODES:gpus=GPUS` under Torque.",
        ),
        "too-few-cpus": Message(
            EXIT_CONFIG,
            "`--nproc-per-node` requests far more ranks than this process has CPUs.",
            "Start at most as many ranks as the error says, or request more CPUs (`--cpus-per-task`).",
        ),
        "broken-gpu": Message(
            EXIT_CONFIG,
            "A GPU or its driver fails at first use.",
            "Run `nvidia-smi` on that node, exclude the node (`sbatch --exclude`), and report it to the administrator.",
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
            "A job of several ranks was given MIG instances, and NCCL before 2.32 cannot communicate between MIG "
            "instances. Job scripts refuse such a job with any NCCL.",
            "Train one rank on one instance (`jobgen submit single`), or request whole GPUs.",
        ),
        "idle-gpus": Message(
            WARNING,
            "The job holds more GPUs than its ranks use.",
            "Start more ranks (`SLIPWAY_RANKS_PER_NODE`), or request fewer GPUs.",
        ),
        "ranks-not-named": Message(
            EXIT_CONFIG,
            "Several ranks are expected, but RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT is not set.",
            "Start the program with torchrun, with `--nproc-per-node N`, or with a job script, which set these "
            "variables.",
        ),
        "bad-rank-variables": Message(
            EXIT_CONFIG,
            "RANK, WORLD_SIZE, LOCAL_RANK or TRAINER_ATTEMPT is not a whole number, or `0 <= LOCAL_RANK <= RANK "
            "< WORLD_SIZE` does not hold.",
            "Unset the variables that your shell or an outer job has set (`env | grep -E 'RANK|WORLD_SIZE|TRAINER_'`), "
            "and let torchrun or the job script set them.",
        ),
        "joins-other-ranks": Message(
            EXIT_CONFIG,
            "A user script joins ranks other than those that the job started.",
            "Take the rank and the world size from `RANK` and `WORLD_SIZE`. If the script starts its own ranks, set "
            "`SLIPWAY_RANKS_PER_NODE=1`. If it uses Horovod, set `BACKEND=horovod`.",
        ),
        "separate-processes": Message(
            EXIT_CONFIG,
            "A launcher started several processes, and each would train alone.",
            "Select the launcher's backend: `--backend ddp` or `--backend horovod`. In a script, join the process "
            "group, or call `hvd.init()`, before the Session opens. To train alone, unset the variable that the error "
            "names.",
        ),
        "ranks-not-connected": Message(
            WARNING,
            "The ranks of a user script did not form one group: each trained alone.",
            "Call `torch.distributed.init_process_group()` or `hvd.init()` in the script, with the variables "
            "that the job sets.",
        ),
        "wrong-world-size": Message(
            EXIT_CONFIG,
            "The number of ranks that joined differs from the number that the job script planned.",
            "Check that every node started, and use an MPI whose version matches the image's MPI.",
        ),
        "nested-launch": Message(
            EXIT_CONFIG,
            "`--nproc-per-node` is set, but another launcher (torchrun, srun, mpirun) has started this process: each "
            "rank would start ranks.",
            "Use one of the two. If no launcher is running, unset the variable that the error names.",
        ),
        "cannot-start-rank": Message(
            EXIT_FAILED,
            "The process of a rank cannot be started.",
            "Raise the limits on processes and memory (`ulimit -a`), or start fewer ranks.",
        ),
        "cannot-join": Message(
            EXIT_FAILED,
            "A rank could not join the process group (`init_process_group`) within the timeout.",
            "Check the logs for a rank or node that failed first. Check the network, the firewall and `MASTER_ADDR`. "
            "`NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` select the interface.",
        ),
        "waiting-for-ranks": Message(
            WARNING,
            "A rank has waited for the others in `init_process_group` for 30 s. The warning repeats each minute. After "
            "the timeout, the rank ends with cannot-join.",
            "Check the logs for a rank or node that failed or has not started. Otherwise check `MASTER_ADDR`, the "
            "firewall, and `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME`. `NCCL_DEBUG=INFO` logs how NCCL connects.",
        ),
        "lost-peer": Message(
            EXIT_FAILED,
            "A rank lost its connection to another rank (NCCL or Gloo: connection reset, closed by peer).",
            "This is a consequence: find the rank or node that failed first in logs/N/stderr.log.",
        ),
        "no-network": Message(
            EXIT_CONFIG,
            "A node cannot reach the first node.",
            "Check the interface (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`), the firewall and `MASTER_ADDR`.",
        ),
        "no-master-address": Message(
            EXIT_CONFIG,
            "The first node has no address at which the other nodes can reach it: its name resolves only to loopback "
            "or link-local addresses, or to a bridge for virtual machines or containers.",
            "Set `MASTER_ADDR`, or make the node's name resolve to an address in the cluster's network.",
        ),
        "no-free-port": Message(
            EXIT_CONFIG,
            "The job script found no free port on the first node, or could not run the search there.",
            "Read the lines above, and set `MASTER_PORT` to a port that is free there.",
        ),
        "port-taken": Message(
            WARNING,
            "Another program took the port of the ranks' rendezvous. The job script repeats the launch with another "
            "port.",
            "None needed. If it recurs, set `MASTER_PORT` to a free port.",
        ),
        "no-rendezvous": Message(
            EXIT_CONFIG,
            "Horovod's rendezvous server did not start on the first node.",
            "Read the lines above. A common cause is an image or environment without Horovod.",
        ),
        "selftest-failed": Message(
            EXIT_CONFIG,
            "`--selftest` found ranks, GPUs or connections that do not work.",
            "Exclude the node that the error names, and report it to the administrator.",
        ),
    },
    "Nodes, restarts and requeues": {
        "node-not-ready": Message(
            EXIT_CONFIG,
            "A node could not do what the job needs before launch. The lines above name the node and the reason.",
            "Correct the reason, or exclude the node (`sbatch --exclude`). For a slow node, raise "
            "`SLIPWAY_PREFLIGHT_SECONDS`.",
        ),
        "launch-refused": Message(
            EXIT_CONFIG,
            "The launcher (srun, mpirun, torchrun) refused its command line: an invalid option, or not enough slots. "
            "No rank started, and the job is not restarted.",
            "Read logs/N/stderr.log in the run folder, and correct the options in the site file (`srun_options`, "
            "`mpirun_options`) or the requested nodes.",
        ),
        "slow-nodes": Message(
            WARNING,
            "Nodes do not respond within `SLIPWAY_PREFLIGHT_SECONDS`. The job script tries them once more.",
            "If this is normal at your site, raise `SLIPWAY_PREFLIGHT_SECONDS`.",
        ),
        "step-repeated": Message(
            WARNING,
            "A process was killed during the job's preparation. The job script runs that job step once more.",
            "None needed. If it recurs, check the node's memory (`sacct`), or exclude the node.",
        ),
        "node-lost": Message(
            WARNING,
            "A node starts no process, and the scheduler reports it as down, drained or not responding; or the first "
            "node gave no sign of life. The job leaves the node out, and restarts on the other nodes if it can.",
            "Report the node to the administrator. `SLIPWAY_SPARES` provides spare nodes that can replace a lost one.",
        ),
        "node-silent": Message(
            WARNING,
            "A node started no process in time in two tries, but the scheduler does not report it as down. The job "
            "leaves the node out until the next restart.",
            "If the node or the scheduler's controller is only slow, raise `SLIPWAY_PROBE_SECONDS`.",
        ),
        "launcher-stuck": Message(
            WARNING,
            "A rank failed, srun began to end all ranks, and srun itself did not exit within 30 s. It may be waiting "
            "for a node that is down. The job script kills srun.",
            "None needed: the job script then checks whether each node starts a process, and restarts the ranks if it "
            "can.",
        ),
        "node-suspect": Message(
            WARNING,
            "A process was killed on the same node for the second time. The job leaves the node out.",
            "Report the node to the administrator.",
        ),
        "rank-failed": Message(
            EXIT_FAILED,
            "A rank or the launcher exited with an error and recorded no cause. The job ends with the same exit code, "
            "often 1, or restarts the ranks.",
            "Read logs/N/stderr.log in the run folder: the first traceback shows the cause.",
        ),
        "rank-killed": Message(
            WARNING,
            "A signal killed a process of an attempt on the node that the warning names.",
            "A common cause is lack of memory: check logs/N/stderr.log and the scheduler's accounting (`sacct`).",
        ),
        "stopped-early": Message(
            EXIT_STOPPED,
            "A signal (SIGTERM from `scancel`, preemption, Ctrl-C) or the launcher's death ended the job, or a rank, "
            "before it could save.",
            "Resubmit `job.sh` of the run folder to resume from the last checkpoint, if one exists. If there is no "
            "`job.sh`, resubmit the original job script. Without a job, repeat the command.",
        ),
        "restarted": Message(
            WARNING,
            "The job started its ranks again from the last checkpoint, after a rank, launcher or node died.",
            "None needed; the preceding warning names the cause. `SLIPWAY_MAX_RESTARTS` limits the number of restarts.",
        ),
        "no-restart": Message(
            WARNING,
            "An attempt died, and the job does not restart its ranks: it has restarted too often, makes no progress, "
            "or has too few nodes.",
            "Correct the cause that the log names. Then resubmit `job.sh` of the run folder.",
        ),
        "fewer-nodes": Message(
            WARNING,
            "The run continues on fewer nodes (`SLIPWAY_SHRINK=1`). It uses the same samples, but adds them in another "
            "order, so results are not bitwise identical.",
            "None needed; the next job uses all nodes again.",
        ),
        "requeued": Message(
            WARNING,
            "The run continues in a further job, because this one ran out of time, was preempted, or lost a node.",
            "Nothing; `jobgen status` shows the progress. `SLIPWAY_MAX_REQUEUES` limits the requeues by the job "
            "script, not those by the scheduler.",
        ),
        "no-requeue": Message(
            WARNING,
            "The run could continue in a further job, but does not: the limit is reached, the attempt saved no further "
            "step, or the scheduler refuses.",
            "Continue the run: `jobgen run RUN_FOLDER`, or submit its `job.sh`.",
        ),
        "old-ranks": Message(
            WARNING,
            "Ranks of an earlier attempt may still run, because the job could not end processes on every node.",
            "If GPUs stay busy, end the ranks on the node that the log names, or have the node drained.",
        ),
        "cannot-stop": Message(
            WARNING,
            "The job script could not write the file STOP, so the ranks do not save before the job's time limit.",
            "Check free space and quota of the run folder.",
        ),
        "no-local-disk": Message(
            EXIT_CONFIG,
            "`SLIPWAY_LOCAL_DISK` is not a folder on the node.",
            "Set it to a folder on the node, such as /tmp.",
        ),
        "staging-failed": Message(
            EXIT_CONFIG,
            "The image or data could not be copied to the local disk of every node (`SLIPWAY_STAGE=1`).",
            "Find the node that failed, and the reason, in the lines above. If the disk is too small or full, use "
            "another `SLIPWAY_LOCAL_DISK`, or wait for the other jobs on that node: space that they reserve counts as "
            "used. For a dangling symbolic link, a loop, or denied permission, repair or remove the file that the "
            "error names. Or set `SLIPWAY_STAGE=0`.",
        ),
        "staged-in-memory": Message(
            WARNING,
            "The local disk to which image and data are copied is in memory (tmpfs), and counts toward the job's "
            "memory.",
            "Request that much more memory, set `SLIPWAY_LOCAL_DISK` to a disk, or set `SLIPWAY_STAGE=0`.",
        ),
        "scratch-left": Message(
            WARNING,
            "A job's folder on the local disk of a node could not be removed.",
            "Remove it manually on the nodes of that job.",
        ),
    },
    "Dask clients": {
        "nodes-missing": Message(
            EXIT_STOPPED,
            "Fewer than `SLIPWAY_MIN_NODES` nodes of a Dask client had started after `SLIPWAY_WAIT_SECONDS`.",
            "Check why the jobs are pending (`squeue --me`, `qstat`). Then start the script again with a larger "
            "`SLIPWAY_WAIT_SECONDS`, or with a smaller `SLIPWAY_MIN_NODES` or `SLIPWAY_NODES`.",
        ),
        "nodes-late": Message(
            EXIT_STOPPED,
            "The nodes of a Dask client arrived so late that no time remains to train before the save.",
            "Request more time (`minutes`), or accept fewer nodes (`SLIPWAY_MIN_NODES`).",
        ),
        "nodes-lost": Message(
            EXIT_CONFIG,
            "Jobs that should hold nodes for a Dask client ended, and too few nodes remain.",
            "Read the log that the error quotes. Common causes are an account, a limit of the queue, or an environment "
            "that is missing on the nodes.",
        ),
        "jobs-left": Message(
            EXIT_CONFIG,
            "Jobs of a Dask client did not end.",
            "Cancel them manually: the error contains the command.",
        ),
        "dask-scheduler-gone": Message(
            EXIT_FAILED,
            "Dask's scheduler, which runs in the client (`dask.sh`), has ended, or did not respond within 10 s.",
            "Check the client's output to see whether it was killed (login nodes limit memory and CPU time). Then run "
            "`bash RUN_DIR/job.sh` again, in tmux or in a small job.",
        ),
        "dask-scheduler-silent": Message(
            EXIT_CONFIG,
            "A node cannot reach Dask's scheduler.",
            "Check the network between the client's machine and the nodes, and the machine's firewall.",
        ),
    },
    "Run folders and checkpoints": {
        "folder-in-use": Message(
            EXIT_CONFIG,
            "Another process uses the run folder, or the folder of a sweep or study. The process may also belong to a "
            "job of another cluster, or run on another machine, if it recorded no end in logs/N/process and its state "
            "cannot be checked from here. As a warning: the scheduler does not respond, and an earlier job may still "
            "run.",
            "Wait for its end, stop it, or use another folder. The lock of a dead process expires after one minute. If "
            "a job elsewhere ended without recording it (for example by SIGKILL), record the end: `echo ended "
            ">>RUN_DIR/logs/N/process`. Another hostname counts as another machine: give a container that runs the "
            "script a fixed one (`--hostname`).",
        ),
        "folder-holds-run": Message(
            EXIT_CONFIG,
            "The output folder already holds a run, and this command does not continue it.",
            "Continue the run with `--resume auto` or with its `job.sh`, or use another folder.",
        ),
        "folder-holds-other-files": Message(
            EXIT_CONFIG,
            "`SLIPWAY_RUN_DIR` is a folder that holds files but no run, or a `lib` or `input.toml` that no job wrote.",
            "Set it to a new folder, or to a run folder.",
        ),
        "not-your-folder": Message(
            EXIT_CONFIG,
            "The run folder belongs to another user, or you cannot write to it.",
            "Set `SLIPWAY_RUN_DIR` or `SLIPWAY_OUTPUT` to a folder that you own.",
        ),
        "writable-by-others": Message(
            EXIT_CONFIG,
            "Another user owns, or can write, what the job runs as you: the run folder, its `job.sh`, `lib` or "
            "`input.toml`, the script library, a clone that is built from, or the folder of a sweep. Or others can "
            "write a folder above one of these, above a job's folder on SLIPWAY_LOCAL_DISK, or above what is built, "
            "and that folder has no sticky bit. Your group counts as other users (umask 002), unless it has your name "
            "and no other member, and is not another user's primary group. The error also occurs if others can enter "
            "the run folder and could write what a job creates there, through a default ACL that new files inherit "
            "whatever the umask. As a warning: the group can write a folder of yours above these, such as a project "
            "folder.",
            "Inspect the contents, then run `chmod -R go-w` on the folder that the error names. If another user owns a "
            "library that you trust, set `SLIPWAY_LIB` to it. On a disk that reports one mode for all files and "
            "ignores `chmod` (SMB, WSL), set `SLIPWAY_TRUSTED_FOLDER` to a folder in which you trust everyone who can "
            "write. For a default ACL: `chmod 700` the run folder, or `setfacl --remove-default`. For the warning: "
            "`chmod g-w`, unless you trust all members of the group.",
        ),
        "run-folder-moved": Message(
            EXIT_CONFIG,
            "The run folder that a kept `job.sh` continues is no longer in its place. Or the submitted `job.sh`, or "
            "the one in `SLIPWAY_RUN_DIR`, belongs to another run folder, such as a copy. As a warning: a job that was "
            "started before finds no attempt in its run folder, and begins at step 0.",
            "Set `SLIPWAY_RUN_DIR` to the folder's current path. A copy cannot be continued while the original exists.",
        ),
        "not-a-file": Message(
            EXIT_CONFIG,
            "A path that the run folder uses for a file is not a file of the run.",
            "Move it away.",
        ),
        "lost-folder": Message(
            EXIT_FAILED,
            "The lock of the run folder was removed, or another run took the folder over.",
            "Check with `jobgen status` which run holds the folder now. Never remove the lock of a run that trains.",
        ),
        "different-run": Message(
            EXIT_CONFIG,
            "The settings differ from those with which the run began, so resuming would not reproduce an "
            "uninterrupted run.",
            "Restore the settings that the error names, or start a new run in another folder.",
        ),
        "different-data": Message(
            EXIT_CONFIG,
            "The data differ from those with which the run, the evaluation or the archive began, or between ranks that "
            "divide one data set among them.",
            "Use the same data, and seed the code that splits them, or start again in another folder.",
        ),
        "different-model": Message(
            EXIT_CONFIG,
            "The model differs from the checkpoint's model.",
            "Use the model that was trained.",
        ),
        "different-state": Message(
            EXIT_CONFIG,
            "The objects that the script passes to its Session do not match the checkpoint.",
            "Build the same models, optimizers and schedulers as before, or start again in another folder.",
        ),
        "different-ranks": Message(
            EXIT_CONFIG,
            "A run that was saved within an epoch resumes on another number of ranks, with a sampler that does not "
            "support this. Or objects of the Session differed between the ranks.",
            "Use the same number of ranks, or `slipway.Sampler`.",
        ),
        "damaged-checkpoint": Message(
            EXIT_CONFIG,
            "A checkpoint fails its checksum or is incomplete; or no valid checkpoint remains.",
            "A run resumes from its newest valid checkpoint: `trainer --resume auto` and a Session do so "
            "automatically; Lightning resumes from the one before if you move the damaged one out of the folder. If no "
            "checkpoint is valid, move the folder away and start again.",
        ),
        "damaged-best": Message(
            EXIT_CONFIG,
            "The checkpoint with the best metric fails its checksum or is incomplete. The run still resumes from its "
            "newest valid checkpoint.",
            "Move the damaged checkpoint out of the run folder and start the script again: `session.load_best` then "
            "loads the next best one. To export another checkpoint, name it: `slipway export CHECKPOINT FILE`.",
        ),
        "older-checkpoint": Message(
            EXIT_CONFIG,
            "The run in this folder has newer checkpoints than the given one.",
            "Continue from it in another folder: `--resume CHECKPOINT --output-dir OTHER`.",
        ),
        "order-version": Message(
            EXIT_CONFIG,
            "A version of Slipway that orders samples differently wrote the checkpoint.",
            "Use that version, or start a new run.",
        ),
        "no-checkpoint": Message(
            EXIT_CONFIG,
            "No checkpoint exists yet, or the path holds none.",
            "Give a run folder that has `checkpoints/`, or one of the checkpoints in it.",
        ),
        "no-best-checkpoint": Message(
            EXIT_CONFIG,
            "The best checkpoint was requested, but the run recorded no metric to choose it by.",
            "Remove `--best` or `session.load_best`, or set the metric in the run (`best=`).",
        ),
        "not-saved": Message(
            EXIT_FAILED,
            "The last checkpoint of a run could not be written.",
            "Free space or quota, or restore your permissions on the folder. Then continue the run: the previous "
            "checkpoint is valid.",
        ),
        "checkpoint-not-written": Message(
            WARNING,
            "A checkpoint could not be written. Training continues, and saves again at the next checkpoint.",
            "Check free space, quota and the disk.",
        ),
        "checkpoint-set-aside": Message(
            WARNING,
            "A run resumed from a point before its newest checkpoint, which was renamed so that it no longer counts as "
            "the newest. Or a program that follows links copied the folder (`cp -rL`, `scp -r`): `latest` and `best` "
            "were full checkpoints, and are links again.",
            "Remove the renamed checkpoint when you do not need it.",
        ),
        "checkpoint-ignored": Message(
            WARNING,
            "`--resume CHECKPOINT` was given in a run folder that has its own checkpoints: the run continues from the "
            "newest of those.",
            "None if a job was requeued, or if you continue this run. To start from the given checkpoint, as in "
            "fine-tuning, use another `--output-dir`.",
        ),
        "low-disk-space": Message(
            WARNING,
            "The disk or quota has too little space or too few inodes for the next checkpoints.",
            "Free space, keep fewer checkpoints (`--keep`), or use another folder.",
        ),
        "not-a-run": Message(
            EXIT_CONFIG,
            "The path is neither a run folder nor a checkpoint.",
            "Give a folder with `checkpoints/`, or one of the checkpoints in it.",
        ),
        "missing-config": Message(
            EXIT_CONFIG,
            "The run's configuration is missing next to its checkpoint.",
            "Pass a copy of the run's `config.toml` with `--config`.",
        ),
        "checkpoint-of-script": Message(
            EXIT_CONFIG,
            "A script with a Session wrote the checkpoint, but this command is for runs of the trainer.",
            "Continue it with that script; `slipway export` writes its weights.",
        ),
        "several-models": Message(
            EXIT_CONFIG,
            "The checkpoint holds several models, but the file can hold only one.",
            "Choose one with `--model`.",
        ),
        "no-such-model": Message(
            EXIT_CONFIG,
            "The checkpoint holds no model of this name.",
            "Choose a model that the error lists.",
        ),
        "not-only-tensors": Message(
            EXIT_CONFIG,
            "A model's state contains objects other than tensors, which a .safetensors file cannot store.",
            "Export to a .pt file.",
        ),
        "bad-weights": Message(
            EXIT_CONFIG,
            "A weights file cannot be read, or does not match the model.",
            "Use a state_dict of the same model, saved by `torch.save` or safetensors, or a Hugging Face folder with "
            "safetensors files.",
        ),
        "cannot-append": Message(
            WARNING,
            "Lines of a log such as metrics.jsonl cannot be written now. They are kept in memory and written later.",
            "Check free space, quota and the disk.",
        ),
        "damaged-metrics": Message(
            WARNING,
            "metrics.jsonl contains lines that are not records. They were removed, and a copy of the file was kept.",
            "Check the copy if records are missing.",
        ),
        "left-out": Message(
            WARNING,
            "`trainer report` cannot read a file of a run, or part of the file is invalid. The page shows the rest.",
            "If data are missing on the page, check the file that the warning names.",
        ),
    },
    "Training": {
        "diverged": Message(
            EXIT_FAILED,
            "The loss, a weight or a logged value became NaN or infinite. This step is not saved.",
            "Resume with a lower `--lr`, with `--clip-grad`, or with `--amp bf16` or `--amp none` instead of fp16. If "
            "a script uses a GradScaler, pass it to the Session, which then allows such values in steps that the "
            "GradScaler skips.",
        ),
        "out-of-memory": Message(
            EXIT_CONFIG,
            "CUDA ran out of memory (CUDA out of memory, torch.OutOfMemoryError), or `--memory` computed that a rank "
            "needs more than its device has.",
            "Use a smaller batch size. The trainer also has `--grad-accum-steps`, `--recompute` and `--split`; "
            "`--dry-run --memory` measures the memory.",
        ),
        "memory-unknown": Message(
            EXIT_CONFIG,
            "`--memory` cannot compute the model on the meta device.",
            "Remove `--memory`, or train a few steps and read the peak in the log.",
        ),
        "unused-parameters": Message(
            EXIT_CONFIG,
            "Parameters received no gradient in a step, and DistributedDataParallel waits for them.",
            "Use them in each step, freeze them with `requires_grad_(False)`, or pass `--find-unused-parameters`. In a "
            "script: `DistributedDataParallel(..., find_unused_parameters=True)`.",
        ),
        "batch-too-small": Message(
            EXIT_FAILED,
            "Batch norm received a single sample.",
            "Choose a `--batch-size` that leaves two or more samples for each micro-batch.",
        ),
        "image-size": Message(
            EXIT_CONFIG,
            "The model does not support images of this size.",
            "Resize the images (`--image-size`), or choose another model.",
        ),
        "bad-plugin": Message(
            EXIT_CONFIG,
            "A user-defined model or data set cannot be imported, fails, or returns an object that the trainer cannot "
            "use.",
            "Fix the problem that the error reports; docs/howto/own-model.md has examples.",
        ),
        "bad-split": Message(
            EXIT_CONFIG,
            "The model cannot be split into pipeline stages at this point.",
            "Name modules that are called once, one after the other, and pass one tensor; see docs/howto/split.md.",
        ),
        "bad-stage-devices": Message(
            EXIT_CONFIG,
            "`--stage-devices` names devices that do not exist, or does not name one device for each stage.",
            "Write one of cpu, cuda:0, cuda:1 ... for each stage, or remove the flag.",
        ),
        "no-blocks": Message(
            EXIT_CONFIG,
            "`--recompute` (activation checkpointing) finds no blocks: modules that have children, such as residual "
            "blocks, in an nn.Sequential or nn.ModuleList.",
            "Remove `--recompute` for small models such as `mlp` and `mnist-cnn`. In a user-defined model, group "
            "layers into modules, and put those into an nn.Sequential or nn.ModuleList. With `--split`, split between "
            "blocks, not inside them.",
        ),
        "replicas-differ": Message(
            EXIT_FAILED,
            "The ranks' weights are no longer equal (`--verify-replicas`).",
            "Exclude the node that the error names and resume. A GPU or its memory may be faulty: `--selftest` tests "
            "the nodes.",
        ),
        "slow-bf16": Message(
            WARNING,
            "The device emulates bf16, which is slow: a GPU before Ampere, or a CPU without AVX-512 BF16, AMX or "
            "ARM's bf16.",
            "Use `--amp auto` for a new run, `--amp none`, or a device that supports bf16. On such a CPU, a step can "
            "take minutes, and the rank acts on a signal only after the step.",
        ),
        "unsafe-fused-optimizer": Message(
            WARNING,
            "Under GradScaler, the optimizer's fused implementation changes its state in steps that are skipped.",
            "Build the optimizer with `foreach=True` or `fused=False`.",
        ),
        "nothing-compiled": Message(
            WARNING,
            "`--compile` found nothing to compile in the model.",
            "Remove `--compile`, or check why the model's `forward` opts out of torch.compile.",
        ),
        "compiled-code-lost": Message(
            WARNING,
            "The code that torch.compile produced in an earlier attempt cannot be read or kept. The next attempt "
            "compiles again.",
            "Check free space and quota. No other action is needed.",
        ),
        "bad-profile": Message(
            EXIT_CONFIG,
            "`--profile` or `--profile-ranks` names steps or ranks that do not exist.",
            "Write `--profile FIRST-LAST`, and ranks from 0 to the number of ranks minus one.",
        ),
        "no-profile": Message(
            WARNING,
            "A profile could not be written, or the attempt ended before the steps that `--profile` names.",
            "Name earlier steps, or check the disk.",
        ),
        "figure-not-drawn": Message(
            WARNING,
            "A figure could not be drawn or kept. The model and the records are complete.",
            "Correct the problem that the warning names. `trainer report RUN` draws the figures of a run again.",
        ),
        "different-random-numbers": Message(
            WARNING,
            "The checkpoint was written by a version that draws random numbers differently, so dropout etc. differ "
            "from this point on.",
            "None needed if this is acceptable. Otherwise finish the run with the version that began it.",
        ),
        "unexpected-error": Message(
            EXIT_FAILED,
            "An error occurred for which Slipway has no explanation. Its traceback is printed above it.",
            "If the error comes from your model, data or script, correct it there. Otherwise report it with the "
            "traceback.",
        ),
    },
    "Data": {
        "no-data": Message(
            EXIT_CONFIG,
            "The data set is not in the data folder.",
            "Check `--data-dir`, and that its disk is mounted and bound into the container. Download the data set on a "
            "node that has a network.",
        ),
        "bad-data-file": Message(
            EXIT_CONFIG,
            "`SLIPWAY_DATA` is a file that is damaged, or that the job cannot mount, unpack or read.",
            "If the error says damaged, copy the file again. Otherwise use a folder, an archive from `trainer pack`, a "
            "SquashFS image with Apptainer or SingularityCE and `USE_CONTAINER=1`, or a tar file with "
            "`SLIPWAY_STAGE=1`; see docs/howto/packed-data.md.",
        ),
        "no-images": Message(
            EXIT_CONFIG,
            "A folder or archive of images contains no images.",
            "It must contain one folder for each class, with image files; see docs/howto/data.md.",
        ),
        "data-unreadable": Message(
            EXIT_CONFIG,
            "A data file cannot be read.",
            "Check permissions and the disk. Replace or remove the file that the error names.",
        ),
        "damaged-archive": Message(
            EXIT_CONFIG,
            "A packed data set is damaged or incomplete.",
            "Copy it again, or create it again with `trainer pack`.",
        ),
        "damaged-image": Message(
            WARNING,
            "An image cannot be decoded. The trainer leaves it out.",
            "Repair or remove the file. `--bad-image-share` sets the tolerated share of bad images.",
        ),
        "too-many-bad-images": Message(
            EXIT_FAILED,
            "More images cannot be decoded than `--bad-image-share` allows.",
            "Repair or remove the files that the log names, or raise `--bad-image-share`.",
        ),
        "classes-differ": Message(
            EXIT_CONFIG,
            "train/ and val/ contain different classes.",
            "Create a folder for each class in both.",
        ),
        "class-too-small": Message(
            EXIT_CONFIG,
            "A class has too few samples to hold some out for validation.",
            "Add samples, or set `val_fraction` to 0 and provide a validation part.",
        ),
        "lost-worker": Message(
            EXIT_FAILED,
            "A DataLoader worker was killed, exited unexpectedly, or could not hand over its batch.",
            "A common cause is lack of memory: lower `--workers` or the batch size, request more memory, or enlarge "
            "/dev/shm.",
        ),
    },
    "Sessions": {
        "session-arguments": Message(
            EXIT_CONFIG,
            "`slipway.Session(...)` received nothing to save, or an argument of it or of one of its methods has an "
            "invalid value.",
            "Pass the objects to train by name; see docs/reference/api.md.",
        ),
        "session-not-open": Message(
            EXIT_FAILED,
            "A Session is used outside its `with` block, twice at once, or outside the main thread.",
            "Open one Session with `with slipway.Session(...) as session:` in the main thread, and use it there.",
        ),
        "session-thread": Message(
            EXIT_FAILED,
            "A Session is opened in a thread other than the main thread. It handles signals, and Python allows this "
            "only in the main thread.",
            "Open it in the main thread.",
        ),
        "folder-used-twice": Message(
            EXIT_CONFIG,
            "A second Session in a process uses the same folder as the first one, and would continue its run. This "
            "happens with the folds of a cross-validation, or with trials one after the other. It is a warning if the "
            "first Session failed.",
            "Give each Session its own folder: `Session(folder=...)`, within RUN_DIR if that is set. To continue a "
            "completed run, start another process.",
        ),
        "other-command": Message(
            WARNING,
            "The script's arguments, or its file, differ from those with which the run in the folder began. The run "
            "continues anyway. If it is done, it is not trained again.",
            "None needed if this is intended. For another run, use another folder: `Session(folder=...)`, or RUN_DIR.",
        ),
        "lightning-inexact": Message(
            WARNING,
            "Training with Lightning's Trainer may end with weights that differ from an uninterrupted run's. Either it "
            "resumes within an epoch on another number of ranks, with a loader whose batches cannot be skipped, or "
            "with one that restores its own position; or it uses ReduceLROnPlateau: Lightning misses one of its steps "
            "at each resume.",
            "Keep the number of ranks, or use `slipway.Session`, which resumes exactly.",
        ),
        "not-resumed": Message(
            EXIT_FAILED,
            "Lightning's Trainer did not start from the checkpoint in the run folder.",
            "Pass `ckpt_path` to `trainer.fit` as the error says, or use another folder.",
        ),
        "batches-not-called": Message(
            EXIT_FAILED,
            "`session.batches` is not called in each epoch as before, or not iterated at once.",
            "Call `session.batches(loader)` in each epoch of `session.epochs`, and iterate it there.",
        ),
        "after-load-best": Message(
            EXIT_FAILED,
            "`session.load_best` has loaded the best weights into the models, but a loop of the Session continues.",
            "Call it after all loops over `session.epochs`, `batches` and `steps`, and test the best weights without "
            "these loops.",
        ),
        "two-passes": Message(
            EXIT_FAILED,
            "Two results of `session.batches` are iterated at the same time, by `zip`, `itertools.chain` or a nested "
            "loop.",
            "Side by side: `session.batches(zip(a, b))`. One after the other: a separate loop for each. Within a "
            "batch: iterate the second loader without the Session.",
        ),
        "uneven-passes": Message(
            EXIT_FAILED,
            "Some ranks call `session.batches` and others do not, as in a validation on rank 0 only.",
            "Call it on all ranks. On one rank only, iterate the loader itself.",
        ),
        "uneven-batches": Message(
            EXIT_FAILED,
            "The ranks of a model with `fully_shard` have different numbers of batches in a pass of `session.batches`. "
            "Those with more would wait forever for the others.",
            "Use `slipway.Sampler`, or give each rank the same number of batches.",
        ),
        "uneven-forward": Message(
            EXIT_FAILED,
            "Some ranks call a model with `fully_shard` after `session.batches`, and others do not, as in an "
            "evaluation on rank 0 only. They would wait for each other forever.",
            "Call the model on all ranks, equally often, and use the result on one of them.",
        ),
        "nested-loops": Message(
            EXIT_FAILED,
            "`session.steps` and `session.epochs`, or `session.batches`, are nested in each other.",
            "Iterate `session.batches(range(k))` for k iterations of an epoch. Within a batch or a step, use a plain "
            "loop.",
        ),
        "peeked-elsewhere": Message(
            EXIT_FAILED,
            "`slipway.peek` returned another position than the one from which the Session resumes. The newest "
            "checkpoint is damaged, which `peek` does not detect, or another job has saved since. Objects that the "
            "script built from it may not match the older state.",
            "Start the script again, or let the job do so. The damaged checkpoint has been set aside, so that `peek` "
            "and the Session will agree.",
        ),
        "parameters-not-given": Message(
            EXIT_CONFIG,
            "An optimizer trains parameters of a module that was not passed to the Session, so the Session would not "
            "save them.",
            "Pass that module too, or a single tensor as `nn.ParameterList([tensor])`. Create an optimizer after "
            "`fully_shard`, which replaces the parameters.",
        ),
        "optimizer-not-given": Message(
            WARNING,
            "An optimizer that was not passed to the Session steps. Or an optimizer steps within another one whose "
            "`state_dict` does not contain its state. A resumed run would start without this state.",
            'Pass it too: `Session(optimizer={"a": a, "b": b})`.',
        ),
        "no-optimizer-step": Message(
            EXIT_FAILED,
            "No optimizer that was passed to the Session has stepped. It is a warning if weights change anyway, and an "
            "error if the run ends like this. Until one steps, the run is saved only at the end of an epoch.",
            "Pass the optimizer that steps: the inner one, if another one wraps it.",
        ),
        "unknown-metric": Message(
            EXIT_FAILED,
            "`best=` names a metric, or `session.mean` a mean, for which the script provides no value.",
            "Compare the name with those that the script passes to `session.metrics` or `session.mean`.",
        ),
        "not-a-number": Message(
            EXIT_FAILED,
            "A value passed to `session.log`, `session.mean` or `session.metrics` is not a number.",
            "Pass a float, or a tensor with one element.",
        ),
        "mean-outside-batches": Message(
            EXIT_FAILED,
            "`session.mean` adds a value outside a loop over `session.batches`.",
            "Iterate `session.batches(loader)` there, also for a validation. In other loops, which never resume in the "
            "middle, average in variables.",
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
            "The state of an object contains data that a checkpoint cannot store: a sparse, quantized, nested or "
            "complex128 tensor, a tensor subclass, or an object that is not plain data.",
            "Return only dense tensors of common dtypes, numbers, text, lists and dictionaries from `state_dict`. If "
            "the script can rebuild a buffer, register it with `persistent=False`.",
        ),
        "unresumable-state": Message(
            WARNING,
            "The script has changed an object since the Session opened, so that the same object in the next attempt "
            "cannot load the checkpoint. The next attempt would refuse it.",
            "If the run has already reached this change, make it before the Session opens: `slipway.peek(folder)` "
            "returns whether it has.",
        ),
        "not-restored": Message(
            WARNING,
            "A value that is in no `state_dict` differs from its value when the run began. Or a module or optimizer "
            "holds an object that has changed and is not plain data. The resumed run may produce other results.",
            "Seed the code that computes it, or save it: `register_buffer` in a module, or `Session(extra=...)`.",
        ),
        "scheduler-not-given": Message(
            WARNING,
            "A learning-rate scheduler uses an optimizer of the Session but was not passed to the Session, so it "
            "starts from the beginning in each attempt.",
            "Pass it: `Session(scheduler=scheduler)`. Ignore this if the script computes the learning rate itself.",
        ),
        "sharded-model": Message(
            EXIT_FAILED,
            "A model or an optimizer is sharded in a way that a Session cannot save: by FullyShardedDataParallel, "
            "DeepSpeed or ZeroRedundancyOptimizer, or by DTensors on meshes that do not divide the ranks evenly. Or "
            "the ranks shard it in different ways, or `fully_shard` was not called for all of its trained parameters.",
            "Shard the model with `torch.distributed.fsdp.fully_shard`, and use an optimizer of `torch.optim`. With "
            "tensor parallelism, use one mesh for all parts of the model, such as `init_device_mesh(device, (4, 2), "
            'mesh_dim_names=("dp", "tp"))`.',
        ),
        "meta-tensors": Message(
            EXIT_FAILED,
            "A model on the meta device has no values. A Session fills models that are sharded, from a checkpoint or "
            "`weights`, except for buffers that no file holds (`persistent=False`).",
            "Shard the model and pass `Session(weights=...)`; or call `model.to_empty(device=device)` and initialize "
            "the model, before the Session. Replace modules with such buffers by new ones, built outside of "
            "`torch.device('meta')`.",
        ),
        "folder-not-shared": Message(
            EXIT_FAILED,
            "Ranks on other nodes do not see the run folder of rank 0, or have another folder under its path. Each "
            "rank of a sharded model writes its own part to the run folder.",
            "Use a run folder on a disk that all nodes share: `Session(folder=...)`, or RUN_DIR of the job.",
        ),
        "unequal-replicas": Message(
            EXIT_FAILED,
            "Ranks that hold the same part of a sharded model (HSDP, or tensor parallelism) begin with different "
            "values of it. `fully_shard` does not broadcast weights.",
            "Create the model with the same seed on all ranks: `torch.manual_seed(0)`, or load the same weights.",
        ),
        "gradients-not-reduced": Message(
            EXIT_FAILED,
            "An optimizer steps, but all gradients of its model wait in `fully_shard`, because "
            "`set_requires_gradient_sync(False)` is still in force. The step would change nothing.",
            "Call `model.set_requires_gradient_sync(True)` before the last backward pass before a step.",
        ),
        "gradients-not-saved": Message(
            EXIT_FAILED,
            "A finished run is extended, but its last batches had left gradients that `fully_shard` had not reduced "
            "over the ranks (`set_requires_gradient_sync(False)`). A checkpoint cannot hold them.",
            "Start a new run from its weights: `Session(weights=...)`, after `slipway export`. Let the batches of an "
            "epoch be a multiple of those that are accumulated.",
        ),
        "sampler-mesh": Message(
            EXIT_FAILED,
            "`slipway.Sampler` divides the samples among another number of ranks than the mesh of the model does, as "
            "with tensor parallelism: some samples would not be read, or `len(loader)` would be wrong.",
            'Pass the mesh that `fully_shard` gets: `slipway.Sampler(dataset, mesh=mesh["dp"])`.',
        ),
        "sampler-batch-size": Message(
            EXIT_FAILED,
            "`slipway.Sampler` is used in a loader without a batch size.",
            "Pass a `batch_size` to that `DataLoader`.",
        ),
        "no-ddp-model": Message(
            WARNING,
            "Several ranks run, but no model of the Session is wrapped in DistributedDataParallel: each rank may train "
            "alone.",
            "Wrap the model, and pass the wrapped one to the Session. Ignore this if the script averages gradients "
            "itself.",
        ),
        "undivided-data": Message(
            WARNING,
            "Several ranks run, and each one trains on the whole data set of a Session's loader, because no sampler "
            "divides it among them: an epoch has as many steps as on one rank.",
            "Use `sampler=slipway.Sampler(dataset)` in place of `shuffle=True`. Ignore this if each rank should read "
            "the whole set.",
        ),
        "rank-state-not-saved": Message(
            EXIT_CONFIG,
            "An object that was passed to a Session differs between the ranks, and is too large to be saved for each "
            "rank. It is a warning at the save, and an error when the run would resume.",
            "Keep the object identical on all ranks: average it, or wrap the model in DistributedDataParallel.",
        ),
        "model-before-batches": Message(
            WARNING,
            "A run was saved within an epoch. In the resumed attempt, code of that epoch called a model before the "
            "epoch's batches, with later weights than those at the start of the epoch. Rollouts, pseudo-labels and "
            "sample scores then differ. A validation only prints other numbers.",
            "Compute the result only if `session.batch` is 0, and keep it in `extra`.",
        ),
        "module-not-given": Message(
            WARNING,
            "A module that the script created before its loops changes during training, but was not passed to the "
            "Session: an average of weights, a teacher, a target network, a loss with buffers or counters. It starts "
            "from the beginning in each attempt.",
            'Pass it: `Session(model={"model": model, "teacher": teacher})`, or `extra=`. Ignore this for a metric '
            "that each epoch resets before use.",
        ),
        "reads-ahead": Message(
            WARNING,
            "In a loop over `session.batches`, no optimizer steps in the first one to four iterations, and one steps "
            "in each later iteration. The script seems to fetch batches before it trains on them, as a prefetcher "
            "around `session.batches` does. A run that resumes within the pass leaves out the prefetched batches.",
            "Prefetch inside the call: `session.batches(prefetch(loader))`. Ignore this if the script skips the first "
            "batch on purpose.",
        ),
        "ranks-differ": Message(
            WARNING,
            "The parameters of a model in DistributedDataParallel, or of a model under Horovod, are not equal on all "
            "ranks when a Session saves them: the ranks train different models. A resumed run continues with rank 0's "
            "parameters.",
            "An optimizer has stepped after a backward pass under `no_sync`, or code has changed weights on some ranks "
            "only. Leave `no_sync` for the last backward pass before a step.",
        ),
        "rank-state-changed": Message(
            WARNING,
            "A run in which generators, or buffers of a model, differed between the ranks continues with another "
            "number of ranks; or a module has an attribute that may be the earlier number of ranks. Generators of "
            "additional ranks get new seeds.",
            "None needed, unless results must be bitwise identical: then use the same number of ranks. Let modules "
            "call `get_world_size()` when they need the number.",
        ),
        "epoch-without-batches": Message(
            WARNING,
            "An epoch of a Session did not use `session.batches`, so its steps count as one, and the run cannot resume "
            "within the epoch.",
            "Iterate `session.batches(loader)`.",
        ),
        "early-workers": Message(
            WARNING,
            "DataLoader workers were started before the Session, so a signal to all processes (Ctrl-C, "
            "`scancel`) ends them while the run still needs them.",
            "Iterate the loader for the first time inside the Session.",
        ),
        "changed-loader": Message(
            WARNING,
            "A setting, a counter or data (a tensor, an array, a list of numbers) of a loader, its data set or its "
            "sampler changed during training, and has another value in the resumed attempt.",
            "Set it in every epoch before `session.batches`, as in `data.augment = epoch < 5`. A counter that a "
            "sampler changes in `__iter__` must follow from the epoch: `set_epoch`. Other state that changes on its "
            "own belongs in `extra`; state from which a sampler draws its order may then change between epochs, but "
            "not within them.",
        ),
        "unsaved-generator": Message(
            WARNING,
            "A random number generator that was given to a loader, or to its sampler, continues from pass to pass, but "
            "the loader is iterated without `session.batches`, for example in a validation or within `zip`.",
            "Remove the generator, or seed it before each pass. For a validation, `extra=generator` saves it.",
        ),
        "slow-resume": Message(
            WARNING,
            "A loader has no index, so on resume the batches that were already trained on are fetched again and "
            "dropped.",
            "Use a map-style dataset if this takes too long.",
        ),
        "epoch-repeated": Message(
            WARNING,
            "The number of ranks changed within an epoch, and `repeat_epoch=True` is set: the epoch starts again.",
            "None needed; `slipway.Sampler` divides the rest of an epoch instead.",
        ),
        "unknown-tracker": Message(
            EXIT_CONFIG,
            "`SLIPWAY_TRACKERS`, or `trackers=` of a Session, names an experiment tracker that Slipway does not "
            "support.",
            "Choose tensorboard, wandb or mlflow. Log to any other tracker from your own script.",
        ),
        "tracker-not-installed": Message(
            EXIT_CONFIG,
            "The package of a tracker is missing.",
            "Install it into the environment or image: `pip install wandb`, `mlflow-skinny` or `tensorboard`.",
        ),
        "tracker-silent": Message(
            WARNING,
            "A tracker does not respond in time. Training continues; metrics.jsonl contains all records.",
            "Check the node's network, or use the tracker's offline mode.",
        ),
        "tracker-ended": Message(
            WARNING,
            "A tracker or TensorBoard failed. Training continues; metrics.jsonl contains all records.",
            "Correct the problem that the warning names, and start again if you need the tracker.",
        ),
    },
    "Reasons why an attempt ended without failure": {
        "complete": Message(
            0,
            "Training reached its last epoch or step.",
            "None needed: the run folder holds checkpoints and figures.",
        ),
        "time-limit": Message(
            EXIT_STOPPED,
            "The attempt saved and stopped before its job's time limit.",
            "None needed if the job was requeued. Otherwise resubmit `job.sh` of the run folder.",
        ),
        "user": Message(
            EXIT_STOPPED,
            "A user requested the stop by the file STOP, which `jobgen cancel` writes for a run without a scheduler. "
            "The attempt saved first.",
            "`jobgen run RUN_DIR` continues the run, as does its `job.sh`.",
        ),
        "signal": Message(
            EXIT_STOPPED,
            "A signal stopped the attempt, for example from `jobgen cancel`, `scancel`, `qdel` or Ctrl-C. The attempt "
            "saved first.",
            "`jobgen run RUN_DIR` continues the run, as does its `job.sh`.",
        ),
        "launcher": Message(
            EXIT_STOPPED,
            "The ranks' launcher died. The ranks saved and stopped.",
            "Find the reason in logs/N/stderr.log, then continue the run.",
        ),
    },
}
"""Entries by subject."""
SLUGS: Dict[str, Message] = {slug: entry for group in GROUPS.values() for slug, entry in group.items()}
