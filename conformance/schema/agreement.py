"""Holds a report against itself and against the contract: what was edited by hand, or half merged, does not agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gradconform.defaults import PROFILES
from gradconform.schema.reading import ReportError
from gradconform.version import CONTRACT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gradconform.results import Report, Result


def refuse_disagreement(report: Report, values: Mapping[str, Any], name: str) -> None:
    """Raise :class:`~gradconform.schema.reading.ReportError` for the first thing in ``values`` that cannot be so.

    ``report`` is what ``values`` were read into, and ``name`` is what the message calls it.
    """
    for problem in _problems(report, values):
        msg = f"{name}: {problem}; the file was edited or put together from others. Expected it as the kit wrote it"
        raise ReportError(msg)


def _problems(report: Report, values: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_results(report)
    yield from _of_shard(report)
    for field, counted in report.summary.items():
        told = values["summary"][field]
        if told != counted:
            yield f"summary.{field} is {told}, and the results give {counted}"
    if not len(report.results) <= report.planned <= report.manifest:
        yield (
            f"it has {len(report.results)} results of {report.planned} planned checks of a manifest of "
            f"{report.manifest}, and none of the three can be larger than the next"
        )
    for field, decided in (("verdict", report.verdict), ("conforms", report.conforms)):
        if values[field] != decided:
            yield f"{field} is {values[field]!r}, and the results give {decided!r}"
    if report.contract == CONTRACT_VERSION and not report.beside:
        yield from _against_the_contract(report)


def _of_results(report: Report) -> Iterator[str]:
    seen: dict[tuple[str, str, str], int] = {}
    listed = [] if report.waivers is None else report.waivers["entries"]
    for position, result in enumerate(report.results):
        first = seen.setdefault((result.check, result.device, result.dtype), position)
        if first != position:
            yield f"results[{first}] and results[{position}] are both of {_named(result)}"
        problem = _status_problem(result) or _waiver_problem(result, listed)
        if problem:
            yield f"results[{position}] ({_named(result)}) {problem}"


def _waiver_problem(result: Result, listed: Sequence[Mapping[str, Any]]) -> str | None:
    unlisted = result.waiver is not None and result.waiver not in listed
    return "names a waiver that the report does not list" if unlisted else None


def _of_shard(report: Report) -> Iterator[str]:
    if report.shard is None:
        return
    index, count, selected = (report.shard[name] for name in ("index", "count", "selected"))
    positions = report.shard["positions"]
    if index > count:
        yield f"shard.index is {index} of {count} shards"
    if len(positions) != report.planned or len(set(positions)) != len(positions):
        yield f"shard.positions names {len(set(positions))} checks, and {report.planned} are planned"
    if selected > report.manifest or any(position >= selected for position in positions):
        yield f"shard.selected is {selected} of a manifest of {report.manifest}, and a position is beyond one of them"


def _status_problem(result: Result) -> str | None:
    if result.status in {"failed", "waived", "error"} and result.kind is None:
        return f"is {result.status} and has no kind"
    if result.status not in {"failed", "waived"} and result.findings:
        return f"is {result.status} and has findings"
    needs_waiver = result.status in {"waived", "unexpectedly_passed"}
    if needs_waiver and result.waiver is None:
        return f"is {result.status} and names no waiver"
    if result.waiver is not None and result.status in {"passed", "unsupported", "not_run"}:
        return f"is {result.status} and names a waiver"
    return None


def _against_the_contract(report: Report) -> Iterator[str]:
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import nearest  # noqa: PLC0415 (it imports torch)

    held = PROFILES[: PROFILES.index(report.profile) + 1]
    size = sum(check.profile in held for check in CHECKS.values())
    cells = {(result.device, result.dtype) for result in report.results}
    if report.manifest % size or report.manifest < size * len(cells):
        yield (
            f"summary.manifest is {report.manifest}, and contract {report.contract} has {size} checks in profile "
            f"{report.profile} per device and dtype, of which the results name {len(cells)}"
        )
    for position, result in enumerate(report.results):
        check = CHECKS.get(result.check)
        if check is None:
            near = nearest(result.check, CHECKS)[:200]
            yield f"results[{position}].check is {result.check!r}, no check of contract {report.contract} ({near})"
        elif check.profile not in held:
            yield f"results[{position}] is of {result.check}, a check of profile {check.profile}, not {report.profile}"
        elif result.requirement != check.requirement or (result.level, check.level) == ("MUST", "SHOULD"):
            yield f"results[{position}] does not say of {result.check} what contract {report.contract} asks"


def _named(result: Result) -> str:
    return f"{result.check}[{result.device}-{result.dtype}]"
