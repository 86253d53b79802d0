"""What ranks write down and what becomes of it: a line per case and rank, then one result per case."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradconform.pipeline.question import Case
from gradconform.pipeline.scenarios import BY_NAME
from gradconform.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one rank says of one case.

    ``raised`` is an exception as text, ``at`` the time then in seconds, ``unsupported`` why it was not tried.
    """

    case: str
    rank: int
    findings: tuple[dict[str, Any], ...] = ()
    headroom: float | None = None
    bit_equal: bool | None = None
    duration_s: float = 0.0
    raised: str | None = None
    at: float = 0.0
    unsupported: str | None = None

    def to_line(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def read_records(path: Path) -> Iterator[Record]:
    """Yield the whole lines of a rank's file; one that was being written when the rank died is left out."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            values = json.loads(line)
            yield Record(**{**values, "findings": tuple(values["findings"])})


def result_of(case: Case, records: Sequence[Record], *, device: str, dtype: str) -> Result:
    """Return the verdict on a case of which every rank has written."""
    findings = [(record.rank, finding) for record in records for finding in record.findings]
    headrooms = [record.headroom for record in records if record.headroom is not None]
    reasons = {record.unsupported for record in records if record.unsupported is not None}
    lines = [
        f"rank {rank}: {finding['where']}, after {finding['action']}: {finding['text']}" for rank, finding in findings
    ]
    status = "unsupported" if reasons else "failed" if findings else "passed"
    return blank_result(
        case,
        device=device,
        dtype=dtype,
        status=status,
        message="\n".join(sorted(reasons) or [f"schedule {case.size}", *lines] if status != "passed" else []),
        headroom=max(headrooms, default=None),
        bit_equal=None if not headrooms else all(record.bit_equal is not False for record in records),
        duration_s=max((record.duration_s for record in records), default=0.0),
        kind=findings[0][1]["kind"] if findings else None,
        findings=tuple(finding | {"where": f"rank {rank}, {finding['where']}"} for rank, finding in findings),
    )


def blank_result(case: Case, *, device: str, dtype: str, status: str, **fields: Any) -> Result:
    """Return a result on a case, with its requirement and level."""
    values = {
        "check": case.id,
        "level": "MUST",
        "device": device,
        "dtype": dtype,
        "status": status,
        "requirement": BY_NAME[case.scenario].requirement(case.size),
        **fields,
    }
    return Result.from_dict(values)
