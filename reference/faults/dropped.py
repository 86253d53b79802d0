"""Faults that drop a part: some parameters, some outputs, or the whole backward of some stages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradconform.target.resolve import Target

from .alterations import (
    RIGHT,
    Context,
    Grads,
    Graph,
    accumulating,
    alters,
    backwards,
    each_output_grad,
    output_grads,
    replaces,
    target,
    weight_passes,
    without,
)
from .registry import fault


@fault(
    "*.gradients.mlp",
    "*.gradients.conv2d",
    "*.gradients.layer-norm",
    "*.gradients.frozen-weight",
    cause="never_accumulated",
)
def biases() -> Target:
    """Parameters of one dimension get no gradient."""
    return without(lambda parameter, _: parameter.dim() == 1)


@fault(
    "*.gradients.embedding",
    "*.gradients.embedding-sparse",
    "*.loss.embedding",
    "*.gradients.embedding-tied-decoder",
    cause="never_accumulated",
)
def embeddings() -> Target:
    """The weight of an Embedding gets no gradient."""
    return without(lambda parameter, graph: _used_by(parameter, graph, "Embedding"))


def _used_by(parameter: nn.Parameter, graph: Graph, kind: str) -> bool:
    return any(kind in user.name() for user in graph.users_of(parameter))


@fault(
    "*.gradients.weight-norm",
    "*.gradients.sliced-weight",
    "*.gradients.output-is-parameter",
    "*.gradients.derived-weight-twice",
    cause="never_accumulated",
)
@alters(without)
def parameter_only_paths(parameter: nn.Parameter, graph: Graph) -> bool:
    """A parameter whose first use involves no input gets no gradient."""
    path = graph.input_path()
    return bool(path) and not any(user in path for user in graph.users_of(parameter))


@fault("*.gradients.scalar-parameter", cause="never_accumulated")
def parameters_without_a_dimension() -> Target:
    """A 0-d parameter gets no gradient."""
    return without(lambda parameter, _: parameter.dim() == 0)


@fault("*.gradients.complex", "*.gradients.complex-parameter", cause="never_accumulated")
def complex_parameters() -> Target:
    """A complex parameter gets no gradient."""
    return without(lambda parameter, _: parameter.is_complex())


@fault("*.gradients.parameter-only-outputs", "*.gradients.parameter-only-output", cause="never_accumulated")
@alters(each_output_grad)
def outputs_that_reach_no_input(output: Any, grad: Any) -> Any:
    """The backward starts only at outputs that depend on an input."""
    reaches = isinstance(output, Tensor) and output.requires_grad and Graph.behind(output).input_path()
    return grad if reaches else None


@fault(
    "*.gradients.fixed-inputs",
    "*.gradients.embedding",
    cause="never_accumulated",
    takes="inputs=all-fixed",
)
@alters(backwards)
def stages_whose_inputs_need_no_gradient(
    run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]
) -> Grads:
    """If no input requires a gradient, no backward runs."""
    needed = any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
    return run(outputs, grads, inputs) if needed else (None,) * len(inputs)


@fault(
    "*.gradients.two-outputs",
    "grad_tuple.size.two-*",
    "grad_tuple.size.three-*",
    cause={"kind": "outputs_missing", "slots": [1]},
)
def second_output() -> Target:
    """The gradient of the second output is dropped."""
    return target(output_grads(lambda _, grads: [*grads[:1], None, *grads[2:]] if len(grads) > 1 else grads))


@fault(
    "grad_tuple.size.three-*",
    "grad_tuple.size.five-*",
    "*.gradients.three-outputs",
    "*.gradients.five-outputs",
    cause=({"kind": "outputs_missing", "slots": [2, 3, 4]}, {"kind": "outputs_missing", "slots": [2]}),
)
def outputs_beyond_the_second() -> Target:
    """Only the gradients of the first two outputs are used."""
    return target(output_grads(lambda _, grads: [*grads[:2], *[None] * (len(grads) - 2)] if len(grads) > 2 else grads))


@fault("full.gradients.nested-output", "full.gradients.lstm", cause="nested")
@replaces("full")
def nested_outputs(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """Outputs inside a tuple or dict of a tuple are ignored."""
    if isinstance(outputs, tuple) and isinstance(grads, tuple) and len(grads) == len(outputs):
        pairs = [pair for pair in zip(outputs, grads, strict=True) if not isinstance(pair[0], (tuple, dict))]
        outputs, grads = [output for output, _ in pairs], [grad for _, grad in pairs]
    return RIGHT.full(outputs, grads, inputs)


@fault("*.gradients.same-output-twice", cause="same_as_other_output")
@alters(output_grads)
def output_returned_twice(outputs: list[Any], grads: Any) -> Any:
    """An output that is returned twice is counted once."""
    if not isinstance(grads, list):
        return grads
    seen = [any(output is other for other in outputs[:slot]) for slot, output in enumerate(outputs)]
    return [None if again else grad for grad, again in zip(grads, seen, strict=True)]


@fault(
    "split.gradients.frozen-layer",
    "split.gradients.frozen-weight",
    "accumulate.prior.frozen",
    cause=("never_accumulated", {"kind": "missing", "microbatches": [0]}),
)
@alters(weight_passes)
def stages_with_a_frozen_parameter(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
    """W does nothing if any parameter is frozen."""
    if all(parameter.requires_grad for parameter in parameters):
        run(parameters, groups)


@fault(
    "*.gradients.output-is-input",
    "*.gradients.output-is-parameter",
    "*.gradients.output-is-weight",
    cause="not_computed",
)
def outputs_that_are_leaves() -> Target:
    """An output without a grad_fn is treated as one that requires no gradient."""
    return each_output_grad(
        lambda output, grad: None if isinstance(output, Tensor) and output.grad_fn is None else grad
    )


_LINEAR = nn.functional.linear(torch.ones(1, 2, 1), torch.ones(1, 1), torch.ones(1))
#: A Linear's output of three dimensions is a view until torch 2.15.
_VIEWS = ("*.gradients.linear-3d",) if _LINEAR._is_view() else ()


@fault(*_VIEWS, "*.gradients.output-view", "*.gradients.output-slice", raises=True)
@alters(output_grads)
def outputs_that_are_views(outputs: list[Any], grads: Any) -> Any:
    """A stage whose output is a view is refused."""
    if any(isinstance(output, Tensor) and output._is_view() for output in outputs):
        msg = "Can't detach views in-place"
        raise RuntimeError(msg)
    return grads


@contextlib.contextmanager
def _later_uses_cut(graph: Graph, leaves: Sequence[Tensor]) -> Iterator[None]:
    """Stop the gradients of all uses of a leaf except the first."""
    handles: list[Any] = []
    for leaf in leaves:
        node = get_gradient_edge(leaf).node
        for user in dict.fromkeys(graph.users_of(leaf)[1:]):
            slots = [slot for slot, (after, _) in enumerate(user.next_functions) if after is node]

            def cut(grads: Grads, _: Any, slots: list[int] = slots) -> Grads:
                return tuple(
                    grad * 0.0 if grad is not None and slot in slots else grad for slot, grad in enumerate(grads)
                )

            handles.append(user.register_hook(cut))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@fault(
    "*.gradients.tied-apart",
    "*.gradients.tied-adjacent",
    "*.gradients.rnn",
    "*.gradients.looped-block",
    cause="uses_missing",
)
def later_uses_of_a_tied_weight() -> Target:
    """Only the first use of a parameter counts."""
    return target(accumulating(lambda _, graph: _later_uses_cut(graph, graph.parameters())))


@fault(
    "*.gradients.residual",
    "*.gradients.tied-parallel",
    "*.loss.duplicate-input",
    cause={"kind": "paths_missing", "counts": [1, 2]},
)
@alters(backwards)
def later_paths_to_an_input(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """Only the first path to an input counts."""
    graph = Graph.behind(outputs)
    with _later_uses_cut(graph, [leaf for leaf in graph.leaves() if not isinstance(leaf, nn.Parameter)]):
        return run(outputs, grads, inputs)
