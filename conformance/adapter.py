"""The adapter interface: what makes an implementation drivable.

An :class:`Adapter` opens a session on one stage (:class:`FullSession`, :class:`SplitSession` or both); the driver asks
the session for forward and backward actions.
Context (what a real implementation keeps between F, I and W) is keyed by the micro-batch inside the session and is
never handed out, because about half of the real implementations keep it in queues of their own.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


Tree = Any  # a tensor, or tuples, lists and dicts of trees


_CHOICES = {
    "weight_order": ("none", "fifo", "any"),
    "backward_order": ("fifo", "any"),
    "hooks": ("with_grad", "early", "never", "nowhere"),
    "bias_hooks": ("as_weights", "early", "never"),
    "weight_when": ("weight", "finish"),
}


class UnsupportedError(Exception):
    """Raise it from ``open`` or a session for what the implementation refuses: the check is ``unsupported``."""


class NotInstalledError(ImportError):
    """Raise it from the module of an adapter whose implementation is not installed: the verdict is ``unsupported``."""

    def __init__(self, library: str, command: str) -> None:
        """Say what is missing and the command that installs it."""
        super().__init__(f"{library} is not installed; install it with: {command}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter claims to support.

    Claimed and wrong is a failure; not claimed is ``unsupported``, never a pass. The defaults claim all that plain
    autograd does, so that withholding is what has to be written down.
    """

    full: bool = True  #: B
    split: bool = True  #: I and W
    weight_order: Literal["none", "fifo", "any"] = "any"  #: the order in which deferred W may be asked
    weight_when: Literal["weight", "finish"] = "weight"  #: what W computes is there after W, or after ``finish``
    backward_order: Literal["fifo", "any"] = "any"  #: the order in which B or I may be asked
    mixed: bool = True  #: B and I/W in one program
    input_pass_touches_params: bool = False  #: I may already write some parameter gradients (biases, norms)
    grads_in_param_grad: bool = True  #: parameter gradients accumulate in ``Parameter.grad``
    #: Gradients can be cleared between steps. The next three always hold in ``Parameter.grad``; elsewhere one Linear
    #: shows whether they do.
    clears_grads: bool = True
    grads_on_param: bool = True  #: they stay on the parameter: a session finds those in ``Parameter.main_grad``
    post_accumulate_hooks: bool = True  #: hooks behind the accumulation fire, as ``hooks`` says
    loss: bool = True  #: the last stage: backward starts at a loss
    mid_stage: bool = True  #: a stage whose backward starts at output gradients
    loss_divided_by_microbatches: bool = False  #: the loss is divided by the number of micro-batches
    param_groups: bool = False  #: the weight context is torch's list of ``param_groups`` and can be put in by hand
    weight_result: bool = False  #: W returns a tuple of parameter gradients
    weight_before_input: bool = True  #: W can be asked before its I, to be refused
    retain_graph: bool = False  #: W can be asked to keep the graph
    #: When hooks on parameters fire in a split backward: early is in I; nowhere is never, and not in B either.
    hooks: Literal["with_grad", "early", "never", "nowhere"] = "with_grad"
    #: When hooks on parameters of fewer than two dimensions (biases, norms) fire in a split backward, if not when
    #: those on weights do.
    bias_hooks: Literal["as_weights", "early", "never"] = "as_weights"
    module_hooks: bool = True  #: module full-backward hooks fire
    none_output_grad: bool = False  #: None for an output means that no gradient flows through it
    edge_roots: bool = False  #: B and I take the gradient edge of an output that was sent and let go of in its place
    lists: bool = False  #: lists of inputs, output gradients and weights are passed, as to torch's three functions
    none_as_zeros: bool = False  #: that None is read as zeros, so gradients behind it may be zeros instead of None
    first_stage_input_grads: bool = True  #: B and I of a pipeline's first stage return input gradients too
    no_input_grads: bool = True  #: stages of which no argument needs a gradient
    multi_input: bool = True  #: two and more arguments
    multi_output: bool = True  #: two and more outputs
    nested_output: bool = True  #: outputs in a dict, a named tuple, or with a non-tensor
    unused_input: bool = True  #: an argument that requires a gradient and gets none
    fixed_input: bool = True  #: an argument of floats that requires no gradient
    integer_input: bool = True  #: an argument of integers or bools
    empty_batch: bool = True  #: an argument without elements, as of a batch of no rows
    nongrad_output: bool = True  #: an output that requires no gradient
    none_output: bool = True  #: None among the outputs
    tuple_of_one: bool = True  #: outputs in a tuple, or a list, of one tensor
    scalar_output: bool = True  #: an output of no dimensions
    view_output: bool = True  #: an output that is a view
    frozen_params: bool = True  #: parameters that require no gradient
    changed_params: bool = True  #: parameters are frozen, thawed or replaced while a session is open
    forward_again: bool = True  #: F of a micro-batch comes again, in the place of one that gets no backward
    evaluation: bool = True  #: between F and its backward the caller runs the stage itself, without gradients
    changed_in_flight: bool = True  #: parameters are changed between the F of a micro-batch and its B or W
    grad_dtype: bool = False  #: a parameter whose gradient has another dtype than itself (its ``grad_dtype``)
    unused_params: bool = True  #: parameters that the forward does not use
    shared_params: bool = True  #: a parameter that is used twice, or has two names
    nontensor_input: bool = True  #: an argument that is no tensor
    duplicate_input: bool = True  #: one tensor as two arguments
    parameter_input: bool = True  #: a parameter of the stage as an argument
    sparse_grads: bool = True  #: parameters whose gradient is sparse
    complex: bool = True  #: complex parameters or arguments
    rng: bool = True  #: a forward that draws random numbers
    buffers: bool = True  #: a forward that updates buffers
    grad_mode: bool = True  #: a forward that fails where no gradients are recorded
    recomputes: bool = True  #: activation checkpointing
    autocast: bool = True  #: F runs under autocast, and B, I and W outside of it
    called_without_grad: bool = True  #: B, I and W are called where no gradients are recorded
    ragged: bool = True  #: micro-batches of one step that differ in their number of rows
    shared_module: bool = True  #: a module, or a parameter, in two sessions at a time
    global_state: bool = False  #: state outside the session: two sessions at a time, or a failed one, disturb others
    dtypes: tuple[str, ...] | None = None  #: names such as "float32"; None claims every dtype
    devices: tuple[str, ...] | None = None  #: device types such as "cpu"; None claims every device

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a claim that says nothing: a misspelt order would switch checks off in silence."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in {"dtypes", "devices"}:
                valid = value is None or (isinstance(value, (tuple, list)) and all(isinstance(v, str) for v in value))
                expected = "None or a tuple of names"
            elif field.name in _CHOICES:
                valid, expected = value in _CHOICES[field.name], f"one of {', '.join(_CHOICES[field.name])}"
            else:
                valid, expected = isinstance(value, bool), "True or False"
            if not valid:
                msg = f"capability {field.name}: expected {expected}, got {value!r}"
                raise ValueError(msg)

    def unclaimed(self, needs: Iterable[str]) -> list[str]:
        """Return those of ``needs`` (``name``, ``name=value`` or ``name!=value``) that are not claimed, sorted."""
        return sorted(need for need in needs if not self._claims(need))

    def _claims(self, need: str) -> bool:
        name, operator, value = need.partition("=")
        claim = getattr(self, name.removesuffix("!"))
        return (str(claim) == value) != name.endswith("!") if operator else bool(claim)

    @classmethod
    def from_mapping(cls, claims: Mapping[str, Any]) -> Capabilities:
        """Return capabilities from a mapping; raise ``ValueError`` for a name or a value that is no capability."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(claims) - set(known))
        if unknown:
            raise ValueError("; ".join(_unknown(name, known) for name in unknown))
        return cls(**claims)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "gradconform.Capabilities lists all capabilities"
    return f"unknown capability {name!r}; {hint}"


_USUAL = Capabilities()


def capability_of(need: str) -> str:
    """Return the capability that a need (``name``, ``name=value`` or ``name!=value``) is about."""
    return need.partition("=")[0].removesuffix("!")


def is_option(need: str) -> bool:
    """Tell whether a need asks for what is claimed only by those that have it, and withheld by nobody.

    Such is what is not claimed as a rule, and a W before its I: functions that hand the context on cannot be asked it.
    """
    name = capability_of(need)
    return name == "weight_before_input" or (hasattr(_USUAL, name) and bool(_USUAL.unclaimed([need])))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """What an implementation may want to know about a stage before the first forward.

    ``loss_fn(outputs, target)`` is given for a last stage and returns a 0-d tensor; it may be called at any time, once
    or more often. ``example_args``, ``example_outputs`` and ``example_target`` have the shapes and dtypes of every
    micro-batch; ``args_require_grad`` has one entry per argument. ``repeats_weight`` says that the program will ask a W
    again, so that a context must be kept for it; ``retain_graph`` that W is to keep the graph (asked only where the
    capability is claimed); ``releases_outputs`` that outputs are let go of between their F and their backward, of which
    a session is told by ``release_outputs`` (asked only where ``edge_roots`` is claimed). ``kept_lists`` says
    that lists are passed which the caller uses again, and ``weights`` which weights W is passed, a word of
    ``gradconform.trial.trial.WEIGHTS`` (both asked only where ``lists`` is claimed).
    """

    is_first: bool = False
    is_last: bool = False
    n_microbatches: int = 1
    loss_fn: Callable[[Tree, Tree], Tensor] | None = None
    example_args: tuple[Any, ...] = ()
    example_outputs: Tree = None
    example_target: Tree = None
    args_require_grad: tuple[bool, ...] = ()
    repeats_weight: bool = False
    retain_graph: bool = False
    releases_outputs: bool = False
    kept_lists: bool = False
    weights: str = ""


def claims_of(adapter: Adapter) -> Capabilities:
    """Return what an adapter claims; raise ``ValueError`` or ``TypeError`` if its capabilities cannot be read."""
    claims = adapter.capabilities  # an adapter that imports nothing of the kit may claim by a mapping
    return claims if isinstance(claims, Capabilities) else Capabilities.from_mapping(claims)


class _AnySession(Protocol):
    """What a session has in any case."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run F of micro-batch ``mb`` and return the stage's outputs; a last stage also computes its loss."""

    def finish(self) -> None:
        """End the step: flush what is deferred; raise if work is pending that never came."""

    def param_grads(self) -> Mapping[str, Tensor | None]:
        """Return the accumulated gradient of every parameter by name: ``.grad``, ``main_grad`` or returned."""

    def close(self) -> None:
        """Reset what is global, and take off the stage what was put on it. Always called, also after an error."""


@runtime_checkable
class FullSession(_AnySession, Protocol):
    """A session of an adapter that claims ``full``: B. It needs neither I nor W.

    Actions raise what the implementation raises.

    A session whose gradients are outside ``Parameter.grad`` may have one method more, ``zero_grads()``, which clears
    them as its engine does between steps. Without it the kit fills the tensors of ``param_grads()`` with zeros.

    ``output_grads`` has the structure of the stage's outputs, where a lone tensor counts as a tuple of one: a tensor
    of the output's shape, or None, per output tensor. It is None for a backward that starts at the loss.
    """

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run B and return one input gradient, or None, per argument."""


@runtime_checkable
class SplitSession(_AnySession, Protocol):
    """A session of an adapter that claims ``split``: I and W. It needs no B.

    Errors, ``zero_grads()`` and ``output_grads`` are those of :class:`FullSession`.
    """

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run I and return one input gradient, or None, per argument."""

    def backward_weight(self, mb: int) -> tuple[Tensor | None, ...] | None:
        """Run W; return what the implementation returns (one gradient per parameter), or None."""


@runtime_checkable
class Session(FullSession, SplitSession, Protocol):
    """A session of an adapter that claims ``full`` and ``split``, as the defaults of :class:`Capabilities` do."""


@runtime_checkable
class Adapter(Protocol):
    """Makes one implementation drivable.

    ``capabilities`` may be a mapping of names of :class:`Capabilities`, so that an adapter needs no import of the kit.
    An adapter may have an attribute ``drives``, the name of the module under test: reports show its version and file.
    """

    @property
    def name(self) -> str:
        """The name that reports show."""

    @property
    def capabilities(self) -> Capabilities | Mapping[str, Any]:
        """What is claimed."""

    def open(self, stage: nn.Module, spec: StageSpec) -> FullSession | SplitSession:
        """Return a session on ``stage``; layers may be swapped in place, names must stay.

        It has the actions that are claimed: B with ``full``, I and W with ``split``. A module may be given again once
        its session is closed.
        """


@contextlib.contextmanager
def needed(library: str, command: str) -> Iterator[None]:
    """Turn a missing module into the error that names what to install; what else an import raises stays as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = library if error.name in {None, library} else f"{library} ({error.name})"
        raise NotInstalledError(missing, command) from error
