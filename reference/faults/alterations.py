"""Functions that make a fault from the right implementation by one change, and the graph that some of them read."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.adapter import Capabilities, StageSpec
from gradconform.reference import split as by_uses
from gradconform.reference import walked_twice as split
from gradconform.target.functions import FULL, SPLIT, FunctionsAdapter, FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import leaves, tensors


class Graph:
    """The graph below some nodes, walked breadth first; ``depth`` is the least number of steps from a root."""

    def __init__(self, roots: Iterable[Node]) -> None:
        """Walk the graph from ``roots``."""
        self.depth: dict[Node, int] = {}
        self.users: dict[Node, list[Node]] = {}
        level = list(dict.fromkeys(roots))
        self.depth.update(dict.fromkeys(level, 0))
        while level:
            below = [(node, after) for node in level for after, _ in node.next_functions if after is not None]
            level = []
            for user, node in below:
                self.users.setdefault(node, []).append(user)
                if node not in self.depth:
                    self.depth[node] = self.depth[user] + 1
                    level.append(node)

    @classmethod
    def behind(cls, outputs: Any) -> Graph:
        """Return the graph below the tensors of ``outputs``."""
        return cls(get_gradient_edge(output).node for output in tensors(outputs) if output.requires_grad)

    @classmethod
    def of_context(cls, groups: list[dict[str, Any]]) -> Graph:
        """Return the graph below a weight context; an empty one if the context was used."""
        return cls(node for group in groups for node in group.get("intermediates", ()))

    def leaves(self) -> list[Tensor]:
        """Return the leaves that gradients accumulate into: parameters and inputs."""
        return [node.variable for node in self.depth if hasattr(node, "variable")]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters in the graph."""
        return [leaf for leaf in self.leaves() if isinstance(leaf, nn.Parameter)]

    def users_of(self, leaf: Tensor) -> list[Node]:
        """Return the nodes that use ``leaf``, one entry per use."""
        return self.users.get(get_gradient_edge(leaf).node, [])

    def apart(self, leaf: Tensor) -> int:
        """Return the number of steps between the shallowest and the deepest use of ``leaf``."""
        depths = [self.depth[user] for user in self.users_of(leaf)]
        return max(depths, default=0) - min(depths, default=0)

    def input_path(self) -> set[Node]:
        """Return the nodes that lead to an input, a leaf that is not a parameter."""
        reached = {get_gradient_edge(leaf).node for leaf in self.leaves() if not isinstance(leaf, nn.Parameter)}
        level = list(reached)
        while level:
            level = [user for node in level for user in self.users.get(node, ()) if user not in reached]
            reached.update(level)
        return reached


Grads = tuple[Tensor | None, ...]
Context = list[dict[str, Any]]
Weights = Iterator[nn.Parameter]

#: What I returns: one gradient per input, and the context for W.
Passed = tuple[Grads, Context]


@dataclass(frozen=True, slots=True)
class Functions:
    """The three functions of a split backward."""

    full: Callable[..., Grads] = split.stage_backward
    input_pass: Callable[..., Passed] = split.stage_backward_input
    weight_pass: Callable[..., Grads] = split.stage_backward_weight

    def named(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by torch's names."""
        return dict(zip((FULL, *SPLIT), (self.full, self.input_pass, self.weight_pass), strict=True))


RIGHT = Functions()
#: The same for a W that starts at the uses of the parameters.
BY_USES = Functions(by_uses.stage_backward, by_uses.stage_backward_input, by_uses.stage_backward_weight)


class _Opened(FunctionsAdapter):
    """The kit's adapter for functions, with new functions or a new session for every opened stage."""

    def __init__(self, open_: Callable[[nn.Module, StageSpec], FunctionsSession], claims: dict[str, Any]) -> None:
        super().__init__("fault", RIGHT.named(), {**split.gradconform_capabilities, **claims})
        self._open = open_

    def open(self, stage: nn.Module, spec: StageSpec) -> FunctionsSession:
        return self._open(stage, spec)


def _target(open_: Callable[[nn.Module, StageSpec], FunctionsSession], claims: dict[str, Any]) -> Target:
    adapter = _Opened(open_, claims)
    claimed: Capabilities = adapter.capabilities
    return Target(text="fault", adapter=adapter, capabilities=claimed, own_adapter=False)


def target(functions: Functions, **claims: Any) -> Target:
    """Return a target of functions that keep no state, or that keep it in the process."""
    return _target(lambda stage, spec: FunctionsSession(functions.named(), stage, spec), claims)


def per_session(make: Callable[[StageSpec], Functions], **claims: Any) -> Target:
    """Return a target that makes new functions for each session, so that they can keep its state."""
    return _target(lambda stage, spec: FunctionsSession(make(spec).named(), stage, spec), claims)


def with_session(session: type[FunctionsSession], functions: Functions = RIGHT, **claims: Any) -> Target:
    """Return a target with right functions and a wrong session."""
    return _target(lambda stage, spec: session(functions.named(), stage, spec), claims)


Wrong = TypeVar("Wrong", bound=Callable[..., Any])


def alters(way: Callable[[Wrong], Functions | Target]) -> Callable[[Wrong], Callable[[], Target]]:
    """Return a decorator that makes a fault from an edit, a function or a session, the argument of ``way``."""

    def decorate(wrong: Wrong) -> Callable[[], Target]:
        @functools.wraps(wrong, updated=())
        def make() -> Target:
            altered = way(wrong)
            return altered if isinstance(altered, Target) else target(altered)

        return make

    return decorate


def replaces(name: str) -> Callable[[Callable[..., Any]], Callable[[], Target]]:
    """Return a decorator that makes a fault from a replacement of full, input_pass or weight_pass."""
    return alters(lambda wrong: Functions(**{name: wrong}))


class Backwards(FunctionsSession):
    """A session that runs B and I through one method."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        """Run B or I."""
        return backward(mb, output_grads)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return self.run(super().backward, mb, output_grads)

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return self.run(super().backward_input, mb, output_grads)


class Forgiving(FunctionsSession):
    """A session whose W does nothing without a context."""

    def backward_weight(self, mb: int) -> Grads | None:
        return super().backward_weight(mb) if mb in self._contexts else None


# ---- what is done around the functions

#: What is given to B and I, weights and context left aside: outputs, output gradients and inputs.
Around = Callable[[Callable[..., Grads], Any, Any, Sequence[Any]], Grads]


def backwards(around: Around, functions: Functions = RIGHT) -> Functions:
    """Run B and I inside ``around(run, outputs, grads, inputs)``, which may call ``run`` with these three.

    It returns one gradient per input, as ``run`` does. If it does not run an I, the W has no context.
    """

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        return around(functions.full, outputs, grads, inputs)

    def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Weights) -> Passed:
        context: Context = []

        def run(*given: Any) -> Grads:
            found, context[:] = functions.input_pass(*given, weights)
            return found

        return around(run, outputs, grads, inputs), context

    return replace(functions, full=full, input_pass=input_pass)


def weight_passes(
    around: Callable[[Callable[..., Grads], list[nn.Parameter], Context], Any], functions: Functions = RIGHT
) -> Functions:
    """Run W inside ``around(run, parameters, groups)``, which calls ``run`` with these two; gradients are returned."""

    def weight_pass(weights: Weights, groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        def run(chosen: list[nn.Parameter], given: Context, *, retain: bool = retain_graph) -> Grads:
            return functions.weight_pass(iter(chosen), given, retain)

        parameters = list(weights)
        around(run, parameters, groups)
        return tuple(parameter.grad for parameter in parameters)

    return replace(functions, weight_pass=weight_pass)


def input_passes(around: Callable[[Callable[[], Passed], list[Any], list[nn.Parameter]], Passed]) -> Functions:
    """Run I inside ``around(run, outputs, parameters)``, which calls ``run`` and returns the result of I."""

    def input_pass(outputs: list[Any], grads: Any, inputs: Sequence[Any], weights: Weights) -> Passed:
        parameters = list(weights)
        return around(lambda: RIGHT.input_pass(outputs, grads, inputs, iter(parameters)), outputs, parameters)

    return Functions(input_pass=input_pass)


def accumulating(
    inside: Callable[[list[nn.Parameter], Graph], AbstractContextManager[object]], functions: Functions = RIGHT
) -> Functions:
    """Run B and W, which accumulate, inside the context ``inside(parameters, graph)``."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        graph = Graph.behind(outputs)
        with inside(graph.parameters(), graph):
            return functions.full(outputs, grads, inputs)

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        with inside(list(dict.fromkeys(parameters)), Graph.of_context(groups)):
            run(parameters, groups)

    return replace(weight_passes(around, functions), full=full)


def after_backwards(act: Callable[[Any, Any, Sequence[Any]], object]) -> Functions:
    """Call a function after B and I, with their arguments."""

    def around(run: Callable[..., Grads], *given: Any) -> Grads:
        found = run(*given)
        act(*given)
        return found

    return backwards(around)


def keeping(what: Callable[[Any, Any, Sequence[Any]], Iterable[Any]]) -> Target:
    """Return a target whose sessions keep, of every B and I, ``what(outputs, grads, inputs)``."""

    def make(_: StageSpec) -> Functions:
        kept: list[Any] = []
        return after_backwards(lambda *given: kept.extend(what(*given)))

    return per_session(make)


# ---- what the functions are given


def flat(outputs: Any, grads: Any) -> tuple[list[Any], Any]:
    """Return outputs as a list, and the gradients too if they mirror them; else the gradients unchanged.

    The gradients of a dict are those of its keys, in whatever order it has them.
    """
    wanted, given = dict(leaves(outputs)), dict(leaves(grads))
    return list(wanted.values()), [given[path] for path in wanted] if wanted.keys() == given.keys() else grads


def output_grads(edit: Callable[[list[Any], Any], Any], functions: Functions = RIGHT) -> Functions:
    """Edit the output gradients: ``edit(outputs, grads)``, outputs in a list, and gradients too if they mirror them.

    A backward from a loss is not changed.
    """

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        if grads is None:
            return run(outputs, grads, inputs)
        listed, given = flat(outputs, grads)
        return run(listed, edit(listed, given), inputs)

    return backwards(around, functions)


def each_output_grad(edit: Callable[[Any, Any], Any]) -> Target:
    """Return a target that edits each output gradient, ``edit(output, grad)``, if they mirror the outputs."""

    def every(outputs: list[Any], grads: Any) -> Any:
        return list(map(edit, outputs, grads)) if isinstance(grads, list) else grads

    return target(output_grads(every))


# ---- what the functions return


def input_grads(edit: Callable[[Sequence[Any], Grads], Grads], functions: Functions = RIGHT) -> Functions:
    """Edit the results of B and I: ``edit(inputs, grads)``."""
    return backwards(lambda run, *given: edit(given[-1], run(*given)), functions)


def each_input_grad(edit: Callable[[Any, Tensor], Any]) -> Functions:
    """Edit each input gradient that B and I return: ``edit(input, grad)``."""
    return input_grads(
        lambda inputs, grads: tuple(
            None if grad is None else edit(value, grad) for value, grad in zip(inputs, grads, strict=True)
        )
    )


# ---- what the functions accumulate

ParameterEdit = Callable[[nn.Parameter, Tensor, Graph], Tensor]


@contextlib.contextmanager
def edited(parameters: Iterable[nn.Parameter], graph: Graph, edit: ParameterEdit) -> Iterator[None]:
    """Edit the gradient of each parameter on its way to ``.grad``, by temporary hooks."""

    def hook_of(parameter: nn.Parameter) -> Callable[[Tensor | None], Tensor | None]:
        # A custom function may return None, and autograd still calls the hooks.
        return lambda grad: None if grad is None else edit(parameter, grad, graph)

    handles = [parameter.register_hook(hook_of(parameter)) for parameter in parameters if parameter.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def param_grads(edit: ParameterEdit, functions: Functions = RIGHT) -> Functions:
    """Edit each gradient before B or W adds it: ``edit(parameter, added, graph)``."""
    return accumulating(lambda parameters, graph: edited(parameters, graph, edit), functions)


def every_grad(edit: Callable[[Tensor], Tensor]) -> Functions:
    """Edit every gradient, of inputs and of parameters."""
    return param_grads(lambda _, grad, __: edit(grad), each_input_grad(lambda _, grad: edit(grad)))


def without(dropped: Callable[[nn.Parameter, Graph], bool]) -> Target:
    """Return a target that drops the gradients of parameters for which ``dropped(parameter, graph)`` is true."""

    @contextlib.contextmanager
    def leaving_out(parameters: Sequence[nn.Parameter], graph: Graph) -> Iterator[None]:
        left = [parameter for parameter in parameters if parameter.requires_grad and dropped(parameter, graph)]
        none = [parameter for parameter in left if parameter.grad is None]
        with edited(left, graph, lambda _, grad, __: grad * 0.0):
            yield
        for parameter in none:
            parameter.grad = None

    return target(accumulating(leaving_out))


def stored_as(replace_grads: Callable[[list[nn.Parameter]], object]) -> Target:
    """Return a target that calls ``replace_grads`` after B or W, to put other tensors into ``.grad``."""

    @contextlib.contextmanager
    def replacing(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
        yield
        replace_grads(parameters)

    return target(accumulating(replacing))
