"""The runtime interface: what makes a whole training step drivable, whatever runs it.

A :class:`Runtime` opens a :class:`RuntimeSession` on each rank, on the stages that this rank has; every rank asks its
session for the same steps in the same order. Ranks are processes of torch's launcher, in one process group that is
there already. Replicas of a pipeline stand beside each other, and the tensor ranks of a replica again:
rank = (pipeline rank * replicas + replica) * tensor ranks + tensor rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: How the loss of a step is made of those of its micro-batches.
Reduction = Literal["mean", "sum", "tokens"]
DataParallel = Literal["none", "ddp", "fsdp", "fsdp-kept", "hsdp"]
#: In which precision stages run; :class:`StepSpec` says what each is.
Precision = Literal["unmixed", "autocast", "mixed"]
#: How a layer lies over tensor ranks; :class:`StepSpec` says what each is.
TensorStyle = Literal["column", "row", "sequence", "vocabulary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one replica is given in one step: all its micro-batches, one behind the other along the first dimension.

    ``x`` is what the first stage takes, ``target`` what the loss takes, and every stage takes ``kwargs`` as well.
    ``microbatches`` is their number; :meth:`split` says where each ends. Where ``lengths`` are given, one for each of
    them, the sequences of a micro-batch are so long, along the second dimension of ``x`` and ``target``: what is behind
    them there is none of the batch.
    """

    x: Tensor
    target: Tensor
    kwargs: Mapping[str, Tensor] = field(default_factory=dict)
    microbatches: int = 1
    lengths: tuple[int, ...] = ()

    def split(self) -> Iterator[Batch]:
        """Yield the micro-batches, split as ``torch.tensor_split`` does: the first ones may have a row more.

        Each is as long as its sequences are.
        """
        xs, targets = self.x.tensor_split(self.microbatches), self.target.tensor_split(self.microbatches)
        kwargs = {name: value.tensor_split(self.microbatches) for name, value in self.kwargs.items()}
        for mb in range(self.microbatches):
            own = {name: values[mb] for name, values in kwargs.items()}
            x, target = xs[mb], targets[mb]
            if self.lengths:
                x, target = x[:, : self.lengths[mb]], target[:, : self.lengths[mb]]
            yield Batch(x=x, target=target, kwargs=own)

    def tokens(self, counts: Callable[[Tensor], Tensor]) -> int:
        """Return how many tokens of the micro-batches ``counts`` says to count."""
        return sum(int(counts(chunk.target).sum()) for chunk in self.split())

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with each of its tensors changed."""
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return replace(self, x=change(self.x), target=change(self.target), kwargs=kwargs)


def _unheard(doing: str) -> None:
    """Tell nobody what is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What a runtime is told of the training step that it is to run.

    The loss of a step is made of ``loss(output, target)``, 0-d, of each micro-batch of each replica: their mean, their
    sum, or, for ``tokens``, their sum over the number of tokens of the whole batch, all replicas together, that
    ``counts`` says to count; ``loss`` is itself a sum over those then. The gradients of a step are those of this loss,
    added to what is there, and the same on each replica. ``placement`` has the stages of each pipeline rank.
    ``order`` has the cells of the schedule for each pipeline rank, as torch writes them; of the schedule ``CSV``
    they are all that there is. ``data_parallel`` is how replicas are kept together: ``ddp``
    (DistributedDataParallel), ``fsdp`` (``fully_shard``), ``fsdp-kept`` (without resharding after the forward) or
    ``hsdp`` (shards in each half of the replicas), around each stage by itself. ``clips`` says that gradients will
    be clipped by their norm. ``tied`` are full names of parameters that are one weight, though they may lie on
    several ranks: the gradient of each is the sum of those of all of them, and they count once in the norm. Stages
    may have losses of their own: where a submodule has ``auxiliary_scale``, the gradient of its loss enters the
    backward times that number, 1 unless it is set; such a loss counts in that of a step as the others do, by its
    mean or its sum over micro-batches.

    ``tensor_ranks`` share each stage: all are given the whole of it and the same batch, and each is to keep its part of
    the layers that ``shared`` names, by full names. Of a ``column`` Linear it keeps some outputs, which go as they are
    into a ``row`` Linear, of which it keeps those inputs: what that puts out is a sum over tensor ranks, and its bias
    counts once. A ``sequence`` norm is whole on each tensor rank and sees some rows of its input, along the first
    dimension. Of ``vocabulary``, the rows of the weight are shared: of an Embedding, whose outputs are whole, and of
    the last Linear, whose outputs are those that the loss is taken of. That loss is the cross entropy along the last
    dimension over the tokens that ``counts`` says to count: their mean, or where ``reduction`` is another their sum.
    All other layers are whole, and see what they see without tensor ranks.

    ``precision`` is that of stages: ``unmixed``, all in ``dtype``; ``autocast``, stages and the loss under
    ``torch.autocast`` to bfloat16; or ``mixed``: each stage sees its parameters, and what is floating of its inputs,
    rounded to bfloat16, while parameters are kept, and their gradients added up and reduced, in ``dtype``, which is
    float32 then.

    ``note`` takes in words what is done now, for the message on a rank that hangs or dies there; nobody has to call it.
    """

    schedule: str
    placement: tuple[tuple[int, ...], ...]
    pipeline_rank: int
    replica: int
    replicas: int
    microbatches: int
    loss: Callable[[Tensor, Tensor], Tensor]
    counts: Callable[[Tensor], Tensor]
    reduction: Reduction
    data_parallel: DataParallel
    device: torch.device
    dtype: torch.dtype
    clips: bool = False
    order: tuple[tuple[str, ...], ...] = ()
    precision: Precision = "unmixed"
    tied: tuple[str, ...] = ()
    tensor_rank: int = 0
    tensor_ranks: int = 1
    shared: Mapping[str, TensorStyle] = field(default_factory=dict)
    note: Callable[[str], None] = _unheard

    @property
    def stages(self) -> int:
        """The number of stages of the whole model."""
        return sum(map(len, self.placement))

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage."""
        return 0 in self.placement[self.pipeline_rank]

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, and with it the losses."""
        return self.stages - 1 in self.placement[self.pipeline_rank]


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a tensor that one rank holds: of the ``rows`` along ``dim`` those from ``start`` on.

    ``value`` may be a shard itself, of what this one is the part of: of a part that replicas share anew.
    """

    value: Tensor | Shard
    start: int
    rows: int
    dim: int = 0


#: A tensor as a runtime keeps it: whole, as a DTensor (which is a tensor too), or as a shard; None for none.
Kept = Any


@runtime_checkable
class RuntimeSession(Protocol):
    """One rank of one training run. Names are full: the number of the stage, a dot, the name of the parameter in it.

    What is asked for by name is of the stages of this rank alone. Everything raises what the runtime raises.
    """

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run forward and backward of this replica's batch; return the loss of each micro-batch on a last rank."""

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run forward alone, as an evaluation between steps does; return as ``step``."""

    def zero_grad(self) -> None:
        """Let go of all gradients, or make zeros of them, as an optimizer does between steps."""

    def param_grads(self) -> Mapping[str, Kept]:
        """Return the gradient of every parameter of this rank, or None, by full name."""

    def clip(self, max_norm: float) -> float:
        """Clip gradients by the norm of those of the whole model together; return the norm before."""

    def update(self, lr: float) -> None:
        """Make a step of plain SGD: from each parameter, ``lr`` times its gradient is taken."""

    def params(self) -> Mapping[str, Kept]:
        """Return every parameter of this rank by full name."""

    def buffers(self) -> Mapping[str, Kept]:
        """Return every buffer of this rank by full name."""

    def held(self) -> Mapping[str, int]:
        """Return how much is in each cache and still in flight, by name, where the runtime lets one look.

        What a step leaves until the next begins is its own; that it grows from step to step is a leak.
        """

    def close(self) -> None:
        """Undo what is global. Always called, also after an error."""


@runtime_checkable
class AccumulatingSession(RuntimeSession, Protocol):
    """A session that can leave the gradients of a step unreduced, asked where a runtime claims ``unreduced``."""

    def accumulate(self, batch: Batch) -> list[Tensor] | None:
        """Run as ``step``, and leave what comes to be reduced once, with what the next step gives.

        No gradient is asked for before that.
        """


@runtime_checkable
class Runtime(Protocol):
    """Makes one runtime drivable.

    ``claims`` are, by dimension of training steps (docs/write-a-runtime.md lists them), the values that the runtime
    supports, as words of one text or several; it supports all values of a dimension that is not named. Claimed and
    wrong is a failure, not claimed is ``unsupported``.
    """

    @property
    def name(self) -> str:
        """The name that reports show."""

    @property
    def claims(self) -> Mapping[str, Collection[str]]:
        """What is claimed, by dimension."""

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> RuntimeSession:
        """Return the session of this rank on its ``stages``, by their number; it may wrap them or change them.

        What no claim can say, such as a schedule that refuses a number of micro-batches, raises
        :class:`~gradconform.adapter.UnsupportedError` on every rank.
        """


def scale_auxiliary(modules: Iterable[nn.Module], scale: float) -> None:
    """Let the gradients of the auxiliary losses of stages count ``scale`` times."""
    for module in modules:
        for inner in module.modules():
            if hasattr(inner, "auxiliary_scale"):
                vars(inner)["auxiliary_scale"] = scale


class ModuleSession:
    """What of a session is the same for all runtimes that leave gradients in ``Parameter.grad``.

    A subclass has ``step`` and ``evaluate``. ``modules`` are the stages of this rank as they are after wrapping; what a
    wrapper puts in front of names is taken off.
    """

    #: What wrappers put into the names of what they wrap.
    prefixes: tuple[str, ...] = ("module.",)

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Keep the stages of this rank."""
        self.modules, self.spec = dict(modules), spec

    def named(self, which: str) -> Iterator[tuple[str, Any]]:
        """Yield what ``named_parameters`` or ``named_buffers`` of each stage yields, by full name."""
        for index, module in sorted(self.modules.items()):
            for name, value in getattr(module, which)():
                own = name
                for prefix in self.prefixes:
                    own = own.removeprefix(prefix)
                yield f"{index}.{own}", value

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for _, parameter in self.named("named_parameters"):
            parameter.grad = None

    def param_grads(self) -> dict[str, Kept]:
        """Return each parameter's ``.grad``."""
        return {name: parameter.grad for name, parameter in self.named("named_parameters")}

    def params(self) -> dict[str, Kept]:
        """Return the parameters."""
        return dict(self.named("named_parameters"))

    def buffers(self) -> dict[str, Kept]:
        """Return the buffers."""
        return dict(self.named("named_buffers"))

    def update(self, lr: float) -> None:
        """Take ``lr`` times its gradient from each parameter, as ``torch.optim.SGD`` does."""
        from torch.optim import SGD  # noqa: PLC0415 (the interface itself imports no torch)

        every = dict.fromkeys(parameter for _, parameter in self.named("named_parameters"))
        parameters = [parameter for parameter in every if parameter.requires_grad]
        if parameters:
            SGD(parameters, lr=lr).step()

    def held(self) -> Mapping[str, int]:
        """Return nothing: this session lets nobody look."""
        return {}

    def close(self) -> None:
        """Do nothing: nothing global was changed."""
