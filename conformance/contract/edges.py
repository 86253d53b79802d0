"""Edges: what B and I give where outputs were sent and let go of, and a backward starts at their gradient edges."""

from __future__ import annotations

from functools import partial
from typing import Any

from gradconform.judge import gradients
from gradconform.judge.lifetime import released, released_once_sent
from gradconform.judge.refusal import refused_or_without_effect, right_or_refused

from .cases import of, over, ways
from .check import Judge, family

_FULL, _SPLIT = "F0 send0 F1 send1 B0 B1", "F0 send0 F1 send1 I0 I1 W0 W1"
_DROPPED = "F0 send0 F1 send1 I0 drop0 I1 drop1 collect W1 W0"
_LIFETIME: dict[str, Any] = {"watch": frozenset({"lifetime"})}

#: One output and several, of one node, of no node, views, none that needs a gradient; shared weights, a custom
#: Function, intermediates with several outputs, arguments that are no tensors.
_STAGES = (
    "mlp", "two-outputs", "output-chunks", "output-of-input-view", "output-view", "output-is-input",
    "output-is-parameter", "mask-output", "custom-output", "chunk", "tied-apart", "nontensor-inputs",
)  # fmt: skip


@family(
    "edges.full",
    over(_STAGES, _FULL),
    seed={
        "mlp": "test_stage_backward_from_gradient_edge",
        "custom-output": "test_stage_backward_edge_keeps_python_autograd_function_alive",
    },
)
def from_edges() -> Judge:
    """B MUST give the gradients of plain autograd from the edges of outputs that were let go of, on {stage}.

    Once an output is sent, torch 2.15's runtime holds its gradient edge alone, and None for one without a gradient.

    Catches: an edge read as a tuple of outputs, its output number lost, its gradient paired with another.
    """
    return gradients


@family("edges.split", over(_STAGES, _SPLIT), seed={"mlp": "test_stage_backward_input_from_gradient_edge"})
def split_from_edges() -> Judge:
    """I and W MUST give the gradients of plain autograd from the edges of outputs that were let go of, on {stage}.

    I has no output to detach or to ask for a shape, and W none to start at.

    Catches: an edge's output number lost on the way to W, a node that has several outputs started at its first.
    """
    return gradients


@family("edges.dropped", over(("mlp", "output-chunks", "custom-output", "tied-apart"), _DROPPED))
def held_to_the_end() -> Judge:
    """W MUST be right where nobody holds an output, an edge or an argument any more, in {program} on {stage}.

    The node of a custom Function lives as long as its output or its edge; torch's runtime lets go of both after I.

    Catches: a weight context that holds nodes by what its caller holds.
    """
    return gradients


_BESIDE = {"two-outputs": (1,), "mask-output": (1,), "five-outputs": (0, 3)}


@family(
    "edges.beside",
    {
        f"{name}-{way}": of(name, program, unsent=unsent)
        for name, unsent in _BESIDE.items()
        for way, program in (("full", _FULL), ("split", _SPLIT))
    },
    seed=dict.fromkeys(("two-outputs-full", "mask-output-full"), "test_stage_backward_mixed_edge_and_tensor_outputs"),
)
def beside_tensors() -> Judge:
    """Edges, tensors and None side by side MUST each have the gradient of their place, in {program} on {stage}.

    A runtime lets go of plain tensors only: an output of a tensor subclass stays what it is beside an edge.

    Catches: edges taken before tensors, gradients paired once None is left out.
    """
    return gradients


@family("edges.in_turn", ways(("mlp", "two-outputs"), split="F0 F1 F2 send0 send2 I0 B1 I2 W2 W0"))
def in_turn() -> Judge:
    """Micro-batches with edges and with outputs MUST not disturb each other, in {program} on {stage}.

    Whether a send has ended before its backward is a matter of time: either comes, in one step.

    Catches: what was found out of one micro-batch's roots applied to the next.
    """
    return gradients


_NONE = {
    f"{case}-{way}": of(name, program, output_grads=pattern)
    for case, (name, pattern) in {"first": ("three-outputs", "none:0"), "lone": ("mlp", "none:all")}.items()
    for way, program in (("full", "F0 send0 B0"), ("split", "F0 send0 I0 W0"))
}


@family("edges.none", _NONE, without=("none_output_grad",))
def none() -> Judge:
    """None as the gradient of an edge MUST mean that no gradient flows there, or be refused, on {stage}.

    As grad_tuple.none asks of outputs; torch's own functions refuse it.

    Catches: gradients paired with the wrong edge after a None is filtered out.
    """
    return partial(right_or_refused, unless="none_output_grad")


@family(
    "edges.absent",
    ways(
        "mlp",
        full="F0 send0 B0 F1 send1 B1!",
        split="F0 send0 I0 W0 F1 send1 I1!",
        output_grads="absent",
        watch=frozenset({"state"}),
    ),
    level="SHOULD",
    seed={"split": "test_stage_backward_input_edge_requires_output_grads"},
)
def absent() -> Judge:
    """No output gradients at all for an edge SHOULD raise or change nothing, in {program}.

    An edge has neither shape nor value: it is no loss, whose gradient goes without saying.

    Catches: ones made up for an output that nobody has any more.
    """
    return refused_or_without_effect


@family(
    "edges.released",
    {
        **over(("mlp", "custom-output"), "F0 send0 F1 send1 B0 drop0 B1 drop1", **_LIFETIME),
        "split": of("mlp", "F0 send0 F1 send1 I0 drop0 I1 drop1 W0 W1", **_LIFETIME),
    },
    level="SHOULD",
)
def after_edges() -> Judge:
    """What a micro-batch saved SHOULD be gone after its backward from edges, in {program} on {stage}.

    An edge keeps a whole graph alive.

    Catches: edges kept in a list, a weight context that keeps them after W.
    """
    return released


@family("edges.outputs", ways(("mlp", "two-outputs"), full=_FULL, **_LIFETIME), level="SHOULD")
def outputs_gone() -> Judge:
    """Outputs SHOULD be gone as soon as they were sent, in {program} on {stage}.

    To let go of them is what an edge is for; the memory of an activation is free a whole pipeline's length earlier.

    Catches: outputs kept beside their edges.
    """
    return released_once_sent
