"""The command ``gradconform replay``: one check again, with all it says, or as a script that needs only torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import refuse, width, write
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.output_file import check_writable, replace_file
from gradconform.cli.parsing import seed_given
from gradconform.defaults import DEFAULT_SEED
from gradconform.results import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from gradconform.results import Report, Result
    from gradconform.session import Session

_EXAMPLES = """\
examples:
  gradconform replay split.gradients.lstm mypackage.backward
  gradconform replay report.json#3                        the third failure
  gradconform replay report.json#split.gradients.lstm
  gradconform replay report.json#3 --script defect.py     for a bug report
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is run again, and what a report said of it, if there is one."""

    check: str
    target: str
    device: str
    dtype: str
    seed: int
    report: Report | None = None
    before: Result | None = None


def add_replay(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "replay",
        help="run one check again, alone, or write it as a script that needs only torch",
        description="Run one check again as it was run, and print all it says; 1 where it fails.",
        epilog=_EXAMPLES,
    )
    one.set_defaults(command=replay, parser=one)
    one.add_argument(
        "what", metavar="ID", help="a check id, or REPORT.json#N for the N-th failure of a report, or REPORT.json#ID"
    )
    one.add_argument("target", nargs="?", metavar="TARGET", help="as for run; a report names its own")
    one.add_argument("--device", metavar="DEVICE", help="where it runs (default: cpu, or the report's)")
    one.add_argument("--dtype", metavar="DTYPE", help="as for run (default: float32, or the report's)")
    one.add_argument(
        "--seed", type=seed_given, metavar="N", help=f"as for run (default: {DEFAULT_SEED}, or the report's)"
    )
    one.add_argument(
        "--script", metavar="PATH", help="write there one Python file that needs only torch and the implementation"
    )


def replay(arguments: argparse.Namespace) -> int:
    """Run one check again; return 0 where it passes, 1 where it fails, 5 where it could not be judged."""
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)

    try:
        path = None if arguments.script is None else check_writable(arguments.script, option="--script")
        asked = _asked(arguments)
        with current_folder_first():
            session = _session(asked)
            if path is not None:
                return _write_script(session, asked, path)
            return _run(session, asked)
    except ValueError as error:  # of the report, the check, the target, the device or the path
        return refuse(error)


def _asked(arguments: argparse.Namespace) -> _Asked:
    name, hash_sign, which = arguments.what.rpartition("#")
    if not hash_sign:
        if arguments.target is None:
            arguments.parser.error("a check id needs the TARGET to run it on")
        return _Asked(
            arguments.what,
            arguments.target,
            arguments.device or "cpu",
            arguments.dtype or "float32",
            DEFAULT_SEED if arguments.seed is None else arguments.seed,
        )
    from gradconform.results import Report  # noqa: PLC0415 (imported where it is needed)

    report = Report.from_json(name)
    before = _result(report, which, name)
    return _Asked(
        before.check,
        arguments.target or str(report.target["text"]),
        arguments.device or before.device,
        arguments.dtype or before.dtype,
        report.seed if arguments.seed is None else arguments.seed,
        report,
        before,
    )


def _result(report: Report, which: str, name: str) -> Result:
    """Return the failure with that number, counted from 1, or the first result of a check."""
    failures = report.failures
    if which.isdigit():
        if not 1 <= int(which) <= len(failures):
            msg = f"{name} has {len(failures)} failures, no number {which}; expected one from 1, or a check id"
            raise ValueError(msg)
        return failures[int(which) - 1]
    found = [result for result in (*failures, *report.results) if result.check == which]
    if not found:
        from gradconform.devices import nearest  # noqa: PLC0415 (it imports torch)

        msg = f"{name} has no result of {which!r}; nearest: {nearest(which, {result.check for result in report})[:200]}"
        raise ValueError(msg)
    return found[0]


def _session(asked: _Asked) -> Session:
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import nearest  # noqa: PLC0415 (as above)
    from gradconform.session import Session  # noqa: PLC0415 (as above)

    if asked.check not in CHECKS:
        msg = f"{asked.check!r} is no check of the contract; nearest: {nearest(asked.check, CHECKS)[:200]}"
        raise ValueError(msg)
    return Session(
        asked.target, device=asked.device, dtype=asked.dtype, profile="full", checks=[asked.check], seed=asked.seed
    )


def _run(session: Session, asked: _Asked) -> int:
    from gradconform.report.lines import Line, wrapped  # noqa: PLC0415 (only a run reports)
    from gradconform.version import KIT_VERSION  # noqa: PLC0415 (as above)

    target = session.target
    text = f"gradconform {KIT_VERSION} replays {asked.check} on {target.name} {target.version or ''}".rstrip()
    write([*wrapped(f"{text}: {asked.device} {asked.dtype}, seed {asked.seed}", width(), role="heading")])
    write(
        [line for difference in _differences(session, asked) for line in wrapped(difference, width(), role="warning")]
    )
    (result,) = session.run().results
    numbers = "" if result.headroom is None else f"; the largest error is {result.headroom:.3g} of its bound"
    write(
        [
            *wrapped(result.requirement, width()),
            *(Line(f"  {line}") for line in result.message.splitlines()),
            *wrapped(_compared(result, asked), width()),
            Line(f"{result.check}: {result.status}{numbers}", "good" if result.status == "passed" else "bad"),
        ]
    )
    codes = {"passed": EXIT_CONFORMS, "failed": EXIT_DOES_NOT}
    return codes.get(result.status, EXIT_INCOMPLETE)


def _differences(session: Session, asked: _Asked) -> list[str]:
    """Return what is not as it was when the report was written, so that other numbers surprise nobody."""
    if asked.report is None:
        return []
    environment = session.empty_report().environment
    found = []
    if asked.report.target.get("sha256") != session.target.sha256:
        found.append("the target's file is not the one that the report was written of")
    for name in ("torch", "platform"):
        then, now = asked.report.environment.get(name), environment.get(name)
        if then != now:
            found.append(f"{name} was {then}, now it is {now}")
    return found


def _compared(result: Result, asked: _Asked) -> str:
    if asked.before is None:
        return ""
    same = (result.status, result.message, result.headroom) == (
        asked.before.status,
        asked.before.message,
        asked.before.headroom,
    )
    return "the same as in the report, number for number" if same else f"in the report: {asked.before.status}"


def _write_script(session: Session, asked: _Asked, path: str) -> int:
    from gradconform.replay.failing import failing_trial  # noqa: PLC0415 (it imports torch)
    from gradconform.replay.script import Replayed  # noqa: PLC0415 (as above)
    from gradconform.report.lines import Line  # noqa: PLC0415 (only this command prints it)

    (item,) = session.plan.items
    replayed = Replayed(failing_trial(session, item), session.target, item.dtype, item.device, session.seed)
    replace_file(path, replayed.text())
    write([Line(f"{path} runs {asked.check} with torch and the implementation alone: python {path}")])
    return EXIT_CONFORMS
