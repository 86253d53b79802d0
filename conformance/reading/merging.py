"""Merging of the reports of a divided run into the report of the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradconform.exits import UsageError
from gradconform.results import Report
from gradconform.text.counts import count

#: The fields that all shards of one run share. A target's file may have another path on another machine.
_ALIKE = ("kit", "contract", "profile", "seed", "strict", "extra", "manifest")
_OF_TARGET = ("text", "name", "version", "sha256")
_OF_SHARD = ("count", "selected", "sha256")


class MergeError(UsageError):
    """The reports are not the shards of one run, or not all of them."""


def merge(reports: Mapping[str, Report]) -> Report:
    """Return the report of the whole run from its shards in ``reports``, keyed by their names in messages.

    Its results are in the order of the plan; a check that did not run in its shard did not run in the whole. Raises
    :class:`MergeError` that names the reports that do not belong together and the reason, or the missing shard.
    """
    if not reports:
        msg = "no report to merge; expected the report of each shard"
        raise MergeError(msg)
    _refuse_whole_runs(reports)
    first_name, first = next(iter(reports.items()))
    for name, report in reports.items():
        differences = list(_differences(first, report))
        if differences:
            msg = f"{name} and {first_name} are not shards of one run: {'; '.join(differences)}"
            raise MergeError(msg)
    _refuse_gaps(reports)
    return _merged(list(reports.values()))


def _refuse_whole_runs(reports: Mapping[str, Report]) -> None:
    for name, report in reports.items():
        if report.shard is None:
            msg = f"{name} is of a run without --shard; expected the report of a shard"
            raise MergeError(msg)


def _differences(first: Report, report: Report) -> list[str]:
    pairs = [(field, getattr(first, field), getattr(report, field)) for field in _ALIKE]
    pairs += [(f"target {field}", first.target.get(field), report.target.get(field)) for field in _OF_TARGET]
    pairs += [(f"shard {field}", _shard(first)[field], _shard(report)[field]) for field in _OF_SHARD]
    pairs += [
        (f"environment {field}", first.environment.get(field), report.environment.get(field))
        for field in {**first.environment, **report.environment}
    ]
    pairs += [("waivers", _waived_by(first), _waived_by(report))]
    return [f"{field} is {ours!r}, not {theirs!r}" for field, theirs, ours in pairs if ours != theirs]


def _shard(report: Report) -> Mapping[str, Any]:
    return report.shard or {}


def _waived_by(report: Report) -> object:
    """Return the part of the waivers that all shards share: it excludes the matched results."""
    return None if report.waivers is None else report.waivers["sha256"]


def _refuse_gaps(reports: Mapping[str, Report]) -> None:
    """Raise if a shard is duplicate or missing, or if the shards do not hold the whole plan."""
    named: dict[int, str] = {}
    for name, report in reports.items():
        index = _shard(report)["index"]
        if index in named:
            msg = f"{named[index]} and {name} are both shard {index}; expected each shard once"
            raise MergeError(msg)
        named[index] = name
    first = _shard(next(iter(reports.values())))
    missing = [f"{index}/{first['count']}" for index in range(1, first["count"] + 1) if index not in named]
    if missing:
        msg = f"the report of shard {', '.join(missing)} is missing; expected all {count(first['count'], 'shard')}"
        raise MergeError(msg)
    held = sorted(position for report in reports.values() for position in _shard(report)["positions"])
    if held != list(range(first["selected"])):
        msg = f"the shards contain {len(set(held))} of {first['selected']} checks; expected each check in one shard"
        raise MergeError(msg)


def _merged(shards: Sequence[Report]) -> Report:
    placed = [
        (position, result)
        for report in shards
        for position, result in zip(_shard(report)["positions"], report.results, strict=False)
    ]
    results = [result for _, result in sorted(placed, key=lambda one: one[0])]
    first = min(shards, key=lambda report: int(_shard(report)["index"]))
    planned = first.selected
    options = {**first.options, "shard": None}
    return replace(first, shard=None, options=options, planned=planned, results=results)
