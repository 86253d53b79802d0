"""Failures by cause: one defect fails many checks, and a reader wants to see the defects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gradconform.results import Result

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_SAME_AS_ORACLE = "; plain autograd does not"

#: What a kind of finding says of a tensor, where the finding's own text is all numbers.
_OF_TENSORS = {
    "mismatch": "has a wrong value",
    "nonfinite": "has NaN or inf where plain autograd has none, or the other way round",
    "missing": "is None, a tensor under plain autograd",
    "unexpected": "is a tensor, None under plain autograd",
    "shape": "has a wrong shape",
    "dtype": "has a wrong dtype",
    "device": "is on a wrong device",
    "layout": "has a wrong layout",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Results whose first finding says the same thing of the same letter of action."""

    text: str
    results: tuple[Result, ...]

    @property
    def checks(self) -> dict[str, list[Result]]:
        """The results by check id: a check may fail in several dtypes and devices."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.check, []).append(result)
        return found


def by_cause(results: Iterable[Result]) -> list[Cause]:
    """Group results by cause, the cause of most checks first; every result is in exactly one group."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(_NUMBER.sub("n", cause(result)), []).append(result)
    causes = [Cause(_text(alike, group), tuple(group)) for alike, group in found.items()]
    return sorted(causes, key=lambda group: (-len(group.checks), group.results[0].check))


def _text(alike: str, group: list[Result]) -> str:
    """Return the cause with its numbers where all have the same ones."""
    texts = {cause(result) for result in group}
    return texts.pop() if len(texts) == 1 else alike


def cause(result: Result) -> str:
    """Return in one line what the first finding of ``result`` says, without the name of the tensor."""
    if not result.findings or (result.kind == "device" and result.status == "error"):
        lines = [line for line in result.message.splitlines() if line.strip()] or ["no message"]
        # The last line of a traceback names the exception, the first one of any other message says what is wrong.
        return lines[-1].strip() if result.kind == "kit" else lines[0].strip()
    first = result.findings[0]
    kind, text = str(first["kind"]), str(first["text"])
    letter = re.sub(r"[\d!]", "", str(first["action"]))
    if kind == "error":
        return f"{letter} {text.removesuffix(_SAME_AS_ORACLE)}"
    after = f"after {letter}, " if letter else ""
    if kind in _OF_TENSORS:
        return f"{after}{kind_of_tensor(str(first['where']))} {_OF_TENSORS[kind]}"
    said = text.partition(": ")[0]
    return f"{after}{said}" if kind == "hooks" else f"{after}{kind_of_tensor(str(first['where']))} {said}"


def kind_of_tensor(where: str) -> str:
    """Return what sort of tensor a finding's place names: the places themselves differ from stage to stage."""
    sorts = {
        "input ": "an input gradient",
        ".grad of input ": "the .grad of an input",
        "output ": "an output",
        "output gradient ": "an output gradient",
        "gradient of ": "a parameter gradient",
        "argument ": "an argument",
        "parameter ": "a parameter",
        "buffer ": "a buffer",
        "requires_grad ": "a requires_grad flag",
        "micro-batch ": "a micro-batch",
        "what W returns for ": "an entry of what W returns",
    }
    for start in sorted(sorts, key=len, reverse=True):
        if where.startswith(start):
            return sorts[start]
    return where if where.startswith("the ") else "a parameter gradient"
