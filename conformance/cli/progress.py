"""Runs a session and shows how far it is: a bar on a terminal, one line per area elsewhere."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gradconform.cli.console import on_terminal, terminal, width, write
from gradconform.report.terminal import opening, tally_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from gradconform.plan import Item
    from gradconform.report.lines import Line
    from gradconform.results import Report, Result
    from gradconform.session import Session

_ID_WIDTH = 34


def perform(session: Session) -> tuple[Report, str | None]:
    """Run the session with progress.

    Returns the report and, where ctrl-C ended the run, in which check that was; what had run by then is in the report.
    """
    report = session.empty_report()
    items = session.plan.items
    cells = list(dict.fromkeys((item.device, item.dtype) for item in items))
    console = terminal() if on_terminal() else None
    _tell(opening(report, cells, width()), console)
    areas = _Areas(items, several=len(cells) > 1, console=console)
    stopped = None
    with _bar(items, console) as advance:

        def on_result(result: Result) -> None:
            report.results.append(result)
            areas.add(result)
            advance(result)

        try:
            session.run(on_result)
        except KeyboardInterrupt:
            stopped = f"interrupted {_before(items, report)}"
    areas.flush()
    return report, stopped


def _tell(lines: list[Line], console: Console | None) -> None:
    """Print lines; a reader who went away does not stop the run, which may have a report to write to a file."""
    with contextlib.suppress(BrokenPipeError):
        write(lines, console)


def _before(items: tuple[Item, ...], report: Report) -> str:
    done = len(report.results)
    return f"in {items[done].name}" if done < len(items) else "after the last check"


class _Areas:
    """Prints one line per area as soon as all its checks have a result."""

    def __init__(self, items: tuple[Item, ...], *, several: bool, console: Console | None) -> None:
        self._several, self._console = several, console
        self._planned = Counter(self._place(item.check.id, item.device, item.dtype) for item in items)
        self._column = max(map(len, self._planned))
        self._results: dict[str, list[Result]] = {}

    def _place(self, check: str, device: str, dtype: str) -> str:
        area = check.partition(".")[0]
        return f"{device} {dtype}  {area}" if self._several else area

    def add(self, result: Result) -> None:
        """Count a result; print the line of an area that is done."""
        place = self._place(result.check, result.device, result.dtype)
        self._results.setdefault(place, []).append(result)
        if len(self._results[place]) == self._planned[place]:
            self._print(place)

    def flush(self) -> None:
        """Print the lines of areas that were begun and not ended."""
        for place in list(self._results):
            self._print(place)

    def _print(self, place: str) -> None:
        line = tally_line(place.ljust(self._column), self._results.pop(place), self._planned[place])
        _tell([line], self._console)


@contextlib.contextmanager
def progress_bar(console: Console, *, name_width: int, counted: str) -> Iterator[Progress]:
    """Open a bar on ``console``: what runs now, how much is done, and the tasks' field ``count``.

    ``name_width`` is in columns; ``counted`` says what the field counts. The bar is gone when it is closed.
    """
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
        TextColumn(f"{{task.fields[count]}} {counted}", markup=False),
        TimeElapsedColumn(),
    )
    # Beyond the standard output nothing is redirected: what the target prints stays where it belongs.
    with Progress(*columns, console=console, transient=True, expand=True, redirect_stderr=False) as progress:
        yield progress


@contextlib.contextmanager
def _bar(items: tuple[Item, ...], console: Console | None) -> Iterator[Callable[[Result], None]]:
    """Show a bar with the check that runs now and the failures so far; nothing where there is no terminal."""
    if console is None:
        yield lambda _: None
        return
    failed = 0
    with progress_bar(console, name_width=_ID_WIDTH, counted="failed") as progress:
        task = progress.add_task(_short(items[0].check.id), total=len(items), count=0)

        def advance(result: Result) -> None:
            nonlocal failed
            failed += result.status in {"failed", "error"}
            done = int(progress.tasks[0].completed) + 1
            now = items[done].check.id if done < len(items) else items[-1].check.id
            progress.update(task, advance=1, description=_short(now), count=failed)

        yield advance


def _short(check: str) -> str:
    """Return an id that fits its column: its end says which case it is."""
    return check if len(check) <= _ID_WIDTH else f"...{check[3 - _ID_WIDTH :]}"
