"""The program of a draft: an order of actions over several steps, with the caller's actions around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradconform.fixtures import programs
from gradconform.trial.program import Action, parse, write

#: The orders of one step by word, each a function of the number of micro-batches.
ORDERS: dict[str, Callable[[int], str]] = {
    "full-at-once": programs.full_immediate,
    "full-in-flight": programs.full_all_forwards_first,
    "full-reversed": programs.full_reversed,
    "split-at-once": programs.split_immediate,
    "split-in-flight": programs.split_all_forwards_first,
    "split-lagging": programs.split_interleaved,
    "weights-reversed": lambda n: programs.split_all_forwards_first(n).rpartition(" W0")[0] + _reversed_weights(n),
    "inputs-reversed": programs.split_input_reversed,
    "mixed": programs.mixed,
}


def _reversed_weights(n: int) -> str:
    return "".join(f" W{mb}" for mb in reversed(range(n)))


#: The actions between two steps, by word.
BETWEEN: dict[str, tuple[str, ...]] = {
    "one": (),
    "cleared": ("finish zero_none",),
    "zeroed": ("finish zero_fill restride",),
    "stepped": ("finish step",),
    "three": ("finish", "finish"),
    "frozen": ("finish freeze0",),
}

#: The caller's action on a micro-batch after its B or I, by word.
CALLERS = {"keeps": "", "drops": "drop", "overwrites": "overwrite", "receives": "receive"}


#: Additional forwards by word, each a function of the actions of the first step.
FORWARDS: dict[str, Callable[[Sequence[Action]], tuple[Action, ...]]] = {
    "none": tuple,
    "evaluated": lambda step: (step[0], Action("evaluate", step[0].mb), *step[1:]),
    "lost": lambda step: (Action("lose", step[0].mb), *step),
}


def program_of(  # noqa: PLR0913 (a program's parts)
    order: str, count: int, steps: str, caller: str, *, second_stage: bool, forwards: str = "none", again: bool = False,
    finish: bool = False,
) -> str:  # fmt: skip
    """Return the program of ``count`` micro-batches, with the first of them again in each further step.

    ``forwards``: additional forwards in the first step. ``again``: one more micro-batch follows the first finish, which
    completes all W. ``finish``: the program ends with a finish. ``second_stage``: a second stage does the same,
    each of its actions after that of the first.
    """
    actions = list(FORWARDS[forwards](parse(ORDERS[order](count))))
    if again:
        actions += [*parse("finish"), *(replace(one, mb=count) for one in parse(ORDERS[order](1)))]
    for between in BETWEEN[steps]:
        actions += [*parse(between), *parse(ORDERS[order](1))]
    actions += parse("finish") if finish or again else ()
    reported = [done for action in actions for done in _with_caller(action, CALLERS[caller])]
    return write(both for action in reported for both in _on_stages(action, second_stage=second_stage))


def _with_caller(action: Action, does: str) -> Iterator[Action]:
    yield action
    if does and action.kind in {"B", "I"}:
        yield replace(action, kind=does)


def _on_stages(action: Action, *, second_stage: bool) -> Iterator[Action]:
    """Yield an action, and the same action of the second stage if it belongs to a stage."""
    yield action
    if second_stage:
        yield replace(action, stage=1)
