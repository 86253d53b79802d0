"""Checks beside the contract: of what surrounds a stage backward (schedules as text, stage objects)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradconform.judge.finding import Finding
from gradconform.judge.values import Reference
from gradconform.results import Result
from gradconform.tolerance import Partials


@dataclass(frozen=True, slots=True)
class BesideCheck:
    """One check: ``judge`` takes what is judged and yields findings; what it raises is one too."""

    id: str
    level: str
    requirement: str
    judge: Callable[[Any], Iterator[Finding]]


@dataclass(slots=True)
class Held:
    """What :func:`gradconform.judge.values.compare` asks for beside the tensors, where no trial is known."""

    action: str
    headrooms: list[float] = field(default_factory=list)
    spread: dict[int, float] = field(default_factory=dict)
    factor: float = 1.0
    zeros_for_none: bool = False


def given(known: Tensor | None) -> Reference:
    """Return a reference that is known already, in float64, for :func:`gradconform.judge.values.compare`."""
    return lambda: (None, Partials()) if known is None else (known.cpu(), Partials().with_(known))


def run_beside(subject: Any, checks: Sequence[BesideCheck], *, dtype: str) -> Iterator[Result]:
    """Yield one result per check, in order, on the CPU."""
    for check in checks:
        started = time.perf_counter()
        findings = _findings(subject, check)
        yield Result(
            check=check.id,
            level=check.level,
            device="cpu",
            dtype=dtype,
            status="failed" if findings else "passed",
            requirement=check.requirement,
            message="\n".join(f"{finding.where}: {finding.text}" for finding in findings),
            duration_s=time.perf_counter() - started,
            kind=findings[0].kind if findings else None,
            findings=tuple(finding.to_dict() for finding in findings),
        )


def _findings(subject: Any, check: BesideCheck) -> list[Finding]:
    try:
        return list(check.judge(subject))
    except Exception as error:  # noqa: BLE001 (what is judged may raise anything)
        return [Finding("error", "the call", "", f"raised {type(error).__name__}: {' '.join(str(error).split())}")]
