"""Judges what stands beside the contract with checks of its own, and reports as every command does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import width, write
from gradconform.cli.output_file import hand_over

if TYPE_CHECKING:
    from gradconform.beside import BesideCheck


def judge_beside(  # noqa: PLR0913 (what is judged, on what, and how it is told)
    subject: Any, checks: Sequence[BesideCheck], *, text: str, what: tuple[str, ...], dtype: str, path: str | None
) -> int:
    """Run ``checks`` on ``subject``, tell what they found, and return the exit code.

    ``text`` is how the user named the subject, ``what`` says on what it is judged, ``path`` where the report goes.
    """
    from gradconform.beside import run_beside  # noqa: PLC0415 (it imports torch)
    from gradconform.environment import environment  # noqa: PLC0415 (as above)
    from gradconform.report.terminal import closing, opening  # noqa: PLC0415 (only a run reports)
    from gradconform.results import Report  # noqa: PLC0415 (as above)

    report = Report(
        profile="standard",
        target={"text": text, "name": subject.name, "version": None, "file": None, "sha256": None},
        environment=environment(),
        seed=0,
        manifest=len(checks),
        planned=len(checks),
        beside=what,
    )
    write(opening(report, [("cpu", dtype)], width()))
    report.results += run_beside(subject, checks, dtype=dtype)
    code = report.exit_code
    if path is not None:
        code = hand_over(path, report.to_json(), code=code)
    write(closing(report, width()))
    return code
