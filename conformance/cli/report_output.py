"""The amount and the format of a command's report."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
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
    """Return the amount of detail."""
    louder, quieter = arguments.verbose or 0, arguments.quiet or 0
    return Detail(louder - quieter, arguments.failures or 1)


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """The output of a command's report: its format, and ``files`` with the path of each file format."""

    detail: Detail
    form: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ReportOutput:
        """Return the output that the arguments request; ``--json -`` is the format JSON."""
        files = {form: path for form in WORDS if (path := getattr(arguments, form, None)) is not None}
        form = getattr(arguments, "output_format", None) or "full"
        if files.get("json") == "-":
            del files["json"]
            form = "json"
        return cls(detail_of(arguments), form, files)

    @property
    def shows_progress(self) -> bool:
        """Whether progress is printed too."""
        return self.form == "full" and not self.detail.quiet

    def conclude(
        self, report: Report, *, head: Iterable[Line] = (), code: int | None = None, stopped: str | None = None
    ) -> int:
        """Write the report to its files, print its end after ``head``, and return the exit code.

        The exit code is ``code``, else that of the verdict. ``stopped`` says why the run ended early. The files are
        written first, all or none, so that a closed reader loses no file.
        """
        code = report.exit_code if code is None else code
        kept = written({path: _as(form, report) for form, path in self.files.items()}, what="report")
        if self.form == "json":
            write_json(report.to_dict())
        elif self.form == "github":
            write_annotations(github_annotations(report, Path.cwd()))
        elif self.form == "concise":
            write(map(Line, failure_lines(report, Path.cwd())))
        else:
            shown = head if self.shows_progress else ()
            notes = [f"{WORDS[form]}: {path}" for form, path in self.files.items()] if kept else []
            write([*shown, *closing(report, width(), stopped, self.detail, notes)])
        return code if kept else EXIT_ENVIRONMENT


#: The name of each file format of a report.
WORDS = {
    "json": "report as JSON",
    "html": "page",
    "junit": "tests in the form of JUnit",
    "skip_list": "skip list",
    "markdown": "report as Markdown",
    "summary": "summary as Markdown",
}


def _as(form: str, report: Report) -> str:
    if form == "json":
        return report.to_json()
    from .report_formats import FORMATS  # noqa: PLC0415 (most runs write no page, and it needs a library)

    return FORMATS[form](report)
