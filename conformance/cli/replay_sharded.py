"""The command ``gradconform replay`` for a check of a sharded stage: run it alone, on its own ranks."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from gradconform.exits import EXIT_CONFORMS, EXIT_INCOMPLETE, RunRefusedError, RunStoppedError
from gradconform.files.user_files import replace_file
from gradconform.process.wait_notices import waiting
from gradconform.results import Report, Result
from gradconform.run.options import OPTIONS
from gradconform.run.prepared_run import PreparedRun
from gradconform.sharded.cases import RowCheck
from gradconform.sources.sharded import SOURCE
from gradconform.sources.sharded.checks import facts_of, prepare
from gradconform.user_input.values import SelectionError, current_folder_first

from .parsing import given_options
from .replay_output import show_replay_result, show_replayed_check, show_written_script

#: The options of replay that a sharded stage accepts.
_TAKEN = ("device", "device_plugins", "dtype", "seed")


def replay_sharded(arguments: argparse.Namespace, report: Report | None = None, before: Result | None = None) -> int:
    """Run one check of a sharded stage again; return 0 if it passes, 1 if it fails, 5 if it could not be judged."""
    check = arguments.what if before is None else before.check
    options = _options(arguments, report, check)
    with current_folder_first():
        run = prepare(options)
        if arguments.script is not None:
            return _write_script(options, run, check, arguments.script)
        now, (place,) = run.header.report_of({}), run.header.places
        reported = [f"{place.device} {place.dtype}", f"seed {options.seed}", *now.extra]
        show_replayed_check(check, now, report, reported)
        found: list[Result] = []
        try:
            with waiting(f"running {place.check}"):
                run.run(found.append, on_start=lambda _: None, places=[place])
        except RunStoppedError as error:
            code = EXIT_INCOMPLETE if error.exit_code is None else error.exit_code
            raise RunRefusedError(str(error), code) from error
    return show_replay_result(found[0], before)


def _write_script(options: Any, run: PreparedRun, check: str, path: str) -> int:
    """Write the row of a check as a script for torchrun."""
    from gradconform.replay.sharded_script import ReplayedRow, literal_options  # noqa: PLC0415 (it imports a second of torch)

    if options.backward:
        msg = f"--script runs plain autograd, but {check} ran with --backward {options.backward}; omit --script"
        raise SelectionError(msg)
    facts = facts_of(options)
    (clause,) = (one for one in run.clauses if one.id == check)
    assert isinstance(clause, RowCheck)  # noqa: S101 (a run of this source has no other)
    replayed = ReplayedRow(
        check=clause, target=str(options.target), options=literal_options(clause.row.options, facts["values"], check),
        members=frozenset(facts["members"]), one_output=facts["one_output"], dtensors=not facts["placed"],
        device=options.device, dtype=options.dtype, seed=options.seed,
    )  # fmt: skip
    replace_file(path, replayed.text(Path(path).name))
    needs = f"torch and {str(options.target).rpartition(':')[0]}"
    show_written_script(path, check, needs, f"{replayed.command} {shlex.quote(path)}")
    return EXIT_CONFORMS


def _options(arguments: argparse.Namespace, report: Report | None, check: str) -> Any:
    """Return the options of the run with one check: the report's options, overridden by the given ones."""
    options = given_options(arguments)
    given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in options.items()}
    target = given.pop("target", None)
    if wrong := [OPTIONS[name].flag for name in given if name not in _TAKEN]:
        taken = ", ".join(OPTIONS[name].flag for name in _TAKEN)
        msg = f"a check of a sharded stage takes only {taken}; omit {', '.join(wrong)}"
        raise SelectionError(msg)
    given = {
        name: one[0] if name in {"device", "dtype"} and isinstance(one, tuple) else one for name, one in given.items()
    }
    if report is None:
        return SOURCE.values(target=target, profile="standard", checks=(check,), **given)
    try:
        found = SOURCE.values.from_json(report.options).alone(check)
    except SelectionError as error:
        msg = f"{arguments.what.rpartition('#')[0]}: {error}"
        raise SelectionError(msg) from error
    return found.but(target=target or str(report.target["text"]), **given)
