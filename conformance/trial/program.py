"""Programs: orders of micro-batch actions, in the notation of torch.distributed.pipelining.

An action is ``[stage]LETTER mb``: ``F0``, ``I2``, ``1W0``. A following ``!`` marks a misuse that may raise. ``G0`` sets
a weight context by hand (torch's ``param_groups``), in place of ``I0``. Other tokens are events around the stage:

- ``zero_none`` and ``zero_fill``: ``zero_grad`` with and without ``set_to_none``.
- ``drop3``: the caller frees the outputs and arguments of micro-batch 3.
- ``overwrite3``: the caller writes over the input gradients of micro-batch 3.
- ``send3``: the outputs of micro-batch 3 are sent, and all holders free them; B or I start at their gradient edges.
- ``receive3``: the caller writes over the buffers of micro-batch 3's output gradients, as the next receive does.
- ``lose3``: a forward of micro-batch 3 on other values, which gets no backward: its number is used again.
- ``write3``: the caller doubles the outputs of micro-batch 3 in place.
- ``refill3``: the caller doubles the arguments of micro-batch 3 in place.
- ``evaluate3``: the caller runs the stage in evaluation mode and without gradients, on the values of micro-batch 3.
- ``hook`` and ``unhook``: hooks on every parameter.
- ``freeze2`` and ``unfreeze2``: for the parameter that is registered third.
- ``reopen``: the session is closed, and another one opened on the same module.
- ``finish`` and ``close``: after ``close`` a session is not called any more.

Some tokens change a stage as an optimizer does. ``step`` changes every parameter in place, ``replace`` its ``.data``,
and ``rebind`` replaces the parameters by others. ``restride`` replaces every gradient by one with other strides, and
``bucket`` by a view of one flat buffer, zeros for a missing one. ``buffer`` does the same, and the caller then reads
the buffer instead of ``.grad``; ``zero_buffer`` fills it with zeros. ``collect`` runs the garbage collector. A word
with a number before it, such as ``1step``, is for that stage. A micro-batch number may be used again, once it is
finished.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

_ACTION = re.compile(
    r"(?P<stage>\d*)(?P<letter>F|B|I|W|G|drop|send|overwrite|receive|lose|evaluate|write|refill|freeze|unfreeze)(?P<mb>\d+)(?P<misuse>!?)"
    r"|(?P<lane>\d*)(?P<word>zero_none|zero_fill|zero_buffer|hook|unhook|reopen|step|replace|rebind|restride|bucket|buffer|collect|close"
    r"|finish(?P<loud>!?))"
)

#: Kinds that are written without a micro-batch.
_WORDS = {
    "zero_none", "zero_fill", "zero_buffer", "hook", "unhook", "reopen", "step", "replace", "rebind", "restride",
    "bucket", "buffer", "collect", "close", "finish",
}  # fmt: skip

#: Kinds that change the values of all parameters, and those that replace parameters or their data.
CHANGES = frozenset({"step", "replace", "rebind"})
REPLACEMENTS = frozenset({"replace", "rebind"})
#: Kinds that clear gradients.
ZEROES = frozenset({"zero_none", "zero_fill", "zero_buffer"})
#: Kinds after which there is no gradient: a replaced parameter has none.
CLEARS = ZEROES | {"rebind"}
#: Kinds that change one parameter.
OF_ONE = frozenset({"freeze", "unfreeze"})
#: The kinds that ``changed_params`` claims, each with its name in a claim of some of them.
PARAMETER_CHANGE_OF = {"freeze": "frozen", "unfreeze": "thawed", **dict.fromkeys(REPLACEMENTS, "replaced")}


#: The capabilities that single kinds require.
_NEEDED_BY = {
    "B": "full",
    "G": "param_groups",
    "send": "edge_roots",
    "lose": "forward_again",
    "evaluate": "evaluation",
    "freeze": "frozen_params",
}

#: The text after the programs in a message if plain autograd, not the implementation, is wrong in them.
UNDER_PLAIN_AUTOGRAD = ", under plain autograd"


class ProgramError(ValueError):
    """A program that cannot be read or can never be run."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action: its kind (``F B I W G drop zero_none …``), stage and micro-batch, or number of the parameter."""

    kind: str
    mb: int = 0
    stage: int = 0
    misuse: bool = False

    def __str__(self) -> str:
        """Return the action as :func:`parse` reads it; stage 0 is not written."""
        stage = str(self.stage) if self.stage else ""
        mb = "" if self.kind in _WORDS else str(self.mb)
        return f"{stage}{self.kind}{mb}{'!' if self.misuse else ''}"


@lru_cache(maxsize=1024)
def parse(text: str) -> tuple[Action, ...]:
    """Return the actions of ``text``; raise :class:`ProgramError` with the invalid token."""
    return tuple(_parse_token(token, position) for position, token in enumerate(text.split(), 1))


def _parse_token(token: str, position: int) -> Action:
    match = _ACTION.fullmatch(token)
    if match is None:
        msg = (
            f"token {position} of the program is {token!r}; expected an action such as F0, I1, W1, zero_none or finish"
        )
        raise ProgramError(msg)
    if match["word"]:
        return Action(match["word"].removesuffix("!"), stage=int(match["lane"] or 0), misuse=bool(match["loud"]))
    return Action(match["letter"], int(match["mb"]), int(match["stage"] or 0), bool(match["misuse"]))


def write(actions: Iterable[Action]) -> str:
    """Return the text of actions, as :func:`parse` reads it."""
    return " ".join(map(str, actions))


def shortened(text: str, words: int = 16) -> str:
    """Return a program for a sentence: one of more than ``words`` actions is cut and counted."""
    tokens = text.split()
    if len(tokens) <= words:
        return text
    return f"{' '.join(tokens[: words - 4])} … {tokens[-1]} ({len(tokens)} actions)"


def programs_line(programs: Iterable[str]) -> str:
    """Return the line of a message that names the programs of a check."""
    return f"program {' | '.join(map(shortened, programs))}"


def without_programs(message: str, programs: Iterable[str]) -> list[str]:
    """Return the lines of a message without the one that names the programs."""
    line = programs_line(programs)
    return [one for one in message.splitlines() if one not in {line, f"{line}{UNDER_PLAIN_AUTOGRAD}"}]


def needs(actions: tuple[Action, ...]) -> frozenset[str]:
    """Return the capabilities that the program requires.

    They are names of capabilities, and these values:

    - ``weight_order=any`` and ``backward_order=any`` if the order is not first-in-first-out.
    - ``weight_order!=none`` if a W does not follow its I at once.
    - ``weight_when=weight`` if an action between a W and the next finish reads the gradients.
    """
    kinds = {action.kind for action in actions}
    found: set[str] = set()
    if kinds & {"I", "W", "G"}:
        found.add("split")
    if "B" in kinds and "I" in kinds:
        found.add("mixed")
    found |= {need for kind, need in _NEEDED_BY.items() if kind in kinds}
    if kinds & CLEARS:
        found.add("clears_grads")
    if kinds & {
        "bucket",
        "buffer",
    }:  # restride leaves gradients elsewhere unchanged, and they would be lost from a bucket
        found.add("grads_in_param_grad")
    if kinds & PARAMETER_CHANGE_OF.keys():
        found.add("changed_params")
    if kinds & {"write", "refill"} or _changed_in_flight(actions):
        found.add("changed_in_flight")
    return frozenset(found | _needed_orders(actions))


def _changed_in_flight(actions: tuple[Action, ...]) -> bool:
    """Return whether parameters are changed, frozen or thawed while a micro-batch is between its F and its B or W."""
    return any(
        action.kind in CHANGES | OF_ONE and in_flight(actions[:position], action.stage)
        for position, action in enumerate(actions)
    )


def in_flight(actions: Sequence[Action], stage: int) -> set[int]:
    """Return the micro-batches of ``stage`` that have run forward without their B or W."""
    waiting: set[int] = set()
    for action in actions:
        if action.stage == stage and action.kind in {"F", "B", "W"}:
            (waiting.add if action.kind == "F" else waiting.discard)(action.mb)
    return waiting


def _needed_orders(actions: tuple[Action, ...]) -> set[str]:
    found: set[str] = set()
    if not _fifo(actions, {"F"}, {"B", "I"}):
        found.add("backward_order=any")
    if not _fifo(actions, {"I", "G"}, {"W"}):
        found.add("weight_order=any")
    elif _deferred(actions):
        found.add("weight_order!=none")
    if _met_before_flush(actions):
        found.add("weight_when=weight")
    return found


#: Actions that read or change parameter gradients, or end the session: a W must be finished by then.
_AFTER_WEIGHTS = frozenset(
    {"hook", "unhook", "restride", "bucket", "buffer", "reopen", "close"} | ZEROES | CHANGES | OF_ONE
)


def _met_before_flush(actions: tuple[Action, ...]) -> bool:
    """Return whether an action between a W and the next finish requires that the W is finished."""
    return any(
        action.kind in _AFTER_WEIGHTS and flush_pending(actions[:position], action.stage)
        for position, action in enumerate(actions)
    )


def flush_pending(actions: Sequence[Action], stage: int) -> bool:
    """Return whether a W of ``stage`` has no later finish."""
    own = [action.kind for action in actions if action.stage == stage]
    return "W" in own and "finish" not in own[len(own) - 1 - own[::-1].index("W") :]


def undeferred(actions: tuple[Action, ...]) -> str | None:
    """Return the program with B in place of every I, and without W; None if that is not a program, or the same one."""
    kinds = {action.kind for action in actions}
    if "I" not in kinds or kinds & {"G", "overwrite", "receive"} or any(action.misuse for action in actions):
        return None
    return write(
        replace(action, kind="B") if action.kind == "I" else action for action in actions if action.kind != "W"
    )


def _deferred(actions: tuple[Action, ...]) -> bool:
    """Return whether some W comes after another backward than its own I."""
    right = [action for action in actions if action.kind in {"B", "I", "W"} and not action.misuse]
    backwards = [(action.kind, action.stage, action.mb) for action in right]
    return any(
        kind == "W" and ("I", stage, mb) in backwards and backwards[place - 1] != ("I", stage, mb)
        for place, (kind, stage, mb) in enumerate(backwards)
    )


def _fifo(actions: tuple[Action, ...], first: set[str], then: set[str]) -> bool:
    """Return whether ``then`` follows the order of ``first``, per stage, for the micro-batches that have both."""
    for stage in {action.stage for action in actions}:
        own = [action for action in actions if action.stage == stage and not action.misuse]
        second = [action.mb for action in own if action.kind in then]
        if [action.mb for action in own if action.kind in first and action.mb in second] != second:
            return False
    return True


def microbatches(actions: tuple[Action, ...], stage: int = 0) -> int:
    """Return how many micro-batches run forward on ``stage``."""
    return len({action.mb for action in actions if action.kind == "F" and action.stage == stage})


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of parameters at a position of a program: the frozen ones by number, and the count of changes.

    Parameters that were registered frozen and never thawed are not in ``frozen``.
    """

    frozen: frozenset[int] = frozenset()
    thawed: frozenset[int] = frozenset()
    changes: int = 0


def standing(actions: Sequence[Action], stages: Container[int], position: int) -> Standing:
    """Return the state of the parameters of ``stages``, which share them, before the action at ``position``."""
    frozen, thawed, changes = set[int](), set[int](), 0
    for action in actions[:position]:
        if action.stage in stages and action.kind in OF_ONE:
            (frozen if action.kind == "freeze" else thawed).add(action.mb)
            (thawed if action.kind == "freeze" else frozen).discard(action.mb)
        elif action.stage in stages and action.kind in CHANGES:
            changes += 1
    return Standing(frozenset(frozen), frozenset(thawed), changes)


def forward_of(actions: Sequence[Action], stage: int, mb: int, before: int | None = None) -> int:
    """Return the position of the last F of ``mb`` on ``stage`` ``before`` a position; 0 if there is none."""
    until = len(actions) if before is None else before
    places = (p for p, a in enumerate(actions[:until]) if a.kind == "F" and a.mb == mb and a.stage == stage)
    return max(places, default=0)
