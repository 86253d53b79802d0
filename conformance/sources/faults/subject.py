"""The contract's results on the subjects of a self-test: faults and right variants, judged in a worker."""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gradconform.contract import checks_of
from gradconform.contract.plan import make_plan
from gradconform.devices.choice import DeviceChoice
from gradconform.drive.reference64 import OracleCache
from gradconform.files.records import as_json
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

from .outcome import Outcome, Role

if TYPE_CHECKING:
    from gradconform.reference.faults import Fault

#: Kinds of findings that are about a wrong value or a missing one, for which a cause can be computed.
VALUES = frozenset({"mismatch", "nonfinite", "missing"})

#: How many of the failed checks that a fault names are run again for a cause.
_DIAGNOSED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestOptions:
    """The options of a self-test: the place, the part of the contract, and the catalogues (``module:attribute``).

    ``choice`` is the probe result of ``device`` and ``dtype``, so that workers need not probe again. ``whole``: every
    fault runs all checks in the order of a run, not only those that name it and those that nothing else has failed.
    ``exitfirst``: a whole run of a fault ends at its first failed MUST, which decides against it.
    """

    device: str = "cpu"
    dtype: str = "float32"
    profile: str = "standard"
    faults: str = "gradconform.reference.faults:FAULTS"
    variants: str = "gradconform.reference.variants:VARIANTS"
    choice: DeviceChoice | None = None
    whole: bool = False
    exitfirst: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        """The ids of the checks of the profile."""
        return _checks_in(self.profile)

    def catalogue(self, role: Role) -> dict[str, Any]:
        """Return the faults or the variants by name."""
        module, _, attribute = (self.faults if role == "fault" else self.variants).partition(":")
        found: dict[str, Any] = getattr(importlib.import_module(module), attribute)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values, for another process."""
        return as_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SelftestOptions:
        """Return the options that :meth:`to_dict` wrote."""
        choice = values["choice"]
        return cls(**{**values, "choice": None if choice is None else DeviceChoice.from_dict(choice)})


@lru_cache
def _checks_in(profile: str) -> tuple[str, ...]:
    return tuple(item.check.id for item in make_plan(checks_of(), profile=profile).items)


Subject = tuple[Role, str]


def judge(options: SelftestOptions, subject: Subject, oracles: OracleCache) -> Outcome:
    """Run the contract on one subject: all of it for a right variant, the naming checks for a fault.

    A fault that no check of the profile names runs all of it too.
    """
    started = time.process_time()
    role, name = subject
    made = options.catalogue(role)[name]
    selected = [] if role == "variant" or options.whole else _named(options, made)
    report = _report(options, made.make() if role == "fault" else made(), oracles, selected)
    outcome = Outcome.of(role, name, report.results, made if role == "fault" else None, whole=options.whole)
    if role == "fault" and not options.exitfirst:
        outcome = replace(outcome, **_causes(options, made, outcome, report, oracles))
    return replace(outcome, seconds=time.process_time() - started)


def _named(options: SelftestOptions, fault: Fault) -> list[str]:
    return [check for check in options.checks if fault.names(check)]


def hold(options: SelftestOptions, outcome: Outcome, checks: Sequence[str], oracles: OracleCache) -> Outcome:
    """Return the outcome of a fault, with the ``checks`` that it fails too."""
    started = time.process_time()
    report = _report(options, options.catalogue("fault")[outcome.name].make(), oracles, list(checks))
    failed = (result.check for result in report if result.status == "failed")
    seconds = outcome.seconds + time.process_time() - started
    return replace(outcome, failed=(*outcome.failed, *failed), seconds=seconds)


def _report(
    options: SelftestOptions, target: object, oracles: OracleCache, checks: list[str], *, diagnose: bool = False
) -> Report:
    """Run ``checks``, or all if none is named."""
    given = {"device": options.device, "dtype": options.dtype, "profile": options.profile, "checks": checks or None}
    run = Run(RunOptions.of(target, **given), choice=options.choice, diagnose=diagnose, oracles=oracles, guarded=False)
    run.explains = diagnose  # single mistakes are causes as well; the matrix itself has no place for them
    return _until_first_failure(run) if options.exitfirst else run.run()


def _until_first_failure(run: Run) -> Report:
    """Run the plan until a result decides against the target; the checks of quick first, which fail most faults."""
    decisive: list[Result] = []

    def take(result: Result) -> None:
        if result.decisive and not result.spares_target:
            decisive.append(result)

    ordered = sorted(run.plan.items, key=lambda item: item.check.profile != "quick")
    return run.run(take, places=itertools.takewhile(lambda _: not decisive, (item.place for item in ordered)))


def _causes(
    options: SelftestOptions, fault: Fault, outcome: Outcome, report: Report, oracles: OracleCache
) -> dict[str, Any]:
    """Find the cause of a wrong value in the checks that name the fault, and compare it with the catalogue's."""
    named = [result for result in report if result.check in outcome.named and result.status == "failed"]
    wrong = [result.check for result in named if any(finding["kind"] in VALUES for finding in result.findings)]
    if not wrong:
        return {}
    diagnosed = _report(options, fault.make(), oracles, wrong[:_DIAGNOSED], diagnose=True)
    return {"value": True, **reported_cause(diagnosed, fault)}


def reported_cause(report: Report, fault: Fault) -> dict[str, Any]:
    """Return the first cause in a report (``cause``), and whether it has one of the fault's (``as_expected``)."""
    causes = [finding["cause"] for result in report for finding in result.findings if finding["cause"]]
    causes += [one["mistake"] for result in report for one in result.undone]
    as_expected = any(_is(cause, wanted) for cause in causes for wanted in fault.causes)
    return {"said": as_expected, "cause": causes[0]["text"] if causes else None}


def _is(cause: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a cause, one of its parts or its explanation is ``wanted``."""
    inner = [*cause.get("causes", ()), *([cause["why"]] if "why" in cause else [])]
    return all(map(_agrees, wanted, wanted.values(), map(cause.get, wanted))) or any(_is(one, wanted) for one in inner)


def _agrees(field: str, wanted: Any, found: Any) -> bool:
    """Return whether a field has the wanted value; computed factors may differ by a few hundredths."""
    if field != "factors" or found is None:
        return bool(found == wanted)
    return len(found) == len(wanted) and all(
        math.isclose(*pair, rel_tol=0.05) for pair in zip(found, wanted, strict=True)
    )
