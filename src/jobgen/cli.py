"""``jobgen``: make job scripts, check the committed ones, submit one, follow what was submitted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from jobgen.errors import JobgenError

EXIT_CONFIG = 78
"""As the scripts themselves: trying again unchanged cannot help (``EX_CONFIG`` of sysexits.h)."""


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    arguments = _parser().parse_args(words[:end])
    arguments.arguments = words[end + 1 :]
    try:
        return int(arguments.command(arguments))
    except JobgenError as error:
        print(f"jobgen: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:  # how people leave `logs --follow`
        return 130
    except BrokenPipeError:  # ... or the program that read it
        sys.stdout = None  # nobody is there to flush it to
        return 141


def _parser() -> argparse.ArgumentParser:
    about = "Make job scripts from what to run and where, submit them, and follow the jobs."
    parser = argparse.ArgumentParser(prog="jobgen", description=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    job = argparse.ArgumentParser(add_help=False)
    job.add_argument("spec", metavar="SPEC", help="what to run: a file of jobscripts/specs, or its name")
    job.add_argument("--site", required=True, help="where to run it: a file of jobscripts/sites, or its name")
    job.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of either file; options.NAME=VALUE is a scheduler's option, options.NAME=false drops it",
    )

    command = commands.add_parser("render", parents=[job], help="write the script of a job")
    command.add_argument("--output", help="the file to write; without it, standard output")
    command.set_defaults(command=_render)

    command = commands.add_parser("check", help="tell whether the committed scripts are what their files give")
    command.add_argument("folder", nargs="?", default="jobscripts", help="where they are (default: %(default)s)")
    command.set_defaults(command=_check)

    what = "check what can be seen from here, then submit; what follows -- is for the training script"
    command = commands.add_parser("submit", parents=[job], help=what)
    how = command.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show the script and the command")
    how.add_argument("--test-only", action="store_true", help="only ask the scheduler when it could start")
    command.set_defaults(command=_submit)

    target = argparse.ArgumentParser(add_help=False)
    what = "a run folder or the number of a job (default: the newest run in runs/, or in OUTPUT)"
    target.add_argument("target", metavar="RUN", nargs="?", default="", help=what)

    command = commands.add_parser("status", parents=[target], help="tell how a job is and how far its run")
    command.set_defaults(command=_status)

    command = commands.add_parser("logs", parents=[target], help="show what a job has said")
    command.add_argument("--follow", action="store_true", help="and what it goes on to say, until it ends")
    command.set_defaults(command=_logs)

    command = commands.add_parser("cancel", help="end a job, or a run on this machine, after a last save")
    command.add_argument("target", metavar="RUN", help="a run folder or the number of a job")
    command.set_defaults(command=_cancel)

    command = commands.add_parser("completion", help="print what lets Bash complete these words")
    command.set_defaults(command=_completion)
    return parser


def _render(arguments: argparse.Namespace) -> int:
    from jobgen.files import script_of  # noqa: PLC0415 -- `--help` needs none of it

    script = script_of(arguments.spec, arguments.site, arguments.settings, output=arguments.output)
    if arguments.output:
        script.write(Path(arguments.output))
    else:
        sys.stdout.write(script.text)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from jobgen.files import differing  # noqa: PLC0415

    found = differing(Path(arguments.folder), parse=_parser().parse_args)
    for path, command in found:
        print(f"jobgen: {path} is not what its files give; make it again: {command}", file=sys.stderr)
    return 1 if found else 0


def _submit(arguments: argparse.Namespace) -> int:
    from jobgen.files import script_of  # noqa: PLC0415
    from jobgen.submit import submit  # noqa: PLC0415

    script = script_of(arguments.spec, arguments.site, arguments.settings, output=None)
    return submit(script, arguments.arguments, dry_run=arguments.dry_run, test_only=arguments.test_only)


def _status(arguments: argparse.Namespace) -> int:
    from jobgen.follow import status  # noqa: PLC0415

    return status(arguments.target)


def _logs(arguments: argparse.Namespace) -> int:
    from jobgen.follow import logs  # noqa: PLC0415

    return logs(arguments.target, follow=arguments.follow)


def _cancel(arguments: argparse.Namespace) -> int:
    from jobgen.follow import cancel  # noqa: PLC0415

    return cancel(arguments.target)


def _completion(_: argparse.Namespace) -> int:
    sys.stdout.write((Path(__file__).parent / "completion.bash").read_text(encoding="utf-8"))
    return 0
