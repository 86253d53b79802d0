"""The pytest plugin: only hooks; it imports no other module of the kit before a test requires one."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from . import fixtures, hookspec
from .frames import without_kit
from .option_names import MARKER, NAMES_KEY, RUNS_KEY, ZERO_LINES, add_options, anything_set
from .reporter import Reporter

if TYPE_CHECKING:
    from .options import Options

#: Fixtures whose values depend on the options or on a marker.
_PARAMETRIZED = frozenset({"gradconform_device", "gradconform_dtype", "gradconform_stage", "gradconform_output_grads"})

_MARKERS = (
    f"{MARKER}: run a test once per check of the contract; gradconform.parametrize_checks adds this marker",
    "gradconform: marks each test that --gradconform TARGET collects",
    "gradconform_stages(*globs, without=()): limit gradconform_stage to stages whose name or trait matches a glob",
    "gradconform_patterns(*globs): limit gradconform_output_grads to patterns that match a glob",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks."""
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options; with a target, create the run, so that errors are raised before the collection."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    # Named in `pytest_plugins`, they would be looked for among all installed packages.
    config.pluginmanager.register(fixtures, "gradconform-fixtures")
    reporter = None
    if not (config.option.help or config.option.version or hasattr(config, "workerinput")):
        reporter = Reporter(config)  # a worker of pytest-xdist hands its results to the controller
        config.pluginmanager.register(reporter, "gradconform-reporter")
    if anything_set(config):
        _take_options(config, reporter)


def _take_options(config: pytest.Config, reporter: Reporter | None) -> None:
    """Read the options, and create their run."""
    from .options import options_of, refuse_unwritable  # noqa: PLC0415 (only a run of the contract needs them)

    options = options_of(config)
    if config.option.help or config.option.version:
        return
    _limit_restarts(config, options)
    if reporter is not None:
        if options.json is not None:
            refuse_unwritable(options.json, options.ndjson)
        reporter.options = options
    if options.run.target is not None or options.named & {"device", "device_plugins", "dtype", "flags"}:
        _prepare(config, options, reporter)


def _limit_restarts(config: pytest.Config, options: Options) -> None:
    """Limit the workers that pytest-xdist replaces to the allowed number of crashes; it reads its option later."""
    if options.run.target is not None and getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = str(options.run.max_crashes - 1)


def _prepare(config: pytest.Config, options: Options, reporter: Reporter | None) -> None:
    from gradconform.process.imports import imports_uncollected  # noqa: PLC0415 (only a run needs it)

    with imports_uncollected():
        from .contract_run import choice_of, make_runs  # noqa: PLC0415 (it imports torch)
        from .items import register_writer, take_named  # noqa: PLC0415 (as above)

    folder = str(config.invocation_params.dir)
    sys.path += [] if folder in sys.path else [folder]  # a target of the current folder can be named, as in the command
    try:
        choice_of(config, options.run)  # before the contract: a device has to be there before the first backward
        if options.run.target is None:
            return
        runs = make_runs(config, options.run, ZERO_LINES)
    except ValueError as error:
        from gradconform.text.escaping import for_terminal  # noqa: PLC0415 (only a message needs it)

        raise pytest.UsageError(for_terminal(f"gradconform: {error}")) from error
    config.stash[RUNS_KEY] = runs
    config.stash[NAMES_KEY] = take_named(config, [item.name for run in runs for item in run.items])
    register_writer(config)
    if reporter is not None:
        reporter.expect(runs)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a warning if a crash of the target would end the session."""
    if RUNS_KEY not in config.stash or config.pluginmanager.has_plugin("dsession"):
        return None
    return "gradconform: isolation is off, a crash or hang of the target ends this session; pytest -n 1 isolates"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect the contract in addition to the tests in files."""
    report = yield
    runs = collector.config.stash.get(RUNS_KEY, None)
    if runs is not None and isinstance(collector, pytest.Session) and report.passed:
        from .items import ContractCollector  # noqa: PLC0415 (only a run needs it)

        names = collector.config.stash[NAMES_KEY]
        report.result = [*report.result, ContractCollector.from_parent(collector, runs=runs, names=names)]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Show only the user's lines in a failure; ``--full-trace`` shows the kit's lines too."""
    if call.excinfo is not None and not item.config.option.fulltrace:
        call.excinfo = without_kit(call.excinfo)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a method of unittest with the checks marker: unittest calls it once, without arguments."""
    # pytest spares this import as well, where no test is a class of it.
    case = getattr(sys.modules.get("unittest"), "TestCase", ())
    for item in items:
        kind = getattr(item, "cls", None)
        if isinstance(kind, type) and issubclass(kind, case) and item.get_closest_marker(MARKER):
            msg = (
                f"{item.nodeid}: parametrize_checks decorates a method of {kind.__name__}, a unittest.TestCase. pytest "
                "cannot run such a method once per check. Decorate a function, or write "
                "TestConformance = gradconform.plugins.unittest.conformance_case(TARGET) in the module"
            )
            raise pytest.UsageError(msg)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test with its checks, and with the values of the fixtures for stages and output gradients."""
    config = metafunc.config
    mark = metafunc.definition.get_closest_marker(MARKER)
    if mark is not None:
        from .items import parametrize  # noqa: PLC0415 (it imports torch)
        from .options import options_of  # noqa: PLC0415 (as above)

        parametrize(metafunc, mark, options_of(config).run)
    if not _PARAMETRIZED.isdisjoint(metafunc.fixturenames):
        from .fixture_values import parametrize_fixtures  # noqa: PLC0415 (it imports torch)
        from .options import options_of  # noqa: PLC0415 (as above)

        parametrize_fixtures(metafunc, options_of(config).run)
