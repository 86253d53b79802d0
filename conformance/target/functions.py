"""Drives a namespace with torch's three functions, or with ``stage_backward`` alone, as it is.

The signatures are those of ``torch.distributed.pipelining._backward`` (torch 2.13): ``stage_backward(stage_output,
output_grads, input_values)``, ``stage_backward_input(stage_outputs_or_loss, output_grads, input_values, weights)`` and
``stage_backward_weight(weights, param_groups)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.adapter import Capabilities, UnsupportedError
from gradconform.torch_releases.edges import EDGE
from gradconform.trees import as_tuple, flattened, leaves, tensors

from .call_arguments import KeptLists, calls_of_weight, weights_for
from .session import StageSession, let_go
from .tested_capabilities import shown_by_split, takes_edges

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec, Tree

FULL = "stage_backward"
SPLIT = ("stage_backward_input", "stage_backward_weight")

#: Capabilities that the functions' results show.
SHOWN = ("param_groups", "weight_result")

#: The capability that shows in the functions' handling of a gradient edge instead of an output.
EDGES = "edge_roots"

#: The number of positional arguments of each function.
ARGUMENTS = {FULL: 3, "stage_backward_input": 4, "stage_backward_weight": 2}


class FunctionsAdapter:
    """An adapter over functions. It claims all that plain autograd does on the stage zoo.

    A namespace may claim more, or less, in an attribute ``gradconform_capabilities`` (a mapping of names of
    :class:`~gradconform.adapter.Capabilities`).
    """

    def __init__(self, name: str, functions: Mapping[str, Callable[..., Any]], claims: Mapping[str, Any]) -> None:
        """Create an adapter of the functions; missing ones are not claimed."""
        self.name = name
        self.functions = dict(functions)
        split = all(function in functions for function in SPLIT)
        found = {"full": FULL in functions, "split": split, "mixed": FULL in functions and split}
        found |= {**dict.fromkeys(SHOWN, split), EDGES: EDGE.there()}
        found["lists"] = found["grad_dtype"] = True
        found["weight_before_input"] = False  # without an I there is no context to call W with
        found["retain_graph"] = split and _takes(functions[SPLIT[1]], "retain_graph")
        self.capabilities = Capabilities.from_mapping({**found, **claims})
        #: Capabilities without an explicit claim: a test on one Linear decides each.
        self.unstated = frozenset({*SHOWN, EDGES} if split else {EDGES}).difference(claims)

    def claims_withheld(self, device: torch.device, dtype: torch.dtype) -> frozenset[str]:
        """Return the ``unstated`` claims that the functions do not meet on one Linear.

        The form of a weight context is up to its implementation. torch's runtime ignores the result of W, and passes
        edges only since 2.15. If I or W raises there, the functions show nothing of these, and are judged.
        """
        split = (self.functions[SPLIT[0]], self.functions[SPLIT[1]]) if self.capabilities.split else None
        made = shown_by_split(split, device, dtype) if split else {}
        if EDGES in self.unstated:
            made[EDGES] = takes_edges(self.functions.get(FULL), split, device, dtype)
        return frozenset(name for name in self.unstated if not made.get(name, True))

    def open(self, stage: nn.Module, spec: StageSpec) -> FunctionsSession:
        """Return a session on ``stage``."""
        return FunctionsSession(self.functions, stage, spec)


class FunctionsSession(StageSession):
    """Calls the functions as a pipeline stage does, and holds weight contexts from I to W."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], stage: nn.Module, spec: StageSpec) -> None:
        """Create a session; the stage is not changed."""
        super().__init__(stage, spec)
        self._functions = functions
        self._contexts: dict[int, Any] = {}
        if self._spec.kept_lists:
            self._kept = KeptLists()

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Return the input gradients of ``stage_backward``, called with values in the stage's structure."""
        args, outputs = self._forwards.pop(mb)
        roots = outputs if self._spec.loss_fn else as_tuple(outputs)
        names = ("outputs", "output gradients", "inputs")
        return _entries(self._call(FULL, names, roots, output_grads, list(args)), args, FULL)

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Return the input gradients of ``stage_backward_input``, called with flat tuples; store its context for W.

        torch's runtime passes flat tuples too. Outputs that need no gradient are among them, with None for theirs.
        Values that are not tensors are skipped: torch 2.13's ``PipelineStage`` accepts no such output. Freed outputs
        are represented by edges and None.
        """
        args, outputs = self._forwards.pop(mb)
        flat_grads = output_grads
        if output_grads is not None:
            held, given = dict(leaves(as_tuple(outputs))), dict(leaves(output_grads))
            if held.keys() == given.keys():  # of another structure: the function must refuse them
                sent = self._spec.releases_outputs
                flat_grads = tuple([given[p] for p, output in held.items() if sent or isinstance(output, Tensor)])
        roots = tuple(flattened(outputs) if self._spec.releases_outputs else tensors(outputs))
        weights = iter(self._parameters.values())  # read once, as torch's runtime passes them
        if self._spec.weights:
            weights = weights_for("I", self._spec.weights, weights)
        names = ("outputs", "output gradients", "inputs", "weights")
        grads, self._contexts[mb] = _pair(self._call(SPLIT[0], names, roots, flat_grads, list(args), weights))
        return _entries(grads, args, SPLIT[0])

    def release_outputs(self, mb: int, unsent: tuple[int, ...]) -> None:
        """Free the outputs except the numbers ``unsent``: B and I are called with edges in their place."""
        args, outputs = self._forwards[mb]
        self._forwards[mb] = args, let_go(outputs, unsent)

    def backward_weight(self, mb: int) -> tuple[Tensor | None, ...] | None:
        """Return the result of ``stage_backward_weight`` with this micro-batch's context; free it unless W repeats."""
        if mb not in self._contexts:
            msg = f"W of micro-batch {mb} has no param_groups, because its I did not run"
            raise UnsupportedError(msg)
        context = self._contexts[mb] if self._spec.repeats_weight else self._contexts.pop(mb)
        options = {"retain_graph": True} if self._spec.retain_graph or mb in self._spec.retained else {}
        if self._spec.weights:
            for weights, part in calls_of_weight(self._spec.weights, list(self._stage.parameters()), context):
                self._call(SPLIT[1], ("weights", ""), weights, part, **options)
            return None  # the result of W has the order of the weights that it was passed
        weights = iter(self._parameters.values())
        result = self._call(SPLIT[1], ("weights", ""), weights, context, **options)
        return tuple(result) if isinstance(result, (tuple, list)) else None

    def put_weight_context(self, mb: int, node: Node, grads: tuple[Tensor | None, ...]) -> None:
        """Create a context by hand, in torch's form: one group of all trainable parameters, one intermediate node."""
        trainable = [parameter for parameter in self._stage.parameters() if parameter.requires_grad]
        params = {get_gradient_edge(parameter).node for parameter in trainable}  # the nodes that accumulate into them
        self._forwards.pop(mb, None)
        self._contexts[mb] = [{"params": params, "intermediates": [node], "grads": [grads]}]

    def close(self) -> None:
        """Free every graph."""
        super().close()
        self._contexts.clear()

    def _call(self, name: str, names: tuple[str, ...], *given: Any, **options: Any) -> Any:
        """Return the result of a function called by argument ``names``, in the caller's lists if that keeps them."""
        if not self._spec.kept_lists:
            return called(self._function(name), *given, **options)
        result = called(self._function(name), *self._kept.of(names, given), **options)
        self._kept.check(name)
        return result

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            msg = f"the target has no {name}"
            raise UnsupportedError(msg)
        return self._functions[name]


def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of the implementation's code, or of code run in its name: its errors are not the adapter's."""
    return function(*args, **options)


def _entries(grads: Any, args: tuple[Any, ...], function: str) -> tuple[Tensor | None, ...]:
    """Return one entry per argument; raise ``TypeError`` if it is not a sequence of that length."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(args):
        kind = type(grads).__name__
        what = f"a {kind} of length {len(grads)}" if isinstance(grads, (tuple, list)) else kind
        msg = f"{function} returned {what}; expected one gradient or None per argument ({len(args)})"
        raise TypeError(msg)
    return tuple(grads)


def _pair(result: Any) -> tuple[Any, Any]:
    """Return the result of I, gradients and context; raise ``TypeError`` if it is not a pair."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:  # noqa: PLR2004 (a pair)
        kind = type(result).__name__
        what = f"a {kind} of length {len(result)}" if isinstance(result, (tuple, list)) else kind
        msg = f"{SPLIT[0]} returned {what}; expected input gradients and a context for {SPLIT[1]}"
        raise TypeError(msg)
    return result[0], result[1]


#: Errors raised in these are the implementation's: it was called, or returned an invalid result.
CALLS = frozenset({called.__code__, _entries.__code__, _pair.__code__, KeptLists.check.__code__})


def _takes(function: Callable[..., Any], keyword: str) -> bool:
    """Return whether ``function`` has a parameter of that name."""
    try:
        return keyword in inspect.signature(function).parameters
    except ValueError:
        return False


#: Functions whose call only returns an object that could be run.
_UNRUN = {
    "coroutine function": inspect.iscoroutinefunction,
    "generator function": inspect.isgeneratorfunction,
    "asynchronous generator function": inspect.isasyncgenfunction,
}


def signature_problem(name: str, function: object) -> str | None:
    """Return why ``function`` cannot be called as torch's function ``name``, or None."""
    if not callable(function):
        return f"{name} is {type(function).__name__}, not a function"
    for kind, is_one in _UNRUN.items():
        if is_one(function):
            return f"{name} is a {kind}; expected a plain function that returns gradients"
    try:
        inspect.signature(function).bind(*range(ARGUMENTS[name]))
    except TypeError as error:
        return (
            f"{name}{inspect.signature(function)} cannot be called with {ARGUMENTS[name]} positional arguments: {error}"
        )
    except ValueError:
        return None  # a builtin without a signature: its call shows the problem
    return None
