"""The kit's files that a user named by mistake in place of another, and the advice for each."""

from __future__ import annotations

import re

#: Each kind's first bytes, its name, and the advice if a report, or the records of a run, were expected.
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
    """Return the kind of a file that was named as a report but is none, with advice; empty if unknown."""
    return next((f"{what}; {do.format(path=path)}" for form, what, do, _ in _KINDS if do and form.match(held)), "")


def instead_of_records(held: bytes) -> str:
    """Return the kind of a file that was named as a run's records but is none, with advice; empty if unknown."""
    return next((f"{what}; {do}" for form, what, _, do in _KINDS if do and form.match(held)), "")
