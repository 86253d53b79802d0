"""Faults of pairing: output gradients with the wrong output, input gradients in the wrong slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradconform.devices.tensor_facts import storage_of
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import RIGHT, Functions, Grads, alters, backwards, each_output_grad, input_grads, output_grads, target
from .registry import fault


@fault(
    "grad_tuple.none.first-*",
    "grad_tuple.none.chunk-*",
    "grad_tuple.none.all-but-last-*",
    raises=True,
    cause="none_shifts",
)
@alters(output_grads)
def none_shifts_the_gradients_behind_it(outputs: list[Any], grads: list[Any]) -> list[Any]:
    """None is filtered out of the output gradients but not out of the outputs."""
    present = [grad for grad in grads if grad is not None]
    return present + [None] * (len(outputs) - len(present))


@fault(
    "*.gradients.output-chunks",
    "grad_tuple.size.two-*",
    "grad_tuple.size.three-*",
    raises=True,
    cause="output_grads_reversed",
    takes="outputs=named dict bools scalar",
)
def output_grads_reversed() -> Target:
    """The last output gradient is used for the first output."""
    return target(output_grads(lambda _, grads: grads[::-1]))


@fault("full.gradients.dict-output", raises=True, takes="outputs=dict")
def dict_paired_by_sorted_keys() -> Target:
    """A dict's output gradients are sorted by key, but its outputs are not."""
    return _of_dict(lambda grads: [grads[key] for key in sorted(grads)])


@fault("grad_tuple.wrong.short-*", "grad_tuple.too_long.*")
@alters(output_grads)
def zip_truncates(outputs: list[Any], grads: Any) -> Any:
    """Outputs and gradients are zipped, and the longer of the two is cut."""
    if not isinstance(grads, (tuple, list)):
        return grads
    return [*grads, *[None] * len(outputs)][: len(outputs)]


def _mended(mend: Any) -> Target:
    """Return a target that changes an output gradient to fit its output instead of refusing it."""

    def edit(outputs: list[Any], grads: Any) -> Any:
        if not isinstance(grads, (tuple, list)) or len(grads) != len(outputs):
            return grads
        return [
            grad if grad is None or (isinstance(grad, Tensor) and grad.shape == output.shape) else mend(output, grad)
            for output, grad in zip(outputs, grads, strict=True)
        ]

    return target(output_grads(edit))


def _of_dict(ordered: Callable[[dict[Any, Any]], list[Any]]) -> Target:
    """Return a target that pairs the outputs of a dict, in their own order, with ``ordered(grads)``."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        if not isinstance(grads, dict):
            return RIGHT.full(outputs, grads, inputs)
        return RIGHT.full(list(outputs.values()), ordered(grads), inputs)

    return target(Functions(full=full))


@fault("grad_tuple.wrong.broadcast-*")
def wrong_shape_broadcast() -> Target:
    """An output gradient of one row is broadcast to all rows."""
    return _mended(lambda output, grad: grad.expand_as(output) if isinstance(grad, Tensor) and len(grad) == 1 else grad)


@fault("grad_tuple.wrong.shape-*")
def wrong_shape_cut() -> Target:
    """Rows of an output gradient beyond the output's are cut off."""
    return _mended(lambda output, grad: grad[: len(output)] if isinstance(grad, Tensor) else grad)


@fault("grad_tuple.wrong.number-*")
def number_for_a_gradient() -> Target:
    """A number instead of an output gradient is read as a tensor filled with it."""
    return _mended(lambda output, grad: grad if isinstance(grad, Tensor) else torch.full_like(output, grad))


@fault("grad_tuple.wrong.structure-*")
def dict_taken_for_a_tuple() -> Target:
    """Output gradients in a dict are used in its order for outputs in a tuple."""
    return target(output_grads(lambda _, grads: list(grads.values()) if isinstance(grads, dict) else grads))


@fault(
    "grad_tuple.none.lone-*",
    "grad_tuple.none_scalar.*",
    "grad_tuple.none.all-*",
    "grad_tuple.none.last-*",
    cause="none_read_as_ones",
    takes="start=none-first",
)
@alters(each_output_grad)
def none_read_as_ones(output: Any, grad: Any) -> Any:
    """None for an output is read as a gradient of ones."""
    missing = grad is None and isinstance(output, Tensor) and output.requires_grad
    return torch.ones_like(output) if missing else grad


@fault("grad_tuple.none_scalar.*", cause={"kind": "none_read_as_one", "slots": [0]}, takes="outputs=scalar")
@alters(each_output_grad)
def none_of_a_scalar_read_as_one(output: Any, grad: Any) -> Any:
    """None for a 0-d output is read as 1, although the claim is that no gradient flows."""
    missing = grad is None and isinstance(output, Tensor) and output.dim() == 0
    return torch.ones_like(output) if missing else grad


@fault("*.gradients.output-chunks", cause={"kind": "output_grad_for_all", "slots": [0]})
@alters(output_grads)
def one_gradient_for_all(outputs: list[Any], grads: Any) -> Any:
    """The first output gradient is used for every output of its shape."""
    if not isinstance(grads, list) or not isinstance(grads[0], Tensor):
        return grads
    return [
        grads[0] if isinstance(grad, Tensor) and grad.shape == output.shape == grads[0].shape else grad
        for output, grad in zip(outputs, grads, strict=True)
    ]


@fault(
    "*.gradients.two-inputs",
    "*.loss.two-inputs",
    "accumulate.reused_input.two-inputs-split",
    cause="other_input",
    takes="inputs=two-inputs unused-input fixed-input half-input integer-input inputs-in-one-memory",
)
def input_grads_reversed() -> Target:
    """The gradient of the last argument is returned for the first."""
    return target(input_grads(lambda _, grads: grads[::-1]))


@fault(
    "*.gradients.fixed-input-first",
    "*.gradients.integer-input",
    "*.gradients.nontensor-inputs",
    cause=("other_input", "returned_elsewhere"),
    takes="inputs=fixed-input",
)
@alters(input_grads)
def input_that_needs_none_shifts_the_slots(inputs: Sequence[Any], grads: Grads) -> Grads:
    """Gradients are returned for the arguments that require one, followed by None for the others."""
    needing = [isinstance(value, Tensor) and value.requires_grad for value in inputs]
    found = [grad for grad, needs in zip(grads, needing, strict=True) if needs]
    return (*found, *[None] * (len(inputs) - len(found)))


@fault("*.gradients.unused-input", "*.gradients.custom-none-for-input", cause=("other_input", "returned_elsewhere"))
@alters(input_grads)
def unused_input_shifts_the_slots(_: Sequence[Any], grads: Grads) -> Grads:
    """Gradients of None are filtered out before gradients are assigned to slots."""
    present = tuple(grad for grad in grads if grad is not None)
    return (*present, *[None] * (len(grads) - len(present)))


@fault(
    "*.gradients.unused-input",
    "*.gradients.fixed-input-first",
    "*.gradients.integer-input",
    cause="zeros_for_none",
    takes="inputs=unused-input fixed-input all-fixed integer-input",
)
@alters(input_grads)
def zeros_for_none(inputs: Sequence[Any], grads: Grads) -> Grads:
    """An input without a gradient gets zeros instead of None."""
    pairs = zip(inputs, grads, strict=True)
    return tuple(torch.zeros_like(v) if g is None and isinstance(v, Tensor) else g for v, g in pairs)


@fault(
    "grad_tuple.layout.transposed-*",
    "grad_tuple.layout.strided-*",
    cause="read_as_contiguous",
    takes="start=transposed-gradients strided-gradients",
    shows_by="memory",
)
@alters(each_output_grad)
def read_through_the_storage(_: Any, grad: Any) -> Any:
    """An output gradient is read from its storage as if it were contiguous."""
    storage = storage_of(grad) if isinstance(grad, Tensor) and not grad.is_contiguous() else None
    if storage is None or storage.nbytes() < grad.nbytes:
        return grad
    stored = torch.empty(0, dtype=grad.dtype, device=grad.device).set_(storage)
    return stored[: grad.numel()].view(grad.shape)


@fault("grad_tuple.layout.expanded-*", raises=True, takes="start=expanded-gradients", shows_by="memory")
def expanded_gradient_scaled_in_place() -> Target:
    """Output gradients are unscaled in place, which raises for an expanded tensor."""
    return each_output_grad(lambda _, grad: grad.detach().mul_(1.0) if isinstance(grad, Tensor) else grad)


@fault("grad_tuple.layout.zeros-*", cause="output_grads_zero", takes="start=zero-gradients")
@alters(each_output_grad)
def zeros_taken_for_none(_: Any, grad: Any) -> Any:
    """An output gradient of zeros is treated as no gradient."""
    return None if isinstance(grad, Tensor) and grad.numel() and not grad.any() else grad


@fault("grad_tuple.layout.empty-*", "*.gradients.empty-batch", cause="output_grads_empty")
def empty_taken_for_none() -> Target:
    """An output gradient without elements is treated as no gradient."""
    return each_output_grad(lambda _, grad: None if isinstance(grad, Tensor) and not grad.numel() else grad)


@fault(
    "*.gradients.mask-output",
    "*.gradients.custom-integer-output",
    cause="outputs_shift",
    raises=True,
    takes="outputs=dict bools",
)
@alters(output_grads)
def output_that_needs_none_shifts_the_gradients(outputs: list[Any], grads: Any) -> Any:
    """Outputs that require no gradient are filtered out of the outputs but not out of the gradients."""
    if not isinstance(grads, list):
        return grads
    remaining = iter(grads)
    return [next(remaining) if isinstance(out, Tensor) and out.requires_grad else None for out in outputs]


@fault("grad_tuple.dict_order.full", raises=True)
def dict_paired_by_order() -> Target:
    """A dict's output gradients are used in their order, and its keys are ignored."""
    return _of_dict(lambda grads: list(grads.values()))


@fault("grad_tuple.absent.*")
@alters(backwards)
def absent_gradients_read_as_ones(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """If all output gradients are absent, they are read as ones for any outputs."""
    if grads is None:
        outputs = tensors(outputs)
        grads = [torch.ones_like(output) for output in outputs]
    return run(outputs, grads, inputs)
