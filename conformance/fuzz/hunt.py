"""The hunt: judges trials, reduces each failing one, and reports each defect once, with a text that reproduces it."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gradconform.adapter import UnsupportedError
from gradconform.diagnosis.cause import Mistake
from gradconform.drive.observation import Raised
from gradconform.drive.oracle import DeviceLostError, OracleError
from gradconform.exits import UsageError
from gradconform.files.records import tupled
from gradconform.fixtures.inputs import Constant, Integers, Mask, Normal, ParameterNamed, SameAs
from gradconform.fixtures.random_stages import Line, Recipe, Weight, recipe_of, stage_of
from gradconform.judge import all_requirements
from gradconform.judge.device_trust import DeviceFaultError
from gradconform.judge.finding import Finding
from gradconform.run.runner import Runner
from gradconform.text.findings import letter_of, named, numberless
from gradconform.trial.program import Action, needs, parse, write
from gradconform.trial.trial import Trial

#: Likely causes that say that something is not there.
_LOST = frozenset({
    Mistake.MISSING, Mistake.ONLY, Mistake.OVERWRITTEN, Mistake.ZERO, Mistake.ELEMENTS_ZERO, Mistake.USES_MISSING,
    Mistake.PATHS_MISSING, Mistake.OUTPUTS_MISSING,
})  # fmt: skip

#: What other likely causes are called; those that are called the same may be one defect.
_NAMED = {
    Mistake.COUNTED_TWICE: "counted twice",
    Mistake.OUTPUTS_COUNTED_TWICE: "counted twice",
    Mistake.ADDED: "running sum",
    Mistake.CONTEXTS_SWAPPED: "swapped",
    Mistake.CONTEXTS_SWAPPED_OR_LATE: "swapped",
    Mistake.OTHER_INPUT: "swapped",
    Mistake.OUTPUT_GRADS_SWAPPED: "swapped",
    Mistake.OTHER_PARAMETER: "mixed up",
    Mistake.OTHER_FORWARD: "mixed up",
    Mistake.TRANSPOSED: "transposed",
    Mistake.ROUNDED: "rounded to {cause.names[0]}",
    Mistake.DIVIDED: "divided by",
    Mistake.SIGN_REVERSED: "sign is reversed",
}

#: What a wrong hook count decides: as in the contract, it is a SHOULD.
_SHOULD = frozenset({"hooks"})


@dataclass(frozen=True, slots=True)
class Defect:
    """The smallest failing trial of one defect, and its findings."""

    key: str
    trial: Trial
    findings: tuple[Finding, ...]

    @property
    def level(self) -> str:
        """MUST, or SHOULD if only the number of hook calls is wrong."""
        return "SHOULD" if self.findings[0].kind in _SHOULD else "MUST"

    def explains(self, key: str, trial: Trial) -> bool:
        """Return whether another failing trial has the same findings and all features that this one needs."""
        if self.findings[0].kind == "error":
            return key == self.key  # what was raised says enough
        return key == self.key and _features(self.trial) <= _features(trial)


def key_of(finding: Finding) -> str:
    """Return a finding's subject without names and numbers: findings with the same subject may be one defect."""
    letter = letter_of(finding.action)
    where = named(finding.sort, finding.where)
    causes = [] if finding.cause is None else list(finding.cause.every)
    if finding.kind == "missing" or (finding.kind == "mismatch" and any(cause.kind in _LOST for cause in causes)):
        return f"a gradient is lost: {where}, after {letter}"
    if finding.kind == "mismatch":
        why = next((_NAMED[cause.kind].format(cause=cause) for cause in causes if cause.kind in _NAMED), None)
        return f"a value is wrong: {where}, after {letter}{f', {why}' if why else ''}"
    raised = "" if finding.raised is None else f", raised {numberless(str(finding.raised))}"
    return f"{finding.kind}: {where}, after {letter or 'the end'}{raised}"


#: Actions that a trial is remembered by, and fields that say which tensors and lists the caller passes.
_SPECIAL = frozenset({"overwrite", "freeze", "zero_none", "zero_fill", "drop", "lose", "evaluate"})
_PASSED = ("same_args", "received", "tracked_grads", "kept_lists", "weights", "upstream")


def size_of(trial: Trial) -> tuple[int, ...]:
    """Return the length of a trial, to choose the smallest of several."""
    recipe = recipe_of(trial.stages[0])
    options = [getattr(trial, name) != default for kinds in _DEFAULTS for name, default in kinds.items()]
    if recipe is None:
        return (0, 0, 0, len(trial.actions), sum(options), 0)
    parts = len(recipe.inputs) + len(recipe.weights) + len(recipe.outputs)
    return (len(recipe.lines), parts, len(trial.actions), sum(options), len(recipe.text), len(recipe.signature))


def _features(trial: Trial) -> frozenset[str]:
    """Return the special features of a trial."""
    actions = {action.kind for action in trial.actions} & _SPECIAL
    options = {f"{name}={getattr(trial, name)}" for name in _PASSED if getattr(trial, name)}
    return frozenset(actions.union(options, *(case.traits for case in trial.stages)))


Judge = Callable[[Trial], list[Finding]]

_DEFAULTS: tuple[dict[str, Any], ...] = (
    *({field.name: field.default} for field in fields(Trial) if field.name in _PASSED),
    {"prior_grads": False},
    {"watch": frozenset()},
    {"loss": False},
    {"output_grads": "normal"},
)

#: How many trials a reduction takes at most.
_MOST = 100


def reduced(defect: Defect, judge: Judge) -> Defect:
    """Return the defect with the smallest trial that results from removing parts."""
    tried = 0
    while tried < _MOST:
        for trial in _smaller(defect.trial):
            tried += 1
            findings = judge(trial)
            if findings and key_of(findings[0]) == defect.key:
                defect = Defect(defect.key, trial, tuple(findings))
                break
        else:
            return defect
    return defect


def _smaller(trial: Trial) -> Iterator[Trial]:
    """Yield trials with one part less and no new requirement."""
    for program in _shorter(trial.actions):
        yield replace(trial, program=write(program))
    for default in _DEFAULTS:
        other = replace(trial, **default)
        if other != trial and other.needs - {"mid_stage"} <= trial.needs:
            yield other


#: Actions that go with their micro-batch.
_OF_MICROBATCHES = frozenset({"F", "B", "I", "W", "drop", "overwrite", "lose", "evaluate"})


def _shorter(actions: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    allowed = needs(actions)
    for mb in sorted({action.mb for action in actions if action.kind == "F"}, reverse=True):
        left = tuple(a for a in actions if a.mb != mb or a.kind not in _OF_MICROBATCHES)
        if any(action.kind == "F" for action in left) and needs(left) <= allowed:
            yield _renumbered(left)
    for place, action in enumerate(actions):
        if action.kind not in {"F", "B", "I", "W", "freeze", "unfreeze"}:
            yield (*actions[:place], *actions[place + 1 :])
        elif action.kind == "freeze":
            yield tuple(a for a in actions if (a.kind, a.mb) not in {("freeze", action.mb), ("unfreeze", action.mb)})


def _renumbered(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the actions with their micro-batches numbered from 0 again, in the order of their forwards."""
    order = [action.mb for action in actions if action.kind == "F"]
    of_stage = {"freeze", "unfreeze"}
    return tuple(a if a.kind in of_stage or a.mb not in order else replace(a, mb=order.index(a.mb)) for a in actions)


#: How many trials the shrinking of one defect takes at most.
_SHRINKING = 250


class DefectError(AssertionError):
    """A trial fails in the way that hypothesis is shrinking."""


class Hunt:
    """The trials on one target, and the found defects."""

    def __init__(self, runner: Runner, *, deadline: float | None = None) -> None:
        """Judge through ``runner``; after ``deadline`` (of ``time.monotonic``), no trial is started."""
        self.runner, self.deadline = runner, deadline
        self.trials = self.failing = self.unjudged = 0
        self.defects: list[Defect] = []
        self._found: Defect | None = None
        self._left = 0
        self.examples = 0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def attempt(self, trial: Trial) -> None:
        """Judge one trial; raise :class:`DefectError` if it shows an unknown defect."""
        if self.over or (self._found is not None and self._left == 0):
            return
        self.examples += self._found is None
        self._left -= self._found is not None
        findings = self.judge(trial)
        if not findings:
            return
        self.failing += 1
        key = key_of(findings[0])
        if any(defect.explains(key, trial) for defect in self.defects):
            return
        if self._found is None:
            self._left = _SHRINKING
        elif key != self._found.key:
            return  # another defect, met on the way: it will be found again
        if self._found is None or size_of(trial) < size_of(self._found.trial):
            self._found = Defect(key, trial, tuple(findings))
        raise DefectError(key)

    def judge(self, trial: Trial) -> list[Finding]:
        """Return the findings of a trial; a refused trial that is claimed has one finding."""
        self.trials += 1
        try:
            return self.runner.findings(trial, all_requirements)
        except (OracleError, DeviceFaultError, DeviceLostError):  # of the implementation nothing is known
            self.unjudged += 1
            return []
        except UnsupportedError as error:
            return [Finding("error", "the session", "", f"refused, although claimed: {error}", raised=Raised.of(error))]

    def reduce_found(self) -> Defect | None:
        """Reduce the new failures, add them to the known defects, and return them."""
        if self._found is None:
            return None
        found = reduced(self._found, self.judge)
        self._found = None
        self.defects.append(found)
        return found


_INPUTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Normal, Integers, Mask, Constant, SameAs, ParameterNamed)
}

#: The fields of a trial that a blob holds, where they are not the default.
_OPTIONS = ("loss", "output_grads", "prior_grads", *_PASSED)


class BlobError(UsageError):
    """A text that is not a blob."""


def to_blob(trial: Trial) -> str:
    """Return a random trial of one stage as text; raise ``ValueError`` if the stage has no recipe."""
    recipe = recipe_of(trial.stages[0])
    if recipe is None:
        msg = f"the stage {trial.stages[0].name!r} has no recipe; expected a random stage"
        raise ValueError(msg)
    values = {
        "options": {name: getattr(trial, name) for name in _OPTIONS if getattr(trial, name)},
        "program": trial.program,
        "watch": sorted(trial.watch),
        "inputs": [[type(one).__name__, asdict(one)] for one in recipe.inputs],
        "weights": [[weight.name, weight.shape, weight.frozen] for weight in recipe.weights],
        "lines": [[line.targets, line.operation, line.sources] for line in recipe.lines],
        "outputs": recipe.outputs,
        "form": recipe.form,
    }
    packed = zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode()


def from_blob(text: str) -> Trial:
    """Return the trial that :func:`to_blob` wrote; raise :class:`BlobError` for any other text."""
    try:
        values = tupled(json.loads(zlib.decompress(base64.urlsafe_b64decode(text.strip()))))
        recipe = Recipe(
            tuple(_INPUTS[name](**fields) for name, fields in values["inputs"]),
            tuple(Weight(name, shape, frozen) for name, shape, frozen in values["weights"]),
            tuple(Line(targets, operation, sources) for targets, operation, sources in values["lines"]),
            values["outputs"],
            values["form"],
        )
        parse(values["program"])
        watch, options = frozenset(values["watch"]), values["options"]
        return Trial(stages=(stage_of(recipe),), program=values["program"], watch=watch, **options)
    except (ValueError, zlib.error, LookupError, TypeError, AttributeError) as error:
        msg = f"--reproduce: expected a whole BLOB that 'gradconform fuzz' printed, got {text[:40]!r} ({error})"
        raise BlobError(msg) from error
