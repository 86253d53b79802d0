"""The parts of a script as Python text: values with all their digits, stages with all their definitions."""

from __future__ import annotations

import ast
import inspect
import math
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.fixtures.planned_stages import SIZES, Plan, PlannedStage, plan_of
from gradconform.fixtures.random_stages.operations import OPERATIONS
from gradconform.fixtures.random_stages.recipe import Line, Recipe, recipe_of
from gradconform.fixtures.stages.case import StageCase

from .folding import Folding, unparsed, without_docstring


def literal(value: Any) -> str:
    """Return text that recreates ``value``: a tensor, a tree of them, a number, a string or None."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(one)}, " for one in value).rstrip() + ")"
    return repr(value)


def _tensor(tensor: Tensor) -> str:
    values = tensor.detach().cpu()
    made = f"torch.tensor({_numbers(values)}, dtype={values.dtype})"
    if 0 in values.shape:
        made = f"torch.empty({tuple(values.shape)}, dtype={values.dtype})"
    if not values.is_contiguous():
        made = f"torch.empty_strided({tuple(values.shape)}, {values.stride()}, dtype={values.dtype}).copy_({made})"
        if 0 in values.stride():
            made = f"{_tensor(values.reshape(-1)[:1].clone())}.reshape(()).expand({tuple(values.shape)})"
    on_device = made if tensor.device.type == "cpu" else f"{made}.to({str(tensor.device)!r})"
    return f"{on_device}.requires_grad_()" if tensor.requires_grad else on_device


def _numbers(values: Tensor) -> str:
    """Return the elements as nested lists, with enough digits to restore a float32: nine at most."""
    if values.dim():
        return "[" + ", ".join(map(_numbers, values)) + "]"
    number = values.item()
    if values.dtype != torch.float32 or not math.isfinite(number):
        return repr(number)
    texts = (f"{number:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if struct.pack("f", float(text)) == struct.pack("f", number))


def arguments(args: tuple[Any, ...], stage: nn.Module, name: str) -> list[str]:
    """Return lines that store a function under ``name``: it makes one forward's arguments, given the stage.

    A parameter of the stage is named, and an argument that is passed twice is the same object.
    """
    parameters = {id(parameter): name for name, parameter in stage.named_parameters()}
    texts: list[str] = []
    first: dict[int, int] = {}
    for place, arg in enumerate(args):
        if id(arg) in parameters and isinstance(arg, nn.Parameter):
            texts.append(f"stage.get_parameter({parameters[id(arg)]!r})")
        elif isinstance(arg, Tensor) and id(arg) in first:
            texts.append(f"a{first[id(arg)]}")
        else:
            texts.append(literal(arg))
        first.setdefault(id(arg), place)
    if len({id(arg) for arg in args}) == len(args):
        return [f"{name} = lambda stage: ({' '.join(f'{text},' for text in texts)})"]
    made = "args_" + "_".join(re.findall(r"\d+", name))
    lines = [f"    a{place} = {text}" for place, text in enumerate(texts)]
    names = " ".join(f"a{place}," for place in range(len(args)))
    return ["", "", f"def {made}(stage):", *lines, f"    return ({names})", "", "", f"{name} = {made}"]


def values_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that define ``module``, each once."""
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


#: The functions that random stages use from torch; the others are from torch.nn.functional.
_OF_TORCH = frozenset({"tanh", "sigmoid", "sin", "addcmul", "cat", "stack"})
_KIT = "gradconform."


@dataclass(slots=True)
class Source:
    """Source text: import lines, and definitions by name in the required order.

    A ``folding`` is applied to every definition; without one, only docstrings are removed. Definitions of the kit's
    modules are written as text, except those of ``imported`` modules.
    """

    folding: Folding | None = None
    imported: AbstractSet[str] = frozenset()
    imports: set[str] = field(default_factory=set)
    definitions: dict[str, str] = field(default_factory=dict)
    #: The names and the attributes that the definitions read.
    names: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    _bodies: dict[str, list[ast.stmt]] = field(default_factory=dict)
    #: The definitions that are being added, which may refer to themselves through others.
    _begun: set[str] = field(default_factory=set)

    def begins(self, name: str) -> bool:
        """Return whether nobody has begun to add this definition; mark it as begun."""
        new = name not in self._begun
        self._begun.add(name)
        return new

    def body(self, module: ModuleType) -> list[ast.stmt]:
        """Return the statements of a module, folded."""
        if module.__name__ not in self._bodies:
            found = ast.parse(inspect.getsource(module)).body
            self._bodies[module.__name__] = found if self.folding is None else self.folding.block(found)
        return self._bodies[module.__name__]


def reached(
    roots: Iterable[tuple[ModuleType, str]], folding: Folding, imported: AbstractSet[str] = frozenset()
) -> Source:
    """Return definitions and everything that they use, without methods that nothing reads (see :class:`Folding`)."""
    read = folding.read
    while True:
        source = Source(replace(folding, read=read), imported)
        for module, name in roots:
            _add_name(source, module, name)
        if source.attributes <= read:
            return source
        read |= source.attributes


def add_stage(source: Source, case: StageCase) -> str:
    """Add the definitions of a stage to ``source``; return the expression that creates its module."""
    recipe = recipe_of(case)
    if recipe is not None:
        return _add_recipe(source, case.name, recipe)
    plan = plan_of(case)
    if plan is not None:
        return _add_plan(source, plan)
    build, given = (case.build.func, case.build.args) if isinstance(case.build, partial) else (case.build, ())
    for made in (build, *(type(one) for one in given if is_dataclass(one))):
        _add_name(source, sys.modules[made.__module__], made.__name__)
    return f"{build.__name__}({', '.join(map(repr, given))})"


#: What is known of the layers of a planned stage whose gain has the dtype of the rest, and what replaces its code.
_NO_GAIN = {"self._graded": False}
_WITHOUT_DTYPE = {
    "in_own_dtype(nn.Parameter(torch.zeros(out)), '' if self._graded else gain)": "nn.Parameter(torch.zeros(out))",
    "torch.promote_types(hidden.dtype, self.gain.dtype)": "None",
    "(hidden.to(wide) * self.gain.to(wide)).to(hidden.dtype)": "hidden * self.gain",
}


def _add_plan(source: Source, plan: Plan) -> str:
    """Write the parts of a planned stage; return the call that assembles them."""
    _, into, out = SIZES[plan.size]
    named = [(sys.modules[part.__module__], part.__name__) for part in (PlannedStage, *plan.parts)]
    if plan.gain:
        for module, name in named:
            _add_name(source, module, name)
    else:
        known = {**_NO_GAIN, "not into": not into}
        made = reached(named, Folding(known, {}, frozenset({"forward"}), _WITHOUT_DTYPE))  # torch calls it
        source.definitions |= made.definitions
        source.imports |= made.imports
    enter, layers, run, leave = (part.__name__ for part in plan.parts)
    gain = f", gain={plan.gain!r}" if plan.gain else ""
    return f"PlannedStage({enter}, {layers}({into}, {out}{gain}), {run}, {leave})"


def _add_name(source: Source, module: ModuleType, name: str) -> None:
    """Add a module's definition and, before it, the names that it uses there; names in torch are imported."""
    if name in source.definitions or not source.begins(f"{module.__name__}:{name}"):
        return
    for node in source.body(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _add_import(source, module, node, name)
        elif name in (defined := _defined(node)) and source.definitions.keys().isdisjoint(defined):
            for used in _names(node):
                source.names.add(used)
                if used not in defined:
                    _add_name(source, module, used)
            source.attributes |= set(_attributes(node))
            source.definitions[name] = _text(module, node) if source.folding is None else unparsed(node)


def _names(node: ast.AST) -> list[str]:
    """Return the names in a definition, in order."""
    found = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return list(dict.fromkeys(one.id for one in sorted(found, key=lambda one: (one.lineno, one.col_offset))))


def _attributes(node: ast.AST) -> Iterator[str]:
    """Yield the attributes that are read, except torch's."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load) and "torch" not in ast.unparse(inner):
            yield inner.attr


def _add_import(source: Source, module: ModuleType, node: ast.Import | ast.ImportFrom, name: str) -> None:
    for alias in node.names:
        if (alias.asname or alias.name) != name:
            continue
        shown = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        if isinstance(node, ast.Import):
            source.imports.add(f"import {shown}")
            continue
        origin = resolve_name("." * node.level + (node.module or ""), module.__package__)
        if origin.startswith(_KIT) and origin not in source.imported:
            # The registry's decorator and the recipes of inputs are left behind with the decorator.
            _add_name(source, sys.modules[origin], alias.name)
        else:
            source.imports.add(f"from {origin} import {shown}")


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        node.decorator_list = [one for one in node.decorator_list if not _registers(one)]
        return {node.name}
    if isinstance(node, ast.Assign):
        return {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def _registers(decorator: ast.expr) -> bool:
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name)):
        return False
    return decorator.func.id in {"stage", "block"}


def _text(module: ModuleType, node: ast.stmt) -> str:
    """Return a definition's text from its first kept decorator, without docstrings."""
    lines = inspect.getsource(module).splitlines()
    dropped: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and len(without_docstring(inner.body)) in range(
            1, len(inner.body)
        ):
            docstring, following = inner.body[:2]
            dropped |= {*range(docstring.lineno, (docstring.end_lineno or 0) + 1)}
            dropped |= {line for line in range(docstring.lineno, following.lineno) if not lines[line - 1].strip()}
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return "\n".join(lines[line - 1] for line in range(first, (node.end_lineno or 0) + 1) if line not in dropped)


def _add_recipe(source: Source, name: str, recipe: Recipe) -> str:
    """Write a random stage as a module class; return the call that creates it."""
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
    """Return the statements of a line; the text of two operations is for readers and is no Python."""
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
