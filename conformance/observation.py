"""Observations: all that a run of a program showed, copied so that nothing later can change it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradconform.dispatched import Executed
from gradconform.program import Action

#: How many characters of an exception's message a report shows.
_SHOWN = 300


@dataclass(slots=True)
class Raised:
    """An exception, as text: the object itself would keep frames, and with them tensors, alive."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Return the first cause of ``error``, which wrappers bury; addresses are left out, so that runs compare."""
        met = {id(error)}  # causes can form a ring: ``raise error from error``
        while error.__cause__ is not None and id(error.__cause__) not in met:
            error = error.__cause__
            met.add(id(error))
        return cls(type(error).__name__, re.sub(r"0x[0-9a-f]{6,}", "0x…", str(error)))

    def __str__(self) -> str:
        """Return the type and the first lines of the message."""
        words = " ".join(self.message.split())
        words = words if len(words) <= _SHOWN else f"{words[:_SHOWN]} …"
        return f"{self.type}: {words}" if words else self.type


@dataclass(slots=True)
class HookCall:
    """One call of a hook: ``kind`` is ``tensor``, ``post_accumulate`` or ``module``; ``grad`` may be None."""

    kind: str
    name: str
    grad: Tensor | None


@dataclass(slots=True)
class State:
    """What an action must not change, as it stands after the action, of all micro-batches. Tensors are copies."""

    args: dict[str, Tensor]
    output_grads: dict[str, Tensor]
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    requires_grad: dict[str, bool]
    rng: Tensor


@dataclass(slots=True)
class Alive:
    """How many tensors of one micro-batch are alive after an action."""

    outputs: int
    saved: int
    args: int


@dataclass(slots=True)
class Step:
    """What one action showed.

    ``position``: the place of the action in the program. ``input_grads``: what B or I returned; ``tracked``: its
    slots that require a gradient. ``arg_grads``: ``.grad`` of the arguments afterwards. ``param_grads``: the
    accumulated gradient of every parameter afterwards. ``loss``: what the loss function gave in F, before any scale.
    ``shared``: pairs of names whose tensors share storage.
    ``grad_places``: the storage of every parameter gradient. ``alive`` and ``live_tensors``: what lives on, where
    that is watched. ``misplaced``: the device of every tensor that does not sit on the trial's; all copies sit on the
    CPU.
    """

    action: Action
    position: int = 0
    raised: Raised | None = None
    outputs: tuple[Any, ...] | None = None
    loss: Tensor | None = None
    input_grads: tuple[Tensor | None, ...] | None = None
    arg_grads: tuple[Tensor | None, ...] | None = None
    param_grads: dict[str, Tensor | None] = field(default_factory=dict)
    weight_result: tuple[Tensor | None, ...] | None = None
    tracked: tuple[int, ...] = ()
    hook_calls: list[HookCall] = field(default_factory=list)
    state: State | None = None
    shared: tuple[tuple[str, str], ...] = ()
    grad_places: dict[str, int] = field(default_factory=dict)
    alive: dict[int, Alive] = field(default_factory=dict)
    live_tensors: int | None = None
    misplaced: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Observation:
    """The steps of one run.

    ``changed_later`` names returned gradients that did not stay as they were returned; ``close_raised`` is what the
    session raised when it was closed; ``executed`` which operations ran where, if that was recorded.
    """

    steps: list[Step] = field(default_factory=list)
    changed_later: list[str] = field(default_factory=list)
    close_raised: Raised | None = None
    executed: Executed | None = None

    @property
    def raised(self) -> Step | None:
        """The first step that raised without being a misuse."""
        return next((step for step in self.steps if step.raised and not step.action.misuse), None)
