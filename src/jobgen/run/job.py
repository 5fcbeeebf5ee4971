"""``jobgen.Job``: a program and what it needs, submitted from Python; ``jobgen run`` is its command line."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

from jobgen.base.errors import JobgenError, UsageError, warn
from jobgen.base.job import Job as ResolvedJob
from jobgen.base.job import JobSpec, Site
from jobgen.jobs.submit import environment_without_job, examine, is_standalone, prepare
from jobgen.render.files import Origin, job_of, origin_in, site_of, site_or_default, spec_of
from jobgen.resolve.load import divide
from jobgen.run.limits import minutes_of
from jobgen.run.plan import Plan
from jobgen.run.program import Program, program_of
from jobgen.run.runtime import Runtime, check_program, choose_runtime, module_file
from jobgen.run.source import read_source
from jobgen.schedulers import Scheduler, scheduler_of
from slipway.base.contract import JOB_SCRIPT, SETTINGS

if TYPE_CHECKING:
    from jobgen.run.submitted import SubmittedRun

SPECS = {"ddp": "ddp", "horovod": "horovod-gloo", "single": "single"}
"""Spec of each backend, for nodes with GPUs. horovod-gloo needs no MPI."""
FLAG_OF = {
    "PATH": "each node sets it: use the field path of the site",
    "SLIPWAY_SCRIPT": "name the script as the first argument",
    "SLIPWAY_CONFIG": "name the configuration as the first argument",
    "SLIPWAY_RUN_DIR": "name a run folder as the first argument",
    "SLIPWAY_ARGS": "arguments of the program follow after --",
    "SLIPWAY_LIB": "export it in the shell",
    "USE_CONTAINER": "use --image, --venv or --conda",
    "SLIPWAY_IMAGE": "use --image",
    "SLIPWAY_VENV": "use --venv or --conda",
    "SLIPWAY_DATA": "use --data",
    "BACKEND": "use --backend",
    "SLIPWAY_RANKS_PER_NODE": "use --gpus-per-node",
    "SLIPWAY_DEVICES_PER_RANK": "use --set devices_per_rank=N",
    "SLIPWAY_SPARES": "use --spares",
}
"""Variables that are no value of ``--env``, and what to use instead."""
PLAIN = r"[A-Za-z][A-Za-z0-9_.,:/@%+-]*"
"""Pattern of texts that a setting can hold without quotes."""
TOML_WORDS = {"true", "false", "inf", "nan"}


class Job:
    """A training program and the resources that it needs.

    Create one, then call ``submit``. Only ``program`` is required. Everything else has the default of the site, which
    is a file that describes a cluster (docs/reference/site.md)::

        from jobgen import Job

        run = Job("my_train.py", "--lr", "0.1", nodes=2, gpus_per_node=4, time="4:00:00").submit()
        run.wait()
        print(run.state, run.step, run.folder)
    """

    def __init__(
        self,
        program: Union[str, os.PathLike[str]] = "",
        *arguments: Union[str, float],
        module: str = "",
        nodes: Optional[int] = None,
        gpus_per_node: Optional[int] = None,
        gpu_type: str = "",
        cpus_per_task: Optional[int] = None,
        time: Union[str, int] = "",
        partition: str = "",
        account: str = "",
        qos: str = "",
        mem: str = "",
        name: str = "",
        array: str = "",
        env: Optional[Mapping[str, Union[str, float]]] = None,
        data: str = "",
        image: str = "",
        venv: str = "",
        conda: str = "",
        backend: str = "",
        spares: Optional[int] = None,
        site: str = "",
        settings: Sequence[str] = (),
    ) -> None:
        """Describe a job; nothing is read or submitted.

        Args:
            program: a Python script (``*.py``), a configuration of the trainer (``*.toml``), or the folder of a run to
                continue.
            arguments: arguments of the program. A continued run keeps its arguments if there are none.
            module: a Python module to run as ``python -m`` does, instead of ``program``.
            nodes: number of nodes; 1 by default.
            gpus_per_node: GPUs on each node, one rank per GPU; by default all GPUs of a node.
            gpu_type: Slurm's name of the GPU type, such as a100.
            cpus_per_task: CPU cores per rank.
            time: time limit: minutes, or text in a format of Slurm's --time: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or
                D-HH:MM:SS.
            partition: Slurm partition, or PBS queue.
            account: account or project to charge.
            qos: Slurm quality of service.
            mem: memory per node, such as 64G (M, G or T, powers of 1024).
            name: name of the job and its run folder; by default the program's.
            array: indices of an array of jobs in the scheduler's syntax, such as 0-3.
            env: variables for each rank.
            data: folder or archive of the data, which scripts find in the variable DATA.
            image: container image file. Without image, venv and conda: the site's image if it exists, else the active
                environment if it has torch, else the site's environment.
            venv: folder of a virtual or conda environment, instead of an image.
            conda: name of a conda environment, instead of an image.
            backend: ddp, horovod or single (one process); by default ddp.
            spares: spare nodes that replace lost ones.
            site: the site's name or file; by default the user's or the centre's default site.
            settings: further settings KEY=VALUE of the spec (docs/reference/spec.md) or the site
                (docs/reference/site.md).
        """
        self._program, self._module, self._arguments = os.fspath(program), module, [str(word) for word in arguments]
        self._nodes, self._gpus, self._gpu_type, self._cpus = nodes, gpus_per_node, gpu_type, cpus_per_task
        self._time, self._mem, self._name, self._spares = str(time), mem, name, spares
        self._options = {"partition": partition, "account": account, "qos": qos, "array": array}
        self._env = {name: str(value) for name, value in (env or {}).items()}
        self._data, self._backend = data, backend
        self._image, self._venv, self._conda = image, venv, conda
        self._site, self._settings = site, [*settings]

    def plan(self, *, dry_run: bool = False) -> Plan:
        """Check the job on this machine and return what would be submitted.

        Args:
            dry_run: whether to return errors in ``submission.faults`` instead of raising them.

        Raises:
            JobgenError: if a check fails.
        """
        program = program_of(self._program, module=self._module)
        origin = self._origin(program)
        site = site_of(origin.site, divide(self._settings)[1])
        scheduler = scheduler_of(site.scheduler)
        flags = [*self._resources(site, scheduler, origin), *self._scheduler_options(site, scheduler, origin)]
        settings = [*origin.settings, *flags, *self._settings]
        environment = {**self._shell(program), **self._variables(), **program.settings}
        job = job_of(origin.spec, origin.site, settings, standalone=is_standalone(environment))
        self._check_settings(flags, scheduler.computed_options(job))
        runtime = self._runtime(program, job, environment)
        environment.update(runtime.settings)
        if program.run and self._gpus is not None:  # its job.sh has the number of ranks as a default
            environment.update(_ranks_of(job))
        faults = [*_check_files(program, job, environment)]
        if self._data and not os.access(self._data, os.R_OK):
            faults.append(JobgenError("no-data", f"--data: {self._data} is missing or not readable on this machine."))
        if faults and not dry_run:
            raise faults[0]
        if scheduler.has_queue:
            submission = prepare(origin.spec, origin.site, settings, self._arguments, environment, dry_run=dry_run)
        else:
            submission = examine(job, self._arguments, environment, site=origin.site, dry_run=dry_run)
        variables = {name: value for name, value in self._env.items() if name not in SETTINGS}
        submission = submission._replace(faults=(*faults, *submission.faults), variables=variables)
        return Plan(program, submission, runtime.line, read_source(_script_of(environment)))

    def submit(self) -> SubmittedRun:
        """Submit the job and return its run. Without a scheduler, start it here in the background.

        Raises:
            JobgenError: if a check fails, or the scheduler refuses the job.
        """
        from jobgen.run.here import start_here  # noqa: PLC0415 -- the command line needs neither
        from jobgen.run.submitted import SubmittedRun  # noqa: PLC0415

        plan = self.plan()
        plan.warn()
        submission = plan.submission
        if not plan.has_queue:
            folder, process = start_here(submission)
            return SubmittedRun(str(folder), process=process)
        return SubmittedRun(plan.job_number())

    def _origin(self, program: Program) -> Origin:
        """Return spec, site and settings: those of the run that continues, or those of a new job."""
        if program.run:
            self._refuse_fixed()
            return origin_in(Path(program.path, JOB_SCRIPT), folder=program.run.files.first_folder)
        backend = self._backend or "ddp"
        if backend not in SPECS:
            raise UsageError("bad-flag-value", f"--backend {backend!r} must be {', '.join(SPECS)}.")
        name = site_or_default(self._site or None)
        site = site_of(name, divide(self._settings)[1])
        settings = [f"name={_toml(self._name or program.name)}"]
        if not scheduler_of(site.scheduler).has_queue:
            return Origin("ddp-local", name, [*settings, f"backend={backend}"])
        on_cpus = site.accelerator == "none" or not site.gpus_per_node
        return Origin("cpu" if on_cpus and backend != "single" else SPECS[backend], name, [*settings, "nodes=1"])

    def _resources(self, site: Site, scheduler: Scheduler, origin: Origin) -> List[str]:
        """Return the settings of nodes, ranks, cores, memory and time."""
        if not scheduler.has_queue and (self._nodes or 1) > 1:
            raise JobgenError("no-scheduler", f"--nodes {self._nodes}: site {site.name} is this machine only.")
        numbers = {"spares": self._spares, "nodes": self._nodes if scheduler.has_queue else None}
        found = [f"{key}={value}" for key, value in numbers.items() if value is not None]
        found += self._ranks(site, scheduler, spec_of(origin.spec, divide([*origin.settings, *self._settings])[0]))
        texts = {"gpu_type": self._gpu_type, "mem_per_node": self._mem}
        found += [f"{key}={_toml(text)}" for key, text in texts.items() if text]
        return [*found, f"minutes={minutes_of(self._time)}"] if self._time else found

    def _ranks(self, site: Site, scheduler: Scheduler, spec: JobSpec) -> List[str]:
        """Return the settings of ranks, their GPUs and their cores: a rank per GPU, or one process with all GPUs."""
        found, gpus, each = [], self._gpus, spec.devices_per_rank
        if gpus is not None:
            there = site.gpus_per_node if scheduler.has_queue else gpus
            if gpus < 1:
                raise UsageError(
                    "bad-flag-value", f"--gpus-per-node {gpus}: give at least 1; for CPU cores only, --set device=cpu."
                )
            if gpus > there:
                raise JobgenError(
                    "too-few-gpus", f"--gpus-per-node {gpus}: nodes of site {site.name} have {there} (gpus_per_node)."
                )
            each = gpus if spec.backend == "single" else each
            found = [f"devices_per_rank={gpus}"] if spec.backend == "single" else [f"ranks_per_node={gpus // each}"]
            if gpus % each:
                raise UsageError("bad-flag-value", f"--gpus-per-node {gpus}: each rank has {each} (devices_per_rank).")
        if self._cpus is not None:
            if self._cpus % each:
                raise UsageError(
                    "bad-flag-value", f"--cpus-per-task {self._cpus}: give a multiple of the rank's {each} GPUs."
                )
            found.append(f"cpus_per_gpu={self._cpus // each}")
        return found

    def _scheduler_options(self, site: Site, scheduler: Scheduler, origin: Origin) -> List[str]:
        """Return the settings of the scheduler's options; without a scheduler, warn that they have no effect."""
        given = {flag: text for flag, text in self._options.items() if text}
        if not scheduler.has_queue:
            others = {"time": self._time, "mem": self._mem, "gpu-type": self._gpu_type, "spares": self._spares}
            others["cpus-per-task"] = self._cpus
            if ignored := [*given, *(flag for flag, value in others.items() if value)]:
                flags = ", ".join(f"--{flag}" for flag in ignored)
                warn("ignored-flag", f"{flags}: site {site.name} has no scheduler, so this has no effect.")
            return []
        names = scheduler.flag_options(site)
        for flag in given:
            if flag not in names:
                raise JobgenError("unsupported-option", f"--{flag}: {scheduler.name} has no such option.")
        found = [f"options.{names[flag]}={_toml(text)}" for flag, text in given.items()]
        array = f"options.{names.get('array')}="
        if any(setting.startswith(array) for setting in origin.settings):  # of the array, only this task continues
            found.append(f"{array}false")
        return found

    def _shell(self, program: Program) -> Dict[str, str]:
        """Return the environment without settings that would replace what a flag or the run that continues has set.

        Raises:
            UsageError: if SLIPWAY_RUN_DIR names a run of another program.
        """
        environment = environment_without_job()
        if program.run:
            dropped = {*SETTINGS} - {"SLIPWAY_LIB", "SLIPWAY_TRUSTED_FOLDER"}
        else:
            folder = environment.get("SLIPWAY_RUN_DIR", "")
            if folder and Path(folder, JOB_SCRIPT).exists():
                raise UsageError(
                    "flag-conflict",
                    f"SLIPWAY_RUN_DIR={folder} is a run: `jobgen run {shlex.quote(folder)}` continues it; unset the "
                    "variable to begin another one.",
                )
            given = {"SLIPWAY_RANKS_PER_NODE": self._gpus, "SLIPWAY_DEVICES_PER_RANK": self._gpus}
            given |= {"SLIPWAY_SPARES": self._spares}
            dropped = {name for name, value in given.items() if value is not None} | {"SLIPWAY_ARGS"}
        return {name: value for name, value in environment.items() if name not in dropped}

    def _variables(self) -> Dict[str, str]:
        """Return the variables of the job: data, backend, and ``env``.

        Raises:
            UsageError: for an invalid name, or one that a flag sets.
        """
        for name in self._env:
            if not (name.isidentifier() and name.isascii()):
                raise UsageError("bad-flag-value", f"--env {name[:80]!r} is not the name of a variable.")
            if name in FLAG_OF:
                raise UsageError("bad-flag-value", f"--env {name}: {FLAG_OF[name]}.")
        found = {"SLIPWAY_DATA": self._data, "BACKEND": self._backend}
        return {**{name: value for name, value in found.items() if value}, **self._env}

    def _refuse_fixed(self) -> None:
        """Refuse arguments that a run which continues cannot change.

        Raises:
            UsageError: if one is given.
        """
        fixed = {"site": self._site, "backend": self._backend, "name": self._name, "spares": self._spares,
                 "array": self._options["array"], "set": self._settings}  # fmt: skip
        if given := [f"--{name}" for name, value in fixed.items() if value not in ("", None, [])]:
            raise UsageError("flag-conflict", f"{', '.join(given)}: a run that continues keeps it: remove the flag.")

    def _check_settings(self, flags: Sequence[str], computed: Set[str]) -> None:
        """Refuse values of ``--set`` for what a flag sets, and for options of the scheduler that jobgen computes.

        Raises:
            UsageError: if there is one.
        """
        others = {"name": self._name, "backend": self._backend, "data": self._data, "image": self._image,
                  "venv": self._venv or self._conda}  # fmt: skip
        keys = {setting.partition("=")[0] for setting in flags} | {key for key, value in others.items() if value}
        for setting in self._settings:
            key = setting.partition("=")[0].strip()
            table, _, option = key.partition(".")
            if key in keys:
                raise UsageError("flag-conflict", f"--set {key}: another flag sets it too: keep one of them.")
            if key == "options":
                raise UsageError("bad-flag-value", "--set options: name each option: --set options.NAME=VALUE.")
            if table == "options" and option in computed:
                raise UsageError(
                    "flag-conflict",
                    f"--set {key}: jobgen computes this option: use --nodes, --gpus-per-node, --mem, --time or --set "
                    "resume=none.",
                )

    def _runtime(self, program: Program, job: ResolvedJob, environment: Mapping[str, str]) -> Runtime:
        """Return the image or environment; that of a continued run changes only on request."""
        if program.run and not (self._image or self._venv or self._conda):
            return Runtime({}, "")
        flags = {"image": self._image, "venv": self._venv, "conda": self._conda}
        return choose_runtime(job, environment, **{name: value or None for name, value in flags.items()})


def _ranks_of(job: ResolvedJob) -> Dict[str, str]:
    """Return the settings of the ranks and their GPUs."""
    if job.spec.backend == "single":
        return {"SLIPWAY_DEVICES_PER_RANK": str(job.spec.devices_per_rank)}
    return {"SLIPWAY_RANKS_PER_NODE": str(job.ranks_per_node)}


def _script_of(environment: Mapping[str, str]) -> Optional[Path]:
    """Return the file of the script; None for the trainer, and for a module whose file is not here."""
    name = environment.get("SLIPWAY_SCRIPT", "")
    if name.startswith("-m "):
        return module_file(name[len("-m ") :])
    return Path(name) if name else None


def _check_files(program: Program, job: ResolvedJob, environment: Mapping[str, str]) -> Iterator[JobgenError]:
    """Check that the nodes see the program's files, and that its environment has the packages that it imports."""
    if program.kind == "script":
        yield from check_program(job, environment, Path(program.path))
    elif program.kind == "module":
        yield from check_program(job, environment, module_file(program.path), folder=Path.cwd())
    elif program.kind == "configuration":
        yield from check_program(job, environment, None)


def _toml(text: str) -> str:
    """Return ``text`` as the value of a setting, which is read as TOML: in quotes if it could be another type."""
    if re.fullmatch(PLAIN, text, flags=re.ASCII) and text not in TOML_WORDS:
        return text
    import json  # noqa: PLC0415 -- most texts are plain

    return json.dumps(text, ensure_ascii=False)
