"""Facts about a PBS cluster from qstat, pbsnodes and qmgr of OpenPBS, PBS Professional and Torque."""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, List, NamedTuple, Set

from jobgen.detect.ask import Asker
from jobgen.detect.parsing import number

Attributes = Dict[str, str]
UNITS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


class Host(NamedTuple):
    """A node with all its vnodes."""

    name: str
    cpus: int
    gpus: int
    memory: int
    """In bytes; 0 if unknown."""
    is_up: bool
    values: Dict[str, FrozenSet[str]]
    """Values of its non-numeric resources, its "queue", its "properties", and its GPU names ("product")."""
    resources: FrozenSet[str]
    """Names of all its resources."""
    are_cores: bool
    """Whether its CPUs are known to be cores, not hyper-threads."""


class PbsFacts(NamedTuple):
    """All facts about a PBS cluster; fields that PBS did not report are empty."""

    is_torque: bool
    server: Attributes
    queues: Dict[str, Attributes]
    hosts: List[Host]
    groups: FrozenSet[str]
    user: str


def read_version(asker: Asker) -> str:
    """Return PBS's version line; "" if qstat prints none, like that of Grid Engine."""
    text = asker.run("qstat", "--version", both=True, expected=False).text
    found = re.search(r"(?m)^(?:pbs_version *= *\S+|Version: *[0-9][\w.-]*)", text)
    return found[0] if found else ""


def read_pbs(asker: Asker, version: str) -> PbsFacts:
    """Query PBS for all other facts; ``version``: its version line."""
    queues = _blocks(asker.run("qstat", "-Q", "-f").text, r"Queue: *(\S+)")
    server: Attributes = {}
    for name, attributes in _blocks(asker.run("qstat", "-B", "-f").text, r"Server: *(\S+)").items():
        server = {"server_host": name, **attributes}
    if not (server and queues):
        said = asker.run("qmgr", "-c", "print server").text
        server = server or dict(re.findall(r"(?m)^set server (\S+) \+?= (.*)$", said))
        if not queues:
            for name, key, value in re.findall(r"(?m)^set queue (\S+) (\S+) \+?= (.*)$", said):
                queues.setdefault(name, {})[key] = value
    return PbsFacts(
        is_torque=version.startswith("Version:"),
        server=server,
        queues=queues,
        hosts=_hosts(_blocks(asker.run("pbsnodes", "-a").text, r"(\S+)$")),
        groups=frozenset(asker.run("id", "--groups", "--name").text.split()),
        user=asker.run("id", "--user", "--name").text.strip(),
    )


def size_of(text: str) -> int:
    """Parse a size such as 527672492kb or 480gb into bytes; return 0 if it is not a size."""
    found = re.fullmatch(r"([0-9]{1,18})([kmgt]?b)", text.strip().lower())
    return int(found[1]) * UNITS[found[2]] if found else 0


def _blocks(text: str, head: str) -> Dict[str, Attributes]:
    """Return attributes by the name in the unindented line above them; a leading tab continues a line."""
    found: Dict[str, Attributes] = {}
    current: Attributes = {}
    for line in re.sub(r"\n\t(?! )", "", text).splitlines():
        if begins := re.match(head, line):
            current = found.setdefault(begins[1], {})
        elif pair := re.match(r"\s+([\w.]+) = (.*)$", line):
            current[pair[1]] = pair[2].strip()
    return found


def _hosts(blocks: Dict[str, Attributes]) -> List[Host]:
    """Return the hosts; each is the sum of its vnodes (host[0], host[1])."""
    by_host: Dict[str, List[Attributes]] = {}
    for name, attributes in blocks.items():
        host = attributes.get("resources_available.host") or re.sub(r"\[[0-9]+\]$", "", name)
        by_host.setdefault(host, []).append(attributes)
    return [_host(name, parts) for name, parts in by_host.items()]


def _host(name: str, parts: List[Attributes]) -> Host:
    values: Dict[str, Set[str]] = {}
    resources: Set[str] = set()
    for part in parts:
        for key, text in part.items():
            resource = key.partition("resources_available.")[2]
            resources |= {resource} - {""}
            if (resource or key in {"queue", "properties"}) and not re.fullmatch(r"[0-9.]+([kmgt]?b)?", text):
                values.setdefault(resource or key, set()).update(text.split(","))
        values.setdefault("product", set()).update(re.findall(r"gpu_product_name=([^;,]+)", part.get("gpu_status", "")))
    states = {word for part in parts for word in part.get("state", "").split(",")}
    cores, threads = (sum(number(part.get(key, "")) for part in parts) for key in ("total_cores", "total_threads"))
    cpus = sum(number(_first(part, "resources_available.ncpus", "np", "pcpus")) for part in parts)
    return Host(
        name=name,
        cpus=cores if 0 < cores < threads == cpus else cpus,
        gpus=sum(number(_first(part, "resources_available.ngpus", "gpus")) for part in parts),
        memory=sum(size_of(_first(part, "resources_available.mem")) or _physical(part) for part in parts),
        is_up=not states & {"down", "offline", "state-unknown", "stale", "unresolvable"},
        values={kind: frozenset(words) for kind, words in values.items()},
        resources=frozenset(resources),
        are_cores=cores > 0,
    )


def _first(part: Attributes, *names: str) -> str:
    return next((part[name] for name in names if name in part), "")


def _physical(part: Attributes) -> int:
    """Return the bytes of memory in Torque's status; 0 if unknown."""
    found = re.search(r"(?:^|,)physmem=([0-9]+kb)", part.get("status", ""))
    return size_of(found[1]) if found else 0
