"""Draft of a PBS site from the facts about its cluster."""

from __future__ import annotations

import re
import shutil
from typing import Dict, List, Optional

from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft
from jobgen.detect.gpus import maker
from jobgen.detect.parsing import is_plain, listed
from jobgen.detect.pbs.facts import Host, PbsFacts, read_pbs, size_of
from jobgen.detect.pbs.queues import UsableQueue, best, queues_of

NODES = "pbsnodes -a"
QUEUES = "qstat -Q -f"
SERVER = "qstat -B -f"
GIB = 1 << 30
COMMON = frozenset({"arch", "host", "mem", "ncpus", "ngpus", "nmics", "vmem", "vnode", "vntype"})
"""Resources of every OpenPBS (pbs_resources(7B)), and those that job scripts request anyway."""


def draft_pbs(draft: Draft, asker: Asker, version: str) -> None:
    """Detect the fields of a PBS site."""
    pbs = read_pbs(asker, version)
    draft.add("name", _name(pbs), f"{SERVER}: server_host={pbs.server.get('server_host', '')}")
    draft.add("scheduler", "pbs", f"qstat --version: {version}")
    if pbs.is_torque:
        draft.add("pbs", "torque", f"qstat --version: {version}")
    draft.add("resume", "chain", "qrerun is for operators (qrerun(1B))")
    draft.add_question(
        "resume", "Can jobs run qsub on their nodes? If not, set none. If you may run qrerun, set requeue.", "none"
    )
    queues = queues_of(pbs)
    with_gpus, without = best(queues, gpus=True), best(queues, gpus=False)
    hosts = (with_gpus.hosts if with_gpus else []) or [host for host in pbs.hosts if host.gpus]
    if hosts:
        _gpus(draft, pbs, hosts, with_gpus)
    elif pbs.hosts:
        _without_gpus(draft, pbs)
    else:
        draft.add_question("gpus_per_node", f"How many GPUs does a node have? {NODES} lists no nodes.", 4)
        draft.add_question("cpus_per_gpu", "How many CPU cores does a node have per GPU?", 8)
    _queues(draft, queues, with_gpus, without)
    draft.add_question("options.A", "Which account or project is charged? PBS does not list yours.", "PROJECT")
    text = "Which other directives do the site's examples have? Some sites require licenses or file systems."
    draft.add_question("directives", text, ("-l filesystems=home",))
    own = sorted({name for host in hosts for name in host.resources} - COMMON)
    if own:
        draft.add_question(
            "node_properties",
            f"Must jobs request other node resources? The nodes have {listed(own)}.",
            (f"{own[0]}=VALUE",),
        )
    draft.add_question(
        "local_disk", "Where is the nodes' local disk? To find out, run in a job: echo $TMPDIR; df.", "$TMPDIR"
    )
    if wait := (with_gpus.attributes if with_gpus else {}).get("kill_delay"):
        draft.note(f"{QUEUES}: kill_delay = {wait}: seconds that the ranks have to save after qdel.")


def _name(pbs: PbsFacts) -> str:
    name = pbs.server.get("server_host", "").partition(".")[0]
    return name if is_plain(name) else "pbs"


def ask_launcher(draft: Draft) -> None:
    """Add a question about the launcher or the remote shell."""
    if shutil.which("mpirun") and "mpi" not in draft.found:
        draft.add_question(
            "launcher",
            "Should mpirun, which is on this machine, start the ranks? The default is a remote shell.",
            "mpirun",
        )
    else:
        draft.add_question(
            "remote_shell",
            "Can jobs run commands on their nodes with ssh, without a password? If not, which command?",
            "rsh",
        )


def _gpus(draft: Draft, pbs: PbsFacts, hosts: List[Host], with_gpus: Optional[UsableQueue]) -> None:
    """Detect GPUs, cores and memory of the GPU nodes."""
    up = [host for host in hosts if host.is_up and host.gpus] or [host for host in hosts if host.gpus]
    kind = _kind(draft, pbs, up)
    fewest = min(host.gpus for host in kind)
    if limit := (with_gpus.most_gpus if with_gpus else 0):
        fewest = min(fewest, limit)
    counts = sorted({host.gpus for host in kind})
    mixed = f"; counts differ ({listed(map(str, counts))}): the smallest" if len(counts) > 1 else ""
    word = "gpus" if pbs.is_torque else "ngpus"
    draft.add("gpus_per_node", fewest, f"{NODES}: {word} of {len(kind)} nodes{mixed}")
    smallest = min(kind, key=lambda host: host.cpus / host.gpus)
    each = max(1, smallest.cpus // smallest.gpus)
    what = "np" if pbs.is_torque else "ncpus"
    draft.add("cpus_per_gpu", each, f"{NODES}: {smallest.name} has {smallest.cpus} CPUs ({what})")
    if not smallest.are_cores:
        draft.add_question(
            "cpus_per_gpu", f"Does {what} count hyper-threads? If so, halve the value; run lscpu on a node to find out."
        )
    texts = {text for host in kind for values in (*host.values.values(), host.resources) for text in values}
    made_by = maker(texts)
    if made_by in {"nvidia", "amd"}:
        known = sorted(text for text in texts if maker([text]))
        draft.add("accelerator", made_by, f"{NODES}: from the name {listed(known)}")
    else:
        draft.add_question(
            "accelerator",
            f"Are the GPUs from NVIDIA or AMD? {NODES} does not show it.",
            candidate="nvidia",
            choices=("nvidia", "amd"),
        )
    _memory(draft, pbs, kind)


def _kind(draft: Draft, pbs: PbsFacts, hosts: List[Host]) -> List[Host]:
    """Return the nodes with the most common GPU type, and add the node property that requests them."""
    names = sorted({key for host in hosts for key in host.values if "gpu" in key.lower()})
    for name in [] if pbs.is_torque else names:
        totals: Dict[str, int] = {}
        for host in hosts:
            for value in host.values.get(name, ()):
                totals[value] = totals.get(value, 0) + host.gpus
        if len(totals) > 1:
            chosen = max(totals, key=lambda value: totals[value])
            others = listed(sorted(value for value in totals if value != chosen))
            if is_plain(chosen):
                draft.add("node_properties", (f"{name}={chosen}",), f"{NODES}: {name}; others: {others}")
                return [host for host in hosts if chosen in host.values.get(name, ())]
    return hosts


def _memory(draft: Draft, pbs: PbsFacts, hosts: List[Host]) -> None:
    """Set ``mem`` to a node's memory if PBS gives less to jobs that do not request memory."""
    names = ("resources_default.mem", "default_chunk.mem")
    everywhere = [*pbs.queues.values(), pbs.server]
    defaults = [f"{name} = {part[name]}" for part in everywhere for name in names if size_of(part.get(name, ""))]
    least = min((host.memory for host in hosts if host.memory), default=0)
    if defaults and least >= GIB:
        draft.add("mem", f"{least // GIB}G", f"{NODES}: memory of a node; jobs without a request get {defaults[0]}")


def _without_gpus(draft: Draft, pbs: PbsFacts) -> None:
    smallest = min((host for host in pbs.hosts if host.is_up), key=lambda host: host.cpus, default=pbs.hosts[0])
    draft.add("accelerator", "none", f"{NODES}: no node has {'gpus' if pbs.is_torque else 'ngpus'}")
    draft.add("gpus_per_node", 1, "no GPUs: number of ranks per node")
    draft.add("cpus_per_gpu", max(1, smallest.cpus), f"{NODES}: {smallest.name}, the smallest node")
    names = {*pbs.queues, *(text for host in pbs.hosts for text in host.values.get("properties", ()))}
    hints = sorted(name for name in names if re.search("gpu|cuda", name.lower()) or maker([name]))
    if hints:
        text = f"Do nodes have GPUs that PBS does not count? Names that suggest so: {listed(hints)}."
        draft.add_question("accelerator", text, "nvidia")


def _queues(
    draft: Draft, queues: List[UsableQueue], with_gpus: Optional[UsableQueue], without: Optional[UsableQueue]
) -> None:
    if with_gpus:
        others = [queue.name for queue in queues if queue.takes_gpus and queue.name != with_gpus.name]
        more = f"; other queues with GPUs: {listed(others)}" if others else ""
        draft.add("options.q", with_gpus.name, f"{_listing(with_gpus)}{more}")
        if others:
            draft.add_question("options.q", "Is this the right queue for GPU jobs?")
        if without and without.name != with_gpus.name:
            draft.add("cpu_options.q", without.name, _listing(without))
    elif without:
        draft.add("options.q", without.name, _listing(without))
    else:
        draft.add_question("options.q", f"Which queue? {QUEUES} lists none that you may use.", "QUEUE")


def _listing(queue: UsableQueue) -> str:
    """Return the command that lists a queue, and whether it is the default one."""
    return f"{QUEUES}, the default queue" if queue.is_default else QUEUES
