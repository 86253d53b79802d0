"""Stages by name: ``package.module[:object]`` or ``path/to/file.py[:object]``, turned into stage cases.

The object is a factory that returns a module, or a module with example arguments; a module class; or a module. Without
an object, all objects that the module defines and that need no arguments are stages. ``hf:``, ``timm:`` or
``torchvision:`` begin the name of a library's model. The name of an inner module follows: ``model.py:build#layers.0``.
So do the modules before which torch's tracer cuts a model: ``model.py:build?cut=layers.1``.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from gradconform.fixtures.stages.case import StageCase
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.target.loading import load
from gradconform.target.lookup import Named

from . import hugging_face, timm, torchvision
from .error import StageError
from .example import guessed, recipes_of
from .measured_traits import traits_of
from .submodules import MARK, calls, submodule_stage
from .traced import stages_cut, without_cut

#: A stage, or the name of one.
StageOrName = str | StageCase

_EXAMPLE = "example_args"
_CPU = torch.device("cpu")

#: What yields the stages of a library's model, by what begins its name.
_LIBRARIES = {library.PREFIX: library.models_of for library in (hugging_face, timm, torchvision)}


def stages_of(given: StageOrName | Sequence[StageOrName]) -> dict[str, StageCase]:
    """Return stages by name, each built and run once; a repeated name counts once.

    Raises :class:`StageError` and :class:`~gradconform.target.loading.TargetError` (both ``ValueError``) if a stage
    cannot be found, built, fed or run forward and backward in float32 and float64.
    """
    several = [given] if isinstance(given, (str, StageCase)) else given
    found: dict[str, StageCase] = {}
    for one in dict.fromkeys(several):
        for case in [one] if isinstance(one, StageCase) else _named(one):
            numbered = (f"{case.name}-{number}" for number in range(2, len(found) + 3))
            name = case.name if case.name not in found else next(name for name in numbered if name not in found)
            found[name] = replace(case, name=name)
    return found


def described(case: StageCase, left_out: Mapping[str, int]) -> str:
    """Return a report's text on a stage: its source, its size and its traits.

    ``left_out`` counts the checks that cannot run on it, by reason.
    """
    module = case.make(dtype=torch.float32, device=_CPU, seed=0)
    size = sum(parameter.numel() for parameter in module.parameters())
    description = [f"{case.special}, {size:,} parameters", ", ".join(sorted(case.traits))]
    if left_out:
        reasons = ", ".join(f"{count} as {reason}" for reason, count in left_out.items())
        description.append(f"checks skipped: {reasons}")
    return "; ".join(filter(None, description))


def _named(text: str) -> Iterator[StageCase]:
    whole, cuts = without_cut(text)
    if cuts:
        cases = list(_named(whole))
        of_a_library = whole.startswith(tuple(_LIBRARIES))  # whose first stage is the whole model
        yield from (stage for case in (cases[:1] if of_a_library else cases) for stage in stages_cut(case, cuts))
        return
    whole, mark, path = text.partition(MARK)
    if mark:
        cases = list(_named(whole))
        yield from (submodule_stage(case, path) for case in [one for one in cases if calls(one, path)] or cases)
        return
    named = Named(text, text, word="stage")
    for prefix, models_of in _LIBRARIES.items():
        if text.startswith(prefix):
            for part, build, example in models_of(text, named.description):
                yield _fed(build, example, f"{text} {part}".strip(), named.description)
            return
    made, module = load(named)
    if not isinstance(made, ModuleType):
        yield _case(made, module, named)
        return
    offered = list(_offered(module))
    if not offered:
        msg = (
            f"{named.description} defines no stage; expected a module, or a function or module class "
            f"without arguments; name one, such as {text}:build_stage"
        )
        raise StageError(msg)
    for name in offered:
        yield _case(getattr(module, name), module, Named(text, f"{text}:{name}", word="stage"))


def _offered(module: ModuleType) -> Iterator[str]:
    """Yield the names that a module offers: those of ``__all__``, else its public definitions."""
    listed = getattr(module, "__all__", None)
    for name, made in vars(module).items():
        own = name in listed if listed is not None else not name.startswith("_") and _defined_in(made, module)
        if own and name != _EXAMPLE and (isinstance(made, nn.Module) or _called_alone(made)):
            yield name


def _defined_in(made: object, module: ModuleType) -> bool:
    return isinstance(made, nn.Module) or getattr(made, "__module__", None) == module.__name__


def _called_alone(made: object) -> bool:
    """Return whether an object is a function or a module class without required arguments."""
    if not (inspect.isfunction(made) or (isinstance(made, type) and issubclass(made, nn.Module))):
        return False
    parameters = inspect.signature(made).parameters.values()
    return all(one.default is not one.empty or one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD} for one in parameters)


def _case(made: object, home: ModuleType, named: Named) -> StageCase:
    build, example = _built(made, home, named)
    module = build()
    return _fed(
        build, guessed(module, named.description) if example is None else example, named.text, named.description
    )


def _fed(build: Callable[[], nn.Module], example: Any, text: str, description: str) -> StageCase:
    """Return the stage with a builder and example arguments, named by the last part of ``text``."""
    module = build()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text.rpartition(":")[2])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "stage"
    case = StageCase(name, text, build, recipes_of(example, module, description), own_values=True)
    return replace(case, traits=traits_of(case, description))


def _built(made: object, home: ModuleType, named: Named) -> tuple[Callable[[], nn.Module], Any]:
    """Return the builder of a stage, and its example or None."""
    if isinstance(made, nn.Module):
        return lambda: copy.deepcopy(made), _example_of(named, made, home)
    if not callable(made):
        msg = f"{named.description}: expected a module, or a function that returns one; got {made!r:.60}"
        raise StageError(msg)
    factory = cast("Callable[[], object]", made)
    first = _called(factory, named)
    if isinstance(first, tuple) and first and isinstance(first[0], nn.Module):
        example = first[1] if len(first) == 2 else first[1:]  # noqa: PLR2004 (a pair)
        return lambda: cast("tuple[nn.Module]", factory())[0], _called(example, named) if callable(example) else example
    if not isinstance(first, nn.Module):
        msg = f"{named.description}: expected a module or (module, {_EXAMPLE}), got {first!r:.60}"
        raise StageError(msg)
    return cast("Callable[[], nn.Module]", factory), _example_of(named, factory, first, home)


def _example_of(named: Named, *holders: object) -> Any:
    """Return the example of the first of ``holders`` that has one."""
    for holder in holders:
        example = getattr(holder, _EXAMPLE, None)
        if example is not None and not isinstance(example, (nn.Module, nn.Parameter)):
            return _called(example, named) if callable(example) else example
    return None


def _called(factory: Callable[[], object], named: Named) -> object:
    try:
        with interrupts_seen(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return factory()
    except BaseException as error:
        pass_on_an_interrupt(error)
        msg = f"{named.description} could not be called without arguments: {type(error).__name__}: {error}"
        raise StageError(msg) from error
