"""The adapter interface: the protocols and claims through which the kit drives an implementation.

An :class:`Adapter` opens a session on one stage (:class:`FullSession`, :class:`SplitSession` or both). The driver calls
the session's forward and backward actions.
Context is the data that a real implementation keeps between F, I and W. The session keys it by micro-batch and never
returns it, because about half of the real implementations keep it in their own queues.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


Tree = Any  # a tensor, or tuples, lists and dicts of trees


_CHOICES = {
    "weight_order": ("none", "fifo", "any"),
    "backward_order": ("fifo", "any"),
    "hooks": ("with_grad", "early", "never", "nowhere"),
    "bias_hooks": ("as_weights", "early", "never", "early_or_never"),
    "weight_when": ("weight", "finish"),
}

#: What can happen to a parameter while a session is open; ``changed_params`` may claim some of these.
PARAMETER_CHANGES = ("frozen", "thawed", "replaced")


class UnsupportedError(Exception):
    """Raised by ``open`` or a session for a request that the implementation refuses: the check is ``unsupported``."""


class NotInstalledError(ImportError):
    """Raised by an adapter's module if its implementation is not installed: the verdict is ``unsupported``."""

    def __init__(self, library: str, command: str) -> None:
        """Create the error with the missing library and the command that installs it."""
        super().__init__(f"{library} is not installed; install it with: {command}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The features that an adapter claims to support.

    A wrong claim is a failure. A feature that is not claimed is ``unsupported``, never a pass. The defaults claim all
    features of plain autograd, so an adapter has to write down only what it withholds.
    """

    full: bool = True  #: B
    split: bool = True  #: I and W
    weight_order: Literal["none", "fifo", "any"] = "any"  #: the order in which deferred W may be called
    weight_when: Literal["weight", "finish"] = "weight"  #: W's results are available after W or ``finish``
    backward_order: Literal["fifo", "any"] = "any"  #: the order in which B or I may be called
    mixed: bool = True  #: B and I/W in one program
    input_pass_touches_params: bool = False  #: I may already write some parameter gradients (biases, norms)
    grads_in_param_grad: bool = True  #: parameter gradients accumulate in ``Parameter.grad``
    #: Gradients can be cleared between steps. This and the next two always hold in ``Parameter.grad``; elsewhere the
    #: kit tests them on one Linear.
    clears_grads: bool = True
    grads_on_param: bool = True  #: they stay on the parameter: a session finds those in ``Parameter.main_grad``
    post_accumulate_hooks: bool = True  #: post-accumulate hooks fire, as ``hooks`` says
    loss: bool = True  #: the last stage: backward starts at a loss
    mid_stage: bool = True  #: a stage whose backward starts at output gradients
    loss_divided_by_microbatches: bool = False  #: the loss is divided by the number of micro-batches
    param_groups: bool = False  #: the weight context is torch's list of ``param_groups`` and can be set by hand
    weight_result: bool = False  #: W returns a tuple of parameter gradients
    weight_before_input: bool = True  #: W can be called before its I, which must be refused
    retain_graph: bool = False  #: W can keep the graph
    #: When hooks on parameters fire in a split backward: early means in I; nowhere means never, also not in B.
    hooks: Literal["with_grad", "early", "never", "nowhere"] = "with_grad"
    #: When hooks on parameters of fewer than two dimensions (biases, norms) fire in a split backward, if they differ
    #: from those on weights. ``early_or_never``: some of them in I, such as those of norms, and the others not at all.
    bias_hooks: Literal["as_weights", "early", "never", "early_or_never"] = "as_weights"
    module_hooks: bool = True  #: module full-backward hooks fire
    none_output_grad: bool = False  #: None for an output means that no gradient flows through it
    edge_roots: bool = False  #: B and I accept the gradient edge of an output that was sent and freed
    lists: bool = False  #: lists of inputs, output gradients and weights are passed, as to torch's three functions
    none_as_zeros: bool = False  #: None is read as zeros, so dependent gradients may be zeros instead of None
    first_stage_input_grads: bool = True  #: B and I of a pipeline's first stage return input gradients too
    no_input_grads: bool = True  #: stages without an argument that needs a gradient
    multi_input: bool = True  #: two or more arguments
    multi_output: bool = True  #: two or more outputs
    nested_output: bool = True  #: outputs in a dict, a named tuple, or with a non-tensor
    unused_input: bool = True  #: an argument that requires a gradient and gets none
    fixed_input: bool = True  #: a floating-point argument that requires no gradient
    integer_input: bool = True  #: an argument of integers or bools
    empty_batch: bool = True  #: an argument without elements, as from a batch without rows
    nongrad_output: bool = True  #: an output that requires no gradient
    none_output: bool = True  #: None among the outputs
    tuple_of_one: bool = True  #: outputs in a tuple, or a list, of one tensor
    scalar_output: bool = True  #: an output without dimensions
    view_output: bool = True  #: an output that is a view
    frozen_params: bool = True  #: parameters that require no gradient
    #: Parameters are frozen, thawed or replaced while a session is open. A tuple claims only some of these changes:
    #: ``("frozen", "thawed")``.
    changed_params: bool | tuple[str, ...] = True
    forward_again: bool = True  #: F of a micro-batch runs again, replacing one that gets no backward
    evaluation: bool = True  #: the caller runs the stage without gradients between F and its backward
    changed_in_flight: bool = True  #: parameters or arguments are changed between F and its B or W
    grad_dtype: bool = False  #: a parameter whose gradient has a different dtype (its ``grad_dtype``)
    unused_params: bool = True  #: parameters that the forward does not use
    shared_params: bool = True  #: a parameter that is used twice, or has two names
    nontensor_input: bool = True  #: an argument that is not a tensor
    duplicate_input: bool = True  #: one tensor as two arguments
    parameter_input: bool = True  #: a parameter of the stage passed as an argument
    sparse_grads: bool = True  #: parameters whose gradient is sparse
    complex: bool = True  #: complex parameters or arguments
    rng: bool = True  #: a forward that draws random numbers
    buffers: bool = True  #: a forward that updates buffers
    grad_mode: bool = True  #: a forward that fails if gradients are not recorded
    recomputes: bool = True  #: activation checkpointing
    autocast: bool = True  #: F runs under autocast, and B, I and W outside of it
    called_without_grad: bool = True  #: B, I and W are called in a context that records no gradients
    ragged: bool = True  #: micro-batches of one step that differ in their number of rows
    shared_module: bool = True  #: a module, or a parameter, in two sessions at once
    global_state: bool = False  #: state outside the session: two open sessions, or a failed one, disturb others
    dtypes: tuple[str, ...] | None = None  #: names such as "float32"; None claims every dtype
    devices: tuple[str, ...] | None = None  #: device types such as "cpu"; None claims every device

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for an invalid claim: a misspelt order would silently switch checks off."""
        for name in _CLAIMS:
            value = getattr(self, name)
            if name in {"dtypes", "devices"}:
                valid = value is None or (isinstance(value, (tuple, list)) and all(isinstance(v, str) for v in value))
                expected = "None or a tuple of names"
            elif name == "changed_params":
                some = isinstance(value, (tuple, list)) and set(value) <= set(PARAMETER_CHANGES)
                valid, expected = isinstance(value, bool) or some, f"True, False or some of {PARAMETER_CHANGES}"
            elif name in _CHOICES:
                valid, expected = value in _CHOICES[name], f"one of {', '.join(_CHOICES[name])}"
            else:
                valid, expected = isinstance(value, bool), "True or False"
            if not valid:
                msg = f"capability {name}: expected {expected}, got {value!r}"
                raise ValueError(msg)

    def unclaimed(self, needs: Iterable[str]) -> list[str]:
        """Return the ``needs`` (``name``, ``name=value`` or ``name!=value``) that are not claimed, sorted.

        For ``changed_params`` the value is one of its changes, which is claimed alone or with the others.
        """
        return sorted(need for need in needs if not self._claims(need))

    def _claims(self, need: str) -> bool:
        name, operator, value = need.partition("=")
        claim = getattr(self, name.removesuffix("!"))
        if name == "changed_params" and value:
            return claim is True or (claim is not False and value in claim)
        return (str(claim) == value) != name.endswith("!") if operator else bool(claim)

    @classmethod
    def from_mapping(cls, claims: Mapping[str, Any]) -> Capabilities:
        """Return capabilities from a mapping; raise ``ValueError`` for an unknown name or an invalid value."""
        unknown = sorted(set(claims) - set(_CLAIMS))
        if unknown:
            raise ValueError("; ".join(_unknown(name, _CLAIMS) for name in unknown))
        return cls(**claims)


#: The names of all claims.
_CLAIMS = tuple(field.name for field in fields(Capabilities))


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "gradconform.Capabilities lists all capabilities"
    return f"unknown capability {name!r}; {hint}"


_USUAL = Capabilities()


def capability_of(need: str) -> str:
    """Return the capability that a need (``name``, ``name=value`` or ``name!=value``) is about."""
    return need.partition("=")[0].removesuffix("!")


def is_option(need: str) -> bool:
    """Return whether a need is an option: a capability that only some implementations claim.

    These are the capabilities that are not claimed by default, and W before its I. Functions that pass the context on
    cannot be called in that order.
    """
    name = capability_of(need)
    return name == "weight_before_input" or (hasattr(_USUAL, name) and bool(_USUAL.unclaimed([need])))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """The facts about a stage that an implementation may need before the first forward.

    ``loss_fn(outputs, target)`` is set for a last stage and returns a 0-d tensor. It may be called at any time, once or
    more often. ``example_args``, ``example_outputs`` and ``example_target`` have the shapes and dtypes of every
    micro-batch; ``args_require_grad`` has one entry per argument.

    ``repeats_weight`` says that the program will run a W again, so a context must be kept for it. ``retain_graph`` says
    that W must keep the graph, and ``retained`` for which micro-batches it must if not for all; both are set only if
    the capability is claimed. ``releases_outputs`` says that outputs are
    freed between their F and their backward. ``release_outputs`` reports that to the session; this is set only if
    ``edge_roots`` is claimed.

    ``kept_lists`` says that the caller uses the passed lists again. ``weights`` says which weights are passed to W, as
    a word of ``gradconform.trial.trial.WEIGHTS``. Both are set only if ``lists`` is claimed.
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
    retained: tuple[int, ...] = ()
    releases_outputs: bool = False
    kept_lists: bool = False
    weights: str = ""


def claims_of(adapter: Adapter) -> Capabilities:
    """Return what an adapter claims; raise ``ValueError`` or ``TypeError`` if its capabilities cannot be read."""
    claims = adapter.capabilities  # an adapter that does not import the kit may claim by a mapping
    return claims if isinstance(claims, Capabilities) else Capabilities.from_mapping(claims)


class _AnySession(Protocol):
    """The methods that every session has."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run F of micro-batch ``mb`` and return the stage's outputs; a last stage also computes its loss."""

    def finish(self) -> None:
        """End the step: run deferred work; raise if pending work never arrived."""

    def param_grads(self) -> Mapping[str, Tensor | None]:
        """Return the accumulated gradient of every parameter by name: ``.grad``, ``main_grad`` or returned."""

    def close(self) -> None:
        """Reset global state, and remove from the stage what was added to it. Always called, also after an error."""


@runtime_checkable
class FullSession(_AnySession, Protocol):
    """A session of an adapter that claims ``full``: it runs B, and needs neither I nor W.

    Actions raise what the implementation raises.

    If a session's gradients are outside ``Parameter.grad``, it may also have a method ``zero_grads()``. It clears them
    as the engine does between steps. Without it the kit fills the tensors of ``param_grads()`` with zeros.

    ``output_grads`` has the structure of the stage's outputs; a single tensor counts as a tuple of one. It holds a
    tensor of the output's shape, or None, per output tensor. It is None for a backward that starts at the loss.
    """

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run B and return one input gradient, or None, per argument."""


@runtime_checkable
class SplitSession(_AnySession, Protocol):
    """A session of an adapter that claims ``split``: it runs I and W, and needs no B.

    Errors, ``zero_grads()`` and ``output_grads`` are as in :class:`FullSession`.
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
    """The interface through which the kit drives one implementation.

    ``capabilities`` may be a mapping of names of :class:`Capabilities`, so an adapter need not import the kit. An
    adapter may have an attribute ``drives``, the name of the module under test: reports show its version and file.
    """

    @property
    def name(self) -> str:
        """The name shown in reports."""

    @property
    def capabilities(self) -> Capabilities | Mapping[str, Any]:
        """The claimed capabilities."""

    def open(self, stage: nn.Module, spec: StageSpec) -> FullSession | SplitSession:
        """Return a session on ``stage``; layers may be replaced in place, names must stay.

        The session has the claimed actions: B with ``full``, I and W with ``split``. The same module may be passed
        again after its session is closed.
        """


@contextlib.contextmanager
def needed(library: str, command: str) -> Iterator[None]:
    """Convert a missing module into the error that names what to install; other import errors stay as they are."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = library if error.name in {None, library} else f"{library} ({error.name})"
        raise NotInstalledError(missing, command) from error
