"""The file formats of a report, by the option that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradconform.report.junit import junit
from gradconform.report.page import pages
from gradconform.report.page.summary import report_summary
from gradconform.report.skip_list import skip_list
from gradconform.results import Report


def _summary(report: Report) -> str:
    return report_summary(report, Path.cwd())


FORMATS: dict[str, Callable[[Report], str]] = {
    "html": pages.report_page, "markdown": pages.report_markdown, "summary": _summary, "junit": junit,
    "skip_list": skip_list,
}  # fmt: skip
