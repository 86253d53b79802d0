"""Which of the kit's files somebody has named in the place of another, and what to do with it."""

from __future__ import annotations

import re

#: How each kind begins, what it is, and what to do where a report is expected, and where records of a run are.
_KINDS: tuple[tuple[re.Pattern[bytes], str, str, str], ...] = (
    (
        re.compile(rb'\s*\{"record":'),
        "contains the records of a run, as --ndjson writes them",
        "'gradconform run --resume {path} --json report.json' makes a report from them",
        "",
    ),
    (
        re.compile(rb'\s*\{\s*"schema": "gradconform-report"'),
        "is a report that --json wrote",
        "",
        "name the file of --ndjson; a report cannot be continued",
    ),
    (
        re.compile(rb'\s*\{\s*"schema": "gradconform-comparison"'),
        "is a comparison",
        "name the two reports that it compares",
        "name the file of --ndjson",
    ),
    (
        re.compile(rb"PK\x03\x04"),
        "is a zip archive",
        "'gradconform verify' reads a bundle, which contains report.json",
        "name the file of --ndjson",
    ),
    (
        re.compile(rb"\s*<!doctype html", re.IGNORECASE),
        "is an HTML page",
        "name the report that it shows",
        "name the file of --ndjson",
    ),
)


def instead_of_report(held: bytes, path: str) -> str:
    """Return what a file is that was named as a report and is none, and what to do; nothing where nobody knows."""
    return next((f"{what}; {do.format(path=path)}" for form, what, do, _ in _KINDS if do and form.match(held)), "")


def instead_of_records(held: bytes) -> str:
    """Return what a file is that was named as the records of a run and is none, and what to do; nothing likewise."""
    return next((f"{what}; {do}" for form, what, _, do in _KINDS if do and form.match(held)), "")
