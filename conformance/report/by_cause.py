"""Failures by cause: one defect fails many checks, and a reader wants to see the defects.

What results have in common is found first; then the single mistakes that explain several of these causes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.finding_text import alike, letter_of, named, needed, numberless
from gradconform.results import Result

from .lines import count

#: What a kind of finding says of a tensor, where the finding's own text is all numbers.
_OF_TENSORS = {
    "mismatch": "has a wrong value",
    "nonfinite": "has NaN or inf where plain autograd has none, or the reverse",
    "missing": "is None (plain autograd: a tensor)",
    "unexpected": "is a tensor (plain autograd: None)",
    "requires_grad": "requires a gradient itself (plain autograd: no)",
    "shape": "has a wrong shape",
    "dtype": "has a wrong dtype",
    "device": "is on a wrong device",
    "layout": "has a wrong layout",
    "race": "is still being written by another stream",
}

#: Those that say which of two is None, as a text does that begins with what was expected.
_OF_NONE = {"missing", "unexpected"}

#: What any other kind of finding says where the results of a cause do not say it in the same words.
_IN_GENERAL = {
    "error": "raised",
    "no_error": "raised no error; expected one",
    "changed": "changed",
    "shared": "shares storage",
    "alive": "is still alive",
    "hooks": "has hooks that were not called as under plain autograd",
    "not_repeatable": "differs between runs",
}


#: Areas whose stages and programs were drawn: by chance, or so that all pairs of values stand in them.
_DRAWN = {"property", "space"}


@dataclass(frozen=True, slots=True)
class Gone:
    """How many more causes disappear with a cause, and how many checks these are of.

    ``checks`` are of the cause's own, ``should`` those that fail a SHOULD, which it does not have.
    """

    causes: int
    checks: int
    should: int = 0

    def __str__(self) -> str:
        """Return it as a sentence."""
        causes = "1 more cause disappears" if self.causes == 1 else f"{self.causes} more causes disappear"
        causes = causes if self.causes else "parts of other causes disappear"
        of = [f"{self.checks} of these checks"] if self.checks else []
        of += [count(self.should, "SHOULD check")] if self.should else []
        shown = f" ({' and '.join(of)})" if of else ""
        return f"{causes} with it{shown}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Results with findings of the same kind, on the same sort of tensor, after the same action, for the same reason.

    Each result has those findings alone: what else it shows is in other causes. ``likely`` and ``needs`` are empty
    where nobody knows why, and on what. ``gone``: the cause is a single mistake that explains others as well, whose
    results it has; ``likely`` says which.
    """

    said: str
    results: tuple[Result, ...]
    likely: str = ""
    needs: str = ""
    gone: Gone | None = None

    @property
    def text(self) -> str:
        """All of it in one line."""
        why = f"; likely cause: {self.likely}" if self.likely else ""
        needs = f"; only with: {self.needs}" if self.needs else ""
        return f"{self.said}{why}{needs}{f'; {self.gone}' if self.gone else ''}"

    @property
    def checks(self) -> dict[str, list[Result]]:
        """The results by check id: a check may fail in several dtypes and devices."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.check, []).append(result)
        return found

    @property
    def by_size(self) -> list[Result]:
        """The results, first the quickest to read: of fewest actions, then of the shortest stage, then by id.

        Those on stages and programs that nobody has made for a reader come behind the others.
        """
        return sorted(self.results, key=_size)

    @property
    def smallest(self) -> Result:
        """The first of :attr:`by_size`."""
        return smallest_of(self.results)


def _size(result: Result) -> tuple[bool, float, int, str]:
    """Return how much there is to read of what a result ran; nobody knows where it names no program.

    A requirement names the stage and what is special about it.
    """
    actions = sum(len(program.split()) for program in result.programs)
    drawn = result.check.partition(".")[0] in _DRAWN
    return (drawn, actions or math.inf, len(result.requirement), result.place.name)


def smallest_of(results: Iterable[Result]) -> Result:
    """Return the result that is the quickest to read; see :attr:`Cause.by_size`."""
    return min(results, key=_size)


def by_cause(results: Iterable[Result]) -> list[Cause]:
    """Group what results found by cause, the cause of most checks first; a result is in the group of each finding."""
    causes = [cause_of(group) for group in groups(results).values()]
    return sorted(causes, key=lambda group: (-len(group.checks), group.results[0].check))


def groups(results: Iterable[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Return the results by what their findings have in common, each with these findings alone."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        for key, part in _parts(result).items():
            found.setdefault(key, []).append(part)
    return found


def _parts(result: Result) -> dict[tuple[str, ...], Result]:
    """Return the result once per cause, with the findings of that cause alone."""
    if _has_message_alone(result):
        return {("message", numberless(cause(result))): result}
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for finding in result.findings:
        found.setdefault(alike(finding), []).append(finding)
    return {key: result.of_findings(findings) for key, findings in found.items()}


def cause_of(group: list[Result]) -> Cause:
    """Return the cause of results that have what they found in common."""
    findings = [finding for result in group for finding in result.findings]
    return Cause(_said(group, findings), tuple(group), _likely(group, findings), needed(findings))


def _said(group: list[Result], findings: list[Mapping[str, Any]]) -> str:
    """Return what all results of a cause say: word for word, without numbers, or else in general."""
    letters = " or ".join(sorted({letter_of(str(finding["action"])) for finding in findings}))
    return _same({cause(result, letters) for result in group}) or _of(findings[0], _OF_TENSORS | _IN_GENERAL, letters)


def _likely(group: list[Result], findings: list[Mapping[str, Any]]) -> str:
    """Return what the likely causes have in common; of a message alone it is a part."""
    reasons = {str(finding["cause"]["text"]) for finding in findings if finding["cause"]}
    if not reasons or _has_message_alone(group[0]):
        return ""
    return _same(reasons) or str(findings[0]["cause"]["kind"]).replace("_", " ")


def _same(texts: set[str]) -> str:
    """Return what all ``texts`` say, word for word or without numbers; nothing where they say more than one thing."""
    texts = texts if len(texts) == 1 else set(map(numberless, texts))
    return texts.pop() if len(texts) == 1 else ""


def _has_message_alone(result: Result) -> bool:
    return not result.findings or (result.kind == "device" and result.status == "error")


def cause(result: Result, letters: str | None = None) -> str:
    """Return in one line what the first finding of ``result`` says, without the name of the tensor.

    ``letters`` are those of the actions after which others of its cause were found.
    """
    if _has_message_alone(result):
        lines = [line for line in result.message.splitlines() if line.strip()] or ["no message"]
        # The last line of a traceback names the exception, the first one of any other message says what is wrong.
        return lines[-1].strip() if result.kind == "kit" else lines[0].strip()
    first = result.findings[0]
    kind, text = str(first["kind"]), str(first["text"])
    letter = letters or letter_of(str(first["action"]))
    if kind == "error":
        return f"{letter} {text}" if first["raised"] is None else f"{letter} raised {first['raised']}"
    said = text.partition(": ")[0]
    if kind in {*_OF_NONE, "shape"} and first["sort"] == "thing":
        return f"{f'after {letter}, ' if letter else ''}{first['where']}: {said}"
    if kind in _OF_TENSORS and (kind not in _OF_NONE or text.startswith("expected ")):
        return _of(first, _OF_TENSORS, letter)
    return f"{f'after {letter}, ' if letter else ''}{said}" if kind == "hooks" else _of(first, {kind: said}, letter)


def likely(result: Result) -> str:
    """Return the first likely cause of what ``result`` found; nothing where none is known."""
    return next((str(finding["cause"]["text"]) for finding in result.findings if finding["cause"]), "")


def _of(finding: Mapping[str, Any], says: Mapping[str, str], letter: str) -> str:
    """Return after which letter of action, and of what sort of tensor, a finding says what its kind ``says``."""
    about = named(str(finding["sort"]), str(finding["where"]))
    return f"{f'after {letter}, ' if letter else ''}{about} {says[str(finding['kind'])]}"
