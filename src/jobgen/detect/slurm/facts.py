"""Facts about a Slurm cluster from sinfo, scontrol, sacctmgr and srun, without listing each node of a large cluster."""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from jobgen.detect.ask import Asker
from jobgen.detect.gpus import Gpus, gpus_of
from jobgen.detect.parsing import is_plain, number

SINFO = "%P|%a|%l|%D|%T|%c|%z|%m|%d|%f|%G|%N"
"""Fields for each group of identical nodes (sinfo(1)): partition, availability, time limit, number of nodes, state,
CPUs, sockets:cores:threads, MiB of memory, MiB of disk, features, generic resources, node names."""
ASSOCIATIONS = "format=cluster,account,partition,qos,defaultqos"
FOREVER = 10**9
"""Minutes that stand for no time limit."""


class Nodes(NamedTuple):
    """A group of identical nodes of a partition."""

    partition: str
    is_default: bool
    is_up: bool
    """Whether the partition accepts jobs and the nodes are neither down nor drained."""
    minutes: int
    """The partition's time limit."""
    size: int
    """Number of nodes."""
    cpus: int
    """CPUs of a node in Slurm's count: cores or hyper-threads."""
    cores: int
    memory: int
    """In MiB."""
    disk: int
    """MiB of the local disk; 0 if Slurm does not know it."""
    features: Tuple[str, ...]
    gpus: Tuple[Gpus, ...]
    other_gres: Tuple[str, ...]
    first: str
    """Name of the first node."""


class Association(NamedTuple):
    """An account that the user may charge."""

    account: str
    partition: str
    """Partition to which it applies; "": all."""
    qos: Tuple[str, ...]
    default_qos: str


class SlurmFacts(NamedTuple):
    """All facts about a Slurm cluster; those that Slurm did not report are None or empty."""

    config: Dict[str, str]
    nodes: List[Nodes]
    partitions: Dict[str, Dict[str, str]]
    associations: Optional[List[Association]]
    default_account: str
    groups: FrozenSet[str]
    mpi: FrozenSet[str]
    """Words of ``srun --mpi=list``, with the valid values of --mpi."""
    has_pyxis: bool
    variables: Dict[str, str]
    """SBATCH_PARTITION and similar variables, which take precedence over a script's directives (sbatch(1))."""


def read_slurm(asker: Asker, config: Dict[str, str]) -> SlurmFacts:
    """Query Slurm for all other facts; ``config``: the result of ``read_config``."""
    rows = asker.run("sinfo", "--exact", "--noheader", f"--format={SINFO}").text.splitlines()
    partitions = [_pairs(line) for line in asker.run("scontrol", "--oneliner", "show", "partition").text.splitlines()]
    user = asker.run("id", "--user", "--name").text.strip()
    # without accounting, which the configuration shows, sacctmgr would fail
    has_accounts = "slurmdbd" in config.get("AccountingStorageType", "slurmdbd") and is_plain(user)
    help_of_srun = asker.run("srun", "--help").text
    return SlurmFacts(
        config=config,
        nodes=[nodes for nodes in map(_nodes, rows) if nodes],
        partitions={facts["PartitionName"]: facts for facts in partitions if "PartitionName" in facts},
        associations=_associations(asker, user, config.get("ClusterName", "")) if has_accounts else [],
        default_account=_default_account(asker, user) if has_accounts else "",
        groups=frozenset(asker.run("id", "--groups", "--name").text.split()),
        mpi=frozenset(asker.run("srun", "--mpi=list", both=True).text.split()),
        has_pyxis="--container-image" in help_of_srun,
        variables={name: value for name, value in asker.env.items() if name.startswith("SBATCH_")},
    )


def read_config(asker: Asker) -> Dict[str, str]:
    """Return ``scontrol show config``; empty if the controller does not answer."""
    text = asker.run("scontrol", "show", "config").text
    pairs = re.findall(r"(?m)^([A-Za-z_]\w*(?:\[\d+\])?) *= *(.*?) *$", text)
    return {name: "" if value == "(null)" else value for name, value in pairs}


def node_facts(asker: Asker, name: str) -> Dict[str, str]:
    """Return ``scontrol show node`` of the node ``name``."""
    return _pairs(asker.run("scontrol", "--oneliner", "show", "node", name).text) if is_plain(name) else {}


def minutes_of(limit: str) -> int:
    """Parse a time limit (1-00:00:00, 4:00:00, 30:00, infinite) into minutes."""
    found = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):[0-9]+", limit)
    return sum(number(part or "") * unit for part, unit in zip(found.groups(), (1440, 60, 1))) if found else FOREVER


def _pairs(line: str) -> Dict[str, str]:
    """Parse a line of ``scontrol --oneliner``; the first value of a repeated name is kept."""
    found: Dict[str, str] = {}
    for name, value in re.findall(r"(?:^| )([A-Za-z][\w/:]*)=(\S*)", line):
        found.setdefault(name, "" if value == "(null)" else value)
    return found


def _nodes(line: str) -> Optional[Nodes]:
    """Parse a row of sinfo; return None for another line."""
    fields = line.strip().split("|")
    if len(fields) != SINFO.count("|") + 1 or not is_plain(fields[0].rstrip("*")) or not number(fields[3]):
        return None
    name, up, limit, count, state, cpus, shape, memory, disk, features, gres, names = fields
    sockets, cores, threads = ([max(1, number(part)) for part in shape.split(":")] + [1, 1, 1])[:3]
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", names)  # up to the first comma outside brackets
    return Nodes(
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=up == "up" and not re.match("down|drain|fail|future|unk|inval", state),
        minutes=minutes_of(limit),
        size=number(count),
        cpus=max(1, number(cpus)),
        cores=min(sockets * cores, max(1, number(cpus))) if threads > 1 else max(1, number(cpus)),
        memory=number(memory),
        disk=number(disk),
        features=tuple(text for text in features.split(",") if is_plain(text)),
        gpus=gpus_of(gres),
        other_gres=tuple(
            text.split(":")[0] for text in re.split(r",(?![^(]*\))", gres) if not text.startswith(("gpu", "(null)"))
        ),
        first=re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first[0]) if first else "",
    )


def _associations(asker: Asker, user: str, cluster: str) -> Optional[List[Association]]:
    answer = asker.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", ASSOCIATIONS
    )  # fmt: skip
    if answer.error:
        return None
    rows = [line.split("|") for line in answer.text.splitlines()]
    return [
        Association(account, partition, tuple(filter(None, qos.split(","))), default)
        for its, account, partition, qos, default in (row for row in rows if len(row) == ASSOCIATIONS.count(",") + 1)
        if is_plain(account) and its.lower() in {cluster.lower(), ""}  # a database can serve several clusters
    ]


def _default_account(asker: Asker, user: str) -> str:
    words = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "format=defaultaccount")
    account = asker.run(*words).text.strip().partition("\n")[0]
    return account if is_plain(account) else ""
