"""Detection of the Slurm account and quality of service (QOS) of jobs in a partition."""

from __future__ import annotations

import re
from typing import List, Optional

from jobgen.detect.draft import Draft
from jobgen.detect.parsing import is_plain, listed
from jobgen.detect.slurm.facts import SlurmFacts
from jobgen.detect.slurm.partitions import Partition, accounts_of, qos_of

SACCTMGR = "sacctmgr show associations"


def charge(draft: Draft, slurm: SlurmFacts, partition: Optional[Partition], without: Optional[Partition]) -> None:
    """Detect account and QOS of jobs in ``partition``, and of CPU jobs in the partition ``without`` GPUs."""
    _accounts(draft, slurm, partition, without)
    _qos(draft, slurm, partition, without)


def _accounts(draft: Draft, slurm: SlurmFacts, partition: Optional[Partition], without: Optional[Partition]) -> None:
    """Detect the account to charge."""
    enforced = slurm.config.get("AccountingStorageEnforce", "")
    if forced := slurm.variables.get("SBATCH_ACCOUNT"):
        if is_plain(forced):
            draft.add(
                "options.account",
                forced,
                "SBATCH_ACCOUNT in the environment, which takes precedence over a script's directive",
            )
        return
    accounts = accounts_of(slurm, partition)
    if not accounts:
        if "associations" in enforced or "limits" in enforced or slurm.associations is None:
            where = f" for partition {partition.name}" if partition and slurm.associations else ""
            draft.add_question("options.account", f"Which account pays? sacctmgr names none{where}.", "ACCOUNT")
        return
    chosen = _account(accounts, slurm, gpus=bool(without))
    draft.add("options.account", chosen, _account_source(accounts, chosen, slurm))
    if len(accounts) > 1:
        draft.add_question("options.account", "Is this the right account to charge?", choices=accounts)
    if without:
        cpu_accounts = accounts_of(slurm, without)
        cpu_chosen = _account(cpu_accounts, slurm, gpus=False) if cpu_accounts else ""
        if cpu_chosen and cpu_chosen != chosen and (chosen not in cpu_accounts or _says(cpu_chosen, "cpu")):
            draft.add("cpu_options.account", cpu_chosen, f"{SACCTMGR}: from partition {without.name}, or from its name")


def _account(accounts: List[str], slurm: SlurmFacts, *, gpus: bool) -> str:
    """Return the account to charge: by "gpu" or "cpu" in its name if accounts differ so, else the default one."""
    other, mine = ("cpu", "gpu") if gpus else ("gpu", "cpu")
    named = [text for text in accounts if _says(text, mine)]
    if named and any(_says(text, other) for text in accounts):
        return named[0]
    return slurm.default_account if slurm.default_account in accounts else accounts[0]


def _says(name: str, word: str) -> bool:
    return word in re.split(r"[^a-z]+", name.lower())


def _account_source(accounts: List[str], chosen: str, slurm: SlurmFacts) -> str:
    others = [text for text in accounts if text != chosen]
    default = ", your default" if chosen == slurm.default_account else ""
    return f"{SACCTMGR}{default}" + (f"; others: {listed(others)}" if others else "")


def _qos(draft: Draft, slurm: SlurmFacts, partition: Optional[Partition], without: Optional[Partition]) -> None:
    """Set the QOS if a partition does not accept the user's default one."""
    chosen = _qos_name(draft, "options.qos", slurm, partition)
    if without:
        own = _qos_name(draft, "cpu_options.qos", slurm, without)
        allowed = qos_of(without)
        if chosen and not own and allowed is not None and chosen not in allowed:
            draft.add("cpu_options.qos", False, f"scontrol show partition: {without.name} does not accept {chosen}")


def _qos_name(draft: Draft, key: str, slurm: SlurmFacts, partition: Optional[Partition]) -> str:
    allowed = qos_of(partition) if partition else None
    if not partition or allowed is None:
        return ""
    mine = [name for row in slurm.associations or [] for name in row.qos]
    defaults = {row.default_qos for row in slurm.associations or []}
    source = f"scontrol show partition {partition.name}: AllowQos={listed(sorted(allowed))}"
    if defaults & allowed:
        return ""
    possible = [name for name in dict.fromkeys(mine) if name in allowed] or ([] if mine else sorted(allowed))
    if not possible:
        draft.add_question(
            key, f"Which QOS may you use there? {source}.", candidate=min(allowed), choices=sorted(allowed)
        )
        return ""
    draft.add(key, possible[0], source)
    if len(possible) > 1:
        draft.add_question(key, f"Is this the right QOS? You may use {listed(possible)}.", choices=possible)
    return possible[0]
