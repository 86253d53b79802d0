"""Definitions reduced for a script: without branches decided in advance, docstrings and annotations."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

_UNKNOWN = object()
_REPLACED = (ast.Call, ast.Dict, ast.IfExp)
_COMPARISONS = {
    ast.Eq: lambda one, other: one == other,
    ast.NotEq: lambda one, other: one != other,
    ast.Gt: lambda one, other: one > other,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
    ast.Is: lambda one, other: one is other,
    ast.IsNot: lambda one, other: one is not other,
}


@dataclass(frozen=True, slots=True)
class Folding(ast.NodeTransformer):
    """The facts about a script that are known before it runs."""

    #: The values of expressions, by their text.
    known: Mapping[str, Any]
    #: The used keys of each dict, by its name.
    entries: Mapping[str, AbstractSet[str]]
    #: The attributes that are read anywhere; other methods are dropped.
    read: AbstractSet[str] = frozenset()
    #: Replacements of calls, dicts and conditional expressions, by their text.
    instead: Mapping[str, str] = field(default_factory=dict)

    def value(self, node: ast.expr) -> Any:
        """Return the known value of an expression, or ``_UNKNOWN``."""
        text = ast.unparse(node)
        if text in self.known:
            return self.known[text]
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Set) and all(map(_is_constant, node.elts))):
            return ast.literal_eval(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.value(node.operand)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            return self._joined(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            one, other = self.value(node.left), self.value(node.comparators[0])
            return _UNKNOWN if _UNKNOWN in (one, other) else _COMPARISONS[type(node.ops[0])](one, other)  # type: ignore[no-untyped-call] # of two known values
        return _UNKNOWN

    def _joined(self, node: ast.BoolOp) -> Any:
        values, decides = [self.value(one) for one in node.values], isinstance(node.op, ast.Or)
        if any(value is not _UNKNOWN and bool(value) is decides for value in values):
            return decides
        return _UNKNOWN if _UNKNOWN in values else not decides

    def visit(self, node: ast.AST) -> Any:
        """Replace an expression that is known or has a replacement; otherwise visit its children."""
        if self.instead and isinstance(node, _REPLACED) and (text := self.instead.get(ast.unparse(node))) is not None:
            return ast.parse(text, mode="eval").body
        if isinstance(node, (ast.BoolOp, ast.Name, ast.Compare, ast.Attribute)) and not isinstance(
            getattr(node, "ctx", None), ast.Store
        ):
            value = self.value(node)
            if value is None or isinstance(value, bool):
                return ast.Constant(value)
        return ast.NodeTransformer.visit(self, node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the children of a node; an empty block gets a ``pass``."""
        made = ast.NodeTransformer.generic_visit(self, node)
        if isinstance(made, (ast.If, ast.For, ast.With, ast.Try, ast.ExceptHandler)):
            made.body = _ended(made.body) or [ast.Pass()]
        return made

    def visit_With(self, node: ast.With) -> Any:
        """Replace a ``with`` whose contexts do nothing by its body."""
        made = self.generic_visit(node)
        if isinstance(made, ast.With) and all(ast.unparse(one) == "nullcontext()" for one in made.items):
            return made.body
        return made

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Drop a call whose replacement is a constant."""
        made = self.generic_visit(node)
        return None if isinstance(made, ast.Expr) and isinstance(made.value, ast.Constant) else made

    def visit_If(self, node: ast.If) -> Any:
        """Return the branch that is known to be taken."""
        value = self.value(node.test)
        return self.generic_visit(node) if value is _UNKNOWN else self.block(node.body if value else node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """Return the side that is known to be taken."""
        value = self.value(node.test)
        return self.generic_visit(node) if value is _UNKNOWN else self.visit(node.body if value else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Drop the operands that decide nothing."""
        left = [self.visit(one) for one in node.values if isinstance(one, ast.Constant) or self.value(one) is _UNKNOWN]
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Drop the docstring, the annotations and the code after a branch that returns."""
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
            if arg is not None:
                arg.annotation = None
        node.returns = None
        node.body = self.block(without_docstring(node.body))
        node.body = _read_later(node) or [ast.Pass()]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Drop the docstring and the methods that nothing reads; the fields of a dataclass or named tuple stay."""
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and _has_fields(node)]
        read = [one for one in without_docstring(node.body) if one not in fields and self._is_read(one)]
        node.body = [*fields, *(one for one in self.block(read) if not _adds_nothing(one))] or [ast.Pass()]
        return node

    def _is_read(self, node: ast.stmt) -> bool:
        return not isinstance(node, ast.FunctionDef) or node.name in self.read or node.name.startswith("__")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop the annotation, and the entries of a dict that are not used."""
        if node.value is None or self._is_unread(node.target):
            return None
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def _is_unread(self, target: ast.expr) -> bool:
        """Return whether a target is an attribute of ``self`` that nothing reads."""
        return (
            isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and target.attr not in self.read
        )

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Drop unused table entries, attributes that nothing reads or computes, and known values."""
        if all(isinstance(one, ast.Name) and one.id in self.known for one in node.targets):
            return None
        keys = self.entries.get(ast.unparse(node.targets[0]))
        if keys is not None and isinstance(node.value, ast.Dict):
            kept = [pair for pair in zip(node.value.keys, node.value.values, strict=True) if _is_in(keys, pair[0])]
            node.value = ast.Dict([key for key, _ in kept], [value for _, value in kept])
        if keys is not None and isinstance(node.value, ast.Set):
            node.value.elts = [one for one in node.value.elts if _is_in(keys, one)]
        calls = any(isinstance(inner, ast.Call) for inner in ast.walk(node.value))
        return None if not calls and all(map(self._is_unread, node.targets)) else self.generic_visit(node)

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements up to the first that is known to end them."""
        found: list[ast.stmt] = []
        for one in body:
            made = self.visit(one)
            found += made if isinstance(made, list) else [made] if made is not None else []
        return _ended(found)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _is_in(keys: AbstractSet[str], key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value in keys


def _has_fields(node: ast.ClassDef) -> bool:
    """Return whether the annotations of a class are its fields."""
    named = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
    return any("dataclass" in one or one == "NamedTuple" for one in named)


def _adds_nothing(node: ast.stmt) -> bool:
    """Return whether a method only calls its base class with the same arguments."""
    if not isinstance(node, ast.FunctionDef):
        return False
    called = f"super().{node.name}({ast.unparse(node.args).partition(', ')[2]})"
    return [ast.unparse(one) for one in node.body] in ([called], [f"return {called}"])


def _read_later(node: ast.FunctionDef) -> list[ast.stmt]:
    """Return a function's statements without unread names whose value needs no call."""
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}

    def left(one: ast.stmt) -> bool:
        if not isinstance(one, ast.Assign) or any(isinstance(inner, ast.Call) for inner in ast.walk(one.value)):
            return True
        put = [inner for target in one.targets for inner in getattr(target, "elts", [target])]
        return not all(isinstance(inner, ast.Name) and inner.id not in read for inner in put)

    return list(filter(left, node.body))


def _ended(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements up to the first that ends a block."""
    ends = (place for place, one in enumerate(body, 1) if isinstance(one, (ast.Return, ast.Raise, ast.Continue)))
    return body[: next(ends, len(body))]


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a definition without its docstring."""
    first = body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if has_docstring else body


def unparsed(node: ast.stmt, width: int = 112) -> str:
    """Return a statement's text: tables have one entry per line, and lines beyond ``width`` break in brackets."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and node.value.keys:
        pairs = zip(node.value.keys, node.value.values, strict=True)
        return "\n".join(
            [
                f"{ast.unparse(node.targets[0])} = {{",
                *(f"    {ast.unparse(key)}: {ast.unparse(value)}," for key, value in pairs if key is not None),
                "}",
            ]
        )
    lines: list[str] = []
    for line in ast.unparse(ast.fix_missing_locations(node)).splitlines():
        start, indent = 0, " " * (len(line) - len(line.lstrip()) + 4)
        places = _places(line) if len(line) > width else []
        while len(line) - start + len(indent) > width:
            end = start + width - (len(indent) if start else 0)
            fitting = [(-depth, place) for place, depth in places if start + width // 2 < place <= end]
            if not fitting:
                break
            _, place = max(fitting)
            lines.append((indent if start else "") + line[start:place].rstrip())
            start = place
        lines.append((indent if start else "") + line[start:])
    return "\n".join(lines).replace(":\n\n    def", ":\n    def")


def _places(line: str) -> list[tuple[int, int]]:
    """Return the positions at which a line may break, with bracket depth: after a comma, or before a clause."""
    margin = len(line) - len(line.lstrip())
    depth = strings = 0
    places: list[tuple[int, int]] = []
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(line.lstrip()).readline):
        kind = tokenize.tok_name[token.type]
        strings += (kind == "FSTRING_START") - (kind == "FSTRING_END")  # from Python 3.12 on
        if depth and not strings and (before == "," or token.string in {"for", "if", "else", "and", "or"}):
            places.append((margin + token.start[1], depth))
        depth += (token.string in set("([{")) - (token.string in set(")]}"))
        before = token.string
    return places
