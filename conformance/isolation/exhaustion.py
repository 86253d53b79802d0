"""Whether a result tells of the target at all, or of memory or a device that is used up."""

from __future__ import annotations

import re

import torch

from gradconform.results import Result

#: What Python, torch and torch's CPU allocator say where memory is used up.
_MEMORY = re.compile(r"\b(MemoryError|OutOfMemoryError)\b|can't allocate memory|not enough memory")


def exhaustion(result: Result) -> tuple[str, str] | None:
    """Return ``memory`` or ``device``, and what was said, where ``result`` shows that one of them is used up.

    An error of a device may stick to the process, so that all that follows fails: whether it does is tried.
    """
    if result.status not in {"failed", "error", "unsupported"}:
        return None
    said = "\n".join([result.message, *(str(finding.get("text")) for finding in result.findings)])
    line = next((line.strip() for line in said.splitlines() if _MEMORY.search(line)), None)
    if line is not None:
        return "memory", line
    problem = None if torch.device(result.device).type == "cpu" else _problem_of(result.device)
    return None if problem is None else ("device", problem)


def _problem_of(device: str) -> str | None:
    """Return what ``device`` says to one addition that is read back, None where it is right."""
    try:
        found = (torch.ones(2, device=device) + 1).cpu().tolist()
    except Exception as error:  # noqa: BLE001 (backends raise what they like)
        return f"{type(error).__name__}: {error}"
    return None if found == [2.0, 2.0] else f"1 + 1 gives {found}"
