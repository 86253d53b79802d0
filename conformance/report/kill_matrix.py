"""The kill matrix, as lines of text and as one HTML page that needs nothing else; the verdict is told in both."""

from __future__ import annotations

from collections import Counter
from html import escape
from string import Template

from gradconform.report.page.rendering import stylesheet
from gradconform.selftest.matrix import KillMatrix
from gradconform.selftest.subject import Outcome
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

from .lines import Line, Role, count, heading, wrapped

_UNTRIED = "plain autograd itself can do none of the checks that name it here"


def kill_lines(matrix: KillMatrix, width: int) -> list[Line]:
    """Return all that the self-test has to say; the verdict is the last line."""
    options = matrix.options
    where = f"{options.device} {options.dtype}, profile {options.profile}, {len(matrix.checks)} checks"
    return [
        heading(f"kill matrix: {where}", width),
        *(_fault(outcome, len(matrix.checks)) for outcome in matrix.faults),
        *(_variant(outcome) for outcome in matrix.variants),
        Line(),
        *_areas(matrix, width),
        *_listed("survived: no check that names it failed", [_survivor(o) for o in matrix.survivors], width, "bad"),
        *_listed("not failed by a check that names it", _unnamed(matrix), width, "warning"),
        *_listed("could not be judged", [f"{o.name}: {_broke(o)}" for o in matrix.broken], width, "bad"),
        *_listed("right variants accused", [f"{o.name}: {_accused(o)}" for o in matrix.accused], width, "bad"),
        *_listed(f"no fault in {options.dtype}", [f"{name}: {why}" for name, why in matrix.left_out], width, "faint"),
        *_listed("not tried", [f"{o.name}: {_UNTRIED}" for o in matrix.untried], width, "faint"),
        *_listed("checks that plain autograd itself cannot do here", _impossible(matrix), width, "faint"),
        *_idle(matrix, width),
        *_causes(matrix, width),
        verdict_line(matrix),
    ]


def _fault(outcome: Outcome, checks: int) -> Line:
    if outcome.broke is not None:
        return Line(f"  broke     {outcome.name}", "bad")
    if outcome.untried:
        return Line(f"  not tried {outcome.name}", "faint")
    named = len(outcome.named) - len(outcome.named_passed)
    text = f"{len(outcome.failed):>4} of {checks} checks, {named} of {len(outcome.named)} named"
    return Line(f"  {'killed  ' if outcome.killed else 'SURVIVED'}  {outcome.name:<46} {text}", _role(outcome))


def _variant(outcome: Outcome) -> Line:
    text = f"{outcome.passed:>4} passed, {len(outcome.failed)} failed, {len(outcome.errors)} errors"
    return Line(f"  {'clean   ' if outcome.right else 'ACCUSED '}  {outcome.name:<46} {text}", _role(outcome))


def _role(outcome: Outcome) -> Role:
    return "plain" if outcome.right else "bad"


def _areas(matrix: KillMatrix, width: int) -> list[Line]:
    """Return one line per area: its checks, and how many faults they killed."""
    checks = Counter(check.partition(".")[0] for check in matrix.checks)
    killed: Counter[str] = Counter()
    for outcome in matrix.faults:
        killed.update({check.partition(".")[0] for check in outcome.failed})
    lines = [heading("per area", width)]
    kills = matrix.kills
    for area, number in checks.items():
        own = [kills[check] for check in matrix.checks if check.partition(".")[0] == area]
        each = f"{min(own)} to {max(own)} per check"
        lines.append(Line(f"  {area:<12} {number:>4} checks killed {killed[area]:>4} faults, {each}"))
    return [*lines, Line()]


def _unnamed(matrix: KillMatrix) -> list[str]:
    return [f"{o.name}: {', '.join(o.named_passed)}" for o in matrix.faults if o.named_passed and o.killed]


def _survivor(outcome: Outcome) -> str:
    others = f"; {count(len(outcome.failed), 'other check')} failed: {outcome.failed[0]}" if outcome.failed else ""
    return f"{outcome.name}: {outcome.idea} Named for it: {', '.join(outcome.named) or 'no check that ran'}{others}"


def _impossible(matrix: KillMatrix) -> list[str]:
    """Return one text per reason, with the checks that it stands in the way of."""
    checks: dict[str, list[str]] = {}
    for check, text in matrix.impossible.items():
        checks.setdefault(text.rpartition(" at ")[0] or text, []).append(check)
    return [f"{', '.join(those)}: {reason}" for reason, those in checks.items()]


def _broke(outcome: Outcome) -> str:
    if outcome.broke is not None:
        return outcome.broke
    check, message = outcome.errors[0]
    return f"{count(len(outcome.errors), 'error')} of the kit, the first in {check}: {message}"


def _accused(outcome: Outcome) -> str:
    return ", ".join(outcome.failed) if outcome.failed else "not one check judged it"


def _listed(name: str, texts: list[str], width: int, role: Role) -> list[Line]:
    if not texts:
        return []
    lines = [heading(f"{name}: {len(texts)}", width, role)]
    for text in texts:
        lines += wrapped(" ".join(text.split()), width, indent=2, hanging=4)
    return [*lines, Line()]


def _idle(matrix: KillMatrix, width: int) -> list[Line]:
    if not matrix.complete:
        return [Line("Which checks killed nothing is told only where every fault is run."), Line()]
    return _listed("checks that killed nothing", matrix.idle, width, "warning")


def _causes(matrix: KillMatrix, width: int) -> list[Line]:
    values = matrix.values
    if not values:
        return []
    said = sum(outcome.said for outcome in values)
    text = f"{said} of {len(values)} faults of values ({said / len(values):.0%}) were told with their cause"
    return wrapped(text, width)


def verdict_line(matrix: KillMatrix) -> Line:
    """Return the verdict on the kit, in one line."""
    tried = len(matrix.faults) - len(matrix.untried)
    killed = sum(outcome.killed for outcome in matrix.faults)
    clean = sum(outcome.right for outcome in matrix.variants)
    counts = f"{killed} of {count(tried, 'fault')} killed, "
    counts += f"{clean} of {count(len(matrix.variants), 'right variant')} clean"
    apart = len(matrix.untried) + len(matrix.left_out)
    counts += f"; {count(apart, 'fault')} not tried in {matrix.options.dtype}" if apart else ""
    if matrix.good:
        return Line(f"The contract finds what it must on this device: {counts}", "good")
    return Line(f"The contract does NOT find what it must on this device: {counts}", "bad")


_CELL = 6

#: What is kept free for the names of the areas.
_LEFT = 72

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>gradconform selftest: kill matrix</title>
<style>
$style
.words td:last-child { min-width: 18em; }
details p { max-width: 70em; }
svg { background: #8881; }
svg text { font-size: 10px; fill: CanvasText; }
svg line { stroke: var(--line); }
.k { fill: var(--kill); }
.n { fill: var(--named); }
</style>
</head>
<body>
<h1>Kill matrix</h1>
<p>$where</p>
<p$role>$verdict</p>
<h2>Faults killed, by area of the contract and topic of the fault</h2>
$areas
<h2>Check by fault</h2>
<p>One row per check, one column per fault; a coloured cell is a kill, in the second colour where the fault names the
check. Point at a cell for the names; below, every fault opens to the checks that failed.</p>
$cells
<h2>Faults</h2>
$faults
<h2>Right variants</h2>
$variants
$apart
<h2>Checks that failed, by fault</h2>
$opened
</body>
</html>
""")


def kill_page(matrix: KillMatrix) -> str:
    """Return the page; every name in it is escaped."""
    options = matrix.options
    where = (
        f"gradconform {KIT_VERSION}, contract {CONTRACT_VERSION}, profile {options.profile}, "
        f"on {options.device} {options.dtype}"
    )
    return _PAGE.substitute(
        style=stylesheet(),
        where=escape(where),
        role="" if matrix.good else ' class="bad"',
        verdict=escape(verdict_line(matrix).text),
        areas=_scroll("faults killed by area and topic", f"<table>{_area_table(matrix)}</table>"),
        cells=_scroll("check by fault", _cells(matrix)),
        faults=_scroll("faults", f'<table class="words">{_faults(matrix)}</table>'),
        variants=_scroll("right variants", f'<table class="words">{_variants(matrix)}</table>'),
        apart=_apart(matrix),
        opened="".join(map(_opened, matrix.faults)),
    )


def _scroll(label: str, inner: str) -> str:
    """Return a part that scrolls by itself where it is too wide; the keyboard reaches it as well."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'


def _row(*cells: object, head: bool = False) -> str:
    """Return one row; the first cell is a heading."""
    first, *rest = (escape(str(cell)) for cell in cells)
    tag = "th" if head else "td"
    return f"<tr><th>{first}</th>{''.join(f'<{tag}>{cell}</{tag}>' for cell in rest)}</tr>"


def _area_table(matrix: KillMatrix) -> str:
    counts = matrix.areas()
    topics = list(dict.fromkeys(outcome.topic for outcome in matrix.faults))
    rows = [_row("area", *topics, head=True)]
    areas = list(dict.fromkeys(check.partition(".")[0] for check in matrix.checks))
    rows += [_row(area, *(counts.get((area, topic), 0) for topic in topics)) for area in areas]
    totals = [sum(outcome.topic == topic for outcome in matrix.faults) for topic in topics]
    return "".join([*rows, _row("faults in all", *totals)])


def _cells(matrix: KillMatrix) -> str:
    rows = {check: number for number, check in enumerate(matrix.checks)}
    drawn = _labels(matrix)
    for column, outcome in enumerate(matrix.faults):
        named = set(outcome.named)
        for check in outcome.failed:
            if check in rows:
                title = escape(f"{check} fails {outcome.name}")
                kind = "n" if check in named else "k"
                place = f'x="{_LEFT + column * _CELL}" y="{rows[check] * _CELL}"'
                size = f'width="{_CELL - 1}" height="{_CELL - 1}"'
                drawn.append(f'<rect class="{kind}" {place} {size}><title>{title}</title></rect>')
    size = f'width="{_LEFT + len(matrix.faults) * _CELL}" height="{max(len(rows) * _CELL, 12)}"'
    label = escape(f"{len(rows)} checks by {len(matrix.faults)} faults")
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(drawn)}</svg>'


def _labels(matrix: KillMatrix) -> list[str]:
    """Return the name of every area beside its first row, with a line above it."""
    areas = [check.partition(".")[0] for check in matrix.checks]
    width = _LEFT + len(matrix.faults) * _CELL
    drawn = []
    for area in dict.fromkeys(areas):
        top = areas.index(area) * _CELL
        drawn.append(
            f'<line x1="0" x2="{width}" y1="{top}" y2="{top}"/><text x="2" y="{top + 10}">{escape(area)}</text>'
        )
    return drawn


def _faults(matrix: KillMatrix) -> str:
    rows = [_row("fault", "verdict", "topic", "checks that failed", "named, of all named", "idea", head=True)]
    for outcome in matrix.faults:
        named = f"{len(outcome.named) - len(outcome.named_passed)} of {len(outcome.named)}"
        verdict = _verdict(outcome)
        rows.append(_row(outcome.name, verdict, outcome.topic, len(outcome.failed), named, outcome.idea))
    return "".join(rows)


def _verdict(outcome: Outcome) -> str:
    if outcome.broke is not None or outcome.errors:
        return "could not be judged"
    if outcome.role == "variant":
        return "clean" if outcome.right else "ACCUSED"
    return "not tried" if outcome.untried else "killed" if outcome.killed else "SURVIVED"


def _variants(matrix: KillMatrix) -> str:
    rows = [_row("variant", "verdict", "passed", "failed", head=True)]
    rows += [_row(o.name, _verdict(o), o.passed, ", ".join(o.failed) or "none") for o in matrix.variants]
    return "".join(rows)


def _apart(matrix: KillMatrix) -> str:
    """Return what counts as nothing in this dtype, with the reasons; nothing where there is nothing."""
    told = {
        f"No fault in {matrix.options.dtype}": dict(matrix.left_out),
        "Checks that plain autograd itself cannot do here": matrix.impossible,
    }
    parts = []
    for title, reasons in told.items():
        if reasons:
            rows = "".join(_row(name, why) for name, why in reasons.items())
            table = _scroll(title, f'<table class="words">{rows}</table>')
            parts.append(f"<h2>{escape(title)}</h2>{table}")
    return "".join(parts)


def _opened(outcome: Outcome) -> str:
    """Return a fault that opens to the checks that failed: the cells of its column for whoever has no pointer."""
    checks = ", ".join(outcome.failed) or "none"
    summary = f"{outcome.name}: {len(outcome.failed)}"
    return f"<details><summary>{escape(summary)}</summary><p>{escape(checks)}</p></details>"
