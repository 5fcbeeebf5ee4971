"""``jobgen``: render job scripts, check the committed ones, submit one, follow what was submitted."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import List, Optional

from jobgen.base.errors import JobgenError, note, printable, warn
from jobgen.batch.study.options import add_study
from jobgen.batch.sweep.options import add_sweep
from slipway.base.contract import VERSION
from slipway.base.errors import message_of
from slipway.base.parser import Parser


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    umask = os.umask(0o022)
    os.umask(umask | 0o022)  # jobs run what is written here
    given = sys.argv[1:] if argv is None else argv
    end = given.index("--") if "--" in given else len(given)
    arguments = parser().parse_args(_joined(given[:end]))
    arguments.arguments = given[end + 1 :]
    arguments.umask = umask
    try:
        return int(arguments.command(arguments))
    except JobgenError as error:
        note(message_of(error))
        return error.exit_code
    except PermissionError as error:  # of a path in the environment, that was only to be looked at
        note(message_of(denied := JobgenError("cannot-read", f"{error.filename}: {error.strerror}.")))
        return denied.exit_code
    except KeyboardInterrupt:  # how people leave `logs --follow`
        return 130
    except BrokenPipeError:  # ... or the program that read it
        sys.stdout = None  # nobody is there to flush it to
        return 141


def _joined(words: List[str]) -> List[str]:
    """Return the words with each option whose value may be a flag and that as one: argparse takes it for an option."""
    found: List[str] = []
    for word in words:
        if found and found[-1] in {"--set", "--seed-flag"}:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


_SETTINGS = "change a key of either file; options.NAME=VALUE is a scheduler's option, options.NAME=false drops it"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, from which shell completion is made too."""
    about = "Make job scripts from a spec (what to run) and a site (where), submit them, and follow the jobs."
    top: argparse.ArgumentParser = Parser(prog="jobgen", description=about)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    job = _job(_SETTINGS)

    command = commands.add_parser("render", parents=[job], help="write the script of a job")
    command.add_argument("--standalone", action="store_true", help="with the library inside: one file for any folder")
    command.add_argument("--output", metavar="FILE", help="the file to write; without it, standard output")
    command.set_defaults(command=_render)

    what = "say which scripts are not what their files, and this version of jobgen, give, and what has changed"
    command = commands.add_parser("check", help=what)
    what = "a script, or a folder of them (default: %(default)s)"
    command.add_argument("scripts", nargs="*", default=["jobscripts"], metavar="SCRIPT", help=what)
    command.set_defaults(command=_check)

    what = "check what can be seen from here, then submit; arguments behind -- are for the training program"
    usage = "%(prog)s [-h] --site SITE [--set KEY=VALUE] [--dry-run | --test-only] SPEC [-- ARGUMENT ...]"
    command = commands.add_parser("submit", parents=[job], help=what, usage=usage)
    how = command.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show script, command, and what would be refused")
    how.add_argument("--test-only", action="store_true", help="only ask the scheduler when it could start")
    command.set_defaults(command=_submit)

    usage = "%(prog)s [-h] --site SITE [--set KEY=VALUE] [--dry-run] [-- COMMAND ...]"
    what = "open a shell on a node, in the image or environment of the site's jobs; or run a command there"
    command = commands.add_parser("shell", parents=[_where(_SETTINGS)], help=what, usage=usage)
    command.add_argument("--dry-run", action="store_true", help="only show script, command, and what would be refused")
    command.set_defaults(command=_shell)

    add_study(commands, job)
    what = "SECTION.KEY=A,B: values of a key of the trainer's configuration; --FLAG=A,B: of a flag of your own script; "
    add_sweep(commands, _job(f"{what}KEY=VALUE: a key of either file"))

    _add_following(commands)

    command = commands.add_parser("site", help="draft a site file from what this login node tells")
    command.add_argument("--detect", action="store_true", required=True, help="ask the scheduler and this machine")
    command.add_argument("--name", help="the site's name (default: the cluster's own)")
    command.add_argument("--output", metavar="FILE", help="the file to write; without it, standard output")
    command.set_defaults(command=_site)

    command = commands.add_parser(
        "explain", help="explain an error, or a warning, by its slug: when it occurs, what to do"
    )
    what = "what stands in the brackets of error[...], such as too-few-gpus (default: list all)"
    command.add_argument("slug", metavar="SLUG", nargs="?", help=what)
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_explain)

    command = commands.add_parser("completion", help="print the completion of these commands for Bash")
    command.set_defaults(command=_completion)
    return top


def _add_following(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands for what was submitted."""
    newest = "(default: the newest run in SLIPWAY_OUTPUT, or runs/)"
    command = commands.add_parser("status", help="show the state of a job and how far its run is")
    what = f"a run, study or sweep folder, or the number of a job {newest}"
    command.add_argument("target", metavar="RUN", nargs="?", default="", help=what)
    command.add_argument("--json", action="store_true", help="as JSON, an object for each run")
    command.set_defaults(command=_status)

    command = commands.add_parser("logs", help="show the log of a job")
    what = f"a run folder or the number of a job {newest}"
    command.add_argument("target", metavar="RUN", nargs="?", default="", help=what)
    command.add_argument("--follow", action="store_true", help="also what is added to it, until the job ends")
    command.set_defaults(command=_logs)

    command = commands.add_parser("cancel", help="end a job, or a run on this machine, after a last save")
    command.add_argument("target", metavar="RUN", help="a run folder or the number of a job")
    command.set_defaults(command=_cancel)


def _job(settings: str) -> argparse.ArgumentParser:
    """Return the options of a job, those that ``settings`` explains among them."""
    job = argparse.ArgumentParser(add_help=False, parents=[_where(settings)])
    job.add_argument("spec", metavar="SPEC", help="what to run: a file of jobscripts/specs, or its name")
    return job


def _where(settings: str) -> argparse.ArgumentParser:
    """Return the options that say where something runs, and how it differs there."""
    job = argparse.ArgumentParser(add_help=False)
    job.add_argument("--site", required=True, help="where to run it: a file of jobscripts/sites, or its name")
    job.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=settings)
    return job


def _render(arguments: argparse.Namespace) -> int:
    from jobgen.render.files import job_of, script_of  # noqa: PLC0415 -- `--help` needs none of it

    chosen = {"output": arguments.output, "standalone": arguments.standalone}
    script = script_of(job_of(arguments.spec, arguments.site, arguments.settings, **chosen), **chosen)
    if arguments.output:
        script.write(Path(arguments.output))
    else:
        sys.stdout.write(script.text)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from jobgen.render.files import stale_scripts  # noqa: PLC0415

    found = stale_scripts(arguments.scripts, parse=parser().parse_args)
    for script in found:
        for line in script.difference:
            print(printable(line))
        made = f"jobgen {script.version} made it, and this is {VERSION}" if script.version != VERSION else "see above"
        warn("stale-script", f"{script.path} is not what its files give ({made}); generate it anew: {script.command}")
    return 1 if found else 0


def _submit(arguments: argparse.Namespace) -> int:
    from jobgen.jobs.submit import submit  # noqa: PLC0415

    return submit(
        arguments.spec,
        arguments.site,
        arguments.settings,
        arguments.arguments,
        dry_run=arguments.dry_run,
        test_only=arguments.test_only,
    )


def _shell(arguments: argparse.Namespace) -> int:
    from jobgen.jobs.interactive import open_shell  # noqa: PLC0415

    return open_shell(
        arguments.site, arguments.settings, arguments.arguments, umask=arguments.umask, dry_run=arguments.dry_run
    )


def _status(arguments: argparse.Namespace) -> int:
    from jobgen.follow.commands import status  # noqa: PLC0415

    return status(arguments.target, as_json=arguments.json)


def _logs(arguments: argparse.Namespace) -> int:
    from jobgen.follow.commands import logs  # noqa: PLC0415

    return logs(arguments.target, follow=arguments.follow)


def _cancel(arguments: argparse.Namespace) -> int:
    from jobgen.follow.commands import cancel  # noqa: PLC0415

    return cancel(arguments.target)


def _site(arguments: argparse.Namespace) -> int:
    from jobgen.detect import write_draft  # noqa: PLC0415

    return write_draft(name=arguments.name, output=arguments.output)


def _explain(arguments: argparse.Namespace) -> int:
    from jobgen.explain import explain  # noqa: PLC0415

    return explain(arguments.slug, as_json=arguments.json)


def _completion(_: argparse.Namespace) -> int:
    from jobgen.completion import completion  # noqa: PLC0415

    sys.stdout.write(completion(parser()))
    return 0
