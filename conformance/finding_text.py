"""What a finding says, in words, of the values that a report holds of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|\[[-\d., ]*\]")


def finding_line(finding: Mapping[str, Any]) -> str:
    """Return the line of a message on one finding, given as JSON values."""
    place = f"{finding['where']}, after {finding['action']}" if finding["action"] else finding["where"]
    why = f"; likely cause: {finding['cause']['text']}" if finding["cause"] else ""
    return f"{place}: {finding['text']}{why}"


def named(sort: str, where: str) -> str:
    """Return in words what sort of tensor a finding is about; its own name differs from stage to stage."""
    if sort == "thing":
        return where
    article = "the" if sort.startswith(".") else "an" if sort[0] in "aeiou" else "a"
    return f"{article} {sort}"


def letter_of(action: str) -> str:
    """Return the letter of an action, without micro-batch and stage."""
    return re.sub(r"[\d!]", "", action)


def numberless(text: str) -> str:
    """Return a text with its numbers left open: what was raised twice for one reason differs in them at most."""
    return _NUMBER.sub("n", text)
