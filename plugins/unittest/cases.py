"""A ``unittest`` class with one test per check, and subtests for several devices or dtypes."""

from __future__ import annotations

import re
import sys
import unittest
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from gradconform.contract.plan import Item
from gradconform.report.check_failure import CheckFailedError, full_text, not_decisive, waived_because
from gradconform.report.sentences import verdict
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.text.escaping import for_terminal

#: unittest leaves frames of such modules out of what it shows of a failure.
__unittest = True


class CheckNotJudgedError(RuntimeError):
    """A check could not be judged: the adapter, the device, the environment or the kit is at fault, not the target."""


class Conformance(unittest.TestCase):
    """The base of the created classes: each has a run, and a report of its results so far."""

    run_of_checks: ClassVar[Run]
    report: ClassVar[Report]

    @classmethod
    def setUpClass(cls) -> None:
        """Start a report."""
        super().setUpClass()
        cls.report = cls.run_of_checks.empty_report()

    @classmethod
    def tearDownClass(cls) -> None:
        """Print the verdict on the target with the skipped parts; raise if this process cannot be trusted."""
        super().tearDownClass()
        guard = cls.run_of_checks.guard
        problem = guard.look() if guard is not None and cls.report.results else None
        if problem is not None:
            raise CheckNotJudgedError(for_terminal(f"the results of this process do not count: {problem}"))
        sys.stderr.write(f"\n{for_terminal(verdict(cls.report))}\n")

    def judge(self, item: Item) -> None:
        """Run one item of the plan and turn its result into the outcome of this test or subtest.

        A failure without influence on the verdict, and a waived one, are skips with a reason.
        """
        result = self.run_of_checks.run_item(item)
        type(self).report.results.append(result)
        strict = self.run_of_checks.options.strict
        if result.status == "unsupported":
            self.skipTest(for_terminal(result.message))
        if result.status == "waived":
            self.skipTest(waived_because(result))
        if result.status == "failed" and not (result.decisive or strict):
            self.skipTest(f"a SHOULD that failed: {not_decisive(result)}")
        if result.status in {"failed", "error"}:
            raise _error_of(result)(full_text(result, str(self.run_of_checks.target.text)))


def _error_of(result: Result) -> type[Exception]:
    return CheckFailedError if result.status == "failed" else CheckNotJudgedError


def conformance_case(target: object, **options: Any) -> type[Conformance]:
    """Return a class with one test per check of the contract on ``target``; assign it in a test module.

    ``options`` are those of :func:`gradconform.check_stage_backward`; invalid ones raise the same errors at once. ::

        import unittest
        from gradconform.plugins.unittest import conformance_case

        TestStageBackward = conformance_case("mylib.backward", profile="quick")
    """
    run = Run(RunOptions.of(target, **options))
    by_check: dict[str, list[Item]] = {}
    for item in run.plan.items:
        by_check.setdefault(item.check.id, []).append(item)
    tests = {check: (several, several[0].check.requirement) for check, several in by_check.items()}
    made = class_of(
        "Conformance", run, {name: _test(items, requirement) for name, (items, requirement) in tests.items()}
    )
    made.__module__ = sys._getframe(1).f_globals.get("__name__", made.__module__)  # noqa: SLF001 (as namedtuple does)
    return made


def class_of(name: str, run: Run, tests: Mapping[str, Callable[[Conformance], None]]) -> type[Conformance]:
    """Return a class of a run; ``tests`` have ids, from which it derives method names."""
    made = dict(zip(_methods(tests), tests.values(), strict=True))
    types = run.choice.types
    given = {"run_of_checks": run, "device_type": types[0], "__doc__": f"The contract, on {run.target.text}."}
    return type(name, (Conformance,), {**given, **made})


def _test(items: Iterable[Item], requirement: str) -> Callable[[Conformance], None]:
    several = tuple(items)

    def test(self: Conformance) -> None:
        if len(several) == 1:
            self.judge(several[0])
            return
        for item in several:
            with self.subTest(device=item.device, dtype=item.dtype):
                self.judge(item)

    test.__doc__ = requirement
    return test


def test_of(item: Item) -> Callable[[Conformance], None]:
    """Return the test of one item."""
    return _test([item], item.check.requirement)


def _methods(names: Iterable[str]) -> list[str]:
    """Return a unique method name for each id."""
    found: dict[str, None] = {}
    for name in names:
        method = "test_" + re.sub(r"\W", "_", name)
        numbered = (f"{method}_{number}" for number in range(2, len(found) + 3))
        found[method if method not in found else next(one for one in numbered if one not in found)] = None
    return list(found)
