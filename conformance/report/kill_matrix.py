"""The kill matrix as lines of text and as one self-contained HTML page, both with the verdict."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gradconform.files.records import as_json
from gradconform.report.page.rendering import render
from gradconform.sources.faults.matrix import KillMatrix
from gradconform.sources.faults.outcome import Outcome
from gradconform.text.counts import count
from gradconform.version import CONTRACT_VERSION

from .lines import Line, Role, heading, listed, wrapped

SCHEMA, SCHEMA_VERSION = "gradconform-selftest", 1

_UNTRIED = "plain autograd or this torch supports none of the checks that name it"


def kill_lines(matrix: KillMatrix, width: int) -> list[Line]:
    """Return the lines on the self-test; the verdict is the last line."""
    options = matrix.options
    where = f"{options.device} {options.dtype}, profile {options.profile}, {count(len(matrix.checks), 'check')}"
    return [
        heading(f"kill matrix: {where}", width),
        *(_fault(outcome) for outcome in matrix.faults),
        *(_variant(outcome) for outcome in matrix.variants),
        Line(),
        *_areas(matrix, width),
        *listed(_survived(matrix), [_survivor(o) for o in matrix.survivors], width, "bad"),
        *_unnamed_or_should(matrix, width),
        *listed("could not be judged", [f"{o.name}: {_broke(o)}" for o in matrix.broken], width, "bad"),
        *listed("right variants accused", [f"{o.name}: {_accused(o)}" for o in matrix.accused], width, "bad"),
        *listed(f"no fault in {options.dtype}", [f"{name}: {why}" for name, why in matrix.left_out], width, "faint"),
        *listed("not tried", [f"{o.name}: {_UNTRIED}" for o in matrix.untried], width, "faint"),
        *listed("checks that plain autograd does not support here", _impossible(matrix), width, "faint"),
        *_without_kills(matrix, width),
        *_causes(matrix, width),
        *_cost(matrix, width),
        verdict_line(matrix),
    ]


def _fault(outcome: Outcome) -> Line:
    if outcome.broke is not None:
        return Line(f"  broke     {outcome.name}", "bad")
    if outcome.untried:
        return Line(f"  not tried {outcome.name}", "faint")
    others = len(set(outcome.failed) - set(outcome.named))
    more = f", {count(others, 'other')}" if others else ""
    text = f"{_named_killed(outcome)} named{more}"
    return Line(f"  {'killed  ' if outcome.killed else 'SURVIVED'}  {outcome.name:<46} {text}", _role(outcome))


def _variant(outcome: Outcome) -> Line:
    if outcome.broke is not None:
        return Line(f"  broke     {outcome.name}", "bad")
    text = f"{outcome.passed:>4} passed, {len(outcome.failed)} failed, {len(outcome.errors)} errors"
    return Line(f"  {'clean   ' if outcome.right else 'ACCUSED '}  {outcome.name:<46} {text}", _role(outcome))


def _role(outcome: Outcome) -> Role:
    return "plain" if outcome.right else "bad"


def _areas(matrix: KillMatrix, width: int) -> list[Line]:
    """Return one line per area: its number of checks, and how many faults they killed."""
    checks = Counter(check.partition(".")[0] for check in matrix.checks)
    killed: Counter[str] = Counter()
    for outcome in matrix.faults:
        killed.update({check.partition(".")[0] for check in outcome.failed})
    lines = [heading("per area", width)]
    kills = matrix.kills
    for area, number in checks.items():
        own = [kills[check] for check in matrix.checks if check.partition(".")[0] == area]
        each = f"{min(own)} to {max(own)} per check"
        lines.append(Line(f"  {area:<12} checks {number:>4}   faults killed {killed[area]:>4}, {each}"))
    return [*lines, Line()]


def _unnamed_or_should(matrix: KillMatrix, width: int) -> list[Line]:
    """Return what no check that names it failed; after first failures, what only a failed SHOULD shows."""
    if not matrix.options.exitfirst:
        return listed("not failed by a check that names it", _unnamed(matrix), width, "warning")
    by_should = [outcome.name for outcome in matrix.faults if outcome.killed and outcome.decided is False]
    return listed("killed by a failed SHOULD alone, which no verdict counts", by_should, width, "faint")


def _unnamed(matrix: KillMatrix) -> list[str]:
    return [f"{o.name}: {', '.join(o.named_passed)}" for o in matrix.faults if o.named_passed and o.killed]


def _survived(matrix: KillMatrix) -> str:
    return "survived: a whole run passes it" if matrix.options.whole else "survived: no check that names it failed"


def _survivor(outcome: Outcome) -> str:
    others = f"; {count(len(outcome.failed), 'other check')} failed: {outcome.failed[0]}" if outcome.failed else ""
    return f"{outcome.name}: {outcome.idea} Checks that name it: {', '.join(outcome.named) or 'none that ran'}{others}"


def _impossible(matrix: KillMatrix) -> list[str]:
    """Return one text per reason, with the checks that it prevents."""
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
    return ", ".join(outcome.failed) if outcome.failed else "no check judged it"


def _without_kills(matrix: KillMatrix, width: int) -> list[Line]:
    if matrix.options.exitfirst:  # the checks after a first failure did not run
        return []
    if not matrix.complete:
        return [Line("Run every fault to see which checks killed nothing."), Line()]
    return listed("checks that killed nothing", matrix.without_kills, width, "warning")


def _causes(matrix: KillMatrix, width: int) -> list[Line]:
    values = matrix.values
    if not values:
        return []
    with_cause = sum(outcome.said for outcome in values)
    share = f"{with_cause} of {len(values)} faults of values ({with_cause / len(values):.0%})"
    return wrapped(f"{share} were reported with their cause", width)


def _cost(matrix: KillMatrix, width: int) -> list[Line]:
    """Return the cost of whole runs in a line; nothing without whole runs."""
    whole = [outcome for outcome in matrix.faults if outcome.decided is not None]
    if not whole:
        return []
    ran, seconds = sum(outcome.ran for outcome in whole), sum(outcome.seconds for outcome in whole)
    return wrapped(
        f"{count(len(whole), 'whole run')} of faults: {count(ran, 'check')} in {seconds:.0f} s of processor time", width
    )


def verdict_line(matrix: KillMatrix) -> Line:
    """Return the verdict on the kit, in one line."""
    tried = len(matrix.faults) - len(matrix.untried)
    killed = sum(outcome.killed for outcome in matrix.faults)
    clean = sum(outcome.right for outcome in matrix.variants)
    counts = f"{killed} of {count(tried, 'fault')} killed, "
    counts += f"{clean} of {count(len(matrix.variants), 'right variant')} clean"
    untried = len(matrix.untried) + len(matrix.left_out)
    counts += f"; {count(untried, 'fault')} not tried in {matrix.options.dtype}" if untried else ""
    if len(matrix.outcomes) < matrix.planned:
        return Line(f"No verdict: {len(matrix.outcomes)} of {matrix.planned} were judged; {counts}", "warning")
    if matrix.good:
        return Line(f"The contract finds every fault on this device: {counts}", "good")
    return Line(f"The contract does NOT find every fault on this device: {counts}", "bad")


def kill_values(matrix: KillMatrix) -> dict[str, Any]:
    """Return the matrix as JSON values: each fault and right variant with the checks that it failed."""
    options = matrix.options
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "contract": CONTRACT_VERSION,
        **{name: getattr(options, name) for name in ("device", "dtype", "profile")},
        "checks": list(matrix.checks),
        "planned": matrix.planned,
        "complete": matrix.complete,
        "good": matrix.good,
        "verdict": verdict_line(matrix).text,
        "outcomes": [{"verdict": _verdict(one), **as_json(one)} for one in matrix.outcomes],
        "left_out": dict(matrix.left_out),
    }


def kill_page(matrix: KillMatrix) -> str:
    """Return the matrix as one HTML page."""
    topics: dict[str, list[Outcome]] = {}
    for fault in matrix.faults:
        topics.setdefault(fault.topic, []).append(fault)
    return render(
        "kill_matrix.html.j2",
        matrix=matrix,
        contract=CONTRACT_VERSION,
        verdict=verdict_line(matrix).text,
        topics=topics,
        areas=_kills(matrix, list(topics)),
        verdict_of=_verdict,
        status=_status,
        shares=lambda outcomes: Counter(map(_status, outcomes)),
        named_killed=_named_killed,
        apart={
            f"No fault in {matrix.options.dtype}": dict(matrix.left_out),
            "Checks that plain autograd does not support here": matrix.impossible,
        },
    )


def _kills(matrix: KillMatrix, topics: list[str]) -> list[tuple[str, list[int]]]:
    """Return how many faults of each topic each area kills, and the number of faults."""
    kills, areas = matrix.areas(), dict.fromkeys(check.partition(".")[0] for check in matrix.checks)
    found = [(area, [kills.get((area, topic), 0) for topic in topics]) for area in areas]
    in_all = [sum(fault.topic == topic for fault in matrix.faults) for topic in topics]
    return [*found, ("faults in all", in_all)] if found and topics else []


#: The result status whose colour each outcome takes.
_STATUSES = {"killed": "passed", "clean": "passed", "not tried": "unsupported", "could not be judged": "error"}


def _status(outcome: Outcome) -> str:
    return _STATUSES.get(_verdict(outcome), "failed")


def _named_killed(outcome: Outcome) -> str:
    return f"{len(outcome.named) - len(outcome.named_passed)} of {len(outcome.named)}"


def _verdict(outcome: Outcome) -> str:
    if outcome.broke is not None or outcome.errors:
        return "could not be judged"
    if outcome.role == "variant":
        return "clean" if outcome.right else "ACCUSED"
    return "not tried" if outcome.untried else "killed" if outcome.killed else "SURVIVED"
