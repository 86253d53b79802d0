"""The contract as pytest items: one per check, device and dtype, under one collector."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.plugins.bound_check import BoundCheck, CheckFailedError, properties, waived_because

if TYPE_CHECKING:
    from gradconform.plugins.contract_run import ContractRun

#: What node ids of the contract start with, e.g. ``gradconform::full.gradients.mlp[cpu-float32]``.
COLLECTOR = "gradconform"


class ContractCollector(pytest.Collector):
    """Collects the items of runs; ``names`` narrows to the items that the command line names by node id."""

    def __init__(self, *, runs: Sequence[ContractRun], names: Sequence[str], **node: Any) -> None:
        super().__init__(name=COLLECTOR, nodeid=COLLECTOR, **node)
        self._runs, self._names = runs, names

    def collect(self) -> Iterator[CheckItem]:
        """Yield one item per check, device and dtype, in the order of the plan."""
        for run in self._runs:
            for position, item in enumerate(run.items):
                if not self._names or item.name in self._names:
                    # pytest 9 tells the parameters in an id apart by reading it, so it has to be written out.
                    node = f"{COLLECTOR}::{item.name}"
                    yield CheckItem.from_parent(self, name=item.name, nodeid=node, bound=BoundCheck(run, position))


class CheckItem(pytest.Item):
    """One check on one device and dtype. ``-k`` matches its id, its area and its level."""

    def __init__(self, *, bound: BoundCheck, **node: Any) -> None:
        super().__init__(**node)
        self.bound = bound
        self.add_marker("gradconform")
        self.extra_keyword_matches |= {bound.level, bound.item.check.area}

    def runtest(self) -> None:
        """Run the check."""
        self.bound()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **options: Any) -> Any:
        """Return the kit's message alone for a failed check; a Python traceback would show the kit's own code."""
        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the headline of a failure; a check has no line in the folder that is tested."""
        return self.path, None, f"{self.bound.level} {self.name}"


def take_named(config: pytest.Config, known: Sequence[str]) -> tuple[str, ...]:
    """Take node ids of the contract out of the command line's arguments and return the items' names.

    Raises ``pytest.UsageError`` for one that no item has, with the nearest names.
    """
    prefix = f"{COLLECTOR}::"
    names = tuple(arg.removeprefix(prefix) for arg in config.args if arg.startswith(prefix))
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3)) or ", ".join(known[:3])
            msg = f"{prefix}{name}: no such check in this run; nearest: {near}"
            raise pytest.UsageError(msg)
    config.args = [arg for arg in config.args if not arg.startswith(prefix)]
    return names


class ResultWriter:
    """Writes a check's result into its test's report, which travels from worker to controller."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the result to the report of the test's call, and in a worker to that of its setup which check begins."""
        if call.when == "setup" and hasattr(item.config, "workerinput"):
            return (yield from _begins(_bound_check_of(item)))
        bound = _bound_check_of(item) if call.when == "call" else None
        if bound is not None and bound.result is not None:
            item.user_properties += properties(bound.result)  # before the report of the call, which copies them
        report = yield
        if bound is not None and bound.payload is not None:
            report.__dict__["gradconform"] = bound.payload
            if bound.result is not None and bound.result.status == "unexpectedly_passed" and call.when == "call":
                _as_xpass(report, waived_because(bound.result), strict=bound.run.session.strict or _strict(item.config))
        if isinstance(item, CheckItem) and report.skipped and isinstance(report.longrepr, tuple):
            # A skipped check points at no line of the kit's code; pytest folds and prints a line of None.
            report.longrepr = (COLLECTOR, None, report.longrepr[2])  # type: ignore[assignment] # as said above
        return report


def _begins(bound: BoundCheck | None) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if bound is not None and report.passed:
        report.__dict__["gradconform_begun"] = bound.begun
    return report


def _as_xpass(report: pytest.TestReport, reason: str, *, strict: bool) -> None:
    """Make a test that passed an unexpected pass, as pytest's own xfail marker does."""
    if not report.passed:
        return
    if strict:
        report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {reason}"
    else:
        report.wasxfail = reason


def _strict(config: pytest.Config) -> bool:
    """Tell whether pytest's own option lets an unexpected pass fail."""
    if config.option.runxfail:
        return False
    names = ("strict_xfail", "strict") if pytest.version_tuple >= (9,) else ("xfail_strict",)
    return bool(next((value for name in names if (value := config.getini(name)) is not None), False))


def register_writer(config: pytest.Config) -> None:
    """Register the :class:`ResultWriter`, once per process."""
    name = "gradconform-results"
    if not config.pluginmanager.has_plugin(name):
        config.pluginmanager.register(ResultWriter(), name)


def _bound_check_of(item: pytest.Item) -> BoundCheck | None:
    """Return the check that ``item`` runs, or None: a contract item's own, or the parameter ``check`` of a test."""
    if isinstance(item, CheckItem):
        return item.bound
    callspec = getattr(item, "callspec", None)
    check = callspec.params.get("check") if callspec is not None else None
    return check if isinstance(check, BoundCheck) else None
