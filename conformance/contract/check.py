"""Checks: one requirement each, with what tries it and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradconform.adapter import Capabilities
from gradconform.clause import Clause, Level, paragraphs
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.grad_tuples import described
from gradconform.judge.finding import Judged
from gradconform.judge.pooled import Pooled
from gradconform.naming import Profile
from gradconform.trial.modes import MODES
from gradconform.trial.program import programs_line, shortened
from gradconform.trial.trial import Trial
from gradconform.version import FIRST_VERSION

Judge = Callable[[Evidence], Judged]
#: Says a requirement in its docstring, and returns what judges it.
Said = Callable[[], Judge]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Clause):
    """One requirement of the contract, or on a schedule of somebody's own, with the trials that try it.

    ``catches`` names a mistake that it finds. ``needs`` are the capabilities without which it is ``unsupported``.
    ``pooled`` is how its trials are judged together, where they are. ``seed`` is the row of torch's own suite
    (test_backward.py) that it covers, if any. ``since`` is the first version
    of the contract that has the check, and ``until`` the first that has it no more. ``dtypes`` are those that it says
    something in, none where that is every one.
    """

    profile: Profile
    catches: str
    trials: tuple[Trial, ...]
    judge: Judge
    needs: frozenset[str]
    source: str
    pooled: Pooled | None = None
    seed: str | None = None
    since: str = FIRST_VERSION
    until: str | None = None
    dtypes: tuple[str, ...] = ()

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that its trials run, each once."""
        return tuple(dict.fromkeys(trial.program for trial in self.trials))

    @property
    def tried(self) -> str:
        """The programs, as the first line of a message."""
        return programs_line(self.programs)

    def unmet(self, capabilities: Capabilities) -> list[str]:
        """Return the needs that ``capabilities`` do not claim, sorted."""
        return capabilities.unclaimed(self.needs)


_CHECKS: dict[str, Check] = {}


def family(  # noqa: PLR0913 (what a clause may say beside its sentence)
    topic: str,
    cases: Mapping[str, Trial | tuple[Trial, ...]],
    *,
    level: Level = "MUST",
    profile: Profile = "standard",
    needs: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    pooled: Pooled | None = None,
    seed: str | Mapping[str, str] | None = None,
    said: Mapping[str, str] | None = None,
    since: str = FIRST_VERSION,
    until: str | None = None,
) -> Callable[[Said], Said]:
    """Register one check ``topic.case`` per entry of ``cases``, all judged by what the decorated function returns.

    The function's docstring is the clause: line 1 the requirement (``{stage}``, ``{program}``, ``{case}``,
    ``{grads}`` and ``{modes}`` are filled in, and for ``{said}`` what ``said`` has of the case), then why it matters,
    then a paragraph that starts with ``Catches:``. ``needs`` adds capabilities to those the trials ask for; ``without``
    takes some away, for a check that allows a refusal. ``pooled`` judges the trials together, beside what judges each.
    ``seed`` may be given per case. What is in profile ``quick`` is listed in :mod:`gradconform.contract.areas`.
    ``since`` and ``until`` are versions of the contract: the first that has the checks, and the first without them.
    Raises ``ValueError`` for an id that is taken or a clause without MUST or SHOULD.
    """

    def register(clause: Said) -> Said:
        judge = clause()
        for case, given in cases.items():
            trials = given if isinstance(given, tuple) else (given,)
            asked = frozenset().union(*(trial.needs for trial in trials)) | set(needs)
            requirement, why, catches = _clause(clause, case, trials[0], level, said or {})
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
                source=f"{clause.__module__}:{clause.__qualname__}",
                pooled=pooled,
                seed=seed if seed is None or isinstance(seed, str) else seed.get(case),
                since=since,
                until=until,
            )
            if check.id in _CHECKS:
                msg = f"the check id {check.id!r} is taken; choose another"
                raise ValueError(msg)
            _CHECKS[check.id] = check
        return clause

    return register


def _clause(clause: Said, case: str, trial: Trial, level: Level, said: Mapping[str, str]) -> tuple[str, str, str]:
    """Read requirement, reason and what is caught from a docstring."""
    head, *rest = paragraphs(clause)
    catches = [part.removeprefix("Catches: ") for part in rest if part.startswith("Catches:")]
    why = " ".join(part for part in rest if not part.startswith("Catches:"))
    if level not in head or not why or len(catches) != 1:
        msg = f"{clause.__qualname__}: a clause needs {level} in line 1, a reason, and one paragraph 'Catches: …'"
        raise ValueError(msg)
    words = {
        "stage": f"the stage {trial.stages[0].name} ({_lower(trial.stages[0].special)})",
        "program": shortened(trial.program),
        "case": case.replace("-", " "),
        "grads": described(trial.output_grads),
        "modes": " and ".join(MODES[mode] for mode in sorted(trial.modes)),
        "said": said.get(case, ""),
    }
    return head.format(**words), why, catches[0]


def _lower(words: str) -> str:
    """Let a phrase stand within a sentence: its first word loses its capital, unless it is a name such as MLP."""
    first = words.split(" ", 1)[0]
    return words if any(letter.isupper() or letter.isdigit() for letter in first[1:]) else words[0].lower() + words[1:]


def registered() -> dict[str, Check]:
    """Return all checks registered so far, sorted by id."""
    return dict(sorted(_CHECKS.items()))
