"""Mistakes at the start of a backward: output gradients dropped, shifted, reversed, misread, or of somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

import torch
from torch import Tensor

from gradconform.diagnosis import elsewhere, outputs
from gradconform.diagnosis.jointly import Given, explained, given_by, wrong
from gradconform.diagnosis.parts import output_grads_at
from gradconform.diagnosis.question import numbered
from gradconform.diagnosis.replay import Grads, Replay, Start, replay
from gradconform.evidence import Evidence
from gradconform.fixtures.trees import leaves
from gradconform.observation import Step
from gradconform.reference64 import widen

#: How many mistakes are told that come to the same.
_TOLD = 2

#: What a mistake is called, and the output gradients that it makes of the right ones.
Edit = tuple[str, list[Start]]


def misread(evidence: Evidence, step: Step) -> str | None:
    """Return the mistake that explains all that the action gave, the simplest first; found once per action."""
    if step.action.kind not in {"B", "I", "W"} or step.action.misuse:
        return None
    key = ("misread", id(step))
    if key not in evidence.recomputed:
        evidence.recomputed[key] = (step, _found(evidence, step))  # with the step its id stays its own
    found: str | None = evidence.recomputed[key][1]
    return found


def _found(evidence: Evidence, step: Step) -> str | None:
    all_given = given_by(evidence, step)
    if not any(given.got is not None for given in wrong(all_given)):
        return None
    fitting = (told for told, grads in _hypotheses(evidence, step, all_given) if explained(all_given, grads))
    return "; or ".join(islice(fitting, _TOLD)) or None


def _hypotheses(evidence: Evidence, step: Step, all_given: list[Given]) -> Iterator[tuple[str, Grads]]:
    lane, mb = step.action.stage, step.action.mb
    again = replay(evidence, lane, mb)
    if not evidence.trial.loss_at(lane):
        yield from outputs.counted(evidence, again, all_given)
        for told, starts in _edits(evidence, step, again):
            if again.starts_otherwise(starts):
                yield told, again.grads(starts)
        yield from elsewhere.of_other_stages(evidence, step, again)
    yield from elsewhere.of_other_microbatches(evidence, step, again)
    yield from elsewhere.in_eval_mode(evidence, step)


def _edits(evidence: Evidence, step: Step, again: Replay) -> Iterator[Edit]:
    """Yield other output gradients that a mistake may have made of the right ones, the simplest first."""
    yield from _none_read(again)
    if len(again.given) > 1:
        yield from _by_order(evidence, step, again)
        yield from _moved(again.given)
        yield from _one_for_all(again.given)
    yield from _misread_in_memory(evidence, step, again)
    if any(given is not None for given in again.given):
        yield "ones in place of the output gradients", _with_ones(again, list(range(len(again.given))))


def _none_read(again: Replay) -> Iterator[Edit]:
    """Yield what None is read as that should mean no gradient."""
    shapes = again.shapes
    none = [n for n, given in enumerate(again.given) if given is None and shapes[n] is not None]
    scalars = [n for n in none if shapes[n] == torch.Size()]
    if scalars:
        yield f"None for the 0-d {numbered('output', scalars)} read as 1", _with_ones(again, scalars)
    if none != scalars:
        yield f"None for {numbered('output', none)} read as a gradient of ones", _with_ones(again, none)
    if any(given is None for given in again.given):
        present = [given for given in again.given if given is not None]
        moved = [*present, *[None] * (len(again.given) - len(present))]
        yield "None shifts the gradients: those behind it move up", moved


def _with_ones(again: Replay, places: list[int]) -> list[Start]:
    dtype = next((given.dtype for given in again.given if given is not None), torch.float64)
    return [
        torch.ones(shape, dtype=dtype) if n in places and shape is not None else given
        for n, (given, shape) in enumerate(zip(again.given, again.shapes, strict=True))
    ]


def _moved(given: list[Start]) -> Iterator[Edit]:
    """Yield the gradients in another order."""
    yield "output gradients are reversed: the last goes to the first output", given[::-1]
    for one, other in combinations(range(len(given)), 2) if len(given) > 2 else ():  # noqa: PLR2004 (two are reversed)
        swapped = list(given)
        swapped[one], swapped[other] = given[other], given[one]
        yield f"output gradients {one} and {other} are swapped", swapped


def _one_for_all(given: list[Start]) -> Iterator[Edit]:
    """Yield the first gradient in place of others, and all of them in the first."""
    present = [(n, grad) for n, grad in enumerate(given) if grad is not None]
    if len(present) < 2:  # noqa: PLR2004 (others than the first)
        return
    place, first = present[0]
    used = [first if grad is not None and grad.shape == first.shape else grad for grad in given]
    yield f"the gradient of output {place} is used for every output that it fits", used
    if all(grad.shape == first.shape for _, grad in present):
        summed = torch.stack([grad for _, grad in present]).sum(0)
        yield "the output gradients are summed into the first", [summed, *[None] * (len(given) - 1)]


def _by_order(evidence: Evidence, step: Step, again: Replay) -> Iterator[Edit]:
    """Yield the gradients of a dict of outputs in the order in which they come, and in the order of the alphabet."""
    paths = list(again.outputs)
    if evidence.trial.chain or evidence.trial.hand_grads or not all(path.startswith("['") for path in paths):
        return
    handed = [widen(grad) for grad in output_grads_at(evidence, step.action.stage, step.action.mb)]
    yield "a dict's output gradients are paired by their order, not by their keys", handed
    by_path = dict(zip(paths, again.given, strict=True))
    yield "a dict's output gradients are paired in the order of the alphabet", [by_path[p] for p in sorted(paths)]


def _misread_in_memory(evidence: Evidence, step: Step, again: Replay) -> Iterator[Edit]:
    """Yield output gradients that do not lie in one piece, read as if they did."""
    if evidence.trial.chain or evidence.trial.hand_grads:
        return
    raw = dict(leaves(evidence.materials.output_grads(step.action.stage, step.action.mb)))
    read = [_through_the_storage(raw[path]) for path in again.outputs]
    yield "an output gradient that is not contiguous is read through its storage as if it were", read


def _through_the_storage(grad: Tensor | None) -> Start:
    if grad is None or grad.is_contiguous() or grad.untyped_storage().size() < grad.nbytes:
        found: Start = widen(grad)
        return found
    flat = torch.empty(0, dtype=grad.dtype, device=grad.device).set_(grad.untyped_storage())
    read: Tensor = widen(flat[: grad.numel()].view(grad.shape))
    return read
