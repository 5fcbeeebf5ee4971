"""Run training programs on clusters: ``Job`` submits one, and ``python -m jobgen`` is the command line.

It renders Bash job scripts from a site and a spec, submits them, and follows the jobs. To read the code, start with
``cli``, then ``render/script.py`` and ``render/launch.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobgen.base.errors import JobgenError as JobgenError
    from jobgen.run.job import Job as Job
    from jobgen.run.submitted import SubmittedRun as SubmittedRun

__all__ = ["Job", "JobgenError", "SubmittedRun"]


def __getattr__(name: str) -> Any:
    """Import a public class when it is first used: the command line needs none of them to print its help."""
    from importlib import import_module  # noqa: PLC0415

    modules = {"Job": "jobgen.run.job", "SubmittedRun": "jobgen.run.submitted", "JobgenError": "jobgen.base.errors"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
