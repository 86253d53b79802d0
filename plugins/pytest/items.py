"""The contract as tests: a check with its device and dtype, its pytest item, and a user's test over several checks."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from gradconform.adapter import Capabilities, capability_of
from gradconform.contract.plan import Item
from gradconform.report.check_failure import CheckFailedError, full_text, not_decisive, waived_because
from gradconform.results import Result
from gradconform.run.canaries import withdrawn
from gradconform.run.options import RunOptions
from gradconform.text.escaping import for_terminal

from .contract_run import ContractRun, make_runs, plain

#: What node ids of the contract start with, e.g. ``gradconform::full.gradients.mlp[cpu-float32]``.
COLLECTOR = "gradconform"

#: Why what a process has judged does not count, and the positions of that.
Withdrawal = Mapping[str, Any]


@dataclass(slots=True, eq=False, repr=False)
class BoundCheck:
    """One check of the contract on one target, device and dtype; a call runs it.

    ``id``, ``requirement`` and ``level`` are the check's. ``result`` is set after the call. ``withdraws`` is set if the
    call showed that earlier results of this process do not count. ``last`` is true if no other check of its run follows
    in this process.
    """

    contract_run: ContractRun
    position: int
    result: Result | None = field(default=None, init=False)
    withdraws: Withdrawal | None = field(default=None, init=False)
    last: bool = field(default=False, init=False)

    @property
    def item(self) -> Item:
        """The item of the plan."""
        return self.contract_run.items[self.position]

    @property
    def id(self) -> str:
        """The check's id, e.g. ``split.gradients.mlp``."""
        return self.item.check.id

    @property
    def name(self) -> str:
        """The id with device and dtype, e.g. ``split.gradients.mlp[cpu-float32]``."""
        return self.item.name

    @property
    def requirement(self) -> str:
        """The requirement, a sentence with MUST or SHOULD."""
        return self.item.check.requirement

    @property
    def level(self) -> str:
        """MUST or SHOULD."""
        return self.item.check.level

    def __repr__(self) -> str:
        """Return the check with its device and dtype, which pytest shows for a failed test."""
        return f"<check {self.name}>"

    @property
    def payload(self) -> dict[str, Any]:
        """The result and its run, in JSON types for any process.

        Before the call it is a result for a crash: the process may not survive the check.
        """
        result = self.result or self.item.check.result(self.item.device, self.item.dtype, status="not_run")
        return {
            "run": self.contract_run.header,
            "position": self.position,
            "result": plain(result.to_dict()),
            "withdraws": self.withdraws,
        }

    def __call__(self) -> None:
        """Run the check and turn its result into the outcome of the test that calls it.

        Raises :class:`CheckFailedError` for a failure and an error, and skips an unsupported check. A waived failure is
        an expected failure (xfail). So is a failed SHOULD, unless ``--gradconform-strict`` is set.
        """
        __tracebackhide__ = True
        run = self.contract_run.run
        result = self.result = self._judged()
        if result.status == "unsupported":
            pytest.skip(for_terminal(_skip_reason(result)))
        if result.status not in {"failed", "error", "waived"}:
            return
        if result.status == "waived":
            pytest.xfail(waived_because(result))
        if not (result.decisive or (run.options.strict and result.status == "failed")):
            pytest.xfail(not_decisive(result))
        # reached by --runxfail as well, which lets xfail return
        raise CheckFailedError(full_text(result, str(run.target.text)))

    def _judged(self) -> Result:
        """Run the check, and check this process itself when that is due."""
        of = self.contract_run
        result, guard = of.run.run_item(self.item), of.run.guard
        if guard is not None and self.last:
            guard.look()
        if guard is None or guard.problem is None:
            of.judged.append(self.position)
            return result
        self.withdraws = {"reason": guard.problem, "positions": [*of.judged]}
        of.judged.clear()
        return withdrawn(result, guard.problem)


def _skip_reason(result: Result) -> str:
    """Return why a check is skipped: one capability, because pytest shows one line per reason.

    It is the first in the order of :class:`~gradconform.adapter.Capabilities`, after a dtype or a device; the report
    has all of them.
    """
    if not result.unclaimed:
        return result.message
    order = {field.name: number for number, field in enumerate(fields(Capabilities))}
    return f"not claimed: {min(result.unclaimed, key=lambda need: order.get(capability_of(need), -1))}"


def properties(result: Result) -> list[tuple[str, object]]:
    """Return the properties of a test in a JUnit report."""
    values = {
        "check": result.check,
        "level": result.level,
        "requirement": result.requirement,
        "status": result.status,
        "headroom": result.error_ratio,
        "waiver": None if result.waiver is None else result.waiver["issue"],
    }
    shown = {name: for_terminal(value) if isinstance(value, str) else value for name, value in values.items()}
    return [(name, value) for name, value in shown.items() if value is not None]


class ContractCollector(pytest.Collector):
    """Collects the items of runs; ``names`` selects the items that the command line names by node id."""

    def __init__(self, *, runs: Sequence[ContractRun], names: Sequence[str], **node: Any) -> None:
        super().__init__(name=COLLECTOR, nodeid=COLLECTOR, **node)
        self._runs, self._names = runs, names

    def collect(self) -> Iterator[CheckItem]:
        """Yield one item per check, device and dtype, in the order of the plan."""
        for run in self._runs:
            for position, item in enumerate(run.items):
                if not self._names or item.name in self._names:
                    # pytest 9 reads the parameters from an id, so it must be spelled out.
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
        """Return only the kit's message for a failed check; a traceback would show the kit's own code."""
        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the headline of a failure, without a line number: a check has no line in the tested folder."""
        return self.path, None, f"{self.bound.level} {self.name}"


def take_named(config: pytest.Config, known: Sequence[str]) -> tuple[str, ...]:
    """Remove the contract's node ids from the command line's arguments, and return the items' names.

    Raises ``pytest.UsageError`` for an unknown one, with the nearest names.
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Mark the last check of each run in this process."""
        bound, following = _bound_check_of(item), None if nextitem is None else _bound_check_of(nextitem)
        if bound is not None:
            bound.last = following is None or following.contract_run is not bound.contract_run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the result to the report of the test's call; in a worker, add to its setup which check starts."""
        if call.when == "setup" and hasattr(item.config, "workerinput"):
            return (yield from _begins(_bound_check_of(item)))
        bound = _bound_check_of(item) if call.when == "call" else None
        result = None if bound is None else bound.result
        if result is not None:
            item.user_properties += properties(result)  # before the report of the call, which copies them
        report = yield
        if bound is not None and result is not None:
            report.__dict__["gradconform"] = bound.payload
            if result.status == "unexpectedly_passed":
                strict = bound.contract_run.run.options.strict or _strict(item.config)
                _as_xpass(report, waived_because(result), strict=strict)
        if isinstance(item, CheckItem) and report.skipped and isinstance(report.longrepr, tuple):
            # A skipped check points at no line of the kit's code; pytest folds and prints a line of None.
            report.longrepr = (COLLECTOR, None, report.longrepr[2])  # type: ignore[assignment] # as said above
        return report


def _begins(bound: BoundCheck | None) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if bound is not None and report.passed:
        report.__dict__["gradconform_begun"] = bound.payload
    return report


def _as_xpass(report: pytest.TestReport, reason: str, *, strict: bool) -> None:
    """Turn a passed test into an unexpected pass, as pytest's own xfail marker does."""
    if not report.passed:
        return
    if strict:
        report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {reason}"
    else:
        report.wasxfail = reason


def _strict(config: pytest.Config) -> bool:
    """Return whether pytest's own option makes an unexpected pass fail."""
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


def parametrize(metafunc: pytest.Metafunc, mark: pytest.Mark, options: RunOptions) -> None:
    """Parametrise a test that has the marker with its checks.

    Raises ``CollectError`` with the kit's message for unknown names in the decorator or the options.
    """
    where = metafunc.definition.nodeid
    if mark.kwargs.get("target", options.target) is None:
        msg = f"{where}: parametrize_checks has no target; give it one, or pass --gradconform TARGET"
        raise pytest.Collector.CollectError(msg)
    try:
        runs = make_runs(metafunc.config, options.but(**mark.kwargs), where)
    except ValueError as error:
        raise pytest.Collector.CollectError(for_terminal(f"{where}: {error}")) from error
    bound = [BoundCheck(run, position) for run in runs for position in range(len(run.items))]
    register_writer(metafunc.config)
    metafunc.parametrize("check", bound, ids=[check.name for check in bound])
