"""What a command tells of a report: how much of it, and in which form."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.report.concise import failure_lines, github_annotations
from gradconform.report.detail import Detail
from gradconform.report.lines import Line
from gradconform.report.terminal import closing
from gradconform.results import Report

from .console import width, write, write_annotations, write_json, written


def detail_of(arguments: argparse.Namespace) -> Detail:
    """Return how much is to be told."""
    louder, quieter = arguments.verbose or 0, arguments.quiet or 0
    return Detail(louder - quieter, arguments.failures or 1)


@dataclass(frozen=True, slots=True)
class Telling:
    """How a command tells its report: ``path`` is the file that it is written to as JSON, if any."""

    detail: Detail
    form: str
    path: str | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Telling:
        """Return what is asked for; ``--json -`` is the form JSON."""
        path = getattr(arguments, "json", None)
        printed = path == "-"
        form = "json" if printed else getattr(arguments, "output_format", None) or "full"
        return cls(detail_of(arguments), form, None if printed else path)

    @property
    def shows_progress(self) -> bool:
        """Whether what happens in the meantime is told too."""
        return self.form == "full" and not self.detail.quiet

    def conclude(
        self, report: Report, *, head: Iterable[Line] = (), code: int | None = None, stopped: str | None = None
    ) -> int:
        """Write the report to its file, if it has one, print its end below ``head``, and return the exit code.

        It is ``code``, else that of the verdict. ``stopped`` says why the run ended early. The file is written first: a
        reader who goes away costs no file.
        """
        code = report.exit_code if code is None else code
        kept = self.path is not None and written({self.path: report.to_json()}, what="report")
        if self.form == "json":
            write_json(report.to_dict())
        elif self.form == "github":
            write_annotations(github_annotations(report, Path.cwd()))
        elif self.form == "concise":
            write(map(Line, failure_lines(report, Path.cwd())))
        else:
            shown = head if self.shows_progress else ()
            notes = (f"report as JSON: {self.path}",) if kept else ()
            write([*shown, *closing(report, width(), stopped, self.detail, notes)])
        return code if kept or self.path is None else EXIT_ENVIRONMENT
