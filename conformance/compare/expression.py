"""The language of ``--fail-on``: names, numbers, comparisons, ``and``, ``or``, ``not``, parentheses; nothing is run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: What a report of a comparison counts, and an expression can name.
NAMES: dict[str, str] = {
    "new_failures": "checks that fail now, and did not before",
    "fixed": "checks that failed before, and pass now",
    "lost": "checks that were judged before, and are not now",
    "newly_unsupported": "of those, the ones that are unsupported now",
    "newly_not_run": "of those, the ones that have no result now",
    "newly_waived": "checks that are waived now, and were not before",
    "other_failures": "checks that failed before and fail now, of another kind",
    "headroom_drift": "passed checks whose error grew by more than --headroom-factor",
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
    """An expression that cannot be read."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition on counts, read once; ``holds`` tells whether it holds of some."""

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Read an expression; raise :class:`ExpressionError` that names what is no part of the language."""
        try:
            if len(text) > _LONGEST:
                msg = f"it has {len(text)} characters; expected no more than {_LONGEST}"
                raise ExpressionError(msg)
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            msg = f"{text[:80]!r} is no condition: {getattr(error, 'msg', error)}; expected one such as {DEFAULT!r}"
            raise ExpressionError(msg) from error
        _refuse_foreign(tree, text)
        return cls(text.strip(), tree)

    @property
    def names(self) -> list[str]:
        """The names in it, each once."""
        return list(dict.fromkeys(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)))

    def holds(self, counts: Mapping[str, int]) -> bool:
        """Tell whether the condition holds of ``counts``."""
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
        msg = f"{text[:80]!r} has {shown[:60]!r}; expected {expected}"
        raise ExpressionError(msg)
    for part in parts:
        _refuse_foreign(part, text)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions that an operator of the language joins; none for all that is no such operator."""
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
