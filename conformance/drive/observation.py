"""Observations: all results of a program's run, copied so that nothing later can change them."""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradconform.results import Sort
from gradconform.text.escaping import shortened
from gradconform.torch_releases.accelerator import ends_the_process
from gradconform.trial.program import Action

#: How many characters of an exception's message a report shows.
_SHOWN = 300

#: The message of torch's CPU allocator when memory runs out.
_CPU_ALLOCATOR = re.compile(r"can't allocate memory|not enough memory")


#: The most frames of an exception that are kept, the innermost ones.
_FRAMES = 6

#: The modules of the kit with implementations; frames of its other modules are of no use to a target's author.
_IMPLEMENTATIONS = ("gradconform.plugins", "gradconform.reference")

#: The modules of the kit with a mode that sees operations while a session runs, and the functions that pass them on.
_MODES = frozenset({"gradconform.drive.operation_log", "gradconform.torch_releases.dispatch"})
_PASSING_ON = frozenset({"__torch_dispatch__", "dispatch"})


class Frame(NamedTuple):
    """A frame of a traceback, without the objects that the frame would keep alive."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, as text: the object itself would keep frames, and with them tensors, alive.

    ``memory`` says that it reports exhausted memory. ``broken`` says that it is not about an operation: the device is
    out of memory, or lost. ``file`` and ``line`` are where it was raised, or where the torch or standard library code
    that raised it was called. ``engine`` says that torch's autograd raised it, called from there. ``chain`` has the
    types of all exceptions that its traceback shows: those it was raised from, or during. ``frames`` are those of the
    target, the innermost last. ``call`` names the method that raised if it is not the action's own.
    """

    type: str
    message: str
    memory: bool = False
    broken: bool = False
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    engine: bool = field(default=False, compare=False)
    chain: frozenset[str] = field(default=frozenset(), compare=False)
    frames: tuple[Frame, ...] = field(default=(), compare=False)
    call: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: BaseException, *, call: str = "") -> Raised:
        """Return the first cause of ``error``, which wrappers hide; addresses are removed, so that runs compare."""
        chain = frozenset(type(one).__name__ for one in _shown_with(error))
        met = {id(error)}  # causes can form a ring: ``raise error from error``
        while error.__cause__ is not None and id(error.__cause__) not in met:
            error = error.__cause__
            met.add(id(error))
        file, line, engine = _place_of(error)
        return cls(
            type(error).__name__,
            re.sub(r"0x[0-9a-f]{6,}", "0x…", shortened(str(error))),
            memory=_is_out_of_memory(error),
            broken=isinstance(error, ends_the_process()),
            file=file,
            line=line,
            engine=engine,
            chain=chain,
            frames=_frames_of(error),
            call=call,
        )

    def __str__(self) -> str:
        """Return the type and the first lines of the message."""
        words = " ".join(self.message.split())
        words = words if len(words) <= _SHOWN else f"{words[:_SHOWN]} …"
        return f"{self.type}: {words}" if words else self.type


def _shown_with(error: BaseException) -> list[BaseException]:
    """Return an exception and all that its traceback shows: those it was raised from or, unless hidden, during."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and all(following is not one for one in found):
        found.append(following)
        during = None if following.__suppress_context__ else following.__context__
        following = during if following.__cause__ is None else following.__cause__
    return found


def _place_of(error: BaseException) -> tuple[str, int, bool]:
    """Return file and line of the innermost frame that is neither torch's nor the standard library's.

    The third value says whether that frame called ``torch.autograd``. The kit's modes see each operation and pass it
    on, so their frames do not count.
    """
    file, line, engine = "", 0, False
    for frame, at in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if is_lent(module):
            engine = engine or module.startswith("torch.autograd")
        elif not (module in _MODES and frame.f_code.co_name in _PASSING_ON):
            file, line, engine = frame.f_code.co_filename, at, False
    return file, line, engine


def _frames_of(error: BaseException) -> tuple[Frame, ...]:
    """Return the innermost frames that are the target's: neither torch's, nor the standard library's, nor the kit's."""
    found: deque[Frame] = deque(maxlen=_FRAMES)
    for frame, at in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        of_kit = module.partition(".")[0] == "gradconform" and not module.startswith(_IMPLEMENTATIONS)
        if not (of_kit or is_lent(module)):
            found.append(Frame(frame.f_code.co_filename, at, frame.f_code.co_name))
    return tuple(found)


def is_lent(module: str) -> bool:
    """Return whether a module is torch's or the standard library's: its errors belong to its caller."""
    return module.partition(".")[0] in {"torch", *sys.stdlib_module_names}


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # torch's CPU allocator has no exception type of its own.
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class HookCall:
    """One call of a hook; ``grad`` may be None.

    ``kind`` is ``tensor``, ``post_accumulate``, ``module``, or ``own`` for one of the stage's own.
    """

    kind: str
    name: str
    grad: Tensor | None


#: The settings of the process, which must be as before the first action.
AS_BEFORE = "as before"


@dataclass(frozen=True, slots=True)
class State:
    """State that an action must not change, as it is after the action, of all micro-batches. Tensors are copies.

    ``process`` has the settings of the process. ``handed`` says whether lists of output gradients keep their entries
    and whether hooks are on arguments.
    """

    args: Mapping[str, Tensor]
    output_grads: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    requires_grad: Mapping[str, bool]
    rng: Tensor
    process: Mapping[str, Any]
    handed: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Alive:
    """How many tensors of one micro-batch are alive after an action."""

    outputs: int
    saved: int
    args: int

    def within(self, allowed: Alive) -> bool:
        """Return whether none of the counts is above the ``allowed`` one."""
        return self.outputs <= allowed.outputs and self.saved <= allowed.saved and self.args <= allowed.args


@dataclass(frozen=True)  # without slots: a field that an action has not shown stays with the class, see :meth:`of`
class Step:
    """The observations of one action.

    ``position``: how many actions of the program come before. ``input_grads``: the result of B or I. ``tracked``: its
    slots that require a gradient. ``recorded``: the parameter gradients that require one, each with the start of its
    history, empty without one. ``arg_grads``: ``.grad`` of the arguments afterwards. ``param_grads``: the accumulated
    gradient of every parameter afterwards. ``loss``: the loss function's result for the outputs of F, before any scale.
    ``shared``: pairs of names whose tensors share storage. ``grad_addresses``: the storage of every parameter gradient.
    ``alive`` and ``live_tensors``: the tensors that are still alive, if they are watched. ``held``: what holds those of
    a micro-batch that are alive after finish and a run of the garbage collector, "" if it is unknown. ``late``: the
    gradients that were not yet available to work on the caller's stream when the action returned, by sort and name.
    ``misplaced``: the device of every tensor that is not on the trial's, by sort and name; all copies are on the CPU.
    ``detached``: the numbers of the outputs of F, as leaves, that require no gradient. ``upstream``: the errors in the
    graph whose outputs a stage receives. ``beside_buffer`` has what ``.grad`` holds where it is no longer the
    caller's own buffer, whose values are in ``param_grads``.
    """

    action: Action
    position: int = 0
    raised: Raised | None = None
    outputs: tuple[Any, ...] | None = None
    loss: Tensor | None = None
    input_grads: tuple[Tensor | None, ...] | None = None
    arg_grads: tuple[Tensor | None, ...] | None = None
    param_grads: Mapping[str, Tensor | None] = field(default_factory=dict)
    weight_result: tuple[Tensor | None, ...] | None = None
    tracked: tuple[int, ...] = ()
    recorded: Mapping[str, str] = field(default_factory=dict)
    hook_calls: tuple[HookCall, ...] = ()
    state: State | None = None
    shared: tuple[tuple[str, str], ...] = ()
    grad_addresses: Mapping[str, int] = field(default_factory=dict)
    alive: Mapping[int, Alive] = field(default_factory=dict)
    held: Mapping[int, str] = field(default_factory=dict)
    live_tensors: int | None = None
    late: tuple[tuple[Sort, str], ...] = ()
    misplaced: Mapping[tuple[Sort, str], str] = field(default_factory=dict)
    detached: tuple[int, ...] = ()
    upstream: Mapping[str, str] = field(default_factory=dict)
    beside_buffer: Mapping[str, Tensor | None] = field(default_factory=dict)

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> Step:
        """Return the step with the fields ``seen``; faster than a call, which sets every field one by one."""
        step = cls.__new__(cls)
        vars(step).update(seen)
        return step


for _field in fields(Step):
    if _field.default_factory is dict:  # a dataclass accepts no mapping as a default, but the class can hold it
        setattr(Step, _field.name, MappingProxyType({}))


#: The known values of an action that no earlier run has shown.
UNKNOWN = Step(Action("finish"))


class Sight:
    """The observations of an action so far: an unfinished step.

    ``known`` has those of an earlier run, ``seen`` the fields of the step. ``result`` is what W returned,
    and ``stored`` has the parameter gradients that were copied.
    """

    def __init__(self, action: Action, position: int, known: Step) -> None:
        self.action, self.position, self.known = action, position, known
        self.raised: Raised | None = None
        self.result: Sequence[Any] | None = None
        self.stored: Mapping[str, Any] = {}
        self.seen: dict[str, Any] = {"action": action, "position": position}

    def keep_misplaced(self, sort: Sort, name: str, device: torch.device) -> None:
        """Record that a tensor is not on the trial's device."""
        self.seen.setdefault("misplaced", {})[sort, name] = str(device)

    def step(self) -> Step:
        """Return the observations, frozen."""
        if self.raised is not None:
            self.seen["raised"] = self.raised
        step = Step.__new__(Step)  # faster than a call, which sets every field one by one
        vars(step).update(self.seen)
        return step


@dataclass(frozen=True, slots=True)
class Executed:
    """The operations of one run: how many on the device and, by name, elsewhere."""

    on_device: int = 0
    off_device: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Executed) -> Executed:
        """Return both runs as one."""
        return Executed(self.on_device + other.on_device, Counter(self.off_device) + Counter(other.off_device))

    @property
    def off_device_share(self) -> float | None:
        """Return the share of the operations that ran elsewhere, or None if none ran."""
        off_device = sum(self.off_device.values())
        total = self.on_device + off_device
        return off_device / total if total else None


@dataclass(frozen=True, slots=True)
class Observation:
    """The steps of one run.

    ``changed_later`` names returned tensors that changed after they were returned. ``close_raised`` is the error of
    closing the session. ``executed`` has the operations and their devices, if they were recorded. ``peak`` is the
    largest memory on the device in bytes, beyond the memory in use before; None if it was not measured. ``held_stage``
    has what holds the stage's module and parameters after close, by name, if that is watched.
    """

    steps: tuple[Step, ...] = ()
    changed_later: tuple[str, ...] = ()
    close_raised: Raised | None = None
    executed: Executed | None = None
    peak: int | None = None
    held_stage: Mapping[str, str] = field(default_factory=dict)

    @property
    def raised(self) -> Step | None:
        """The first step that raised without being a misuse."""
        for step in self.steps:
            if step.raised is not None and not step.action.misuse:
                return step
        return None

    def at(self, position: int) -> Step:
        """Return the step of the action at ``position`` of the program; raise ``KeyError`` if it was not run."""
        for index in range(min(position, len(self.steps) - 1), -1, -1):
            step = self.steps[index]  # the first one, unless an action before was not run
            if step.position == position:
                return step
        raise KeyError(position)
