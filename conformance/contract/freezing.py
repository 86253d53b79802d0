"""Freezing: the current checks of a version, their differences from its file, and writing of the file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace

from gradconform.fixtures.digests import digest, stage_digest
from gradconform.fixtures.random_stages import traits_text
from gradconform.trial.trial import Trial
from gradconform.user_input.values import SelectionError

from . import checks_of
from .check import Check
from .explanation_file import explanations_of
from .explanations import explanations
from .frozen import FrozenCheck, FrozenContract, file_of, frozen, versions


def as_it_is(version: str) -> FrozenContract:
    """Return a version with its current checks; the release day comes from its file."""
    checks, before = checks_of(version), frozen(version)
    cases = {case.name: case for check in checks.values() for trial in check.trials for case in trial.stages}
    return FrozenContract(
        version,
        None if before is None else before.released,
        {name: _fixed(check) for name, check in checks.items()},
        {name: stage_digest(cases[name]) for name in sorted(cases)},
    )


def _fixed(check: Check) -> FrozenCheck:
    return FrozenCheck(
        id=check.id,
        level=check.level,
        profile=check.profile,
        core=check.core,
        since=check.since,
        requirement=check.requirement,
        needs=tuple(sorted(check.needs)),
        stages=tuple(dict.fromkeys(case.name for trial in check.trials for case in trial.stages)),
        programs=tuple(dict.fromkeys(trial.program for trial in check.trials)),
        trials=tuple(digest(_written(trial)) for trial in check.trials),
    )


def _written(trial: Trial) -> str:
    """Return a trial as text with its stages' names, without default settings."""
    usual = Trial(stages=trial.stages, program=trial.program)
    names = [field.name for field in fields(Trial) if field.name not in {"stages", "program"}]
    reported = {name: getattr(trial, name) for name in names if getattr(trial, name) != getattr(usual, name)}
    shown = (f"{name}={sorted(value) if isinstance(value, frozenset) else value!r}" for name, value in reported.items())
    return "\n".join([" ".join(case.name for case in trial.stages), trial.program, *shown])


def differences(before: FrozenContract, now: FrozenContract) -> list[str]:
    """Return one line for each difference of ``now`` from ``before``: added, removed or changed."""
    found = [f"added: {name}" for name in now.checks if name not in before.checks]
    found += [f"gone: {name}" for name in before.checks if name not in now.checks]
    for name in before.checks:
        if name in now.checks:
            found += _changed(before.checks[name], now.checks[name])
    return [*found, *_stages(before.stages, now.stages)]


def _changed(before: FrozenCheck, now: FrozenCheck) -> Iterator[str]:
    then, today = asdict(before), asdict(now)
    for name, value in then.items():
        if value != today[name]:
            yield f"changed: {before.id}: {name} was {_shown(value)}, is {_shown(today[name])}"


def _shown(value: object) -> str:
    return f"({', '.join(value)})" if isinstance(value, tuple) else repr(value)


def _stages(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    yield from (f"added: the stage {name}" for name in now if name not in before)
    yield from (f"gone: the stage {name}" for name in before if name not in now)
    for name in before:
        if name in now and before[name] != now[name]:
            yield f"changed: the stage {name}: its arguments, traits, source or first values are not those it had"


def freeze(version: str, released: dt.date | None = None) -> tuple[FrozenContract, list[str]]:
    """Write the files of a version from its checks; return the frozen version and the changes.

    ``released`` makes it final. Raises :class:`~gradconform.user_input.values.SelectionError` if a released version
    would change.
    """
    now, before = as_it_is(version), frozen(version)
    found = differences(before or FrozenContract(version, None, {}, {}), now)
    if before is not None and before.released is not None and (found or released is not None):
        raise SelectionError(_refusal(before, found))
    if released is not None:
        now = replace(now, released=released.isoformat())
    for file, text in (
        (file_of(version), now.text()),
        (explanations_of(version), explanations(checks_of(version)).text()),
    ):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text, encoding="utf-8")
    return now, found


def traits_of_random_stages() -> str:
    """Return the text of the file with the traits of all versions' random stages, measured again."""
    checks = (check for version in versions() for check in checks_of(version).values())
    return traits_text(case for check in checks for trial in check.trials for case in trial.stages)


def _refusal(before: FrozenContract, found: list[str]) -> str:
    reported = "".join(f"\n  {line}" for line in found)
    return (
        f"contract {before.version} was released on {before.released} and changes no more; "
        f"expected its checks as they were. What is new has a later `since`, what leaves an `until`{reported}"
    )
