"""A new run compared with an earlier one, check by check and beyond, and the conditions of ``--fail-on``.

A condition has names, numbers, comparisons, ``and``, ``or``, ``not`` and parentheses; it is parsed and never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradconform.exits import UsageError
from gradconform.results import Place, Report, Result

#: Below these, an error (as a part of its bound) and a duration (in seconds) are too small for a meaningful ratio.
ERROR_RATIO_FLOOR, DURATION_FLOOR = 0.05, 0.1

_JUDGED = frozenset({"passed", "failed", "waived", "unexpectedly_passed"})
_FAILING = frozenset({"failed", "error"})
_PASSING = frozenset({"passed", "unexpectedly_passed"})


class CompareError(UsageError):
    """The two reports cannot be compared."""


class Change(NamedTuple):
    """One place before and now; None if a run has no result of it."""

    place: Place
    before: Result | None
    now: Result | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The changes from ``base`` to ``new``.

    ``changes`` holds the changed checks by their name in :data:`gradconform.reading.comparison.NAMES`. ``differences``
    holds all other differences as name, value before and value now.
    """

    base: Report
    new: Report
    changes: Mapping[str, tuple[Change, ...]]
    differences: tuple[tuple[str, Any, Any], ...]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of changes of each kind."""
        return {**{name: len(found) for name, found in self.changes.items()}, "differences": len(self.differences)}


def compare(
    base: Report,
    new: Report,
    *,
    intersection: bool = False,
    headroom_factor: float = 2.0,
    slower_factor: float = 2.0,
) -> Comparison:
    """Return the comparison of two reports, check by check, on each device and in each dtype.

    With ``intersection``, only checks with a result in both count, and the contracts may differ. Raises
    :class:`CompareError` for reports of two contract versions without it, and for reports that share no check.
    """
    if base.contract != new.contract and not intersection:
        msg = (
            f"the reports use different contracts, BASE {base.contract} and NEW {new.contract}; compare runs of one "
            "contract, or use --intersection"
        )
        raise CompareError(msg)
    changes = list(_changes(base, new))
    common = [change for change in changes if change.before is not None and change.now is not None]
    if not common:
        msg = "the reports have no check in common on the same device and dtype; expected two runs of one contract"
        raise CompareError(msg)
    considered = common if intersection else changes
    return Comparison(
        base=base,
        new=new,
        changes=_sorted_out(considered, headroom_factor, slower_factor),
        differences=tuple(_differences(base, new)),
    )


def _changes(base: Report, new: Report) -> Iterator[Change]:
    before, now = ({r.place: r for r in report.results} for report in (base, new))
    for place in dict.fromkeys((*before, *now)):
        yield Change(place, before.get(place), now.get(place))


def _sorted_out(changes: list[Change], error_ratio: float, slower: float) -> dict[str, tuple[Change, ...]]:
    unsupported = [change for change in changes if _lost(change) and _status(change.now) == "unsupported"]
    not_run = [change for change in changes if _lost(change) and _status(change.now) in {None, "not_run"}]
    found = {
        "new_failures": [c for c in changes if _failing(c.now) and not _failing(c.before)],
        "fixed": [c for c in changes if _failing(c.before) and _status(c.now) in _PASSING],
        "lost": [*unsupported, *not_run],
        "newly_unsupported": unsupported,
        "newly_not_run": not_run,
        "newly_waived": [c for c in changes if _status(c.now) == "waived" and _status(c.before) != "waived"],
        "other_failures": [c for c in changes if _failing(c.before) and _failing(c.now) and _kinds_differ(c)],
        "headroom_drift": [c for c in changes if _drifted(c, error_ratio)],
        "slower": [c for c in changes if _slower(c, slower)],
        "failures": [c for c in changes if _failing(c.now)],
    }
    return {name: tuple(one) for name, one in found.items()}


def _status(result: Result | None) -> str | None:
    return None if result is None else result.status


def _failing(result: Result | None) -> bool:
    return _status(result) in _FAILING


def _lost(change: Change) -> bool:
    return _status(change.before) in _JUDGED and _status(change.now) in {None, "not_run", "unsupported"}


def _kinds_differ(change: Change) -> bool:
    return change.before is not None and change.now is not None and change.before.kind != change.now.kind


def _drifted(change: Change, factor: float) -> bool:
    before, now = (result.error_ratio if result else None for result in _passing_twice(change))
    return before is not None and now is not None and now > factor * max(before, ERROR_RATIO_FLOOR)


def _slower(change: Change, factor: float) -> bool:
    before, now = _passing_twice(change)  # a failure takes longer, since it is diagnosed
    return before is not None and now is not None and now.duration_s > factor * max(before.duration_s, DURATION_FLOOR)


def _passing_twice(change: Change) -> tuple[Result, Result] | tuple[None, None]:
    """Return the results before and now if the check passed both times."""
    before, now = change.before, change.now
    if before is None or now is None or {before.status, now.status} - _PASSING:
        return None, None
    return before, now


def _differences(base: Report, new: Report) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences outside the checks; the path of a target's file is ignored."""
    for name, (before, now) in surroundings(base, new).items():
        if before != now and name != "target.file":
            yield name, before, now


def surroundings(*reports: Report) -> dict[str, list[Any]]:
    """Return target, options and environment by name, with the value of each report; None if one has none.

    The lines of the target's actions are left out: its hash shows any change of its file.
    """
    names = ("kit", "contract", "profile", "seed", "strict", "extra", "target", "environment", "manifest")
    each = []
    for report in reports:
        target = {name: value for name, value in report.target.items() if name != "lines"}
        each.append(_leaves("", {**{name: getattr(report, name) for name in names}, "target": target}))
    return {name: [leaves.get(name) for leaves in each] for name in dict.fromkeys(key for one in each for key in one)}


def _leaves(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for part, inner in value.items() for key, leaf in _leaves(f"{name}.{part}", inner).items()}
    if isinstance(value, (list, tuple)) and any(isinstance(inner, Mapping) for inner in value):
        return _leaves(name, {str(position): inner for position, inner in enumerate(value)})
    return {name.lstrip("."): list(value) if isinstance(value, tuple) else value}


#: The counts of a comparison's report, which an expression can name.
NAMES: dict[str, str] = {
    "new_failures": "checks that fail now and did not before",
    "fixed": "checks that failed before and pass now",
    "lost": "checks that were judged before and are not judged now",
    "newly_unsupported": "lost checks that are unsupported now",
    "newly_not_run": "lost checks that have no result now",
    "newly_waived": "checks that are waived now and were not before",
    "other_failures": "checks that fail now with another kind of failure",
    "headroom_drift": "passing checks whose error/bound grew past --headroom-factor",
    "slower": "checks that take longer by more than --slower-factor",
    "differences": "differences of target, options and environment",
    "failures": "checks that fail now",
}

DEFAULT = "new_failures or lost"

_LONGEST = 500

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


class ExpressionError(ValueError):
    """The expression cannot be read."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition on counts, parsed once; ``holds`` evaluates it."""

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Return the parsed expression; raise :class:`ExpressionError` that names the invalid part."""
        try:
            if len(text) > _LONGEST:
                msg = f"expected at most {_LONGEST} characters, got {len(text)}"
                raise ExpressionError(msg)
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            msg = f"{text[:80]!r} is not a condition: {getattr(error, 'msg', error)}; expected one such as {DEFAULT!r}"
            raise ExpressionError(msg) from error
        _refuse_foreign(tree, text)
        return cls(text.strip(), tree)

    @property
    def names(self) -> list[str]:
        """Return its names, each once."""
        return list(dict.fromkeys(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)))

    def holds(self, counts: Mapping[str, int]) -> bool:
        """Return whether the condition holds for ``counts``."""
        return bool(_value(self.tree, counts))


def _refuse_foreign(node: ast.expr, text: str) -> None:
    if isinstance(node, ast.Name) and node.id in NAMES:
        return
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return
    parts = _parts(node)
    if not parts:
        shown = ast.get_source_segment(text.strip(), node) or text
        named = isinstance(node, ast.Name)
        expected = f"one of {', '.join(NAMES)}" if named else "names, numbers, comparisons, and, or, not, parentheses"
        within = "" if shown == text.strip() else f" in {text[:80]!r}"
        msg = f"expected {expected}; got {shown[:60]!r}{within}"
        raise ExpressionError(msg)
    for part in parts:
        _refuse_foreign(part, text)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of an operator of the language; empty for any other node."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.Compare) and all(type(sign) in _COMPARISONS for sign in node.ops):
        return [node.left, *node.comparators]
    return []


def _value(node: ast.expr, counts: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Name):
        return counts[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    values = [_value(part, counts) for part in _parts(node)]
    if isinstance(node, ast.BoolOp):
        return any(values) if isinstance(node.op, ast.Or) else all(values)
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        return all(_COMPARISONS[type(sign)](left, right) for sign, left, right in pairs)
    return not values[0]
