"""Failures grouped by cause: one defect fails many checks, and readers look for the defects.

The module first groups results by their findings, then finds single mistakes that explain several of these causes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.results import Result
from gradconform.text.counts import count
from gradconform.text.findings import alike, letter_of, named, needed, numberless

#: Words for a kind of finding on a tensor, used if the finding's own text has only numbers.
_OF_TENSORS = {
    "mismatch": "has a wrong value",
    "nonfinite": "has NaN or inf where plain autograd has none, or the reverse",
    "missing": "is None (plain autograd: a tensor)",
    "unexpected": "is a tensor (plain autograd: None)",
    "unknown_name": "has a name that this rank does not have",
    "requires_grad": "requires a gradient itself (plain autograd: no)",
    "shape": "has a wrong shape",
    "dtype": "has a wrong dtype",
    "device": "is on a wrong device",
    "layout": "has a wrong layout",
    "race": "is still being written by another stream",
}

#: Kinds that may be of a whole, such as the losses, instead of one tensor; their text then says what is missing.
_OF_WHOLES = {"missing", "unexpected", "shape"}

#: Words for any other kind of finding, used if the results of a cause use different words.
_IN_GENERAL = {
    "error": "raised",
    "no_error": "raised no error; expected one",
    "changed": "changed",
    "shared": "shares storage",
    "alive": "keeps tensors alive",
    "hooks": "has hooks that were not called as under plain autograd",
    "not_repeatable": "differs between runs",
}


#: Areas with generated stages and programs: random, or planned to cover all pairs of values.
_DRAWN = {"property", "space"}


@dataclass(frozen=True, slots=True)
class Gone:
    """The number of other causes that disappear with a cause, and of the checks that show them.

    ``checks`` counts checks at the cause's own level. ``should`` counts those that fail a SHOULD, if the cause is at
    another level.
    """

    causes: int
    checks: int
    should: int = 0

    def __str__(self) -> str:
        """Return the counts as a sentence."""
        causes = count(self.causes, "other cause") if self.causes else "parts of other causes"
        of = [count(self.checks, "check")] if self.checks else []
        of += [count(self.should, "SHOULD check")] if self.should else []
        shown = f" ({' and '.join(of)})" if of else ""
        return f"fixing this probably also fixes {causes}{shown}"


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Results that share the kind of finding, the sort of tensor, the action and the reason.

    Each result holds only these findings; its other findings are in other causes. ``likely`` and ``needs`` are empty if
    unknown. If ``gone`` is set, the cause is a single mistake that explains other causes too. It then holds their
    results, and ``likely`` names the mistake.
    """

    symptom: str
    results: tuple[Result, ...]
    likely: str = ""
    needs: str = ""
    gone: Gone | None = None

    @property
    def text(self) -> str:
        """Return the cause, likely reason and required features as one line."""
        why = f"; likely cause: {self.likely}" if self.likely else ""
        needs = f"; only with: {self.needs}" if self.needs else ""
        return f"{self.symptom}{why}{needs}{f'; {self.gone}' if self.gone else ''}"

    @property
    def checks(self) -> dict[str, list[Result]]:
        """Return the results by check id; a check may fail on several devices and in several dtypes."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.check, []).append(result)
        return found

    @property
    def by_size(self) -> list[Result]:
        """Return the results sorted by program length, stage size, then id.

        Results on generated stages and programs come last.
        """
        return sorted(self.results, key=_size)

    @property
    def smallest(self) -> Result:
        """Return the first of :attr:`by_size`."""
        return smallest_of(self.results)


def _size(result: Result) -> tuple[bool, float, int, str]:
    """Return a sort key: random or planned, program length, requirement length, then name.

    The length is infinite if the result names no program. The requirement names the stage and its special feature.
    """
    actions = sum(len(program.split()) for program in result.programs)
    drawn = result.check.partition(".")[0] in _DRAWN
    return (drawn, actions or math.inf, len(result.requirement), result.place.name)


def smallest_of(results: Iterable[Result]) -> Result:
    """Return the result that is quickest to read; see :attr:`FailureGroup.by_size`."""
    return min(results, key=_size)


def by_cause(results: Iterable[Result]) -> list[FailureGroup]:
    """Return the results grouped by cause, most checks first; a result is in the group of each of its findings.

    A cause with one text is one group, whether it shows after B, I or W.
    """
    results = list(results)
    causes = [cause_of(group) for group in groups(results, _joined(groups(results))).values()]
    return sorted(causes, key=lambda group: (-len(group.checks), group.results[0].check))


#: The common values of findings, as :func:`gradconform.text.findings.alike` returns them.
_Key = tuple[str, ...]


def groups(results: Iterable[Result], joined: Mapping[_Key, _Key] | None = None) -> dict[_Key, list[Result]]:
    """Return the results by their common findings; each result holds only these findings.

    Keys in ``joined`` are replaced, so that several of them are one group.
    """
    found: dict[_Key, list[Result]] = {}
    for result in results:
        for key, part in _parts(result, joined or {}).items():
            found.setdefault(key, []).append(part)
    return found


def _joined(found: Mapping[_Key, Sequence[Result]]) -> dict[_Key, _Key]:
    """Return another key for each group whose causes have one text: the same for every letter of a backward.

    If some of the texts end with a reason of their own, it does not count.
    """
    keys: dict[_Key, _Key] = {}
    for key, group in found.items():
        causes = [finding["cause"] for result in group for finding in result.findings]
        if key[0] == "message" or not all(causes):
            continue
        texts = {str(cause["text"]) for cause in causes}
        texts = texts if len(texts) == 1 else set(map(_unexplained, causes))
        if len(texts) == 1:
            keys[key] = (*key[:2], *key[3:], *texts)
    return keys


def _parts(result: Result, joined: Mapping[_Key, _Key]) -> dict[_Key, Result]:
    """Return the result once per cause, with the findings of that cause alone."""
    if _has_message_alone(result):
        return {("message", numberless(cause(result))): result}
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for finding in result.findings:
        key = alike(finding)
        found.setdefault(joined.get(key, key), []).append(finding)
    return {key: result.of_findings(findings) for key, findings in found.items()}


def cause_of(group: list[Result]) -> FailureGroup:
    """Return the cause of results that share a finding."""
    findings = [finding for result in group for finding in result.findings]
    return FailureGroup(_symptom(group, findings), tuple(group), _likely(group, findings), needed(findings))


def _symptom(group: list[Result], findings: list[Mapping[str, Any]]) -> str:
    """Return the text that all results of a cause share, or that of the smallest one, or general words.

    The smallest one's is taken if the texts differ only in their numbers.
    """
    letters = " or ".join(sorted({letter_of(str(finding["action"])) for finding in findings}))
    texts = {cause(result, letters) for result in group}
    if len(texts) > 1 and len(set(map(numberless, texts))) == 1:
        return f"{cause(smallest_of(group), letters)}, or alike"
    return texts.pop() if len(texts) == 1 else _of(findings[0], _OF_TENSORS | _IN_GENERAL, letters)


def _likely(group: list[Result], findings: list[Mapping[str, Any]]) -> str:
    """Return the common likely cause, without its own reason if those differ, or else that of the smallest result.

    Causes that differ in their numbers differ: "scaled by n" would name none of them. It is empty for a message alone,
    which contains its cause.
    """
    causes = [finding["cause"] for finding in findings if finding["cause"]]
    if not causes or _has_message_alone(group[0]):
        return ""
    for texts in ({str(cause["text"]) for cause in causes}, set(map(_unexplained, causes))):
        if len(texts) == 1:
            return texts.pop()
    return f"{likely(smallest_of(group))}, or alike"


def _unexplained(cause: Mapping[str, Any]) -> str:
    """Return the sentence of a cause without its own reason."""
    text, why = str(cause["text"]), cause.get("why")
    return text.removesuffix(f": {why['text']}") if why else text


def _has_message_alone(result: Result) -> bool:
    return not result.findings or (result.kind == "device" and result.status == "error")


def cause(result: Result, letters: str | None = None) -> str:
    """Return the first finding of ``result`` as one line without the tensor's name.

    ``letters`` are the actions after which other results of its cause were found.
    """
    if _has_message_alone(result):
        lines = [line for line in result.message.splitlines() if line.strip()] or ["no message"]
        # The last line of a traceback names the exception; the first line of any other message names the problem.
        return lines[-1].strip() if result.kind == "kit" else lines[0].strip()
    first = result.findings[0]
    kind, text = str(first["kind"]), str(first["text"])
    letter = letters or letter_of(str(first["action"]))
    if kind == "error":
        if first["raised"] is None:
            return f"{letter} {text}"
        return f"{letter if first['where'] == 'the action' else first['where']} raised {first['raised']}"
    symptom = text.partition(": ")[0]
    if kind in _OF_WHOLES and first["sort"] == "thing":
        return f"{f'after {letter}, ' if letter else ''}{first['where']}: {symptom}"
    if kind in _OF_TENSORS:
        return _of(first, _OF_TENSORS, letter)
    return (
        f"{f'after {letter}, ' if letter else ''}{symptom}" if kind == "hooks" else _of(first, {kind: symptom}, letter)
    )


def likely(result: Result) -> str:
    """Return the first likely cause for the findings of ``result``; empty if none is known."""
    return next((str(finding["cause"]["text"]) for finding in result.findings if finding["cause"]), "")


def _of(finding: Mapping[str, Any], texts: Mapping[str, str], letter: str) -> str:
    """Return the text of a finding's kind with the action's letter and the sort of tensor."""
    about = named(str(finding["sort"]), str(finding["where"]))
    return f"{f'after {letter}, ' if letter else ''}{about} {texts[str(finding['kind'])]}"
