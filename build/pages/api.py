"""The page of the Python API, from signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator

from jobgen import Job, JobgenError, SubmittedRun
from pages.markdown import GENERATED, markdown_of
from slipway import PackedImages, Sampler, Session, SessionError, Stopped, clip_grad_norm_, peek
from slipway.lightning import SlipwayCallback
from slipway.run.program import Program

HEAD = f"""\
# Python API

{GENERATED.format(source="the docstrings")}
`slipway` is the API of training scripts: see docs/howto/session.md, docs/howto/frameworks.md and, for its guarantees,
docs/explanation/exactness.md. `jobgen` submits jobs from Python: see docs/howto/python.md. Everything that is not on
this page is internal.
"""
PUBLIC = (
    ("slipway", Session, Program),  # the run calls its methods
    ("slipway", Sampler, Sampler.__base__),
    ("slipway", peek, None),
    ("slipway", clip_grad_norm_, None),
    ("slipway", PackedImages, PackedImages.__base__),
    ("slipway", Stopped, SystemExit),
    ("slipway", SessionError, Exception),
    ("slipway.lightning", SlipwayCallback, SlipwayCallback.__base__),  # the Trainer calls its hooks
    ("jobgen", Job, object),
    ("jobgen", SubmittedRun, object),
    ("jobgen", JobgenError, Exception),
)
"""Entries of the page: the module to import from, the object, and a class whose members are omitted."""
COLUMNS = 110
"""Maximum width of a signature on one line."""


def api_page() -> str:
    """Return the text of docs/reference/api.md."""
    parts = [HEAD.rstrip()]
    for module, public, hidden in PUBLIC:
        call = signature_of(public.__name__, public).replace(") -> None", ")")
        call = call.replace("\n", f"\nfrom {module} import {public.__name__}\n\n", 1)
        parts += [f"## {public.__name__}", markdown_of(public.__doc__), call]
        if not inspect.isfunction(public):
            parts += [markdown_of(public.__init__.__doc__), *members(public, hidden)]
    return "\n\n".join(parts) + "\n"


def members(public: type, hidden: type) -> Iterator[str]:
    """Yield the parts of the page about the properties and methods of a class, except those that ``hidden`` has."""
    for name, member in vars(public).items():
        if name.startswith("_") or hasattr(hidden, name):
            continue
        if isinstance(member, property):
            kind = inspect.signature(member.fget).return_annotation
            yield from (f"### {public.__name__}.{name}", f"`{name}: {kind}`", markdown_of(member.__doc__))
        elif inspect.isfunction(member):
            yield from (f"### {public.__name__}.{name}", signature_of(name, member), markdown_of(member.__doc__))


def signature_of(name: str, member: object) -> str:
    """Return a signature as code, without self and quotes around annotations; one argument per line if it is long."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(member)))
    text = name + re.sub(r"^\(self(, )?", "(", text)
    if len(text) > COLUMNS:
        text = re.sub(r", (?=\*{0,2}\w+:|\*,|/,)|(?<=\()(?=\*|\w+: )", lambda found: f"{found[0].strip()}\n    ", text)
        text = re.sub(r"\)( -> .*)?$", r",\n)\1", text)
    return f"```python\n{text}\n```"
