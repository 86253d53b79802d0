"""The commands: each takes the parsed arguments and returns an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradconform.cli.console import complain, on_terminal, width, write, write_text
from gradconform.cli.json_file import JsonFileError, check_writable, write_json
from gradconform.results import EXIT_CONFORMS, EXIT_ENVIRONMENT, EXIT_USAGE

if TYPE_CHECKING:
    from gradconform.session import Session

#: What a shell gives to a command that ctrl-C ended.
EXIT_INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> int:
    """Run the contract against a target; return the exit code of the verdict."""
    try:
        path = check_writable(arguments.json) if arguments.json is not None else None
    except JsonFileError as error:
        return _refuse(error)
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)

    with current_folder_first():
        session = _session(arguments)
        if session is None:
            return EXIT_USAGE
        if arguments.list:
            return _list_plan(session)
        return _judge(session, path)


def _session(arguments: argparse.Namespace) -> Session | None:
    """Return a valid session, or None after saying why there is none."""
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.fixtures.schedules import ScheduleError  # noqa: PLC0415 (only a run takes schedules)
    from gradconform.session import Session  # noqa: PLC0415 (it imports torch)
    from gradconform.targets import TargetError  # noqa: PLC0415 (it imports torch)

    try:
        return Session(
            arguments.target,
            device=_once(arguments.device, "cpu"),
            dtype=_once(arguments.dtype, "float32"),
            profile=arguments.profile,
            checks=arguments.checks,
            exclude=arguments.exclude_checks or (),
            seed=arguments.seed,
            strict=arguments.strict,
            probe=arguments.probe,
            schedule=arguments.schedule or (),
        )
    except (TargetError, SelectionError, ScheduleError) as error:
        _refuse(error)
    return None


def _judge(session: Session, path: str | None) -> int:
    from gradconform.cli.progress import perform  # noqa: PLC0415 (only a run shows progress)
    from gradconform.report.terminal import closing  # noqa: PLC0415 (only a run reports)

    report, stopped = perform(session)
    code = report.exit_code if stopped is None else EXIT_INTERRUPTED
    if path is not None:
        # Before the report is printed: a reader who goes away costs no file.
        try:
            write_json(path, report.to_json())
        except OSError as error:
            complain(f"the report could not be written to {path!r}: {error}")
            code = EXIT_ENVIRONMENT
    write(closing(report, width(), stopped))
    return code


def list_checks(arguments: argparse.Namespace) -> int:
    """List the checks of the contract."""
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.plan import make_plan  # noqa: PLC0415 (it imports torch)
    from gradconform.report.listing import as_json, lines, rows  # noqa: PLC0415 (it imports torch)

    try:
        plan = make_plan(CHECKS, profile=arguments.profile, include=arguments.checks)
    except SelectionError as error:
        return _refuse(error)
    checks = [item.check for item in plan.items]
    if arguments.json:
        write_text(as_json(checks))
    elif on_terminal():
        write(lines(checks, width(), profile=arguments.profile, manifest=plan.manifest))
    else:
        write_text("\n".join(rows(checks)))
    return EXIT_CONFORMS


def _list_plan(session: Session) -> int:
    from gradconform.report.listing import plan_lines  # noqa: PLC0415 (it imports torch)

    write(plan_lines(session.plan, session.target, session.empty_report().scope, width()))
    return EXIT_CONFORMS


def explain(arguments: argparse.Namespace) -> int:
    """Explain one check, or the few that a glob matches."""
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.report.explanation import explanation, matching  # noqa: PLC0415 (it imports torch)

    try:
        checks = matching(arguments.check, CHECKS)
    except SelectionError as error:
        return _refuse(error)
    for check in checks:
        write(explanation(check, width()))
    return EXIT_CONFORMS


def contract(arguments: argparse.Namespace) -> int:
    """Print docs/contract.md."""
    from gradconform.report.contract_page import contract_page  # noqa: PLC0415 (it imports torch)

    del arguments
    write_text(contract_page())
    return EXIT_CONFORMS


def _refuse(problem: object) -> int:
    complain(str(problem))
    return EXIT_USAGE


def _once(names: list[str] | None, default: str) -> list[str]:
    """Return each name once, in the order given: one named twice would be run twice."""
    return list(dict.fromkeys(names or [default]))


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """Let a target be imported from the current folder, as ``python -m`` does; a console script does not."""
    folder = os.getcwd()  # noqa: PTH109 (sys.path holds strings)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
