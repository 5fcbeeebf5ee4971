"""Detection of fields that do not depend on the scheduler: container runtime, interfaces, folders, proxies."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft
from jobgen.detect.modules import COMMAND, loaded_schedulers, read_modules
from jobgen.detect.parsing import listed

NAMESPACES = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)
"""Files of the kernel (upstream, Debian, Ubuntu), and the content that disables user namespaces."""
SIF_RUNTIMES = ("apptainer", "singularity")
"""Commands of the runtimes of SIF images, the preferred one first; also their folders of helpers."""
WORK = ("SCRATCH", "WORK", "PSCRATCH", "WORKDIR")
"""Variables with which sites name a large shared disk."""
LONGEST = 1000
"""Maximum characters of a variable that becomes a value."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def draft_machine(draft: Draft, asker: Asker, *, has_pyxis: bool) -> None:
    """Detect the fields that do not depend on the scheduler."""
    modules = read_modules(asker)
    _container(draft, asker, modules, has_pyxis=has_pyxis)
    if loaded := loaded_schedulers(asker):
        draft.add("purge_modules", False, f"LOADEDMODULES: {listed(loaded)} belongs to the scheduler")
    _interfaces(draft, asker, modules)
    _folders(draft, asker.env)
    for name in PROXIES:
        value = asker.env.get(name, "")
        if "@" in value:
            draft.add_question(
                f"env.{name}",
                f"Which {name} do nodes use? The value on this machine contains a password.",
                "http://HOST:PORT",
            )
        elif value and value.isprintable() and len(value) <= LONGEST:
            draft.add(f"env.{name}", value, f"{name} on this node")
    if asker.env.get("SBATCH_EXPORT") == "NONE":
        draft.note("SBATCH_EXPORT=NONE is set: jobgen submit writes settings into the script. Jobs use the PATH of "
                   "their nodes: add folders to it with the field path.")  # fmt: skip


def _container(draft: Draft, asker: Asker, modules: Dict[str, List[str]], *, has_pyxis: bool) -> None:
    """Detect the container runtime: on PATH, as a Slurm plugin, or as a module."""
    torch = modules.get("torch", [])
    if version := _runtime(asker):
        name, said = version
        draft.add("container", name, said)
        _namespaces(draft, asker, name)
    elif has_pyxis:
        draft.add("container", "pyxis", "srun --help: --container-image")
    elif runtime := next((name for name in SIF_RUNTIMES if name in modules), ""):
        names = modules[runtime]
        others = f"; others: {listed(names[1:])}" if names[1:] else ""
        draft.add("container", runtime, f"{COMMAND}: {names[0]}")
        draft.add("modules", (names[0],), f"{COMMAND}{others}")
    elif shutil.which("podman"):
        draft.add("container", "podman", asker.run("podman", "--version").text.strip() or "podman is on this machine")
        draft.add_question("container", "Can jobs use podman: rootless, and on the nodes too?", "none")
    else:
        _no_container(draft, modules)
    if torch and "venv" not in draft.found:
        text = f"Should jobs use a PyTorch module, not a container? {COMMAND}: {listed(torch)}. Add it to modules too."
        draft.add_question("venv", text, "modules")


def _runtime(asker: Asker) -> Optional[Tuple[str, str]]:
    """Return the name and version text of Apptainer or Singularity on PATH, or None; one may be a link to the other."""
    for program in SIF_RUNTIMES:
        if shutil.which(program):
            lines = asker.run(program, "--version").text.split("\n")
            said = next((line for line in lines if re.search("version [0-9]|^[0-9]", line)), "").strip()
            name = next((name for name in SIF_RUNTIMES if said.startswith(name)), program)
            return name, f"{program} --version: {said}" if said else f"{program} is on this machine, version unknown"
    return None


def _no_container(draft: Draft, modules: Dict[str, List[str]]) -> None:
    torch = modules.get("torch", [])
    draft.add("container", "none", f"no apptainer, singularity, podman or pyxis on this machine or in {COMMAND}")
    draft.add_question(
        "container", "Do the nodes have a container runtime that this machine does not have?", "apptainer"
    )
    if torch:
        others = f"; others: {listed(torch[1:])}" if torch[1:] else ""
        draft.add("venv", "modules", f"{COMMAND}: {torch[0]}")
        draft.add("modules", (torch[0],), f"{COMMAND}{others}")
    elif pythons := modules.get("python"):
        text = f"Is one of these modules needed to build .venv (Python 3.11 or later)? {COMMAND}: {listed(pythons)}."
        draft.add_question("modules", text, (pythons[0],))


def _namespaces(draft: Draft, asker: Asker, program: str) -> None:
    """Add a question if users have neither user namespaces nor a setuid starter to run containers."""
    answer = asker.run("unshare", "--user", "--map-root-user", "true", expected=False)
    if not answer.error or _has_starter(program):
        return
    reasons = [path for path, value in NAMESPACES if _content(path) == value]
    why = f" ({listed(reasons)})" if reasons else ""
    text = f"Can users run containers on the nodes? This machine has no user namespaces{why} and no setuid {program} "
    draft.add_question("container", f"{text}starter.", "none")


def _has_starter(program: str) -> bool:
    """Return whether the setuid starter of Apptainer or Singularity is installed.

    https://apptainer.org/docs/admin/main/installation.html, "Setuid".
    """
    prefix = Path(os.path.realpath(shutil.which(program) or program)).parents[1]
    for folder in SIF_RUNTIMES:
        try:
            mode = (prefix / "libexec" / folder / "bin" / "starter-suid").stat().st_mode
        except OSError:
            continue
        return bool(mode & stat.S_ISUID)
    return False


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _interfaces(draft: Draft, asker: Asker, modules: Dict[str, List[str]]) -> None:
    """Detect the interfaces of Slingshot and InfiniBand networks, and an MPI other than Open MPI."""
    text = asker.run("ip", "-brief", "link", "show", expected=False).text
    names = [line.split()[0].partition("@")[0] for line in text.splitlines() if line.strip()]
    names = names or [path.name for path in Path("/sys/class/net").glob("*")]
    fast = sorted(name for name in names if re.fullmatch(r"hsn[0-9]+", name))
    if fast:
        source = f"ip link: {listed(fast)}, a Slingshot network"
        draft.add("env.NCCL_SOCKET_IFNAME", "hsn", source)
        draft.add("env.GLOO_SOCKET_IFNAME", fast[0], source)
    infiniband = sorted(name for name in names if re.fullmatch(r"ib[a-z0-9]*", name))
    if infiniband and not fast:
        text = f"Do nodes have {listed(infiniband)} too? Dask can connect to its workers by it; NCCL detects it."
        draft.add_question("interface", text, infiniband[0])
    mpi = fast or modules.get("cray-mpich", [])
    if mpi:
        what = "Cray's MPI" if modules.get("cray-mpich") else "a Slingshot network, so probably Cray's MPI"
        draft.add("mpi", "other", f"{what}: {listed(modules.get('cray-mpich') or fast)}")
    elif shutil.which("mpirun"):
        said = asker.run("mpirun", "--version", both=True).text
        if said and "Open MPI" not in said and "OpenRTE" not in said and "PRRTE" not in said:
            draft.add("mpi", "other", f"mpirun --version: {said.strip().splitlines()[0][:80]}")


def _folders(draft: Draft, env: Mapping[str, str]) -> None:
    """Propose the site's large shared disk, from a variable, as the output folder."""
    named: List[Tuple[str, str]] = [(name, env[name]) for name in WORK if env.get(name)]
    possible = [(name, path) for name, path in named if path.startswith("/") and path.isprintable()]
    if possible:
        name, path = possible[0]
        others = f"; others: {listed(f'{other}={path}' for other, path in possible[1:])}" if possible[1:] else ""
        draft.add("output", f"${name}/runs", f"{name}={path} on this node{others}")
        draft.add_question("output", f"How long are files in ${name} kept? Many sites delete them after some weeks.")
    elif draft.found["scheduler"].value != "local":
        text = "Which folder has space for run folders? The default is runs/ in the folder of submission."
        draft.add_question("output", text, "/scratch/$USER/runs")
