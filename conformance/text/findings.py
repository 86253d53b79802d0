"""Describes findings in words, from the values that a report holds of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|\[[-\d., ]*\]")


def finding_line(finding: Mapping[str, Any]) -> str:
    """Return the message line of one finding, given as JSON values."""
    place = f"{finding['where']}, after {finding['action']}" if finding["action"] else finding["where"]
    why = f"; likely cause: {finding['cause']['text']}" if finding["cause"] else ""
    needs = needed([finding])
    return f"{place}: {finding['text']}{why}{f'; only with: {needs}' if needs else ''}"


def needed(findings: Iterable[Mapping[str, Any]]) -> str:
    """Return the values of planned rows that each of some findings needs; none if one of them has no such row."""
    examined = [finding.get("needs") for finding in findings]
    reported = [] if None in examined else [dict(needs) for needs in examined if needs is not None]
    shared = (
        item for item in (reported[0] if reported else {}).items() if all(item in needs.items() for needs in reported)
    )
    return ", ".join(f"{name}={word}" for name, word in shared)


def frame_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the target's frames of the first exception among some findings, one per line, the innermost last."""
    return next((list(finding["frames"]) for finding in findings if finding.get("frames")), [])


def named(sort: str, where: str) -> str:
    """Return in words what sort of tensor a finding is about; its name differs from stage to stage."""
    if sort == "thing":
        return where
    article = "the" if sort.startswith(".") else "an" if sort[0] in "aeiou" else "a"
    return f"{article} {sort}"


def letter_of(action: str) -> str:
    """Return the letter of an action, without micro-batch and stage."""
    return re.sub(r"[\d!]", "", action)


def numberless(text: str) -> str:
    """Return a text without its numbers: two messages raised for one reason differ only in them."""
    return _NUMBER.sub("n", text)


def alike(finding: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the common values of findings of one cause: B equals I, and numbers in messages are ignored."""
    letter = letter_of(str(finding["action"]))
    return (
        str(finding["kind"]),
        numberless(named(str(finding["sort"]), str(finding["where"]))),
        "B or I" if letter in {"B", "I"} else letter,
        "" if finding["raised"] is None else numberless(str(finding["raised"])),
        str(finding["cause"]["kind"]) if finding["cause"] else "",
    )
