"""The source of a stage: its class or builder, all that it names in the kit's fixtures, and the imports it needs."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import dataclass, field
from types import ModuleType

from gradconform.fixtures.random_stages.operations import OPERATIONS
from gradconform.fixtures.random_stages.recipe import Line, Recipe
from gradconform.fixtures.random_stages.stage import recipe_of
from gradconform.fixtures.stages.case import StageCase

#: What random stages take from torch; the rest is from torch.nn.functional.
_OF_TORCH = frozenset({"tanh", "sigmoid", "sin", "addcmul", "cat", "stack"})
_KIT = "gradconform."


@dataclass(slots=True)
class Source:
    """Source text: import lines, definitions by name in the order in which they must stand."""

    imports: set[str] = field(default_factory=set)
    definitions: dict[str, str] = field(default_factory=dict)


def add_stage(source: Source, case: StageCase) -> str:
    """Add what the stage needs to ``source``; return the expression that makes its module."""
    recipe = recipe_of(case)
    if recipe is not None:
        return _add_recipe(source, case.name, recipe)
    name = case.build.__name__
    _add_name(source, sys.modules[case.build.__module__], name)
    return f"{name}()"


def _add_name(source: Source, module: ModuleType, name: str) -> None:
    """Add a definition of a module and, before it, all that it names there; what torch has is imported."""
    if name in source.definitions:
        return
    tree = ast.parse(inspect.getsource(module))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _add_import(source, node, name)
        elif name in _defined(node):
            for used in sorted({inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {name}):
                _add_name(source, module, used)
            source.definitions[name] = _text(node)


def _add_import(source: Source, node: ast.Import | ast.ImportFrom, name: str) -> None:
    for alias in node.names:
        if (alias.asname or alias.name) != name:
            continue
        shown = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        if isinstance(node, ast.Import):
            source.imports.add(f"import {shown}")
        elif (node.module or "").startswith(_KIT):
            # The registry's decorator and the recipes of inputs are left behind with the decorator.
            _add_name(source, sys.modules[node.module or ""], alias.name)
        else:
            source.imports.add(f"from {node.module} import {shown}")


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        node.decorator_list = [one for one in node.decorator_list if not _registers(one)]
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "stage"


def _text(node: ast.stmt) -> str:
    return ast.unparse(node)


def _add_recipe(source: Source, name: str, recipe: Recipe) -> str:
    """Write a random stage as a module class; return the call that makes it."""
    class_name = f"Stage{name.rpartition('-')[2].capitalize()}"
    source.imports |= {"import torch", "from torch import nn"}
    parameters = [
        f"        self.{w.name} = nn.Parameter(torch.zeros({w.shape}), requires_grad={not w.frozen})"
        for w in recipe.weights
    ]
    arguments = ", ".join(["self", *(f"x{i}" for i in range(len(recipe.inputs)))])
    names = [f"        {w.name} = self.{w.name}" for w in recipe.weights]
    lines = [f"        {line}" for one in recipe.lines for line in _line(source, one)]
    source.definitions[class_name] = "\n".join(
        [
            f"class {class_name}(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *parameters,
            "",
            f"    def forward({arguments}):",
            *names,
            *lines,
            f"        return {recipe.returned}",
        ]
    )
    return f"{class_name}()"


def _line(source: Source, line: Line) -> list[str]:
    """Return the statements of a line; the text of two operations is for readers and no Python."""
    targets = ", ".join(line.targets)
    if line.operation == "slice_mul_":
        return [f"{line.sources[0]}[..., :1].mul_(0.5)", f"{targets} = {line.sources[0]}"]
    if line.operation == "matmul":
        first, second = line.sources
        return [f"{targets} = {first} @ {second} / {first}.shape[-1] ** 0.5"]
    text = OPERATIONS[line.operation].text.format(*line.sources)
    for name in re.findall(r"(?<![\w.])([a-zA-Z_]\w*)\(", text):
        source.imports.add(f"from {'torch' if name in _OF_TORCH else 'torch.nn.functional'} import {name}")
    for name in re.findall(r"(\w+)\.apply", text):
        _add_name(source, sys.modules["gradconform.fixtures.random_stages.operations"], name)
    return [f"{targets} = {text}"]
