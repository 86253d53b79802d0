"""Runs checks and shows the progress: a bar on a terminal, one line per area elsewhere."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gradconform.exits import EXIT_INTERRUPTED, RunStoppedError
from gradconform.files.records import Header, started
from gradconform.process.pipes import printed_afterwards
from gradconform.process.wait_notices import Waits, first_line_after, print_to_stderr
from gradconform.report.lines import wrapped
from gradconform.report.sentences import crashed
from gradconform.report.terminal import opening, tally_line
from gradconform.results import Place
from gradconform.run.forecast import duration
from gradconform.text.escaping import line_for_terminal

from .console import on_terminal, terminal, width, write

if TYPE_CHECKING:
    from rich.console import Console

    from gradconform.report.lines import Line
    from gradconform.results import Report, Result
    from gradconform.run.execution import Execution, RecordFile
    from gradconform.run.forecast import Forecast

_ID_WIDTH = 34

#: The statuses that count toward the limit of failures.
FAILED = {"failed", "error"}


def first_part(check: str) -> str:
    """Return the area of a check of the contract: the first part of its id."""
    return check.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended early, and its exit code; None if the results decide."""

    reason: str
    exit_code: int | None


def perform(  # noqa: PLR0913 (a run, its records, and what it shows)
    run: Execution,
    file: RecordFile | None = None,
    order: Callable[[Place], int] | None = None,
    *,
    limit: int | None = None,
    shown: bool = True,
    area_of: Callable[[str], str] = first_part,
    forecast: Callable[[Header, list[Place]], Forecast] | None = None,
) -> tuple[Report, Stop | None]:
    """Run the checks without a result, in the plan's ``order`` or another; write each record to ``file``.

    It ends early after ``limit`` checks failed or could not be judged. With ``shown``, it prints the current check and
    the progress, with a line for each area that ``area_of`` gives a check's id, and the expected time if there is a
    ``forecast``. Returns the report and, if the run ended early, the reason; the report has all results up to then.
    """
    results = {} if file is None or file.found is None else dict(file.found.results)
    places = run.header.places
    left = [place for place in places if place not in results]
    expected = None if forecast is None else forecast(run.header, left)
    at: dict[Place, None] = {}
    failed: set[Place] = set()
    stopped = None
    with (
        printed_afterwards() if shown else contextlib.nullcontext(),
        _shown(run.header, area_of, expected) if shown else contextlib.nullcontext(lambda _: None) as show,
        _slow_checks(shown) as slow,
    ):
        for result in results.values():
            show(result)

        def on_start(begun: Result) -> None:
            at[begun.place] = None
            slow.begin(f"running {begun.place.name}")
            show(begun.place)
            if file is not None:
                file.write(started(begun))

        def on_result(result: Result) -> None:
            if file is not None:
                file.add(result)
            results[result.place] = result
            at.pop(result.place, None)
            slow.end(f"running {result.place.name}")
            show(result)
            failed.update([result.place] if result.status in FAILED else [])
            if len(failed) == limit and len(results) < len(places):
                msg = f"--maxfail {limit} is reached"
                raise RunStoppedError(msg)

        try:
            run.run(on_result, on_start=on_start, places=left if order is None else sorted(left, key=order))
        except KeyboardInterrupt:
            stopped = Stop(f"interrupted {_where(at, complete=len(results) == len(places))}", EXIT_INTERRUPTED)
        except RunStoppedError as error:
            stopped = Stop(str(error), error.exit_code)
    report = run.header.report_of(results)
    if file is not None and stopped is None:
        file.end(report.verdict)
    return report, stopped


@contextlib.contextmanager
def _slow_checks(shown: bool) -> Iterator[Waits]:  # noqa: FBT001 (the caller's own name)
    """Report slow checks on the standard error; on a terminal, the bar names the running check."""
    waits = Waits() if shown and not on_terminal() else Waits(lambda _: None)
    with contextlib.closing(waits):
        yield waits


@contextlib.contextmanager
def _shown(
    header: Header, area_of: Callable[[str], str], expected: Forecast | None
) -> Iterator[Callable[[Place | Result], None]]:
    """Print the plan, and yield a function that receives each started check and each result."""
    several = len(header.cells) > 1
    console = terminal() if on_terminal() else None
    lines = opening(header.report_of({}), header.cells, width())
    if expected is not None:
        lines[-1:-1] = wrapped(f"time      {expected.sentence}", width(), hanging=10)
    _write_lines(lines, console)
    crashes = Crashes(header.report["options"].get("max_crashes"))
    area = partial(_area, area_of, several=several)
    areas = Areas(map(area, header.places), area, console, crashes)
    time_left = TimeLeft(expected, on_bar=console is not None)
    with _bar(header.places, crashes, console, time_left) as bar:

        @_once
        def take(result: Result) -> None:
            crashes.add(result)
            areas.add(result)
            time_left.finish(result.place)
            bar(result)

        def on_news(news: Place | Result) -> None:
            if isinstance(news, Place):
                bar(news)
            else:
                take(news)

        yield on_news
    areas.flush()


def _once(take: Callable[[Result], None]) -> Callable[[Result], None]:
    """Return a function that passes on only one result per place: the next one withdraws it, as the report says."""
    taken: set[Place] = set()

    def first(result: Result) -> None:
        if result.place not in taken:
            taken.add(result.place)
            take(result)

    return first


def _write_lines(lines: list[Line], console: Console | None) -> None:
    """Print lines; the run continues if printing fails, since it may have a report file to write."""
    with contextlib.suppress(OSError):
        write(lines, console)


def _where(at: Iterable[Place], *, complete: bool) -> str:
    """Return the checks at which a run stopped."""
    names = ", ".join(place.name for place in at)
    return f"in {names}" if names else "after the last check" if complete else "between two checks"


def _area(area_of: Callable[[str], str], of: Place | Result, *, several: bool) -> str:
    """Return the area of a check, with device and dtype if there are several."""
    area = area_of(of.check)
    return f"{of.device} {of.dtype}  {area}" if several else area


@dataclass(slots=True)
class Crashes:
    """The checks that ended their process so far, and how many may."""

    allowed: int | None
    ended: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count a result."""
        if result.ended is not None:
            self.ended.append(result)

    @property
    def text(self) -> str:
        """Return the text after other counts; empty if no check has ended its process."""
        return f", {crashed(self.ended, self.allowed)}" if self.ended else ""


class TimeLeft:
    """The expected time that is left: on a terminal in the bar, elsewhere in lines on the standard error."""

    def __init__(self, expected: Forecast | None, *, on_bar: bool) -> None:
        """Report to the bar or in lines; without a forecast, report nothing."""
        self._expected, self._on_bar = expected, on_bar
        self._next = 4 * first_line_after()

    def finish(self, place: Place) -> None:
        """Note a result; print the progress after 20 s, 40 s and so on."""
        if self._expected is None:
            return
        self._expected.finish(place)
        if not self._on_bar and self._expected.passed >= self._next:
            self._next = 2 * self._expected.passed
            print_to_stderr(self._expected.progress)

    @property
    def text(self) -> str:
        """Return the text after other counts."""
        return "" if self._expected is None else f", about {duration(self._expected.seconds_left)} left"


class Areas:
    """Prints one line per area as soon as all its checks have a result.

    ``planned`` holds the area of each check, and ``area_of`` returns that of a result. If an area has ended a process,
    its line has the run's count so far.
    """

    def __init__(
        self,
        planned: Iterable[str],
        area_of: Callable[[Result], str],
        console: Console | None = None,
        crashes: Crashes | None = None,
    ) -> None:
        """Count the planned checks."""
        self._planned, self._area_of, self._console = Counter(planned), area_of, console
        self._crashes = crashes or Crashes(None)
        self._column = max(map(len, self._planned))
        self._results: dict[str, list[Result]] = {}

    def add(self, result: Result) -> None:
        """Count a result; print the line of a finished area."""
        area = self._area_of(result)
        self._results.setdefault(area, []).append(result)
        if len(self._results[area]) == self._planned[area]:
            self._print(area)

    def flush(self) -> None:
        """Print the lines of areas that were started but not finished."""
        for area in list(self._results):
            self._print(area)

    def _print(self, area: str) -> None:
        results = self._results.pop(area)
        if not area:
            return
        more = self._crashes.text if any(result.ended for result in results) else ""
        line = tally_line(area.ljust(self._column), results, self._planned[area], more)
        _write_lines([line], self._console)


@contextlib.contextmanager
def progress_bar(
    console: Console | None, first: str, total: int, *, name_width: int, counted: str
) -> Iterator[Callable[..., None]]:
    """Open a bar on ``console``, None for none, with the current name ``first``, the progress and the ``counted`` text.

    It yields a function with four arguments. They are the current name (None: unchanged), how much is ``done``, how
    much of that counts, and ``more`` text. ``name_width`` is in columns. The bar disappears when it is closed.
    """
    if console is None:
        yield lambda *_, **__: None
        return
    from rich.progress import (  # noqa: PLC0415 (only a terminal needs it)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn(f"{{task.description:<{name_width}}}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[count]}} {counted}{{task.fields[more]}}", markup=False),
        TimeElapsedColumn(),
    )
    # Only the standard output is redirected: the target's other output stays in its place.
    with Progress(*columns, console=console, transient=True, expand=True, redirect_stderr=False) as progress:
        task = progress.add_task(line_for_terminal(first), total=total, count=0, more="")
        count = 0

        def advance(name: str | None = None, *, done: int = 0, counts: int = 0, more: str = "") -> None:
            nonlocal count
            count += counts
            progress.update(task, description=name and line_for_terminal(name), advance=done, count=count, more=more)

        yield advance


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a text on a terminal while the context is open; elsewhere nothing."""
    if not on_terminal():
        yield
        return
    console = terminal()
    with console.status(line_for_terminal(text)):
        yield


@contextlib.contextmanager
def _bar(
    places: tuple[Place, ...], crashes: Crashes, console: Console | None, time_left: TimeLeft
) -> Iterator[Callable[[Place | Result], None]]:
    """Show a bar with the latest started check, the failures and the crashes so far; without a terminal, nothing."""
    with progress_bar(console, _short(places[0].check), len(places), name_width=_ID_WIDTH, counted="failed") as advance:

        def on_news(news: Place | Result) -> None:
            if isinstance(news, Place):
                advance(_short(news.check), more=crashes.text + time_left.text)
            else:
                advance(done=True, counts=news.status in FAILED, more=crashes.text + time_left.text)

        yield on_news


def _short(check: str) -> str:
    """Return an id that fits its column: its end is kept because it names the case."""
    return check if len(check) <= _ID_WIDTH else f"...{check[3 - _ID_WIDTH :]}"
