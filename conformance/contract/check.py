"""Checks: one requirement each, with its trials and its judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter

from gradconform.adapter import Capabilities
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.grad_tuples import described
from gradconform.judge.all_trials import Pooled
from gradconform.judge.finding import Judged
from gradconform.requirements.clause import Clause, Level, paragraphs
from gradconform.trial.modes import MODES
from gradconform.trial.program import PARAMETER_CHANGE_OF, programs_line, shortened
from gradconform.trial.trial import Trial
from gradconform.user_input.values import Profile
from gradconform.version import FIRST_VERSION

Judge = Callable[[Evidence], Judged]
#: Has a requirement as its docstring, and returns its judge.
ClauseFunction = Callable[[], Judge]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Clause):
    """One requirement of the contract, or on a user's own schedule, with the trials that try it.

    ``catches`` names mistakes that the check finds. Without the capabilities in ``needs`` it is ``unsupported``.
    ``template`` is the requirement as its family shares it, and ``filled`` has the text of each placeholder in it.
    ``pooled`` judges the trials together, if it is set. ``seed`` is the row of torch's own suite (test_backward.py)
    that the check covers, if any. ``since`` is the first version of the contract with the check, and ``until`` the
    first version without it. ``dtypes`` are those that the check applies to; an empty tuple means every dtype.
    ``judges`` is what the check judges in place of the target, empty if it judges the target. One that is ``off_cpu``
    compares a device with the CPU, so it does not run on the CPU; one that is ``cpu_only`` says nothing new elsewhere.
    """

    profile: Profile
    catches: str
    trials: tuple[Trial, ...]
    judge: Judge
    needs: frozenset[str]
    source: str
    template: str = ""
    filled: Mapping[str, str] = field(default_factory=dict)
    pooled: Pooled | None = None
    seed: str | None = None
    since: str = FIRST_VERSION
    until: str | None = None
    dtypes: tuple[str, ...] = ()
    judges: str = ""
    off_cpu: bool = False
    cpu_only: bool = False

    def runs_on(self, device: str, dtype: str) -> bool:
        """Return whether the check runs on a device, by its name, and in a dtype."""
        elsewhere = self.off_cpu if device.partition(":")[0] == "cpu" else self.cpu_only
        return not elsewhere and (not self.dtypes or dtype in self.dtypes)

    @property
    def area(self) -> str:
        """Return the first part of the id."""
        return self.id.partition(".")[0]

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the programs that its trials run, each once."""
        return tuple(dict.fromkeys(trial.program for trial in self.trials))

    @property
    def tried(self) -> str:
        """Return the programs, as the first line of a message."""
        return programs_line(self.programs)

    def unmet(self, capabilities: Capabilities) -> list[str]:
        """Return the needs that ``capabilities`` do not claim, sorted."""
        claimed = capabilities.changed_params
        some = claimed and not isinstance(claimed, bool) and "changed_params" in self.needs
        return capabilities.unclaimed(self.needs | self._changes if some else self.needs)

    @property
    def _changes(self) -> frozenset[str]:
        """Return the changes of parameters in its programs, as needs: an adapter may claim only some of them."""
        return frozenset(
            f"changed_params={PARAMETER_CHANGE_OF[action.kind]}"
            for trial in self.trials
            for action in trial.actions
            if action.kind in PARAMETER_CHANGE_OF
        )


_CHECKS: dict[str, Check] = {}


def family(  # noqa: PLR0913 (a clause's optional parts)
    topic: str,
    cases: Mapping[str, Trial | tuple[Trial, ...]],
    *,
    level: Level = "MUST",
    profile: Profile = "standard",
    needs: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    pooled: Pooled | None = None,
    seed: str | Mapping[str, str] | None = None,
    phrases: Mapping[str, str] | None = None,
    since: str = FIRST_VERSION,
    until: str | None = None,
) -> Callable[[ClauseFunction], ClauseFunction]:
    """Register one check ``topic.case`` per entry of ``cases``, all with the judge that the function returns.

    The function's docstring is the clause. Its first line is the requirement: the text of the case replaces
    ``{stage}``, ``{program}``, ``{case}``, ``{grads}``, ``{modes}`` and ``{phrase}`` (from ``phrases``). Then come one
    sentence on why the requirement matters and a paragraph that starts with ``Catches:``.
    ``needs`` adds capabilities to those of the trials; ``without`` removes some, for a check that allows a refusal.
    ``pooled`` judges the trials together, after the judge of each trial. ``seed`` is one text, or a text per case.
    :mod:`gradconform.contract.areas` lists the checks of profile ``quick``.
    ``since`` and ``until`` are versions of the contract: the first with the checks, and the first without them.
    Raises ``ValueError`` for an id that is taken or a clause without MUST or SHOULD.
    """

    def register(clause: ClauseFunction) -> ClauseFunction:
        judge = clause()
        for case, given in cases.items():
            trials = given if isinstance(given, tuple) else (given,)
            all_needs = frozenset().union(*(trial.needs for trial in trials)) | set(needs)
            template, why, catches = _clause(clause, level)
            filled = _filled(template, case, trials[0], (phrases or {}).get(case, ""))
            check = Check(
                id=f"{topic}.{case}",
                level=level,
                profile=profile,
                requirement=template.format_map(filled),
                why=why,
                catches=catches,
                template=template,
                filled=filled,
                trials=trials,
                judge=judge,
                needs=all_needs - set(without),
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


def _clause(clause: ClauseFunction, level: Level) -> tuple[str, str, str]:
    """Return the requirement, the reason and the mistakes that are found, from a docstring."""
    head, *rest = paragraphs(clause)
    catches = [part.removeprefix("Catches: ") for part in rest if part.startswith("Catches:")]
    why = " ".join(part for part in rest if not part.startswith("Catches:"))
    if level not in head or not why or len(catches) != 1:
        msg = f"{clause.__qualname__}: a clause needs {level} in line 1, a reason, and one paragraph 'Catches: …'"
        raise ValueError(msg)
    return head, why, catches[0]


def _filled(template: str, case: str, trial: Trial, phrase: str) -> dict[str, str]:
    """Return the text of each placeholder in ``template``, in order of appearance."""
    words = {
        "stage": f"stage {trial.stages[0].name} ({lower_first(trial.stages[0].special)})",
        "program": shortened(trial.program),
        "case": case.replace("-", " "),
        "grads": described(trial.output_grads),
        "modes": "; ".join(MODES[mode] for mode in sorted(trial.modes)),
        "phrase": phrase,
    }
    return {name: words[name] for _, name, _, _ in Formatter().parse(template) if name is not None}


def lower_first(words: str) -> str:
    """Return a phrase for the middle of a sentence: a first word such as MLP keeps its capital."""
    first = words.split(" ", 1)[0]
    return words if any(letter.isupper() or letter.isdigit() for letter in first[1:]) else words[0].lower() + words[1:]


def registered() -> dict[str, Check]:
    """Return all checks registered so far, sorted by id."""
    return dict(sorted(_CHECKS.items()))
