"""A claim: what is stated of a target, and the hashes of all that the statement rests on."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradconform.bundle.archive import CLAIM, ENVIRONMENT, KIT, RECORDS, REPORT, WAIVERS
from gradconform.kit_files import kit_files
from gradconform.results import Report

SCHEMA, SCHEMA_VERSION = "gradconform-claim", 1


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that a claim is made of."""

    report: Path
    records: Path | None = None
    waivers: Path | None = None


def claim_files(sources: Sources, *, today: dt.date | None = None) -> dict[str, bytes]:
    """Return the files of the claim by name.

    Raises ``OSError`` for a file that cannot be read, and :class:`~gradconform.schema.reading.ReportError`.
    """
    content = sources.report.read_bytes()
    report = Report.from_json(sources.report)
    files = {REPORT: content, ENVIRONMENT: _json(report.environment), KIT: _json(kit_files())}
    if sources.waivers is not None:
        files[WAIVERS] = sources.waivers.read_bytes()
    if sources.records is not None:
        files[RECORDS] = sources.records.read_bytes()
    day = today or dt.datetime.now(dt.timezone.utc).date()
    return {CLAIM: _json(_claim(report, files, day)), **files}


def _claim(report: Report, files: Mapping[str, bytes], day: dt.date) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "statement": statement(report),
        "made": day.isoformat(),
        "kit": report.kit,
        "contract": report.contract,
        "target": dict(report.target),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }


def statement(report: Report) -> str:
    """Return what the report says of the target, in one sentence that names the code by its hash."""
    counts, target = report.summary, report.target
    name = " ".join(str(target[key]) for key in ("name", "version") if target.get(key))
    cells = ", ".join(dict.fromkeys(f"{result.device} {result.dtype}" for result in report.results))
    waived = f", {counts['waived']} are waived" if counts["waived"] else ""
    unsupported = f", {counts['unsupported']} are unsupported" if counts["unsupported"] else ""
    return (
        f"{name} (SHA-256 {target.get('sha256')}) {report.verdict}: contract {report.contract}, profile "
        f"{report.profile}, on {cells}, with torch {report.environment['torch']}: {counts['passed']} of "
        f"{report.manifest} checks passed{unsupported}{waived}"
    )


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(values), indent=2) + "\n").encode()
