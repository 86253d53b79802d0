"""Edges: B or I starts from the gradient edges of outputs that were sent and freed."""

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
    """B from gradient edges of freed outputs MUST give plain autograd's gradients, on {stage}.

    After a send, torch 2.15's runtime keeps only an output's gradient edge, or None for an output without a gradient.

    Catches: an edge read as a tuple of outputs, a lost output number, or a gradient paired with another edge.
    """
    return gradients


@family("edges.split", over(_STAGES, _SPLIT), seed={"mlp": "test_stage_backward_input_from_gradient_edge"})
def split_from_edges() -> Judge:
    """I and W from gradient edges of freed outputs MUST give plain autograd's gradients, on {stage}.

    Without outputs, I cannot read a shape or detach an output, and W cannot start from one.

    Catches: an edge's output number lost before W, or a node with several outputs that always starts at its first
    output.
    """
    return gradients


@family("edges.dropped", over(("mlp", "output-chunks", "custom-output", "tied-apart"), _DROPPED))
def held_to_the_end() -> Judge:
    """W MUST be right after outputs, edges and arguments are freed, in program {program} on {stage}.

    torch's runtime frees outputs and edges after I, and only they keep the node of a custom Function alive.

    Catches: a weight context that relies on its caller to keep graph nodes alive.
    """
    return gradients


_UNSENT_OUTPUTS = {"two-outputs": (1,), "mask-output": (1,), "five-outputs": (0, 3)}


@family(
    "edges.beside",
    {
        f"{name}-{way}": of(name, program, unsent=unsent)
        for name, unsent in _UNSENT_OUTPUTS.items()
        for way, program in (("full", _FULL), ("split", _SPLIT))
    },
    seed=dict.fromkeys(("two-outputs-full", "mask-output-full"), "test_stage_backward_mixed_edge_and_tensor_outputs"),
)
def beside_tensors() -> Judge:
    """Edges, tensors and None together MUST each get their own output gradient, in program {program} on {stage}.

    A runtime frees only plain tensors, so an output of a tensor subclass stays a tensor next to an edge.

    Catches: edges handled before tensors, or gradients paired after None entries were removed.
    """
    return gradients


@family("edges.in_turn", ways(("mlp", "two-outputs"), split="F0 F1 F2 send0 send2 I0 B1 I2 W2 W0"))
def in_turn() -> Judge:
    """Micro-batches with edges and with outputs MUST NOT disturb each other, in program {program} on {stage}.

    The timing of a send decides which micro-batches have edges, so one step can contain both kinds.

    Catches: an analysis of one micro-batch's outputs that is reused for the next micro-batch.
    """
    return gradients


_NONE = {
    f"{case}-{way}": of(name, program, output_grads=pattern)
    for case, (name, pattern) in {"first": ("three-outputs", "none:0"), "lone": ("mlp", "none:all")}.items()
    for way, program in (("full", "F0 send0 B0"), ("split", "F0 send0 I0 W0"))
}


@family("edges.none", _NONE, without=("none_output_grad",))
def none() -> Judge:
    """None as the gradient of an edge MUST mean no gradient there, or raise if unclaimed, on {stage}.

    Pipelines send None for outputs that the next stage does not use, but torch's own functions refuse it for edges.

    Catches: gradients paired with the wrong edge after None entries were removed.
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
    """B or I from an edge without output gradients SHOULD raise or change nothing, in program {program}.

    An edge has no shape and no value, so it is never a loss whose gradient is implied.

    Catches: an invented gradient for an output that no longer exists.
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
    """A micro-batch's saved tensors SHOULD be freed after its backward from edges, in program {program} on {stage}.

    An edge keeps the whole graph alive, so a kept edge grows memory with every micro-batch.

    Catches: edges kept in a list, or a weight context that keeps edges after W.
    """
    return released


@family("edges.outputs", ways(("mlp", "two-outputs"), full=_FULL, **_LIFETIME), level="SHOULD")
def outputs_gone() -> Judge:
    """Outputs SHOULD be freed as soon as they are sent, in program {program} on {stage}.

    Edges exist to free the memory of activations a whole pipeline length earlier.

    Catches: outputs that are stored together with their edges.
    """
    return released_once_sent
