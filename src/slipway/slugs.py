"""Every error and warning that a user can get, by its slug: exit code, when it occurs, and what to do.

The sentence that a program prints stands where it is raised. docs/errors.md is generated from this table, `jobgen
explain SLUG` prints an entry, and jobscripts/lib/errors.bash holds the exit codes for job scripts. This file needs no
torch, and Python 3.9.
"""

from typing import Dict, NamedTuple

from slipway.layout import EXIT_CONFIG, EXIT_STOPPED, EXIT_USAGE

EXIT_FAILED = 1
"""Exit code of an error that no rule tells more about."""


class Entry(NamedTuple):
    """What a slug stands for."""

    exit_code: int
    """Of the program that ends with it; 0 for a warning, after which it continues."""
    when: str
    """When it occurs."""
    remedy: str
    """What to do about it."""


SLUGS: Dict[str, Entry] = {
    # Command lines
    "bad-arguments": Entry(
        EXIT_USAGE,
        "A command line cannot be parsed.",
        "Compare it with the usage line, or `COMMAND --help`.",
    ),
    "unknown-command": Entry(
        EXIT_USAGE,
        "The first word of a `trainer` command line is neither a command nor a configuration file.",
        "Check the spelling and the path; `trainer --help` lists the commands.",
    ),
    "unknown-flag": Entry(
        EXIT_USAGE,
        "A command has no such flag.",
        "Check the spelling: the error names the nearest flag. `--help` lists all.",
    ),
    "unexpected-argument": Entry(
        EXIT_USAGE,
        "An argument belongs to no flag, or is one too many.",
        "Put the value after its flag, quote a value that contains blanks, or leave it out.",
    ),
    "missing-argument": Entry(
        EXIT_USAGE,
        "A command needs one more argument or flag.",
        "Add what the error names.",
    ),
    "bad-flag-value": Entry(
        EXIT_USAGE,
        "The value of a flag is missing, or not one that the flag takes.",
        "Choose a value of the kind that the error names.",
    ),
    "flag-conflict": Entry(
        EXIT_USAGE,
        "Two flags exclude each other, or one is set twice.",
        "Leave out one of the two.",
    ),
    "not-confirmed": Entry(
        EXIT_USAGE,
        "A command would use more node hours than its limit, or was answered with no. Nothing was submitted.",
        "Add `--yes`, or raise `--limit`.",
    ),
    "bad-axis": Entry(
        EXIT_USAGE,
        "`jobgen sweep --set` names no key that can vary, or values that the key cannot have.",
        "Write `KEY=VALUE,VALUE`, or `KEY=uniform:LOW:HIGH` with `--random`; see docs/sweeps.md.",
    ),
    "bad-rungs": Entry(
        EXIT_USAGE,
        "`--rungs` or `--keep` of a sweep make no successive halving.",
        "Name two or more increasing epochs, and keep a half or less after each.",
    ),
    "nothing-to-vary": Entry(
        EXIT_USAGE,
        "A sweep or a study has one point only, or its spec trains nothing.",
        "Name several values, or a spec that trains, such as `ddp`.",
    ),
    "export-format": Entry(
        EXIT_USAGE,
        "A model cannot be exported to a file with that suffix.",
        "Use one of the suffixes that the error names.",
    ),
    # Configurations, sites and specs
    "unknown-name": Entry(
        EXIT_CONFIG,
        "Nothing has the given name: a site, spec, model, data set, optimizer or schedule.",
        "Check the spelling: the error lists the names.",
    ),
    "unknown-key": Entry(
        EXIT_CONFIG,
        "A configuration, site or spec has a key that does not exist, or stands in the wrong section.",
        "Check the spelling: the error names the nearest key, or its section.",
    ),
    "bad-value": Entry(
        EXIT_CONFIG,
        "The value of a key or setting is not one that it can have.",
        "Change it to what the error names. docs/contract.md lists the settings of job scripts, docs/sites.md the "
        "keys of sites.",
    ),
    "bad-toml": Entry(
        EXIT_CONFIG,
        "A file is not valid TOML.",
        "Correct the line that the error names. Text needs quotes, tables stand in `[brackets]`.",
    ),
    "conflicting-settings": Entry(
        EXIT_CONFIG,
        "Two settings of a training or a job exclude each other.",
        "Change one of the two that the error names.",
    ),
    "bad-site": Entry(
        EXIT_CONFIG,
        "A field of a site does not apply to its scheduler, or would have no effect.",
        "Use the field that the error names; see docs/sites.md.",
    ),
    "launcher-conflict": Entry(
        EXIT_CONFIG,
        "The launcher of a spec cannot start its ranks at this site: the scheduler, the container or the MPI does "
        "not fit.",
        "Choose the launcher or the spec that the error names, by `--set launcher=` or as `jobgen render SPEC`.",
    ),
    "nothing-to-build": Entry(
        EXIT_CONFIG,
        "`image_build` or `venv_build` at a site that uses no such image or environment.",
        "Set `container` or `venv` for this job, as the error says.",
    ),
    "bad-name": Entry(
        EXIT_CONFIG,
        "A name contains characters that it cannot have, or is reserved.",
        "Rename it.",
    ),
    # Files
    "cannot-read": Entry(
        EXIT_CONFIG,
        "A file or folder cannot be read.",
        "Check the path, its permissions, and that its disk is mounted on that node and in the container.",
    ),
    "cannot-write": Entry(
        EXIT_CONFIG,
        "A file or folder cannot be created or written.",
        "Check permissions, free space and quota, or name another folder: `--output-dir`, `SLIPWAY_OUTPUT`.",
    ),
    "file-exists": Entry(
        EXIT_CONFIG,
        "The file or folder to be made exists already. Nothing is overwritten.",
        "Name another one, or remove it.",
    ),
    "bad-path": Entry(
        EXIT_CONFIG,
        "A path contains characters that a script, a container or an archive cannot carry, or is of the wrong kind.",
        "Rename it, or name another one.",
    ),
    "bad-record": Entry(
        EXIT_CONFIG,
        "A file that Slipway has written is damaged, was edited, or is of another version.",
        "Use the version that wrote it, or start in a new folder.",
    ),
    "incomplete-install": Entry(
        EXIT_CONFIG,
        "Files of the installed package or of the clone are missing or changed.",
        "Install slipway again, or restore the clone by `git checkout`.",
    ),
    # Schedulers and jobs
    "unknown-scheduler": Entry(
        EXIT_CONFIG,
        "`jobgen site --detect` runs on a cluster of a scheduler that Slipway does not support.",
        "Slipway supports Slurm, PBS and single machines; docs/adding.md says how to add a scheduler.",
    ),
    "no-scheduler": Entry(
        EXIT_CONFIG,
        "The command or spec needs a scheduler that queues jobs, and the site is one machine.",
        "Choose a site with a scheduler, or run the command that the error names.",
    ),
    "no-scheduler-command": Entry(
        EXIT_CONFIG,
        "A command of the scheduler (sbatch, qsub, salloc) is not on PATH.",
        "Run it on a login node, load the scheduler's module, or use `--dry-run`.",
    ),
    "scheduler-silent": Entry(
        EXIT_CONFIG,
        "A command of the scheduler failed, or did not answer in time.",
        "Run the command by hand to see its error, and try again later.",
    ),
    "submission-refused": Entry(
        EXIT_CONFIG,
        "The scheduler refused a job.",
        "Read its message above: often account, partition or a limit of the queue. Run the same command again "
        "afterwards.",
    ),
    "no-job-number": Entry(
        EXIT_CONFIG,
        "The scheduler accepted a job and printed no job number.",
        "Look for the job in the queue, and cancel it if it is not wanted.",
    ),
    "no-such-job": Entry(
        EXIT_CONFIG,
        "Neither the scheduler nor the output folder knows the job.",
        "Run the command in the folder from which the job was submitted, or name its run folder.",
    ),
    "no-such-run": Entry(
        EXIT_CONFIG,
        "The given name is neither a run folder nor a job.",
        "Name a run folder (`runs/NAME`) or a job number.",
    ),
    "several-runs": Entry(
        EXIT_CONFIG,
        "The given name or job number belongs to several runs.",
        "Name one of the run folders that the error lists.",
    ),
    "no-log": Entry(
        EXIT_CONFIG,
        "No log of the run can be found here.",
        "Run the command where the job was submitted, or name the run folder.",
    ),
    "already-ended": Entry(
        EXIT_CONFIG,
        "The job to cancel has ended.",
        "Nothing needs to be done.",
    ),
    "no-job-script": Entry(
        EXIT_CONFIG,
        "The file or folder is not a job script that `jobgen render` wrote, or the spec makes no job.",
        "Name a script of jobscripts/, or generate one by `jobgen render`.",
    ),
    "unsupported-option": Entry(
        EXIT_CONFIG,
        "The scheduler has no equivalent of an option.",
        "Leave it out; `--dry-run` shows the script.",
    ),
    "no-terminal": Entry(
        EXIT_CONFIG,
        "An interactive job needs a terminal.",
        "Run the command in a terminal, or submit a job instead.",
    ),
    "different-study": Entry(
        EXIT_CONFIG,
        "The folder holds another sweep or study than the command line describes.",
        "Repeat the command as it was, or name another `--output`.",
    ),
    "too-many-trials": Entry(
        EXIT_CONFIG,
        "A sweep has more trials than the scheduler takes in one job array.",
        "Submit fewer at a time.",
    ),
    "time-too-short": Entry(
        EXIT_CONFIG,
        "The time limit of the job leaves no time to train before the save at its end.",
        "Ask for more time (`minutes`), or keep less for the save (`save_seconds`).",
    ),
    "mig-slices": Entry(
        EXIT_CONFIG,
        "The job has MIG slices, and NCCL cannot connect ranks on slices.",
        "Train with one rank on one slice, or ask for whole GPUs.",
    ),
    # GPUs and ranks
    "no-gpu": Entry(
        EXIT_CONFIG,
        "GPUs are asked for, and torch sees none.",
        "Ask the scheduler for GPUs, run the container with `--nv`, or train on the CPU: `--device cpu`, "
        "`SLIPWAY_DEVICE=cpu`.",
    ),
    "too-few-gpus": Entry(
        EXIT_CONFIG,
        "There are fewer GPUs than the ranks need.",
        "Start fewer ranks (`--nproc-per-node`, `SLIPWAY_RANKS_PER_NODE`, `ranks_per_node`), or ask for more GPUs.",
    ),
    "too-few-cpus": Entry(
        EXIT_CONFIG,
        "There are far fewer CPUs than ranks.",
        "Start fewer ranks.",
    ),
    "broken-gpu": Entry(
        EXIT_CONFIG,
        "A GPU or its driver fails at the first use.",
        "Look at `nvidia-smi` on that node, exclude the node (`sbatch --exclude`), and tell its administrator.",
    ),
    "ranks-not-named": Entry(
        EXIT_CONFIG,
        "Several ranks are wanted, and the variables that number them or name their meeting point are missing.",
        "Start it by torchrun, by `--nproc-per-node N`, or by a job script, which set them.",
    ),
    "bad-rank-variables": Entry(
        EXIT_CONFIG,
        "The variables of the launcher (RANK, WORLD_SIZE, LOCAL_RANK, TRAINER_ATTEMPT) contradict each other.",
        "Unset those that the shell or a surrounding job has set, and look at what starts the ranks.",
    ),
    "joins-other-ranks": Entry(
        EXIT_CONFIG,
        "A script of your own joins other ranks than those that the job started.",
        "Take rank and number of ranks from `RANK` and `WORLD_SIZE`. If the script starts ranks of its own, set "
        "`SLIPWAY_RANKS_PER_NODE=1`; if it uses Horovod, set `BACKEND=horovod`.",
    ),
    "separate-processes": Entry(
        EXIT_CONFIG,
        "A launcher started several processes, and each would train alone.",
        "Select the backend of the launcher: `--backend ddp` or `--backend horovod`. In a script, join the "
        "process group, "
        "or call `hvd.init()`, before the Session. To train alone, unset the variable that the error names.",
    ),
    "wrong-world-size": Entry(
        EXIT_CONFIG,
        "The ranks that met are more or fewer than the job script planned.",
        "See whether every node started, and use an MPI whose version matches that of the image.",
    ),
    "ranks-of-ranks": Entry(
        EXIT_CONFIG,
        "`--nproc-per-node` is set under a launcher, whose ranks would each start ranks.",
        "Leave out `--nproc-per-node`, or the launcher.",
    ),
    "cannot-start-rank": Entry(
        EXIT_FAILED,
        "A process of a rank cannot be started.",
        "Raise the limits of processes and memory (`ulimit -a`), or start fewer ranks.",
    ),
    "cannot-join": Entry(
        EXIT_FAILED,
        "A rank cannot connect to the others within the timeout.",
        "See in the logs whether another rank or node failed first; check network, firewall and `MASTER_ADDR`.",
    ),
    # Run folders and checkpoints
    "folder-in-use": Entry(
        EXIT_CONFIG,
        "Another process uses the run folder, or the folder of a sweep or study.",
        "Wait for its end, stop it, or name another folder. The lock of a process that died expires in a minute.",
    ),
    "folder-holds-run": Entry(
        EXIT_CONFIG,
        "The output folder holds a run, and this command does not continue it.",
        "Continue it by `--resume auto` or its `job.sh`, or name another folder.",
    ),
    "not-a-file": Entry(
        EXIT_CONFIG,
        "Something else has the name of a file of the run folder.",
        "Move it away.",
    ),
    "lost-folder": Entry(
        EXIT_FAILED,
        "The lock of the run folder was removed, or another run took the folder over.",
        "See by `jobgen status` which run has the folder now. Never remove the lock of a run that trains.",
    ),
    "different-run": Entry(
        EXIT_CONFIG,
        "The settings differ from those with which the run began, so it would not end as it would have without a "
        "break.",
        "Set back what the error names, or start a new run in another folder.",
    ),
    "different-data": Entry(
        EXIT_CONFIG,
        "The data differ from those with which the run, the evaluation or the archive began.",
        "Use the same data, or start anew in another folder.",
    ),
    "different-model": Entry(
        EXIT_CONFIG,
        "The model differs from that of the checkpoint.",
        "Name the model that was trained.",
    ),
    "different-state": Entry(
        EXIT_CONFIG,
        "What the script passes to its Session differs from what the checkpoint holds.",
        "Build the same models, optimizers and schedulers as before, or start anew in another folder.",
    ),
    "different-ranks": Entry(
        EXIT_CONFIG,
        "A run that was saved within an epoch continues on another number of ranks, with a sampler that cannot follow.",
        "Use the same number of ranks, or `slipway.Sampler`.",
    ),
    "damaged-checkpoint": Entry(
        EXIT_CONFIG,
        "A checkpoint is not what was written, or all of them are not.",
        "`--resume auto` takes the newest valid one. If none is, move the folder away and start anew.",
    ),
    "older-checkpoint": Entry(
        EXIT_CONFIG,
        "The run in this folder has newer checkpoints than the one that was named.",
        "Continue from it in another folder: `--resume CHECKPOINT --output-dir OTHER`.",
    ),
    "newer-format": Entry(
        EXIT_CONFIG,
        "The checkpoint was written by a newer version of Slipway.",
        "Use that version.",
    ),
    "no-checkpoint": Entry(
        EXIT_CONFIG,
        "There is no checkpoint yet, or the path holds none.",
        "Name a run folder that has `checkpoints/`, or one of the checkpoints in it.",
    ),
    "no-best-checkpoint": Entry(
        EXIT_CONFIG,
        "The best checkpoint is asked for, and no metric was recorded to choose it by.",
        "Leave out `--best`, or name the metric in the run (`best=`).",
    ),
    "not-saved": Entry(
        EXIT_FAILED,
        "The last checkpoint of a run could not be written.",
        "Free space or quota, then continue the run: the checkpoint before it is valid.",
    ),
    "not-a-run": Entry(
        EXIT_CONFIG,
        "The path is neither a run folder nor a checkpoint.",
        "Name a folder with `checkpoints/`, or one of the checkpoints in it.",
    ),
    "missing-config": Entry(
        EXIT_CONFIG,
        "The configuration of a run is missing beside its checkpoint.",
        "Name a copy of the run's `config.toml` by `--config`.",
    ),
    "checkpoint-of-script": Entry(
        EXIT_CONFIG,
        "The checkpoint was written by a script with a Session, and this command is for runs of the trainer.",
        "Continue it by that script; `slipway export` writes its weights.",
    ),
    "several-models": Entry(
        EXIT_CONFIG,
        "The checkpoint holds several models, and the file takes one.",
        "Choose one by `--model`.",
    ),
    "no-such-model": Entry(
        EXIT_CONFIG,
        "The checkpoint holds no model of that name.",
        "Choose one that the error lists.",
    ),
    "not-only-tensors": Entry(
        EXIT_CONFIG,
        "The state of a model holds more than tensors, which a .safetensors file cannot.",
        "Export to a .pt file.",
    ),
    "bad-weights": Entry(
        EXIT_CONFIG,
        "A file of weights cannot be read, or does not fit the model.",
        "Name a state_dict of the same model, saved by `torch.save` or safetensors.",
    ),
    # Training
    "diverged": Entry(
        EXIT_FAILED,
        "The loss or a weight is not finite. Nothing of it is saved.",
        "Resume with a lower `--lr`, with `--clip-grad`, or with bf16 in place of fp16.",
    ),
    "out-of-memory": Entry(
        EXIT_CONFIG,
        "A rank needs more memory than its device has.",
        "Use a smaller `--batch-size`, more `--grad-accum-steps`, `--recompute` or `--split`; `--dry-run "
        "--memory` measures.",
    ),
    "memory-unknown": Entry(
        EXIT_CONFIG,
        "`--memory` cannot compute the model on the meta device.",
        "Leave out `--memory`, or train a few steps and read the peak in the log.",
    ),
    "unused-parameters": Entry(
        EXIT_CONFIG,
        "Parameters got no gradient in a step, and DistributedDataParallel waits for them.",
        "Use them in each step, freeze them by `requires_grad_(False)`, or pass `find_unused_parameters`.",
    ),
    "batch-too-small": Entry(
        EXIT_FAILED,
        "Batch norm got a single sample.",
        "Choose a `--batch-size` that leaves each micro-batch two samples or more.",
    ),
    "image-size": Entry(
        EXIT_CONFIG,
        "The model cannot take images of this size.",
        "Resize them (`--image-size`), or choose another model.",
    ),
    "bad-plugin": Entry(
        EXIT_CONFIG,
        "A model or data set of yours cannot be imported, fails, or returns something else than the trainer needs.",
        "Correct what the error names; docs/your-own.md has an example of each.",
    ),
    "bad-split": Entry(
        EXIT_CONFIG,
        "The model cannot be cut into stages there.",
        "Name modules that are called once, one after the other, and pass one tensor; see docs/split.md.",
    ),
    "bad-stage-devices": Entry(
        EXIT_CONFIG,
        "`--stage-devices` names devices that do not exist, or not one for each stage.",
        "Write one of cpu, cuda:0, cuda:1 ... for each stage, or leave it out.",
    ),
    "no-blocks": Entry(
        EXIT_CONFIG,
        "`--recompute` finds no blocks in the model.",
        "Put the model's blocks into an nn.Sequential or nn.ModuleList.",
    ),
    # Data
    "no-data": Entry(
        EXIT_CONFIG,
        "The data set is not in the data folder.",
        "Check `--data-dir`, and that its disk is mounted and bound into the container; download it on a node "
        "with a network.",
    ),
    "no-images": Entry(
        EXIT_CONFIG,
        "A folder or archive of images holds none.",
        "It must hold one folder for each class, with image files; see docs/data.md.",
    ),
    "data-unreadable": Entry(
        EXIT_CONFIG,
        "A file of the data cannot be read.",
        "Check permissions and the disk; replace or remove the file that the error names.",
    ),
    "damaged-archive": Entry(
        EXIT_CONFIG,
        "A packed data set is damaged or incomplete.",
        "Copy it again, or pack it anew by `trainer pack`.",
    ),
    "classes-differ": Entry(
        EXIT_CONFIG,
        "train/ and val/ hold different classes.",
        "Give each class a folder in both.",
    ),
    "class-too-small": Entry(
        EXIT_CONFIG,
        "A class has too few samples to hold some out for validation.",
        "Add samples, or set `val_fraction` to 0 and give a validation part.",
    ),
    # Sessions
    "session-arguments": Entry(
        EXIT_CONFIG,
        "`slipway.Session(...)` got nothing to save, or a value that an argument cannot have.",
        "Pass what trains by name, and look at docs/reference.md.",
    ),
    "session-not-open": Entry(
        EXIT_FAILED,
        "A Session is used outside its `with` block, twice at once, or not in the main thread.",
        "Open one Session by `with slipway.Session(...) as session:` in the main thread, and use it there.",
    ),
    "batches-not-called": Entry(
        EXIT_FAILED,
        "`session.batches` is not called in each epoch as before, or two iterate at once.",
        "Iterate one `session.batches(loader)` at a time, in each epoch of `session.epochs`.",
    ),
    "no-optimizer-step": Entry(
        EXIT_FAILED,
        "No optimizer that the Session knows has stepped in an epoch, so nothing would be counted or saved.",
        "Pass the optimizer that steps: the inner one, if another wraps it.",
    ),
    "unknown-metric": Entry(
        EXIT_FAILED,
        "`best=` names no metric that the script logs.",
        "Name one that `session.validated` or `session.log` gets.",
    ),
    "not-a-number": Entry(
        EXIT_FAILED,
        "A metric that is logged is not a number.",
        "Log a float, or a tensor of one element.",
    ),
    "no-state-dict": Entry(
        EXIT_FAILED,
        "An object to be saved has no `state_dict` and `load_state_dict`, or its state holds what a checkpoint cannot.",
        "Pass an object that has both, with tensors, numbers and text.",
    ),
    "sharded-model": Entry(
        EXIT_FAILED,
        "A model is sharded over the ranks (FSDP, DTensor).",
        "A Session saves models that each rank has whole.",
    ),
    "sampler-batch-size": Entry(
        EXIT_FAILED,
        "`slipway.Sampler` is used in a loader without a batch size.",
        "Give `DataLoader` a `batch_size` with it.",
    ),
    "unknown-tracker": Entry(
        EXIT_CONFIG,
        "There is no tracker of that name.",
        "Choose one that the error lists.",
    ),
    "tracker-not-installed": Entry(
        EXIT_CONFIG,
        "The package of a tracker is missing.",
        "Install it into the environment or image: `pip install wandb`, `mlflow-skinny` or `tensorboard`.",
    ),
    # Environments and images
    "old-python": Entry(
        EXIT_CONFIG,
        "This Python is too old for the command.",
        "Run it in the image, or in an environment of `build/setup`.",
    ),
    "missing-package": Entry(
        EXIT_CONFIG,
        "This Python lacks a package that the command needs.",
        "Run it in the image or in an environment of `build/setup`, or install the package.",
    ),
    "no-horovod": Entry(
        EXIT_CONFIG,
        "Horovod is missing, or was built for another torch.",
        "Build it by `build/setup horovod`, use the image, or train with `--backend ddp`.",
    ),
    "no-mpi": Entry(
        EXIT_CONFIG,
        "There is no mpirun on the node, or it does not answer.",
        "Load the module of the MPI (`modules` of the site), or take Horovod over Gloo, which needs none: "
        "`jobgen submit horovod-gloo`.",
    ),
    "mpi-mismatch": Entry(
        EXIT_CONFIG,
        "The MPI that starts the ranks and the one in the image or environment do not work together.",
        "Use versions that match, or Horovod over Gloo: `jobgen render horovod-gloo`.",
    ),
    "no-network": Entry(
        EXIT_CONFIG,
        "A node cannot reach the head node.",
        "Check the interface (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`), firewall and `MASTER_ADDR`.",
    ),
    "nodes-missing": Entry(
        EXIT_CONFIG,
        "Fewer nodes of a Dask client arrived, or remained, than it needs.",
        "Wait longer (`SLIPWAY_WAIT_SECONDS`), or accept fewer (`SLIPWAY_MIN_NODES`).",
    ),
    "jobs-left": Entry(
        EXIT_CONFIG,
        "Jobs of a Dask client did not end.",
        "Cancel them by hand: the error has the command.",
    ),
    "not-a-job": Entry(
        EXIT_CONFIG,
        "The spec makes no job that the command can use.",
        "Choose another spec; `jobgen list` shows what each one runs.",
    ),
    "no-clone": Entry(
        EXIT_CONFIG,
        "The job builds an image or environment, and was not submitted in a clone of the project.",
        "Submit it in a clone: `git clone`, `cd`, then the same command.",
    ),
    "no-image": Entry(
        EXIT_CONFIG,
        "The image of the job is missing, or cannot be read from this machine.",
        "Build it (`jobgen submit image_build`, `make image`), set `SLIPWAY_IMAGE` to an image on a disk of all "
        "nodes, or use an environment: `USE_CONTAINER=0`.",
    ),
    "no-environment": Entry(
        EXIT_CONFIG,
        "The Python environment of the job is missing or lacks packages.",
        "Build it (`jobgen submit venv_build`), set `SLIPWAY_VENV` to a complete one, or use the image: "
        "`USE_CONTAINER=1`.",
    ),
    "no-modules": Entry(
        EXIT_CONFIG,
        "The environment modules that the job needs are not in the site's file, cannot be loaded on the node, or take "
        "the scheduler's commands off PATH.",
        "Correct `modules` or `purge_modules` in the site's file; `module avail` on a node lists what can be loaded.",
    ),
    "no-script": Entry(
        EXIT_CONFIG,
        "The configuration or script that the job should train is missing, or cannot be read from this machine.",
        "Correct `SLIPWAY_CONFIG` or `SLIPWAY_SCRIPT`; the path is relative to the folder of submission.",
    ),
    "no-wheelhouse": Entry(
        EXIT_CONFIG,
        "The folder of wheels from which the job should install is missing.",
        "Fill one by `make wheelhouse`, or unset `SLIPWAY_WHEELHOUSE`.",
    ),
    "bad-data-path": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_DATA` is a file of a kind that the job cannot mount, unpack or read there.",
        "Use a folder, an archive of `trainer pack`, a SquashFS image with Apptainer, or a tar with "
        "`SLIPWAY_STAGE=1`; see docs/data.md.",
    ),
    "wrong-backend": Entry(
        EXIT_CONFIG,
        "`BACKEND` names a backend that this job script cannot launch.",
        "Use the script for that backend: the error has the command.",
    ),
    "old-name": Entry(
        EXIT_CONFIG,
        "A setting has the name that an earlier version gave it.",
        "Set it by its new name, which the error has.",
    ),
    "unclosed-quote": Entry(
        EXIT_CONFIG,
        "A quote in `SLIPWAY_ARGS`, or in a command line that is given as one text, is not closed.",
        "Close it.",
    ),
    "unknown-setting": Entry(
        0,
        "A variable looks like a setting (`SLIPWAY_...`), and there is none of that name. It has no effect.",
        "Check the spelling in docs/contract.md.",
    ),
    "ignored-variable": Entry(
        0,
        "A variable has the name of an old setting, which other programs use too. It has no effect.",
        "Set the new name, which the warning has, if you meant the setting.",
    ),
    "stale-script": Entry(
        0,
        "A generated script differs from what its spec and site give: it was edited, they were, or another "
        "version made it.",
        "Generate it again by the command in the warning, and move edits into its spec, its site or `--set`.",
    ),
    "gpu-mismatch": Entry(
        EXIT_CONFIG,
        "The driver or the GPUs do not fit the CUDA version that torch, or the image, was built for.",
        "Use the variant that the error names, have the driver updated, or train on the CPU: `--device cpu`.",
    ),
    "bad-profile": Entry(
        EXIT_CONFIG,
        "`--profile` or `--profile-ranks` names steps or ranks that do not exist.",
        "Write `--profile FIRST-LAST`, and ranks from 0 to the number of ranks less one.",
    ),
    "no-compiler": Entry(
        EXIT_CONFIG,
        "`--compile` needs a C++ compiler, and there is none.",
        "Use an image or node with one, name it in `CXX`, or leave `--compile` out.",
    ),
    "replicas-differ": Entry(
        EXIT_FAILED,
        "The weights of the ranks are no longer equal (`--verify-replicas`).",
        "Exclude the node that the error names and resume: a GPU or its memory may be faulty; `--selftest` tests "
        "the nodes.",
    ),
    "too-many-bad-images": Entry(
        EXIT_FAILED,
        "More images cannot be decoded than `--bad-image-share` allows.",
        "Repair or remove the files that the log names, or raise `--bad-image-share`.",
    ),
    "selftest-failed": Entry(
        EXIT_CONFIG,
        "`--selftest` found ranks, GPUs or connections that do not work.",
        "Exclude the node that the error names, and tell its administrator.",
    ),
    "nodes-lost": Entry(
        EXIT_CONFIG,
        "Jobs of a Dask client ended that should hold nodes, and too few are left.",
        "Read the log that the error quotes: often an account, a limit of the queue, or an environment that is "
        "missing there.",
    ),
    "nodes-late": Entry(
        EXIT_STOPPED,
        "The nodes of a Dask client arrived so late that no time is left to train before the save.",
        "Ask for more time (`minutes`), or accept fewer nodes (`SLIPWAY_MIN_NODES`).",
    ),
    "dask-scheduler-gone": Entry(
        EXIT_FAILED,
        "Dask's scheduler, which holds the nodes, ended.",
        "Look for why the client ended, in its log, and submit it again.",
    ),
    "dask-scheduler-silent": Entry(
        EXIT_CONFIG,
        "Dask's scheduler cannot be reached from a node.",
        "Check the network between the client's machine and the nodes, and its firewall.",
    ),
    "not-a-folder": Entry(
        EXIT_CONFIG,
        "The path must be a folder, and is none.",
        "Name a folder.",
    ),
    "session-thread": Entry(
        EXIT_FAILED,
        "A Session is opened in a thread. It listens to signals, which only the main thread can.",
        "Open it in the main thread.",
    ),
    "not-resumed": Entry(
        EXIT_FAILED,
        "Lightning's Trainer did not start from the checkpoint of the run folder.",
        "Pass `ckpt_path` to `trainer.fit` as the error says, or name another folder.",
    ),
    # Errors of other libraries and of the system
    "lost-peer": Entry(
        EXIT_FAILED,
        "A rank lost its connection to another rank.",
        "It is a consequence: look in the logs for the rank or node that failed first.",
    ),
    "lost-worker": Entry(
        EXIT_FAILED,
        "A worker process of a DataLoader ended.",
        "Often memory ran out: lower `--workers` or the batch size, ask for more memory, or enlarge /dev/shm.",
    ),
    "disk-full": Entry(
        EXIT_FAILED,
        "A file system takes no more writes: it is full, over quota, read-only, or not yours to write.",
        "Free space or quota, or correct the permissions, then continue the run.",
    ),
    "unexpected-error": Entry(
        EXIT_FAILED,
        "An error for which Slipway has no explanation; its traceback stands above it.",
        "If it comes from your model, data or script, correct it there; otherwise report it with the traceback.",
    ),
    # Warnings of a training
    "low-disk-space": Entry(
        0,
        "The disk or quota has too little space or inodes left for the checkpoints to come.",
        "Free some, keep fewer (`--keep`), or take another folder.",
    ),
    "checkpoint-not-written": Entry(
        0,
        "A checkpoint could not be written. Training continues, and the next one is tried.",
        "Check free space, quota and the disk.",
    ),
    "checkpoint-set-aside": Entry(
        0,
        "A run resumed before its newest checkpoint, which was renamed so that it does not count as newest.",
        "Remove it when you do not need it.",
    ),
    "checkpoint-ignored": Entry(
        0,
        "`--resume CHECKPOINT` in a folder with newer checkpoints of its own: the run continues from those.",
        "Name another `--output-dir` to start from the given checkpoint.",
    ),
    "cannot-remove": Entry(
        0,
        "A file or folder that is no longer needed could not be removed.",
        "Remove it by hand.",
    ),
    "cannot-append": Entry(
        0,
        "Lines of a log such as metrics.jsonl cannot be written now. They are kept in memory, and written later.",
        "Check free space, quota and the disk.",
    ),
    "damaged-metrics": Entry(
        0,
        "Lines of metrics.jsonl are not records. They were left out, and a copy of the file was kept.",
        "Look at the copy if you miss records.",
    ),
    "figure-not-drawn": Entry(
        0,
        "A figure could not be drawn or kept. Model and records are complete.",
        "Correct what the warning names; `trainer report RUN` draws the figures of a run anew.",
    ),
    "no-profile": Entry(
        0,
        "A profile could not be written, or the attempt ended before the steps that `--profile` names.",
        "Name earlier steps, or check the disk.",
    ),
    "nothing-compiled": Entry(
        0,
        "`--compile` found nothing in the model to compile.",
        "Leave `--compile` out, or see why the model's `forward` opts out of torch.compile.",
    ),
    "compiled-code-lost": Entry(
        0,
        "What torch.compile made in an earlier attempt cannot be read or kept: the next attempt compiles again.",
        "Check free space and quota; nothing else is needed.",
    ),
    "slow-bf16": Entry(
        0,
        "The device emulates bf16, which is slow.",
        "Use `--amp none`, or a device that computes in bf16.",
    ),
    "unsafe-fused-optimizer": Entry(
        0,
        "Under GradScaler the optimizer's fused implementation changes its state in steps that are skipped.",
        "Build the optimizer with `foreach=True` or `fused=False`.",
    ),
    "different-random-numbers": Entry(
        0,
        "The checkpoint is of a version that draws random numbers otherwise, so dropout and the like differ from "
        "there on.",
        "Nothing, if that is acceptable; otherwise finish the run with the version that began it.",
    ),
    "waiting-for-ranks": Entry(
        0,
        "A rank has waited for the others for a while.",
        "If it lasts, look for a rank or node that did not start, and at the network.",
    ),
    "no-ddp-model": Entry(
        0,
        "Several ranks run, and no model of the script is in DistributedDataParallel.",
        "Wrap the model, unless the script averages gradients itself.",
    ),
    "epoch-without-batches": Entry(
        0,
        "An epoch of a Session did not use `session.batches`, so its steps count as one, and it cannot resume "
        "within it.",
        "Iterate `session.batches(loader)`.",
    ),
    "early-workers": Entry(
        0,
        "Workers of a DataLoader were started before the Session, and a signal to all processes ends them.",
        "Iterate the loader first inside the Session.",
    ),
    "slow-resume": Entry(
        0,
        "A loader has no index, so on resume the batches that were trained are fetched again and dropped.",
        "Use a map-style dataset, if that takes too long.",
    ),
    "epoch-repeated": Entry(
        0,
        "The number of ranks changed within an epoch, and `repeat_epoch=True`: the epoch begins anew.",
        "Nothing; `slipway.Sampler` divides the rest of an epoch instead.",
    ),
    "tracker-silent": Entry(
        0,
        "A tracker does not answer in time. Training continues; metrics.jsonl has all records.",
        "Check the network of the node, or use the tracker's offline mode.",
    ),
    "tracker-ended": Entry(
        0,
        "A tracker or TensorBoard failed. Training continues; metrics.jsonl has all records.",
        "Correct what the warning names, and start again if you need it.",
    ),
    "damaged-image": Entry(
        0,
        "An image cannot be decoded. It is left out.",
        "Repair or remove the file; `--bad-image-share` says how many a training bears.",
    ),
    "left-out": Entry(
        0,
        "`trainer report` cannot read a file of a run, or parts of it make no sense. The page shows the rest.",
        "Look at the file that the warning names, if you miss something on the page.",
    ),
    # Job scripts
    "old-bash": Entry(
        EXIT_CONFIG,
        "The Bash of the node is older than 4.4.",
        "Load a newer Bash, or run on nodes that have one.",
    ),
    "no-container-runtime": Entry(
        EXIT_CONFIG,
        "The node lacks the program that runs the image: apptainer, podman, or Slurm's Pyxis.",
        "Name its module (`modules`) or its folder (`path`) in the site's file, or use an environment: "
        "`USE_CONTAINER=0`.",
    ),
    "image-not-local": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_IMAGE` has a form that this container runtime cannot run, or that each process would convert anew.",
        "Convert it once by the command that the error names, and set `SLIPWAY_IMAGE` to the result.",
    ),
    "build-failed": Entry(
        EXIT_CONFIG,
        "An image or environment could not be built, or what was built does not work.",
        "Read the lines above the error: often the network or free space; `WHEELHOUSE` installs without a network.",
    ),
    "no-cuda-home": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_NCCL_PATH` names an NCCL of the site, and `CUDA_HOME` no CUDA to build Horovod with.",
        "Load the site's module of CUDA, or set `CUDA_HOME`.",
    ),
    "staging-failed": Entry(
        EXIT_CONFIG,
        "Image or data could not be copied to the local disk of every node (`SLIPWAY_STAGE=1`).",
        "See which node failed above; check the free space of `SLIPWAY_LOCAL_DISK`, or set `SLIPWAY_STAGE=0`.",
    ),
    "staged-in-memory": Entry(
        0,
        "The local disk to which image and data are copied is memory (tmpfs), and counts as memory of the job.",
        "Ask for that much more memory, set `SLIPWAY_LOCAL_DISK` to a disk, or set `SLIPWAY_STAGE=0`.",
    ),
    "no-local-disk": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_LOCAL_DISK` is no folder of the node.",
        "Set it to one, such as /tmp.",
    ),
    "misplaced-arguments": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_ARGS` is set for a script that takes its arguments on its command line.",
        "Put them after the script's name: `sbatch ddp.job --epochs 5`.",
    ),
    "no-notify-program": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_NOTIFY` is no program on the node.",
        "Set it to the path of an executable file that nodes can read.",
    ),
    "no-library": Entry(
        EXIT_CONFIG,
        "A job script does not find the folder of its library, jobscripts/lib.",
        "Submit it in a clone, set `SLIPWAY_LIB`, or generate it by `jobgen render --standalone`.",
    ),
    "run-folder-moved": Entry(
        EXIT_CONFIG,
        "The run folder of a kept `job.sh` is not where it was.",
        "Set `SLIPWAY_RUN_DIR` to where it is now.",
    ),
    "no-nodes": Entry(
        EXIT_CONFIG,
        "The scheduler does not name the nodes of the job.",
        "Submit the script by `sbatch` or `qsub`; started by hand it needs an allocation.",
    ),
    "too-few-nodes": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_SPARES` leaves no node to train on.",
        "Ask for more nodes, or lower it.",
    ),
    "heterogeneous-job": Entry(
        EXIT_CONFIG,
        "A heterogeneous job of Slurm has parts that differ, and a run needs equal nodes.",
        "Submit it as one part.",
    ),
    "node-not-ready": Entry(
        EXIT_CONFIG,
        "A node could not do what the job needs before its launch: the lines above say which node, and why.",
        "Correct what they name, or exclude the node (`sbatch --exclude`). A slow node needs more "
        "`SLIPWAY_PREFLIGHT_SECONDS`.",
    ),
    "no-master-address": Entry(
        EXIT_CONFIG,
        "The first node has no address at which the others can reach it.",
        "Set `MASTER_ADDR`, or have the node's name resolved to an address of the cluster's network.",
    ),
    "no-free-port": Entry(
        EXIT_CONFIG,
        "No free port was found on the first node, or it could not be asked.",
        "Read the lines above; set `MASTER_PORT` to a port that is free there.",
    ),
    "no-rendezvous": Entry(
        EXIT_CONFIG,
        "Horovod's rendezvous server did not start on the first node.",
        "Read the lines above: often the image or environment lacks Horovod.",
    ),
    "no-profiler": Entry(
        EXIT_CONFIG,
        "The profiler of `SLIPWAY_PROFILER` does not run on every node.",
        "Put it on PATH there: in the image, or by a module with `USE_CONTAINER=0`.",
    ),
    "not-your-folder": Entry(
        EXIT_CONFIG,
        "The run folder belongs to another user, or you cannot write it.",
        "Set `SLIPWAY_RUN_DIR` or `SLIPWAY_OUTPUT` to a folder of your own.",
    ),
    "writable-by-others": Entry(
        EXIT_CONFIG,
        "Others can write the run folder, and the job runs code from it.",
        "`chmod o-w` the folder, after a look at what is in it.",
    ),
    "folder-holds-other-files": Entry(
        EXIT_CONFIG,
        "`SLIPWAY_RUN_DIR` is a folder with files that are no run.",
        "Set it to a new folder, or to that of a run.",
    ),
    "rank-failed": Entry(
        EXIT_FAILED,
        "A rank, or the launcher, ended with an error that left no verdict. The job ends with its exit code.",
        "Read logs/N/stderr.log in the run folder: the first traceback there is the cause.",
    ),
    "rank-killed": Entry(
        0,
        "A process of an attempt was killed by a signal, on the node that the warning names.",
        "Often memory ran out there: see logs/N/stderr.log and the scheduler's accounting (`sacct`).",
    ),
    "stopped-early": Entry(
        EXIT_STOPPED,
        "A signal ended the job, or a rank, before it could save: it was cancelled, or preempted.",
        "Submit `job.sh` of the run folder again, or repeat the command, to continue from the last checkpoint.",
    ),
    "node-lost": Entry(
        0,
        "A node did not answer. The job leaves it out, and restarts on the others if it can.",
        "Tell the node's administrator; `SLIPWAY_SPARES` keeps nodes ready to replace one.",
    ),
    "node-suspect": Entry(
        0,
        "A process was killed on the same node for the second time. The job leaves the node out.",
        "Tell the node's administrator.",
    ),
    "restarted": Entry(
        0,
        "The job started its ranks again from the last checkpoint, after a rank, launcher or node died.",
        "Nothing; the warning before it names the cause. `SLIPWAY_MAX_RESTARTS` limits it.",
    ),
    "no-restart": Entry(
        0,
        "An attempt died and is not started again: too often, without progress, or with too few nodes.",
        "Correct the cause that the log names, then submit `job.sh` of the run folder again.",
    ),
    "fewer-nodes": Entry(
        0,
        "The run continues on fewer nodes (`SLIPWAY_SHRINK=1`): the same samples, but sums in another order.",
        "Nothing; the next job has all nodes again.",
    ),
    "requeued": Entry(
        0,
        "The job continues in a further job: it was out of time, preempted, or lost a node.",
        "Nothing; `jobgen status` follows it. `SLIPWAY_MAX_REQUEUES` limits it.",
    ),
    "no-requeue": Entry(
        0,
        "The job could continue in a further job, and does not: the limit is reached, or the scheduler refuses.",
        "Submit `job.sh` of the run folder again to continue.",
    ),
    "old-ranks": Entry(
        0,
        "Ranks of an earlier attempt may still run, since not every node could be asked to end them.",
        "If GPUs stay busy, end them on the node that is named, or have it drained.",
    ),
    "step-repeated": Entry(
        0,
        "A process was killed while the job was prepared, and that step is run once more.",
        "Nothing, unless it happens again.",
    ),
    "port-taken": Entry(
        0,
        "The port of the ranks' meeting point was taken by another program; the launch is repeated with another one.",
        "Nothing.",
    ),
    "cannot-stop": Entry(
        0,
        "The file STOP could not be written, so the ranks are not asked to save before the end of the job's time.",
        "Check free space and quota of the run folder.",
    ),
    "ranks-not-connected": Entry(
        0,
        "The ranks of a script of your own did not form one group: each trained alone.",
        "Call `torch.distributed.init_process_group()` or `hvd.init()` in the script, with the variables that the "
        "job sets.",
    ),
    "slow-nodes": Entry(
        0,
        "Nodes do not answer within `SLIPWAY_PREFLIGHT_SECONDS`; they are asked once more.",
        "If it is the rule there, raise `SLIPWAY_PREFLIGHT_SECONDS`.",
    ),
    "scratch-left": Entry(
        0,
        "A folder of a job on the local disk of a node could not be removed.",
        "Remove it by hand, on the nodes of that job.",
    ),
    "idle-gpus": Entry(
        0,
        "The job holds more GPUs than its ranks use.",
        "Start more ranks (`SLIPWAY_RANKS_PER_NODE`), or ask for fewer GPUs.",
    ),
    "kept-variable": Entry(
        0,
        "A variable that the job would set was set outside, and is kept.",
        "Unset it before you submit, if that was not meant.",
    ),
    "no-kill-missing": Entry(
        0,
        "Spare nodes or `SLIPWAY_SHRINK` need a Slurm job that survives the loss of a node, and this one does not.",
        "Submit by `jobgen submit`, or with `sbatch --no-kill`.",
    ),
    "environment-left": Entry(
        0,
        "The scheduler did not pass the environment of the submission on to the job (`SBATCH_EXPORT=NONE`).",
        "Submit by `jobgen submit`, which writes settings into the script, or with `sbatch --export=ALL`.",
    ),
    # Verdicts: how an attempt ended that did not fail
    "complete": Entry(
        0,
        "The training did all that was to be done.",
        "Nothing.",
    ),
    "time-limit": Entry(
        EXIT_STOPPED,
        "The attempt saved and stopped before the time limit of its job.",
        "Nothing if the job was requeued; otherwise submit `job.sh` of the run folder again.",
    ),
    "user": Entry(
        EXIT_STOPPED,
        "Somebody asked the run to stop, by `jobgen cancel` or the file STOP. It saved first.",
        "Submit `job.sh` of the run folder again to continue.",
    ),
    "signal": Entry(
        EXIT_STOPPED,
        "A signal stopped the attempt, as of `scancel`, `qdel` or Ctrl-C. It saved first.",
        "Submit `job.sh` of the run folder again to continue.",
    ),
    "launcher": Entry(
        EXIT_STOPPED,
        "The launcher of the ranks died, and they saved and stopped.",
        "See in logs/N/stderr.log why it died, then continue the run.",
    ),
}
