"""Reads a user's sharded stage: finds it by name, creates it with options, and states what a plan needs to know."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradconform.adapter import UnsupportedError
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.process.serving import Orders, Send
from gradconform.target.loading import load
from gradconform.target.lookup import Named
from gradconform.target.resolve import resolve
from gradconform.text.counts import count
from gradconform.trees import tensors
from gradconform.trial.materials import stable_seed
from gradconform.trial.mesh import Mesh, meshes_of

from .stage import OPTIONAL, REQUIRED, DescriptionError

#: The most ranks of one mesh: each is a process.
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class Described:
    """A user's sharded stage, before it is created with options: ``made`` is its class, or an object."""

    text: str
    made: Any

    @property
    def name(self) -> str:
        """The name in reports."""
        own = self.made if isinstance(self.made, type) else type(self.made)
        return str(getattr(self.made, "name", own.__name__))

    @property
    def meshes(self) -> list[Mesh]:
        """Every mesh to try, those with the fewest ranks first."""
        given = getattr(self.made, "mesh", None)
        if not isinstance(given, Mapping) or not given:
            msg = f"{self.words}: mesh: expected the sizes of each dimension, as {{'tp': (2, 4)}}; got {given!r}"
            raise DescriptionError(msg)
        sizes = {str(name): (one,) if isinstance(one, int) else tuple(one) for name, one in given.items()}
        for name, some in sizes.items():
            if not some or not all(isinstance(one, int) and one > 0 for one in some):
                msg = f"{self.words}: mesh: expected whole numbers from 1 for {name!r}, got {given[name]!r}"
                raise DescriptionError(msg)
        found = [mesh for mesh in meshes_of(sizes) if 1 < mesh.ranks <= _MOST_RANKS]
        if not found:
            msg = f"{self.words}: mesh {dict(given)!r} has no size from 2 to {_MOST_RANKS} ranks"
            raise DescriptionError(msg)
        return found

    @property
    def options(self) -> dict[str, tuple[Any, ...]]:
        """The values of each keyword argument to try; the first is the usual one."""
        given = getattr(self.made, "options", {})
        if not isinstance(given, Mapping) or not all(isinstance(one, Sequence) and one for one in given.values()):
            msg = f"{self.words}: options: expected the values of each argument, as {{'flag': (False, True)}}; "
            msg += f"got {given!r}"
            raise DescriptionError(msg)
        if given and not isinstance(self.made, type):
            msg = f"{self.words}: options are arguments of a class; name the class instead of an object"
            raise DescriptionError(msg)
        return {str(name): tuple(values) for name, values in given.items()}

    @property
    def unsupported(self) -> tuple[str, ...]:
        """The values of the kit's dimensions that the stage does not support."""
        given = getattr(self.made, "unsupported", ())
        return (given,) if isinstance(given, str) else tuple(map(str, given))

    @property
    def words(self) -> str:
        """The beginning of a message about it."""
        return f"sharded stage {self.text!r}"

    def create(self, chosen: Mapping[str, int]) -> Any:
        """Return the stage with its options, each given by the position of its value."""
        if not isinstance(self.made, type):
            return self.made
        given = {name: values[chosen.get(name, 0)] for name, values in self.options.items()}
        return called(f"{self.words} with {given}" if given else self.words, self.made, **given)


def described(text: str) -> Described:
    """Return the sharded stage that a user names, without creating it.

    Raises :class:`~gradconform.target.lookup.TargetError` if there is no such object, and
    :class:`~gradconform.sharded.stage.DescriptionError` if it is no sharded stage.
    """
    found, module = load(Named(text, text, word="sharded stage"))
    if isinstance(found, ModuleType):
        own = [one for one in vars(module).values() if _is_stage(one) and one.__module__ == module.__name__]
        if len(own) != 1:
            which = f"; name one: {', '.join(f'{text}:{one.__name__}' for one in own)}" if own else ""
            msg = f"sharded stage {text!r}: expected one class with {', '.join(REQUIRED)}, found {len(own)}{which}"
            raise DescriptionError(msg)
        (found,) = own
    missing = [name for name in REQUIRED if not hasattr(found, name)]
    if missing:
        msg = f"sharded stage {text!r} has no {' and no '.join(missing)}; see docs/my-sharded-stage.md"
        raise DescriptionError(msg)
    stage = Described(text, found)
    for name in (one for one in _public(found) if one not in {*REQUIRED, *OPTIONAL}):
        near = [one for one in OPTIONAL if one.removesuffix("s") == name.removesuffix("s")]
        if near:
            msg = f"{stage.words} has {name!r}, which the kit does not read; did you mean {near[0]}?"
            raise DescriptionError(msg)
    return stage


def _is_stage(found: object) -> bool:
    return isinstance(found, type) and all(hasattr(found, name) for name in REQUIRED)


def _public(found: object) -> list[str]:
    own = found if isinstance(found, type) else type(found)
    return [name for name in vars(own) if not name.startswith("_")]


def called(what: str, function: Any, *args: Any, **given: Any) -> Any:
    """Return the result of a user's function; raise :class:`.DescriptionError` with what it raised.

    A refusal passes through: it settles the row as unsupported.
    """
    try:
        with interrupts_seen():
            return function(*args, **given)
    except (DescriptionError, UnsupportedError):
        raise
    except BaseException as error:
        pass_on_an_interrupt(error)
        msg = f"{what} raised {type(error).__name__}: {error}"
        raise DescriptionError(msg) from error


def whole_of(stage: Any, words: str, seed: int) -> nn.Module:
    """Return the stage on one process; all ranks draw the same values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = called(f"{words}: whole()", stage.whole)
    if not isinstance(found, nn.Module):
        msg = f"{words}: whole() returned {type(found).__name__}; expected a torch.nn.Module"
        raise DescriptionError(msg)
    return found


def args_of(stage: Any, words: str, *drawn: object) -> tuple[Any, ...]:
    """Return the whole arguments of a micro-batch, drawn with a seed that depends on ``drawn``."""
    generator = torch.Generator().manual_seed(stable_seed("sharded", *drawn))
    found = called(f"{words}: args()", stage.args, generator)
    found = found if isinstance(found, tuple) else (found,)
    if not all(not isinstance(one, Tensor) or one.is_cpu for one in found):
        msg = f"{words}: args() returned a tensor that is not on the CPU; return CPU tensors, the kit moves them"
        raise DescriptionError(msg)
    return found


def describe_stage(orders: Orders, send: Send) -> None:
    """Report what a plan needs to know about a sharded stage: its meshes, its options, and what it has."""
    text = next(orders)["target"]
    found = described(text)
    try:
        stage = found.create({})
        whole = whole_of(stage, found.words, 0)
        args = args_of(stage, found.words, 0)
        returned = called(f"{found.words}: whole()(*args)", copy.deepcopy(whole), *args)
    except UnsupportedError as error:
        msg = f"{found.words} refuses its usual options: {error}; the first value of each option must work"
        raise DescriptionError(msg) from error
    file = inspect.getsourcefile(type(stage)) if not isinstance(stage, ModuleType) else None
    send({
        "name": found.name,
        "file": file,
        "sha256": None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        "meshes": [dict(mesh.sizes) for mesh in found.meshes],
        "options": {name: [_word(name, value) for value in values] for name, values in found.options.items()},
        "values": {name: list(map(repr, values)) for name, values in found.options.items()},
        "unsupported": list(found.unsupported),
        "outputs": sum(output.is_floating_point() for output in tensors(returned)),
        "one_output": isinstance(returned, Tensor),
        "parameters": sum(1 for _ in whole.parameters()),
        "buffers": any(True for _ in whole.buffers()),
        "finish": hasattr(stage, "finish"),
        "norm": hasattr(stage, "grad_norm"),
        "placed": _places_all(stage, whole),
        "members": [name for name in OPTIONAL if getattr(stage, name, None) is not None],
        "size": count(sum(one.numel() for one in whole.parameters()), "parameter"),
    })  # fmt: skip


def _places_all(stage: Any, whole: nn.Module) -> bool:
    """Return whether the stage says of each whole parameter how it is divided, so that none is a DTensor.

    False if that is only known once :meth:`~.ShardedStage.sharded` has been called.
    """
    names = getattr(stage, "whole_names", {})
    try:
        placed = set(optional(stage, "placements", {}))
    except Exception:  # noqa: BLE001 (it may need what sharded() keeps)
        return False
    if callable(names):
        return False
    known = {names.get(name, name) for name in placed}
    tensors_of = {id(one): set[str]() for one in whole.parameters()}
    for name, one in whole.named_parameters(remove_duplicate=False):
        tensors_of[id(one)].add(name)
    return all(known & of_one for of_one in tensors_of.values())


def describe_backward(orders: Orders, send: Send) -> None:
    """Report which backward a target has, ``full`` or ``split``."""
    found = resolve(next(orders)["target"]).capabilities
    send({"full": bool(found.full), "split": bool(found.split and found.weight_order == "any")})


def _word(name: str, value: object) -> str:
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return word if value else f"no-{word}"
    return f"{word}-{str(value).lower()}"


def optional(stage: Any, name: str, default: Any = None) -> Any:
    """Return an optional member of a stage, called if it is a method without arguments."""
    found = getattr(stage, name, default)
    return cast("Any", found)() if inspect.ismethod(found) else found
