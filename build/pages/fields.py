"""The pages of the fields of specs and of the trainer's configuration, from their types and docstrings."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from jobgen.base import job
from jobgen.base.job import JobSpec
from jobgen.resolve.load import valid_values as values_of_type
from pages.markdown import GENERATED, code, prose, table
from slipway.base.flags import switch_words, valid_values
from trainer.config.schema import field_docs, schema

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("value", "default", "meaning")
SPEC_HEAD = f"""\
# Fields of a spec

{GENERATED.format(source="src/jobgen/base/job.py")}
A spec is a TOML file that describes a kind of job, independent of the cluster; docs/reference/site.md describes the
cluster. `jobgen submit`, `jobgen render`, `jobgen study` and `jobgen sweep` take a spec: a file, or the name of one in
`jobscripts/specs`. `--set KEY=VALUE` overrides a field. `jobgen run` chooses a spec from its flags.
"""
CONFIG_HEAD = f"""\
# The trainer's CONFIG.toml

{GENERATED.format(source="src/trainer/config/settings.py")}
Each key is also a flag of the trainer, with `-` in place of `_`: `batch_size` is `--batch-size`
(docs/reference/trainer.md). Each file on the command line overrides the files before it, and flags override all files.
0 or "" turns an optional key off, as its meaning states. `configs/` has examples. An editor that supports schemas
completes keys in a file that begins with `#:schema ./schema.json`, next to a copy of `configs/schema.json`.
"""


def spec_page() -> str:
    """Return the text of docs/reference/spec.md."""
    docs = field_docs(job)
    rows = []
    for field in msgspec.structs.fields(JobSpec):
        value = re.sub("'(.+?)'", r"`\1`", values_of_type(field.type).replace("''", '""'))
        rows.append((f"`{field.name}`", value, default_of(field), prose(docs["JobSpec", field.name])))
    specs = []
    for path in sorted((ROOT / "jobscripts" / "specs").glob("*.toml"), key=lambda path: path.stem):
        spec = tomllib.loads(path.read_text(encoding="utf-8"))
        specs.append(
            (
                f"`{path.stem}`",
                code(spec.get("backend", "ddp")),
                prose(spec["about"].replace("{launcher}", "the launcher")),
            )
        )
    parts = [SPEC_HEAD.rstrip(), "## Fields", table(("field", *COLUMNS), rows)]
    parts += ["## Specs of Slipway", table(("spec", "backend", "how the ranks start"), specs)]
    return "\n\n".join(parts) + "\n"


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the default of a spec's field in TOML."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT or field.default == "":
        return "none"
    return code(str(field.default).lower() if isinstance(field.default, bool) else str(field.default))


def trainer_config_page() -> str:
    """Return the text of docs/reference/trainer-config.md."""
    parts = [CONFIG_HEAD.rstrip()]
    for name, section in schema()["properties"].items():
        rows = [config_row(key, field) for key, field in section["properties"].items()]
        parts += [f"## {name}", section["description"], table(("key", *COLUMNS), rows)]
    return "\n\n".join(parts) + "\n"


def config_row(name: str, field: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a key."""
    value = valid_values(field)
    if "no_flag" in field:
        value = "true or false" if not (words := switch_words(field)) else f"true, false or {', '.join(words)}"
    return f"`{name}`", value, code(json.dumps(field["default"])), prose(field["description"])
