"""Stages by name: ``package.module[:object]`` or ``path/to/file.py[:object]``, turned into stage cases.

The object is a factory that returns a module, or a module with an example of what it is fed; a module class; or a
module. Where none is named, all that the module defines and offers without arguments are stages.
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
from torch import Tensor, nn

from gradconform.fixtures.inputs import draw_arguments, place_arguments
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.shown_traits import shown
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.target.loading import Named, load
from gradconform.trees import tensors

from .error import StageError
from .example import guessed, recipes_of

#: A stage, or the name of one.
Given = str | StageCase

_EXAMPLE = "example_args"
_CPU = torch.device("cpu")


def stages_of(given: Given | Sequence[Given]) -> dict[str, StageCase]:
    """Return stages by name, each built and run once; what is given twice counts once.

    Raises :class:`StageError` and :class:`~gradconform.target.loading.TargetError` (both ``ValueError``) for what
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
    """Return what a report says of a stage beside its name: where it comes from, how large it is, what it shows.

    ``left_out`` counts the checks that cannot be asked on it, by reason.
    """
    module = case.make(dtype=torch.float32, device=_CPU, seed=0)
    size = sum(parameter.numel() for parameter in module.parameters())
    told = [f"{case.special}, {size:,} parameters", ", ".join(sorted(case.traits))]
    if left_out:
        reasons = ", ".join(f"{count} as {reason}" for reason, count in left_out.items())
        told.append(f"not asked on it: {reasons}")
    return "; ".join(filter(None, told))


def _named(text: str) -> Iterator[StageCase]:
    named = Named(text, text, word="stage")
    made, module = load(named)
    if not isinstance(made, ModuleType):
        yield _case(made, module, named)
        return
    offered = list(_offered(module))
    if not offered:
        msg = (
            f"{named.told} offers no stage: expected a function or a module class of its own that takes no argument, "
            f"or a module; name one, as {text}:build_stage"
        )
        raise StageError(msg)
    for name in offered:
        yield _case(getattr(module, name), module, Named(text, f"{text}:{name}", word="stage"))


def _offered(module: ModuleType) -> Iterator[str]:
    """Yield the names of what a module offers: those of ``__all__``, else what it defines under a public name."""
    listed = getattr(module, "__all__", None)
    for name, made in vars(module).items():
        own = name in listed if listed is not None else not name.startswith("_") and _defined_in(made, module)
        if own and name != _EXAMPLE and (isinstance(made, nn.Module) or _called_alone(made)):
            yield name


def _defined_in(made: object, module: ModuleType) -> bool:
    return isinstance(made, nn.Module) or getattr(made, "__module__", None) == module.__name__


def _called_alone(made: object) -> bool:
    """Tell whether something is a function, or a class of modules, that takes no argument."""
    if not (inspect.isfunction(made) or (isinstance(made, type) and issubclass(made, nn.Module))):
        return False
    parameters = inspect.signature(made).parameters.values()
    return all(one.default is not one.empty or one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD} for one in parameters)


def _case(made: object, home: ModuleType, named: Named) -> StageCase:
    build, example = _built(made, home, named)
    module = build()
    fed = guessed(module, named.told) if example is None else example
    name = re.sub(r"[^a-z0-9]+", "-", named.text.rpartition(":")[2].lower()).strip("-") or "stage"
    case = StageCase(name, named.text, build, recipes_of(fed, module, named.told), own_values=True)
    return replace(case, traits=_traits(case, named))


def _built(made: object, home: ModuleType, named: Named) -> tuple[Callable[[], nn.Module], Any]:
    """Return what builds a stage, and its example, None where it has none."""
    if isinstance(made, nn.Module):
        return lambda: copy.deepcopy(made), _example_of(named, made, home)
    if not callable(made):
        msg = f"{named.told} is {made!r:.60}; expected a function that returns a module, or a module"
        raise StageError(msg)
    factory = cast("Callable[[], object]", made)
    first = _called(factory, named)
    if isinstance(first, tuple) and first and isinstance(first[0], nn.Module):
        example = first[1] if len(first) == 2 else first[1:]  # noqa: PLR2004 (a pair)
        return lambda: cast("tuple[nn.Module]", factory())[0], _called(example, named) if callable(example) else example
    if not isinstance(first, nn.Module):
        msg = f"{named.told} returned {first!r:.60}; expected a module, or (module, {_EXAMPLE})"
        raise StageError(msg)
    return cast("Callable[[], nn.Module]", factory), _example_of(named, factory, first, home)


def _example_of(named: Named, *holders: object) -> Any:
    """Return the example that the first of ``holders`` with one has."""
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
        msg = f"{named.told} could not be called without arguments: {type(error).__name__}: {error}"
        raise StageError(msg) from error


def _traits(case: StageCase, named: Named) -> frozenset[str]:
    """Return the traits that a stage shows in float32 or float64; raise where it cannot be judged by its gradients."""
    return frozenset().union(*(_shown(case, dtype, named) for dtype in (torch.float32, torch.float64)))


def _shown(case: StageCase, dtype: torch.dtype, named: Named) -> frozenset[str]:
    try:
        with interrupts_seen():
            _refuse(case, dtype, named)
            return shown(case, dtype)
    except StageError:
        raise
    except BaseException as error:
        pass_on_an_interrupt(error)
        shapes = ", ".join(str(tuple(getattr(recipe, "shape", ()))) for recipe in case.inputs)
        msg = (
            f"{named.told} cannot be run forward and backward in {dtype}, in which its gradients are judged or held "
            f"against: {type(error).__name__}: {error}. It was fed arguments of the shapes {shapes}"
        )
        raise StageError(msg) from error


def _refuse(case: StageCase, dtype: torch.dtype, named: Named) -> None:
    """Raise for a stage that has no gradients, or that does not give the same twice."""
    first, second = _outputs_twice(case, dtype)
    if not any(output.requires_grad for output in first):
        msg = f"{named.told}: none of its outputs needs a gradient, so there is no backward to judge"
        raise StageError(msg)
    if not all(map(_alike, first, second)):
        msg = (
            f"{named.told} gives other outputs for the same arguments, buffers and seed of torch's generator; expected "
            "it to draw what is random from that generator, and to keep nothing from forward to forward but its buffers"
        )
        raise StageError(msg)


def _outputs_twice(case: StageCase, dtype: torch.dtype) -> list[list[Tensor]]:
    """Return what one module gives twice for the same arguments, with the buffers that it had before."""
    module, found = case.make(dtype=dtype, device=_CPU, seed=0), []
    before = [buffer.clone() for buffer in module.buffers()]
    for _ in range(2):
        for buffer, held in zip(module.buffers(), before, strict=True):
            buffer.data = held.clone()
        args = place_arguments(case.inputs, draw_arguments(case.inputs, seed=0, dtype=dtype), module, _CPU)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            found.append([output.clone() for output in tensors(module(*args))])
    return found


def _alike(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first.nan_to_num(), second.nan_to_num())
