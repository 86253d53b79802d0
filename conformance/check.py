"""Checks: one requirement each, with what tries it and how it is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gradconform.adapter import Capabilities
from gradconform.defaults import Profile
from gradconform.evidence import Evidence
from gradconform.fixtures.grad_tuples import described
from gradconform.judge.finding import Finding
from gradconform.program import shortened
from gradconform.trial import Trial

Level = Literal["MUST", "SHOULD"]
Judge = Callable[[Evidence], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement.

    ``requirement`` is a sentence with MUST or SHOULD; ``why`` says what goes wrong in practice without it; ``catches``
    names a mistake that it finds. ``needs`` are the capabilities without which it is ``unsupported``. ``seed`` is the
    row of torch's own suite (test_backward.py) that it covers, if any.
    """

    id: str
    level: Level
    profile: Profile
    requirement: str
    why: str
    catches: str
    trials: tuple[Trial, ...]
    judge: Judge
    needs: frozenset[str]
    source: str
    seed: str | None = None

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    def unmet(self, capabilities: Capabilities) -> list[str]:
        """Return the needs that ``capabilities`` do not claim, sorted."""
        return unclaimed(self.needs, capabilities)


def unclaimed(needs: Iterable[str], capabilities: Capabilities) -> list[str]:
    """Return those of ``needs`` that ``capabilities`` do not claim, sorted."""
    return sorted(need for need in needs if not _claimed(need, capabilities))


def _claimed(need: str, capabilities: Capabilities) -> bool:
    """Tell whether a need is claimed: ``name``, ``name=value`` or ``name!=value``."""
    name, operator, value = _parts(need)
    claim = getattr(capabilities, name)
    return bool(claim) if not operator else (str(claim) == value) == (operator == "=")


@lru_cache(maxsize=256)
def _parts(need: str) -> tuple[str, str, str]:
    name, operator, value = need.partition("!=") if "!=" in need else need.partition("=")
    return name, operator, value


_CHECKS: dict[str, Check] = {}


def family(  # noqa: PLR0913 (what a clause may say beside its sentence)
    topic: str,
    cases: Mapping[str, Trial | tuple[Trial, ...]],
    *,
    level: Level = "MUST",
    profile: Profile = "standard",
    needs: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    seed: str | Mapping[str, str] | None = None,
) -> Callable[[Judge], Judge]:
    """Register one check ``topic.case`` per entry of ``cases``, all judged by the decorated function.

    The function's docstring is the clause: line 1 the requirement (``{stage}``, ``{program}``, ``{case}`` and
    ``{grads}`` are filled in), then why it matters, then a paragraph that starts with ``Catches:``. ``needs`` adds
    capabilities to those the trials ask for; ``without`` takes some away, for a check that allows a refusal.
    ``seed`` may be given per case. What is in profile ``quick`` is listed in :mod:`gradconform.contract.quick`.
    Raises ``ValueError`` for an id that is taken or a clause without MUST or SHOULD.
    """

    def register(judge: Judge) -> Judge:
        for case, given in cases.items():
            trials = given if isinstance(given, tuple) else (given,)
            asked = frozenset().union(*(trial.needs for trial in trials)) | set(needs)
            requirement, why, catches = _clause(judge, case, trials[0], level)
            check = Check(
                id=f"{topic}.{case}",
                level=level,
                profile=profile,
                requirement=requirement,
                why=why,
                catches=catches,
                trials=trials,
                judge=judge,
                needs=asked - set(without),
                source=f"{judge.__module__}:{judge.__qualname__}",
                seed=seed if seed is None or isinstance(seed, str) else seed.get(case),
            )
            if check.id in _CHECKS:
                msg = f"the check id {check.id!r} is taken; choose another"
                raise ValueError(msg)
            _CHECKS[check.id] = check
        return judge

    return register


def _clause(judge: Judge, case: str, trial: Trial, level: Level) -> tuple[str, str, str]:
    """Read requirement, reason and what is caught from a docstring."""
    head, *rest = (inspect.getdoc(judge) or "").split("\n\n")
    catches = [" ".join(part.removeprefix("Catches:").split()) for part in rest if part.startswith("Catches:")]
    why = " ".join(" ".join(part.split()) for part in rest if not part.startswith("Catches:"))
    if level not in head or not why or len(catches) != 1:
        msg = f"{judge.__qualname__}: a clause needs {level} in line 1, a reason, and one paragraph 'Catches: …'"
        raise ValueError(msg)
    words = {
        "stage": f"the stage {trial.stages[0].name} ({_lower(trial.stages[0].special)})",
        "program": shortened(trial.program),
        "case": case.replace("-", " "),
        "grads": described(trial.output_grads),
    }
    return " ".join(head.split()).format(**words), why, catches[0]


def _lower(words: str) -> str:
    """Let a phrase stand within a sentence: its first word loses its capital, unless it is a name such as MLP."""
    first = words.split(" ", 1)[0]
    return words if any(letter.isupper() or letter.isdigit() for letter in first[1:]) else words[0].lower() + words[1:]


def registered() -> dict[str, Check]:
    """Return all checks registered so far, sorted by id."""
    return dict(sorted(_CHECKS.items()))
