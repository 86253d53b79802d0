"""The runtime interface: the protocols through which the kit drives a whole training step.

A :class:`Runtime` opens a :class:`RuntimeSession` on each rank, on the stages of this rank. Every rank calls its
session for the same steps in the same order. Ranks are processes of torch's launcher, in one existing process group.
The replicas of a pipeline rank have consecutive ranks, and so have the tensor ranks of a replica: rank = (pipeline rank
* replicas + replica) * tensor ranks + tensor rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: How the loss of a step is computed from those of its micro-batches.
Reduction = Literal["mean", "sum", "tokens"]
DataParallel = Literal["none", "ddp", "fsdp", "fsdp-kept", "hsdp"]
#: The precision of stages; :class:`StepSpec` describes each.
Precision = Literal["unmixed", "autocast", "mixed"]
#: How a layer is divided over tensor ranks; :class:`StepSpec` describes each.
TensorStyle = Literal["column", "row", "sequence", "vocabulary"]
#: How the experts of a stage are divided over ranks; :class:`StepSpec` describes each.
ExpertStyle = Literal["whole", "replicas", "tensor"]
#: How sequences are divided over replicas; :class:`StepSpec` describes each.
ContextStyle = Literal["whole", "halves", "zigzag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of one replica in one step: all its micro-batches, concatenated along the first dimension.

    ``x`` is the input of the first stage, ``target`` that of the loss; every stage also receives ``kwargs``.
    ``microbatches`` is their number; :meth:`split` divides them. ``lengths``, if given, has one sequence length per
    micro-batch, along the second dimension of ``x`` and ``target``; elements beyond it do not belong to the batch.
    """

    x: Tensor
    target: Tensor
    kwargs: Mapping[str, Tensor] = field(default_factory=dict)
    microbatches: int = 1
    lengths: tuple[int, ...] = ()

    def split(self) -> Iterator[Batch]:
        """Yield the micro-batches, split as ``torch.tensor_split`` does: the first ones may have one more row.

        Each is as long as its sequences.
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
        """Return how many tokens of the micro-batches ``counts`` counts."""
        return sum(int(counts(chunk.target).sum()) for chunk in self.split())

    def second_tokens(self, counts: Callable[[Tensor], Tensor], name: str) -> int:
        """Return how many targets of the second loss, the keyword argument ``name``, ``counts`` counts."""
        return sum(int(counts(chunk.kwargs[name]).sum()) for chunk in self.split())

    def positions(self) -> int:
        """Return how many tokens of the micro-batches stages receive, counted in the loss or not."""
        return sum(chunk.x.numel() for chunk in self.split())

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with each of its tensors changed."""
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return replace(self, x=change(self.x), target=change(self.target), kwargs=kwargs)


def _unheard(doing: str) -> None:
    """Ignore the description of the current work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """The training step that a runtime has to run.

    The loss of a step combines ``loss(output, target)``, 0-d, of each micro-batch of each replica. It is their mean,
    their sum, or, for ``tokens``, their sum divided by a number of tokens. That number is the tokens of the whole
    batch, over all replicas, that ``counts`` counts; ``loss`` is then itself a sum over those. The gradients of a step
    are those of this loss, added to the existing ones, and equal on each replica.

    ``placement`` has the stages of each pipeline rank. ``order`` has the cells of the schedule for each pipeline rank,
    as torch writes them; for the schedule ``CSV`` there are no others. ``data_parallel`` is how replicas are
    synchronized, around each stage separately: ``ddp`` (DistributedDataParallel), ``fsdp`` (``fully_shard``),
    ``fsdp-kept`` (without resharding after the forward) or ``hsdp`` (shards in each half of the replicas). ``clips``
    says that gradients will be clipped by their norm.

    ``tied`` has full names of parameters that are one weight, possibly on several ranks: the gradient of each is the
    sum over all of them, and they count once in the norm. Stages may have their own losses. If a submodule has
    ``auxiliary_scale``, the gradient of its loss enters the backward times that number, which is 1 unless set. Such a
    loss counts in that of a step as the others do, by its mean or its sum over micro-batches. For ``tokens``, it is a
    sum over all tokens of a micro-batch, and is divided by their number in the whole batch, :meth:`Batch.positions`.

    ``second_target`` is empty, or the name of the keyword argument with the targets of a second loss. The last stage
    computes this loss itself: it predicts a further token with the embedding and the head of the model, which are tied
    if they are in two stages. If a submodule has ``second_scale``, the gradient of the second loss enters the backward
    times that number, which is 1 unless set. It counts in that of a step as ``loss`` does. For ``tokens``, it is
    divided by the number of its own targets that ``counts`` counts in the whole batch, :meth:`Batch.second_tokens`. If
    ranks divide the rows of the last Linear, this loss is computed from divided scores too: set its function by
    :func:`set_second_loss`.

    ``tensor_ranks`` share each stage: each receives the whole stage and the same batch, and must keep its part of the
    layers that ``shared`` names, by full names. Of a ``column`` Linear it keeps some outputs, which go unchanged into a
    ``row`` Linear, of which it keeps those inputs. The output of the ``row`` Linear is a sum over tensor ranks, and its
    bias counts once. A ``sequence`` norm is whole on each tensor rank and receives some rows of its input, along the
    first dimension. For ``vocabulary``, the rows of the weight are divided: of an Embedding, whose outputs are whole,
    and of the last Linear, from whose outputs the loss is computed. That loss is the cross entropy along the last
    dimension over the tokens that ``counts`` counts: their mean, or their sum if ``reduction`` is not the mean or
    sequences are shared. All other layers are whole, and receive the same inputs as without tensor ranks.

    ``experts`` has the full names of modules with experts, and how these are divided. Each of their parameters stacks
    the experts of a stage along the first dimension. Such a module receives tokens sorted by expert, (tokens, width),
    and the number of tokens of each expert, and returns outputs in the same order. Experts are ``whole`` on each rank,
    or divided evenly over ``replicas``, each of which sends its tokens to the ranks of their experts, or over
    ``tensor`` ranks, which all have the same tokens. A gradient of an expert covers its tokens of all replicas. Routers
    count tokens in each forward in train mode, and :func:`balance_experts` must follow each update.

    ``context`` is how replicas share sequences, if these are not ``whole``: all replicas then train the same
    micro-batches, and each batch has the replica's positions, :func:`own_positions`. ``attentions`` has the full names
    of modules that receive queries, keys and values, (rows, positions, width), and attend to all earlier positions of
    the whole sequence. ``loss`` is then a sum over tokens that ``counts`` counts. For a mean over micro-batches, the
    loss of a micro-batch is its sum over all replicas divided by the number of its counted tokens. Each last rank
    returns the losses of whole micro-batches.

    Data may decide that a parameter is used on some replicas only, or in some micro-batches. ``occasional`` has the
    full names of modules with such parameters. Their gradients are the same on each replica; if nothing used one, it is
    None or zeros.

    ``precision`` is the precision of stages. ``unmixed``: all in ``dtype``. ``autocast``: stages and the loss under
    ``torch.autocast`` to bfloat16. ``mixed``: each stage receives its parameters and floating-point inputs rounded to
    bfloat16; parameters are kept, and their gradients accumulated and reduced, in ``dtype``, which is then float32.

    ``note`` receives the current work in words, for the message on a rank that hangs or dies there; the call is
    optional.
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
    experts: Mapping[str, ExpertStyle] = field(default_factory=dict)
    context: ContextStyle = "whole"
    attentions: tuple[str, ...] = ()
    occasional: tuple[str, ...] = ()
    second_target: str = ""
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
        """Whether this rank has the last stage, and therefore the losses."""
        return self.stages - 1 in self.placement[self.pipeline_rank]


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a tensor on one rank: the ``rows`` along ``dim`` from ``start`` on.

    ``value`` may itself be a shard that this one is a part of: a part that replicas divide again.
    """

    value: Tensor | Shard
    start: int
    rows: int
    dim: int = 0


#: A tensor as a runtime stores it: whole, as a DTensor (also a tensor), or as a shard; None without one.
Kept = Any


@runtime_checkable
class RuntimeSession(Protocol):
    """One rank of one training run. Names are full: the number of the stage, a dot, the name of the parameter in it.

    Methods that use names cover only the stages of this rank. Every method raises what the runtime raises.
    """

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Return the loss of each micro-batch on a last rank, after forward and backward of this replica's batch."""

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Return the same as ``step`` after a forward only, as an evaluation between steps does."""

    def zero_grad(self) -> None:
        """Free all gradients, or set them to zeros, as an optimizer does between steps."""

    def param_grads(self) -> Mapping[str, Kept]:
        """Return the gradient of every parameter of this rank, or None, by full name."""

    def clip(self, max_norm: float) -> float:
        """Return the joint norm over the whole model before clipping, and clip gradients by it."""

    def update(self, lr: float) -> None:
        """Make a step of plain SGD: subtract ``lr`` times its gradient from each parameter."""

    def params(self) -> Mapping[str, Kept]:
        """Return every parameter of this rank by full name."""

    def buffers(self) -> Mapping[str, Kept]:
        """Return every buffer of this rank by full name."""

    def held(self) -> Mapping[str, int]:
        """Return the number of entries in each cache and in flight, by name, if the runtime allows it.

        A step may keep entries until the next begins; growth from step to step is a leak.
        """

    def close(self) -> None:
        """Undo global changes. Always called, also after an error."""


@runtime_checkable
class AccumulatingSession(RuntimeSession, Protocol):
    """A session that can leave the gradients of a step unreduced, required if a runtime claims ``unreduced``."""

    def accumulate(self, batch: Batch) -> list[Tensor] | None:
        """Run as ``step``, but delay the reduction, which then includes the gradients of the next step.

        No gradient is read before that.
        """


@runtime_checkable
class Runtime(Protocol):
    """The interface through which the kit drives one runtime.

    ``claims`` are, by dimension of training steps (docs/write-a-runtime.md lists them), the values that the runtime
    supports, as words of one text or several. The runtime supports all values of a dimension that is not named. A wrong
    claim is a failure; a value that is not claimed is ``unsupported``, never a pass.
    """

    @property
    def name(self) -> str:
        """The name shown in reports."""

    @property
    def claims(self) -> Mapping[str, Collection[str]]:
        """The claimed values, by dimension."""

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> RuntimeSession:
        """Return the session of this rank on its ``stages``, by their number; it may wrap them or change them.

        If no claim can express a limit, such as a schedule that refuses a number of micro-batches, raise
        :class:`~gradconform.adapter.UnsupportedError` on every rank.
        """


def own_positions(style: ContextStyle, replica: int, replicas: int, length: int) -> list[int]:
    """Return the positions of a replica in sequences of ``length``, which twice the number of replicas divides.

    ``halves``: sequences are divided in as many equal parts as there are replicas. ``zigzag``: they are divided in
    twice as many, of which each replica has one from the start and one from the end. Raises ``ValueError`` for other
    lengths.
    """
    if length % (2 * replicas):
        msg = f"expected a length that {2 * replicas} divides, got {length}"
        raise ValueError(msg)
    each = length // (2 * replicas)
    parts = {"halves": (2 * replica, 2 * replica + 1), "zigzag": (replica, 2 * replicas - 1 - replica)}
    chosen = parts[style] if style != "whole" else range(2 * replicas)
    return [each * part + place for part in chosen for place in range(each)]


def scale_auxiliary(modules: Iterable[nn.Module], scale: float) -> None:
    """Multiply the gradients of the stages' auxiliary losses by ``scale``."""
    for module in modules:
        for inner in module.modules():
            if hasattr(inner, "auxiliary_scale"):
                vars(inner)["auxiliary_scale"] = scale


def scale_second(modules: Iterable[nn.Module], scale: float) -> None:
    """Multiply the gradient of the last stage's second loss by ``scale``."""
    for module in modules:
        for inner in module.modules():
            if hasattr(inner, "second_scale"):
                vars(inner)["second_scale"] = scale


def set_second_loss(modules: Iterable[nn.Module], loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Compute the last stage's second loss by ``loss``, a function of scores and targets."""
    for module in modules:
        for inner in module.modules():
            if hasattr(inner, "second_loss"):
                vars(inner)["second_loss"] = loss


def balance_experts(modules: Iterable[nn.Module], total: Callable[[Tensor], Tensor]) -> None:
    """Update the biases of the stages' routers, and clear their counts of tokens.

    ``total`` returns the sum over replicas of a router's counts, int64, one per expert.
    """
    for module in modules:
        for inner in module.modules():
            router: Any = inner
            if hasattr(router, "update_bias"):
                router.update_bias(total(router.counts))


class ModuleSession:
    """The common part of sessions for runtimes that leave gradients in ``Parameter.grad``.

    A subclass defines ``step`` and ``evaluate``. ``modules`` are the stages of this rank after wrapping; prefixes that
    a wrapper adds to names are removed.
    """

    #: The prefixes that wrappers add to names.
    prefixes: tuple[str, ...] = ("module.",)

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Store the stages of this rank."""
        self.modules, self.spec = dict(modules), spec

    def named(self, which: str) -> Iterator[tuple[str, Any]]:
        """Yield the items of ``named_parameters`` or ``named_buffers`` of each stage, by full name."""
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
        """Subtract ``lr`` times its gradient from each parameter, as ``torch.optim.SGD`` does."""
        from torch.optim import SGD  # noqa: PLC0415 (the interface itself imports no torch)

        every = dict.fromkeys(parameter for _, parameter in self.named("named_parameters"))
        parameters = [parameter for parameter in every if parameter.requires_grad]
        if parameters:
            SGD(parameters, lr=lr).step()

    def held(self) -> Mapping[str, int]:
        """Return an empty mapping: this session gives no access to its caches."""
        return {}

    def close(self) -> None:
        """Do nothing: no global state was changed."""
