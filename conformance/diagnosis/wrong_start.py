"""Finds a backward that started from the wrong place: other output gradients, another forward, or another mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations, islice, pairwise

import torch
from torch import Tensor, nn

from gradconform.devices.tensor_facts import offset_of, reach_of, storage_of, strides_of
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.drive.stage_changes import FACTOR
from gradconform.trees import leaves
from gradconform.trial.program import CHANGES, Action, forward_of

from .cause import Cause, Mistake
from .common_cause import GivenGradient, explained, given_by, wrong
from .forward_again import with_more_forwards, with_other_random_numbers
from .inside import strided_as_gradients, with_received_written_over
from .other_arguments import with_other_arguments
from .parts import microbatches, output_grads_at, run_of
from .rerun import Grads, Prepare, Rerun, Start, rerun, rerun_of
from .wrong_tensor import flat, is_near

#: How many equivalent mistakes are reported.
_MOST_CAUSES = 2

#: Up to how many outputs every two of them may be swapped; of more, only neighbours.
_FEW = 12

#: A mistake, and the output gradients that it makes of the right ones.
Edit = tuple[Cause, list[Start]]


def misread(evidence: Evidence, step: Step) -> Cause | None:
    """Return the simplest mistake that explains all values of the action; it is computed once per action."""
    if step.action.kind not in {"B", "I", "W"} or step.action.misuse:
        return None
    found: Cause | None = evidence.recomputed.of(("misread", id(step)), lambda: _found(evidence, step))
    return found


def _found(evidence: Evidence, step: Step) -> Cause | None:
    all_given = given_by(evidence, step)
    if not any(given.got is not None for given in wrong(all_given)):
        return None
    fitting = (cause for cause, grads in _hypotheses(evidence, step, all_given) if explained(all_given, grads))
    causes = tuple(islice(fitting, _MOST_CAUSES))
    return Cause(Mistake.EITHER, causes=causes) if len(causes) > 1 else next(iter(causes), None)


def _hypotheses(evidence: Evidence, step: Step, all_given: list[GivenGradient]) -> Iterator[tuple[Cause, Grads]]:
    again = rerun_of(evidence, step)
    if not evidence.trial.loss_at(step.action.stage):
        yield from _counted(evidence, again, all_given)
        for cause, starts in _edits(evidence, step, again):
            if again.starts_otherwise(starts):
                yield cause, again.grads(starts)
        yield from _of_other_stages(evidence, step, again)
    yield from _of_misread_arguments(evidence, step, again)
    yield from _of_other_microbatches(evidence, step, again)
    for cause, other in chain(otherwise(evidence, step), with_other_random_numbers(evidence, step)):
        yield cause, other.grads(other.given)
    yield from strided_as_gradients(evidence, step, again)
    yield from with_other_arguments(again)
    yield from with_received_written_over(again)


def _edits(evidence: Evidence, step: Step, again: Rerun) -> Iterator[Edit]:
    """Yield wrong output gradients that a mistake may have made of the right ones, the simplest first."""
    yield from _none_read(again)
    if len(again.given) > 1:
        yield from _by_order(evidence, step, again)
        yield from _moved(again.given)
        yield from _one_for_all(again.given)
    yield from _misread_in_memory(evidence, step, again)
    if any(given is not None for given in again.given):
        yield Cause(Mistake.OUTPUT_GRADS_ONES), _with_ones(again, list(range(len(again.given))))
        yield (
            Cause(Mistake.FIRST_ROW),
            [grad if grad is None or not grad.dim() else grad[:1].expand_as(grad) for grad in again.given],
        )


def _none_read(again: Rerun) -> Iterator[Edit]:
    """Yield the possible misreadings of None, which should mean no gradient."""
    shapes = again.shapes
    none = [n for n, given in enumerate(again.given) if given is None and shapes[n] is not None]
    scalars = [n for n in none if shapes[n] == torch.Size()]
    if scalars:
        yield Cause(Mistake.NONE_READ_AS_ONE, slots=tuple(scalars)), _with_ones(again, scalars)
    if none != scalars:
        yield Cause(Mistake.NONE_READ_AS_ONES, slots=tuple(none)), _with_ones(again, none)
    if any(given is None for given in again.given):
        present = [given for given in again.given if given is not None]
        moved = [*present, *[None] * (len(again.given) - len(present))]
        yield Cause(Mistake.NONE_SHIFTS), moved
    yield Cause(Mistake.OUTPUTS_SHIFT), left_out_of_the_outputs(again)


def left_out_of_the_outputs(again: Rerun) -> list[Start]:
    """Return the wrong pairing of gradients if outputs that need none are skipped, but their gradients are not."""
    given = iter(again.given)
    return [None if root is None else next(given) for root in again.roots]


def _with_ones(again: Rerun, places: list[int]) -> list[Start]:
    dtype = next((given.dtype for given in again.given if given is not None), torch.float64)
    return [
        torch.ones(shape, dtype=dtype) if n in places and shape is not None else given
        for n, (given, shape) in enumerate(zip(again.given, again.shapes, strict=True))
    ]


def _moved(given: list[Start]) -> Iterator[Edit]:
    """Yield the gradients in another order."""
    if len(given) > 10:  # noqa: PLR2004 (numbers of one digit are in the order of their text)
        by_text = sorted(range(len(given)), key=str)
        yield Cause(Mistake.OUTPUT_GRADS_BY_TEXT), [given[n] for n in by_text]
        yield Cause(Mistake.OUTPUT_GRADS_BY_TEXT), [given[by_text.index(n)] for n in range(len(given))]
    yield Cause(Mistake.OUTPUT_GRADS_REVERSED), given[::-1]
    places = range(len(given) if len(given) > 2 else 0)  # noqa: PLR2004 (two are reversed)
    for one, other in combinations(places, 2) if len(given) <= _FEW else pairwise(places):
        swapped = list(given)
        swapped[one], swapped[other] = given[other], given[one]
        yield Cause(Mistake.OUTPUT_GRADS_SWAPPED, slots=(one, other)), swapped


def _one_for_all(given: list[Start]) -> Iterator[Edit]:
    """Yield the first gradient in place of others, and all of them in the first."""
    present = [(n, grad) for n, grad in enumerate(given) if grad is not None]
    if len(present) < 2:  # noqa: PLR2004 (others besides the first)
        return
    place, first = present[0]
    used = [first if grad is not None and grad.shape == first.shape else grad for grad in given]
    yield Cause(Mistake.OUTPUT_GRAD_FOR_ALL, slots=(place,)), used
    if all(grad.shape == first.shape for _, grad in present):
        summed = torch.stack([grad for _, grad in present]).sum(0)
        yield Cause(Mistake.OUTPUT_GRADS_SUMMED), [summed, *[None] * (len(given) - 1)]


def _by_order(evidence: Evidence, step: Step, again: Rerun) -> Iterator[Edit]:
    """Yield the gradients of a dict of outputs in order of arrival, and in alphabetical order."""
    paths = list(again.outputs)
    if evidence.trial.chain or evidence.trial.hand_grads or not all(path.startswith("['") for path in paths):
        return
    handed = [widen(grad) for grad in output_grads_at(evidence, step.action.stage, step.action.mb)]
    yield Cause(Mistake.DICT_BY_ORDER), handed
    by_path = dict(zip(paths, again.given, strict=True))
    yield Cause(Mistake.DICT_BY_ALPHABET), [by_path[p] for p in sorted(paths)]


def _misread_in_memory(evidence: Evidence, step: Step, again: Rerun) -> Iterator[Edit]:
    """Yield non-contiguous output gradients, read as if they were contiguous."""
    if evidence.trial.chain or evidence.trial.hand_grads:
        return
    raw = dict(leaves(evidence.materials.output_grads(step.action.stage, step.action.mb)))
    read = [_through_the_storage(raw[path]) for path in again.outputs]
    yield Cause(Mistake.READ_AS_CONTIGUOUS), read
    lane, own = step.action.stage, step.action.mb
    for mb in [one for one in microbatches(evidence, lane)[:_TRIED] if one != own]:
        other = dict(leaves(evidence.materials.output_grads(lane, mb)))
        read = [_with_strides_of(raw[path], other[path]) for path in again.outputs]
        yield Cause(Mistake.READ_WITH_STRIDES_OF, microbatches=(mb,)), read


def _of_misread_arguments(evidence: Evidence, step: Step, again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the gradients of a backward that reads non-contiguous arguments as if they were contiguous."""
    if evidence.trial.chain or evidence.trial.hand_grads:
        return
    lane, mb = step.action.stage, step.action.mb
    raw = evidence.materials.args(lane, mb, again.stage)
    floats = [isinstance(one, Tensor) and one.layout == torch.strided and one.is_floating_point() for one in raw]
    read = {n: _through_the_storage(raw[n]) for n, chosen in enumerate(floats) if chosen and not _in_one_piece(raw[n])}
    changed = {n: other for n, other in read.items() if other is not None and not torch.equal(again.args[n], other)}
    if changed:
        separate = Rerun(evidence, lane, mb, forward_of(evidence.trial.actions, lane, mb, step.position + 1))
        for n, other in changed.items():
            separate.args[n].data.copy_(other)  # the values that its forward saved
        yield Cause(Mistake.ARGUMENTS_READ_AS_CONTIGUOUS), separate.grads(separate.given)


def _in_one_piece(tensor: Tensor) -> bool:
    """Return whether a tensor is contiguous from the start of its memory."""
    return tensor.is_contiguous() and not offset_of(tensor)


def _through_the_storage(tensor: Tensor | None) -> Start:
    storage = None if tensor is None or _in_one_piece(tensor) else storage_of(tensor)
    if tensor is None or storage is None or storage.nbytes() < tensor.nbytes:
        found: Start = widen(tensor)
        return found
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    read: Tensor = widen(flat[: tensor.numel()].view(tensor.shape))
    return read


def _with_strides_of(tensor: Tensor | None, other: Tensor | None) -> Start:
    """Return the elements of a tensor's memory in the order that another one's strides give them."""
    storage = None if tensor is None or other is None else storage_of(tensor)
    if tensor is None or other is None or storage is None or tensor.shape != other.shape or not other.numel():
        found: Start = widen(tensor)
        return found
    strides = strides_of(other) or strides_of(tensor) or ()
    if (offset_of(tensor) + reach_of(tensor.shape, strides)) * tensor.element_size() > storage.nbytes():
        return None
    read: Tensor = widen(tensor.as_strided(tensor.shape, strides))
    return read


#: How near a coefficient must be to 0, 1 or 2.
_NEAR = 0.2


def _counted(evidence: Evidence, again: Rerun, all_given: list[GivenGradient]) -> Iterator[tuple[Cause, Grads]]:
    """Yield the solution for how often each output's part counts in the values, if some are missing or doubled."""
    live = [
        n
        for n, (root, given) in enumerate(zip(again.roots, again.given, strict=True))
        if root is not None and given is not None
    ]
    if len(live) < 2:  # noqa: PLR2004 (with one output everything is scaled)
        return
    parts = [again.grads([given if n == only else None for n, given in enumerate(again.given)]) for only in live]
    counts = _solved(parts, all_given)
    if counts is None or len(set(counts)) == 1:
        return
    weights = dict(zip(live, counts, strict=True))
    starts = [
        None if given is None or not weights.get(n) else given * weights[n] for n, given in enumerate(again.given)
    ]
    what = "slot" if evidence.trial.hand_grads else "output"
    yield _cause_of(what, weights, again, dict(zip(live, parts, strict=True))), again.grads(starts)


def _cause_of(what: str, weights: Mapping[int, float], again: Rerun, parts: Mapping[int, Grads]) -> Cause:
    missing = [n for n, weight in weights.items() if not weight]
    twice = [n for n, weight in weights.items() if weight > 1.0]
    reported = []
    if missing:
        special = _special(again, missing, parts)
        reported.append(Cause(Mistake.OUTPUTS_MISSING, slots=tuple(missing), names=(what,), causes=special))
    if twice:
        reported.append(Cause(Mistake.OUTPUTS_COUNTED_TWICE, slots=tuple(twice), names=(what,)))
    return reported[0] if len(reported) == 1 else Cause(Mistake.SEVERAL, causes=tuple(reported))


def _solved(parts: list[Grads], all_given: list[GivenGradient]) -> list[float] | None:
    """Return the coefficients of the parts if all of them are 0, 1 or 2."""
    rows = [row for given in all_given if (row := _row(parts, given)) is not None]
    if not rows:
        return None
    # Gradients of one micro-batch can have several dtypes.
    columns, got = torch.cat([columns for columns, _ in rows]).double(), torch.cat([got for _, got in rows]).double()
    if not bool(torch.isfinite(columns).all() and torch.isfinite(got).all()) or columns.shape[0] < columns.shape[1]:
        return None
    solved = torch.linalg.lstsq(columns, got.unsqueeze(1), driver="gelsd").solution.squeeze(1).tolist()
    counts = [float(round(count)) for count in solved]
    # Later code checks whether they explain the values within rounding.
    near = all(abs(found - count) <= _NEAR for found, count in zip(solved, counts, strict=True))
    return counts if near and set(counts) <= {0.0, 1.0, 2.0} else None


def _row(parts: list[Grads], given: GivenGradient) -> tuple[Tensor, Tensor] | None:
    """Return the contributions of every part to one tensor, and its actual value; None if nothing can flow."""
    own = [part.inputs[given.name] if isinstance(given.name, int) else part.params[given.name] for part in parts]
    some = next((grad for grad in own if grad is not None), None)
    if some is None or (given.got is not None and given.got.shape != some.shape):
        return None
    zeros = torch.zeros_like(some)
    columns = torch.stack([flat(zeros if grad is None else grad) for grad in own], dim=1)
    return columns, flat(zeros if given.got is None else given.got)


def _special(again: Rerun, missing: list[int], parts: Mapping[int, Grads]) -> tuple[Cause, ...]:
    """Return the special properties that only the missing outputs have."""
    paths, outputs = list(again.outputs), list(again.outputs.values())

    specials: dict[Mistake, Callable[[int], bool]] = {
        Mistake.SAME_AS_OTHER_OUTPUT: lambda n: any(outputs[n] is outputs[m] for m in range(n)),
        Mistake.NOT_COMPUTED: lambda n: isinstance(outputs[n], Tensor) and outputs[n].grad_fn is None,
        Mistake.NESTED: lambda n: paths[n].count("[") > 1,
        Mistake.REACHES_NO_INPUT: lambda n: all(grad is None for grad in parts[n].inputs),
    }
    found = (Cause(kind) for kind, special in specials.items() if [n for n in parts if special(n)] == missing)
    return tuple(islice(found, 1))


#: How many micro-batches, and how many earlier returned gradients, are tried: those nearest in time.
_TRIED = 8


def _of_other_microbatches(evidence: Evidence, step: Step, again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the forward of another micro-batch with these output gradients, and the reverse."""
    lane, mb = step.action.stage, step.action.mb
    for other in _in_flight(evidence, step):
        theirs = rerun(evidence, lane, other, step.position)
        if theirs.starts_otherwise(again.given):
            yield Cause(Mistake.OTHER_FORWARD, microbatches=(other,), others=(mb,)), theirs.grads(again.given)
        if again.starts_otherwise(theirs.given):
            yield Cause(Mistake.OTHER_OUTPUT_GRADS, microbatches=(other,)), again.grads(theirs.given)
    for other_lane in range(len(evidence.trial.stages)) if evidence.trial.one_module else ():
        if Action("F", mb, other_lane) in evidence.trial.actions[: step.position] and other_lane != lane:
            theirs = rerun(evidence, other_lane, mb, step.position)
            cause = Cause(Mistake.OTHER_SESSION_FORWARD, microbatches=(mb,), stage=other_lane)
            yield cause, theirs.grads(again.given)


def _in_flight(evidence: Evidence, step: Step) -> list[int]:
    """Return the other micro-batches that have run forward but not backward, the newest first."""
    own = [a for a in evidence.trial.actions[: step.position] if a.stage == step.action.stage and not a.misuse]
    gone = {a.mb for a in own if a.kind in {"B", "I"}} - {step.action.mb} if step.action.kind != "W" else set()
    started = [a.mb for a in own if a.kind == "F" and a.mb != step.action.mb and a.mb not in gone]
    return [mb for mb in reversed(started) if mb in microbatches(evidence, step.action.stage)][:_TRIED]


def _of_other_stages(evidence: Evidence, step: Step, again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the last gradients returned by other stages of a chain, in place of those from the next stage."""
    if not evidence.trial.chain:
        return
    earlier = [
        seen.action
        for seen in reversed(run_of(evidence, step).steps)
        if seen.position < step.position and seen.action.kind in {"B", "I"} and seen.action.stage
    ]
    own = (step.action.stage + 1, step.action.mb)
    for action in [seen for seen in earlier if (seen.stage, seen.mb) != own][:_TRIED]:
        starts = list(evidence.reference(action.stage, action.mb).inputs)
        if again.starts_otherwise(starts):
            cause = Cause(Mistake.RETURNED_BUFFER_REUSED, stage=action.stage, microbatches=(action.mb,))
            yield cause, again.grads(starts)


#: Modes that a module may have, each with the mistake that puts all modules into the other one.
_MODES: tuple[tuple[bool, Mistake, Prepare], ...] = (
    (False, Mistake.TRAINING_MODE, nn.Module.train),
    (True, Mistake.EVAL_MODE, nn.Module.eval),
)


def otherwise(evidence: Evidence, step: Step) -> Iterator[tuple[Cause, Rerun]]:
    """Yield the forward of a micro-batch in the other mode, and with earlier or later values of its parameters."""
    lane, mb = step.action.stage, step.action.mb
    modes = {module.training for module in rerun_of(evidence, step).stage.modules()}
    for mode, mistake, prepare in _MODES:
        if mode in modes:
            moded = rerun_of(evidence, step, prepare)
            if evidence.recomputed.of((mistake, lane), partial(_differs, rerun_of(evidence, step), moded)):
                yield Cause(mistake), moded
    yield from with_more_forwards(evidence, step)
    sharing = evidence.trial.sharing(lane)
    changes = [
        action
        for action in evidence.trial.actions[: step.position]
        if action.kind in CHANGES and action.stage in sharing
    ]
    own = evidence.trial.standing(lane, forward_of(evidence.trial.actions, lane, mb, step.position + 1)).changes
    for count in [number for number in range(len(changes) + 1) if number != own]:
        kind, action = (
            (Mistake.PARAMETERS_OLD, changes[count]) if count < own else (Mistake.PARAMETERS_NEW, changes[own])
        )
        yield Cause(kind, action=str(action)), rerun_of(evidence, step, partial(_scaled, FACTOR ** (count - own)))


def _scaled(factor: float, stage: nn.Module) -> None:
    for parameter in stage.parameters():
        parameter.data *= factor


def _differs(one: Rerun, other: Rerun) -> bool:
    return not all(map(is_near, one.outputs.values(), other.outputs.values()))
