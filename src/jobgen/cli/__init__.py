"""Command line of ``jobgen``: render, check and submit job scripts, and follow the jobs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from jobgen.base.errors import JobgenError, UsageError, note, say, warn
from jobgen.batch.study.options import add_study_options
from jobgen.batch.sweep.options import add_sweep_options
from jobgen.new import FRAMEWORKS, create
from jobgen.run.options import add_run_options, hint_for
from slipway.base.contract import VERSION
from slipway.base.errors import error_line
from slipway.base.parser import Parser


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    umask = os.umask(0o022)
    os.umask(umask | 0o022)  # jobs run the written scripts
    given = sys.argv[1:] if argv is None else argv
    end = given.index("--") if "--" in given else len(given)
    top = parser(given[:end])
    arguments, unknown = top.parse_known_args(_joined(given[:end]))
    if unknown:
        hint = hint_for(unknown[0]) if hasattr(arguments, "program") else ""
        top.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    arguments.arguments = given[end + 1 :]
    if arguments.arguments and not getattr(arguments, "takes_arguments", False):
        top.error(f"unrecognized arguments: -- {' '.join(arguments.arguments)}")
    arguments.umask = umask
    try:
        return int(arguments.command(arguments))
    except JobgenError as error:
        note(error_line(error))
        return error.exit_code
    except PermissionError as error:  # a path from the environment that jobgen only inspects
        note(error_line(denied := JobgenError("cannot-read", f"{error.filename}: {error.strerror}.")))
        return denied.exit_code
    except KeyboardInterrupt:  # the usual way to end `logs --follow`
        return 130
    except BrokenPipeError:  # the program that read the output has ended
        sys.stdout = None  # so that Python does not flush to the closed pipe at exit
        return 141


def _joined(words: List[str]) -> List[str]:
    """Join ``--set`` and ``--seed-flag`` with their values by "=": argparse parses a value like --lr as an option."""
    found: List[str] = []
    for word in words:
        if found and found[-1] in {"--set", "--seed-flag"}:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


_SETTINGS = (
    "override a key of the spec or site; options.NAME=VALUE sets a scheduler option, options.NAME=false drops it"
)
_ABOUT = """Run training programs on a cluster: write job scripts from a spec (what to run) and a site (where), submit
them, and follow the jobs."""
_EPILOG = """from a script to its curves:
  jobgen new mine                         # mine/train.py, which can be stopped and continued, to start from
  jobgen run my_train.py --nodes 2 --gpus-per-node 4 -- --lr 0.1
  jobgen status                           # see also list, and logs --follow
  jobgen cancel                           # save and stop
  jobgen run runs/my_train-4711           # continue
  trainer report runs/my_train-4711       # curves, as report.html"""
_FOLDER = "SLIPWAY_OUTPUT, the default site's output, or runs/"
_NEWEST = f"(default: your newest job that waits or runs; else the newest run in {_FOLDER})"


def parser(words: Optional[List[str]] = None) -> argparse.ArgumentParser:
    """Return the command-line parser, with the options of the commands in ``words`` only, for speed; None: of all."""
    form = argparse.RawDescriptionHelpFormatter
    top: argparse.ArgumentParser = Parser(prog="jobgen", description=_ABOUT, epilog=_EPILOG, formatter_class=form)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, (what, add_options) in _COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if words is None or name in words:
            add_options(command)
    return top


def _add_new(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the folder to create")
    what = "framework of the script: %(choices)s (default: %(default)s)"
    command.add_argument("--for", dest="framework", choices=FRAMEWORKS, default="ddp", metavar="FRAMEWORK", help=what)
    command.set_defaults(command=_new)


def _add_run(command: argparse.ArgumentParser) -> None:
    add_run_options(command)
    command.set_defaults(command=_run, takes_arguments=True)


def _add_render(command: argparse.ArgumentParser) -> None:
    _add_job(command)
    command.add_argument(
        "--standalone", action="store_true", help="include the script library: one file for any folder"
    )
    command.add_argument("--output", metavar="FILE", help="output file (default: standard output)")
    command.set_defaults(command=_render)


def _add_check(command: argparse.ArgumentParser) -> None:
    what = "a script, or a folder of scripts (default: %(default)s)"
    command.add_argument("scripts", nargs="*", default=["jobscripts"], metavar="SCRIPT", help=what)
    command.set_defaults(command=_check)


def _add_submit(command: argparse.ArgumentParser) -> None:
    command.usage = "%(prog)s [-h] [--site SITE] [--set KEY=VALUE] [--dry-run | --test-only] SPEC [-- ARGUMENT ...]"
    _add_job(command)
    how = command.add_mutually_exclusive_group()
    what = "print settings, command and errors, and to a file or pipe the script; submit nothing"
    how.add_argument("--dry-run", action="store_true", help=what)
    how.add_argument("--test-only", action="store_true", help="only request the expected start time from the scheduler")
    command.set_defaults(command=_submit, takes_arguments=True)


def _add_shell(command: argparse.ArgumentParser) -> None:
    command.usage = "%(prog)s [-h] [--site SITE] [--set KEY=VALUE] [--dry-run] [-- COMMAND ...]"
    _add_where(command)
    command.add_argument("--dry-run", action="store_true", help="print the script, the command and errors; run nothing")
    command.set_defaults(command=_shell, takes_arguments=True)


def _add_study(command: argparse.ArgumentParser) -> None:
    _add_job(command)
    add_study_options(command)


def _add_sweep(command: argparse.ArgumentParser) -> None:
    what = "SECTION.KEY=A,B: values of a key of the trainer's configuration; --FLAG=A,B: of a flag of a user script; "
    _add_job(command, settings=f"{what}KEY=VALUE: override a key of the spec or site")
    add_sweep_options(command)


def _add_list(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all", action="store_true", help=f"list all runs in {_FOLDER}")
    command.add_argument("--json", action="store_true", help="print JSON, one object for each run")
    command.set_defaults(command=_list)


def _add_status(command: argparse.ArgumentParser) -> None:
    _add_target(command, f"a run, study or sweep folder, or a job number {_NEWEST}")
    command.add_argument("--json", action="store_true", help="print JSON, one object for each run")
    command.set_defaults(command=_status)


def _add_logs(command: argparse.ArgumentParser) -> None:
    _add_target(command, f"a run folder or a job number {_NEWEST}")
    command.add_argument("--follow", action="store_true", help="also print new output until the job ends")
    command.set_defaults(command=_logs)


def _add_cancel(command: argparse.ArgumentParser) -> None:
    _add_target(command, "a run folder or a job number (default: the one submitted last, unless it has ended)")
    command.set_defaults(command=_cancel)


def _add_site(command: argparse.ArgumentParser) -> None:
    command.add_argument("--detect", action="store_true", required=True, help="query the scheduler and this machine")
    command.add_argument("--name", help="name of the site (default: the cluster's name)")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--output", metavar="FILE", help="output file (default: standard output)")
    how.add_argument("--save", action="store_true", help="ask open questions, then save the file as your default site")
    command.add_argument("--yes", action="store_true", help="with --save: ask nothing, and save what was detected")
    command.set_defaults(command=_site)


def _add_explain(command: argparse.ArgumentParser) -> None:
    what = "the text in the brackets of error[...], such as too-few-gpus (default: list all)"
    command.add_argument("slug", metavar="SLUG", nargs="?", help=what)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=_explain)


def _add_completion(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=_completion)


_COMMANDS: Dict[str, Tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "new": ("create a folder with a training script that can be stopped and continued", _add_new),
    "run": ("run a script, a module or a configuration on a cluster, or continue a run", _add_run),
    "render": ("write a job script", _add_render),
    "check": (
        "list scripts that differ from the output of this version of jobgen for their files, with the differences",
        _add_check,
    ),
    "submit": (
        "check the job on this machine, then submit it; arguments after -- go to the training program",
        _add_submit,
    ),
    "shell": (
        "open a shell, or run a command, on a node in the image or environment of the site's jobs",
        _add_shell,
    ),
    "study": (
        "submit the same training on several allocations; run it again to submit missing and failed points",
        _add_study,
    ),
    "sweep": (
        (
            "submit the same training with several configuration values as an array of jobs; run it again to submit "
            "missing and failed trials, or the next rung"
        ),
        _add_sweep,
    ),
    "list": ("list the newest runs and all jobs that wait or run", _add_list),
    "status": ("print the state of a job and the progress of its run", _add_status),
    "logs": ("print the log of a job", _add_logs),
    "cancel": ("stop a job, or a run on this machine; it saves first if it can", _add_cancel),
    "site": ("draft a site file from this login node", _add_site),
    "explain": ("explain an error or warning by its slug: when it occurs and what to do", _add_explain),
    "completion": ("print the Bash completion script", _add_completion),
}
"""Each command with its line in ``jobgen --help`` and the function that adds its options."""


def _add_target(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("target", metavar="RUN", nargs="?", default="", help=what)


def _add_job(command: argparse.ArgumentParser, *, settings: str = _SETTINGS) -> None:
    """Add the options of a job; ``settings`` is the help text of ``--set``."""
    _add_where(command, settings=settings)
    command.add_argument("spec", metavar="SPEC", help="what to run: a file in jobscripts/specs, or its name")


def _add_where(command: argparse.ArgumentParser, *, settings: str = _SETTINGS) -> None:
    """Add ``--site`` and ``--set``; ``settings`` is the help text of ``--set``."""
    what = "where to run: a file in jobscripts/sites, or its name (default: SLIPWAY_SITE, or your default site)"
    command.add_argument("--site", help=what)
    command.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=settings)


def _new(arguments: argparse.Namespace) -> int:
    return create(arguments.name, arguments.framework)


def _run(arguments: argparse.Namespace) -> int:
    from jobgen.run.command import run  # noqa: PLC0415 -- keeps `--help` fast

    return run(arguments)


def _render(arguments: argparse.Namespace) -> int:
    from jobgen.render.files import job_of, script_of, site_or_default, write_script  # noqa: PLC0415 -- fast `--help`

    chosen = {"output": arguments.output, "standalone": arguments.standalone}
    site = site_or_default(arguments.site)
    script = script_of(job_of(arguments.spec, site, arguments.settings, **chosen), **chosen)
    if arguments.output:
        write_script(Path(arguments.output), script)
    else:
        sys.stdout.write(script)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from jobgen.render.files import stale_scripts  # noqa: PLC0415

    found = stale_scripts(arguments.scripts)
    for script in found:
        for line in script.difference:
            say(line)
        made = f"jobgen {script.version} wrote it, this is {VERSION}" if script.version != VERSION else "see above"
        warn("stale-script", f"{script.path} differs from what its files generate ({made}); run {script.command}")
    return 1 if found else 0


def _submit(arguments: argparse.Namespace) -> int:
    from jobgen.jobs.submit import submit  # noqa: PLC0415
    from jobgen.render.files import site_or_default  # noqa: PLC0415

    return submit(
        arguments.spec,
        site_or_default(arguments.site),
        arguments.settings,
        arguments.arguments,
        dry_run=arguments.dry_run,
        test_only=arguments.test_only,
    )


def _shell(arguments: argparse.Namespace) -> int:
    from jobgen.jobs.interactive import open_shell  # noqa: PLC0415
    from jobgen.render.files import site_or_default  # noqa: PLC0415

    site = site_or_default(arguments.site)
    return open_shell(site, arguments.settings, arguments.arguments, umask=arguments.umask, dry_run=arguments.dry_run)


def _list(arguments: argparse.Namespace) -> int:
    from jobgen.follow.listing import list_runs  # noqa: PLC0415

    return list_runs(as_json=arguments.json, every=arguments.all)


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
    from jobgen.detect import save_default_draft, write_draft  # noqa: PLC0415

    if arguments.yes and not arguments.save:
        raise UsageError("missing-argument", "--yes belongs to --save: add it, or remove --yes.")
    if arguments.save:
        save_default_draft(name=arguments.name, yes=arguments.yes)
        return 0
    return write_draft(name=arguments.name, output=arguments.output)


def _explain(arguments: argparse.Namespace) -> int:
    from jobgen.cli.explain import explain  # noqa: PLC0415

    return explain(arguments.slug, as_json=arguments.json)


def _completion(_: argparse.Namespace) -> int:
    from jobgen.cli.completion import completion  # noqa: PLC0415

    sys.stdout.write(completion(parser()))
    return 0
