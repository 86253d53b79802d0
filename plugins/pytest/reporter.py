"""The hooks of the reporting process; modules for collecting and writing are imported with the first result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .contract_run import ContractRun
    from .options import Options
    from .recorder import Recorder, RecordKeeper


class Reporter:
    """The hooks of the one reporting process: pytest's own, or the controller of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        #: The user's options; None if no option is named.
        self.options: Options | None = None
        self._recorder: Recorder | None = None
        self._written: list[Path] = []
        self._unwritten: list[str] = []
        #: By node id, what a worker of pytest-xdist has said of a check as it began.
        self._begun: dict[str, Mapping[str, Any]] = {}
        self._keeper: RecordKeeper | None = None

    @property
    def recorder(self) -> Recorder:
        """The recorder, created with the first result."""
        from .recorder import Recorder  # noqa: PLC0415 (an unused plugin needs none)

        self._recorder = self._recorder or Recorder()
        return self._recorder

    @property
    def _has_run(self) -> bool:
        """Whether there is something to report."""
        return not self._config.option.collectonly and bool(self._recorder)

    def expect(self, runs: Sequence[ContractRun]) -> None:
        """Register the runs of ``--gradconform TARGET``, and open the records file of the contract's run."""
        for run in runs:
            self.recorder.expect(run.header)
        if self.options is not None and self.options.ndjson is not None and not self._config.option.collectonly:
            from .recorder import RecordKeeper  # noqa: PLC0415 (as above)

            self._keeper = RecordKeeper(str(self.options.ndjson), runs[0])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the probe results of devices to a worker of pytest-xdist."""
        from .contract_run import hand_down  # noqa: PLC0415 (an unused plugin needs none)

        hand_down(self._config, node)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the result in a report, and note a check that starts."""
        if (begun := getattr(report, "gradconform_begun", None)) is not None:
            self._begun[report.nodeid] = begun
        elif report.when == "call":
            self._begun.pop(report.nodeid, None)
        payload = getattr(report, "gradconform", None)
        if payload is not None and report.when == "call":
            self._add(payload)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Add an error as the result of the check in which a worker of pytest-xdist crashed."""
        begun = self._begun.pop(crashitem, None)
        if begun is None:
            return
        message = (
            "the worker process of pytest-xdist ended in the middle of the check; "
            f"gradconform run --checks {begun['result']['check']} shows whether plain autograd ends it too, and where"
        )
        crashed = {"status": "error", "kind": "environment", "message": message, "ended": "crash"}
        self._add({**begun, "result": {**begun["result"], **crashed}})

    def _add(self, payload: Mapping[str, Any]) -> None:
        for result in self.recorder.add(payload):
            if self._keeper is not None:
                self._keeper.add(payload["run"]["key"], result)
            self._config.hook.pytest_gradconform_result(result=result, config=self._config)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Pass the reports to hooks and write them; a session that judged too little ends with an error."""
        if self._keeper is not None:
            with self._writing(session):
                self._keeper.close(next((run.report() for run in self.recorder), None))
        if self._has_run:
            self._hand_out(session, exitstatus)

    def _hand_out(self, session: pytest.Session, exitstatus: int) -> None:
        for run in self.recorder:
            if not run.added:
                self._config.hook.pytest_gradconform_report(report=run.report(), config=self._config)
        if exitstatus == pytest.ExitCode.OK and self.recorder.judged_too_little:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif exitstatus == pytest.ExitCode.OK and self.recorder.has_unused_waivers:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.options is not None and self.options.json is not None:
            with self._writing(session):
                self._written = self.recorder.write(self.options.json)

    @contextmanager
    def _writing(self, session: pytest.Session) -> Iterator[None]:
        """Record a write error as a message: a traceback of the kit would hide the summary and the results."""
        try:
            yield
        except (OSError, ValueError) as error:  # the kit's error of record files is a ValueError
            self._unwritten.append(f"gradconform: a file could not be written: {error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        if self._has_run:
            from .recorder import write_summary  # noqa: PLC0415 (as above)

            write_summary(terminalreporter, self.recorder, self._written, self._unwritten)
