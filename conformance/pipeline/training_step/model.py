"""The model of a training step, stage by stage, and its batches: tokens in, a distribution over tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from gradconform.runtime import Batch, ExpertStyle, TensorStyle
from gradconform.trial.materials import stable_seed

from .attention import Attention
from .auxiliary import AuxiliaryLoss, SecondLoss
from .composition import Composition
from .experts import Mixture, affinities

Loss = Callable[[Tensor, Tensor], Tensor]

VOCABULARY, WIDTH, TOKENS = 13, 8, 5
#: The number of tokens in a sequence that replicas share.
SHARED_TOKENS = 8
#: The target of a token that does not count.
IGNORED = -100
#: Rows of a micro-batch; if the last is ragged, all others have one more.
ROWS = 2
_DROPPED = 0.25
_RANK = 2
#: The keyword argument with the targets of the second loss.
SECOND_TARGET = "second_target"
#: The buffer that counts the calls of a hook on a stage's input.
CALLS = "calls.count"


class Adapted(nn.Module):
    """A frozen Linear and a parallel adapter of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inputs, _RANK, bias=False), nn.Linear(_RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return their sum."""
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


class Block(nn.Module):
    """A norm and an MLP with a residual connection; the composition decides the details."""

    def __init__(self, composition: Composition, index: int) -> None:
        super().__init__()
        self.layers, self.index = composition.layers, index
        linear = Adapted if composition.weights == "frozen-layers" else nn.Linear
        norm = nn.BatchNorm1d if composition.layers == "batch-norm" else nn.LayerNorm
        self.norm, self.up, self.down = norm(WIDTH), linear(WIDTH, 2 * WIDTH), linear(2 * WIDTH, WIDTH)
        self.attention = Attention(WIDTH) if composition.context != "whole" else None
        summed = composition.reduction == "tokens"
        self.mixture = (
            Mixture(WIDTH, summed=summed, dropping=composition.routing == "dropped") if composition.experts else None
        )
        self.occasional = nn.Linear(WIDTH, WIDTH) if composition.use else None
        self.auxiliary = (
            AuxiliaryLoss(WIDTH, summed=summed, tallied=composition.precision == "mixed")
            if composition.auxiliary
            else None
        )

    def forward(
        self, x: Tensor, scale: Tensor | None, seeds: Tensor | None, affinity: Tensor | None, used: Tensor | None
    ) -> Tensor:
        """Return as many numbers as the input has."""
        if self.attention is not None:
            x = x + self.attention(x)
        if self.layers == "selective-checkpoint" and torch.is_grad_enabled():
            inner = checkpoint(self._inner, x, use_reentrant=False, context_fn=_outputs_of_linear_layers_kept)
        elif self.layers in {"checkpoint", "reentrant-checkpoint"} and torch.is_grad_enabled():
            inner = checkpoint(self._inner, x, use_reentrant=self.layers == "reentrant-checkpoint")
        else:
            inner = self._inner(x)
        if seeds is not None and self.training:
            inner = inner * self._kept(inner, int(seeds[0]))
        y: Tensor = x + (inner if scale is None else inner * scale)
        if self.mixture is not None:
            y = y + self.mixture(y, affinity)
        if self.occasional is not None and used is not None and bool(used[0]):
            y = y + self.occasional(y)
        return y if self.auxiliary is None else self.auxiliary(y)

    def _inner(self, x: Tensor) -> Tensor:
        flat: Tensor = self.norm(x.flatten(0, 1))
        inner: Tensor = self.down(torch.tanh(self.up(flat)))
        return inner.view(x.shape)

    def _kept(self, x: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(64 * seed + self.index)
        kept = torch.rand(x.shape, generator=generator) >= _DROPPED
        return kept.to(x) / (1 - _DROPPED)


def _outputs_of_linear_layers_kept() -> Any:
    """Return the contexts of a checkpoint that recomputes all layers except Linear."""
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


class Calls(nn.Module):
    """Counts the calls of hooks on a stage's inputs, in a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def count_those_of(self, x: Tensor) -> None:
        """Set a hook on a tensor that a backward reaches."""
        if x.requires_grad and torch.is_grad_enabled():
            x.register_hook(self._called)

    def _called(self, grad: Tensor) -> None:
        del grad
        self.count += 1


class Stage(nn.Module):
    """One stage: the first has the embedding, the last the head; all others may set a hook on their input."""

    def __init__(self, composition: Composition, index: int) -> None:
        super().__init__()
        last = index == composition.stages - 1
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if index == 0 else None
        self.block = Block(composition, index)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None
        self.calls = Calls() if composition.hooked and index > 0 else None
        self.second = (
            SecondLoss(WIDTH, nn.Embedding(VOCABULARY, WIDTH) if index else None, loss_of(composition))
            if composition.predicts_two and last
            else None
        )

    def forward(  # noqa: PLR0913, PLR0917 (the keyword arguments of a batch)
        self,
        x: Tensor,
        scale: Tensor | None = None,
        seeds: Tensor | None = None,
        affinity: Tensor | None = None,
        used: Tensor | None = None,
        following: Tensor | None = None,
        second_target: Tensor | None = None,
    ) -> Tensor:
        """Return numbers, or scores for each token of the vocabulary, from tokens or numbers."""
        if self.calls is not None:
            self.calls.count_those_of(x)
        y: Tensor = x if self.embedding is None else self.embedding(x)
        y = self.block(y, scale, seeds, affinity, used)
        if self.second is not None:
            y = self.second(y, following, second_target, self.embedding or self.second.embedding, self.head)
        return y if self.head is None else self.head(y)


def tied_names(composition: Composition) -> tuple[str, ...]:
    """Return the full names of the tied parameters; in a single stage, that is one parameter with one name."""
    last = composition.stages - 1
    if composition.weights == "tied" and last:
        return "0.embedding.weight", f"{last}.head.weight"
    return ("0.embedding.weight", f"{last}.second.embedding.weight") if composition.predicts_two and last else ()


def shared_layers(composition: Composition) -> dict[str, TensorStyle]:
    """Return the layout of layers over tensor ranks, by full name; empty if there are none.

    A frozen Linear has its low-rank adapter split with it: the adapter's Linear on the side, outputs or inputs, that is
    split.
    """
    if composition.tensor_ranks == 1:
        return {}
    adapted = composition.weights == "frozen-layers"
    found: dict[str, TensorStyle] = {}
    for index in range(composition.stages):
        block = f"{index}.block"
        for inner in (".base", ".up") if adapted else ("",):
            found[f"{block}.up{inner}"] = "column"
        for inner in (".base", ".down") if adapted else ("",):
            found[f"{block}.down{inner}"] = "row"
        if composition.tensor_parallel == "sequence":
            found[f"{block}.norm"] = "sequence"
    if composition.tensor_parallel == "vocabulary":
        last = composition.stages - 1
        copied = [f"{last}.second.embedding"] if composition.predicts_two and last else []
        found |= dict.fromkeys(["0.embedding", *copied, f"{last}.head"], "vocabulary")
    return found


def expert_layers(composition: Composition) -> dict[str, ExpertStyle]:
    """Return how the experts of each stage are divided over ranks, by the full name of the module that has them."""
    if not composition.experts:
        return {}
    return {f"{index}.block.mixture.experts": composition.experts for index in range(composition.stages)}


def attention_layers(composition: Composition) -> tuple[str, ...]:
    """Return the full names of modules that attend to sequences on several ranks."""
    shares = composition.context != "whole"
    return tuple(f"{index}.block.attention.inner" for index in range(composition.stages) if shares)


def occasional_layers(composition: Composition) -> tuple[str, ...]:
    """Return the full names of modules whose use data decide."""
    return tuple(f"{index}.block.occasional" for index in range(composition.stages) if composition.use)


def is_whole(parameter: str, shared: Mapping[str, TensorStyle]) -> bool:
    """Return whether each tensor rank has the whole parameter: unshared ones, a norm, a row layer's bias."""
    layer, _, name = parameter.rpartition(".")
    style = shared.get(layer, "sequence")
    return style == "sequence" or (style, name) == ("row", "bias")


def make_stages(composition: Composition, *, dtype: torch.dtype, seed: int) -> dict[int, Stage]:
    """Return all stages on the CPU, in train mode; equal for equal arguments, in every process."""
    made = {index: _stage(composition, index, dtype, seed) for index in range(composition.stages)}
    first, last = made[0], made[composition.stages - 1]
    if composition.weights == "tied" and first.embedding is not None and last.head is not None:
        last.head.weight = first.embedding.weight
    if last.second is not None and last.second.embedding is not None and first.embedding is not None:
        last.second.embedding.weight = first.embedding.weight
    if composition.weights == "frozen-stage":
        first.requires_grad_(requires_grad=False)
    return made


def compile_in_place(stages: Mapping[int, nn.Module], backend: str) -> None:
    """Compile stages; ``aot_eager`` stops before kernels are made, which need a C++ compiler."""
    for stage in stages.values():
        stage.compile(backend=backend)


@cache
def no_compiler(backend: str) -> str:
    """Return why stages cannot be compiled here: torch.compile's error in a minimal case; empty if they can."""
    module = Adapted(WIDTH, WIDTH)
    try:
        compile_in_place({0: module}, backend)
        module(torch.ones(1, WIDTH, requires_grad=True)).sum().backward()
    except Exception as error:  # noqa: BLE001 (no exception here is a runtime's)
        return f"torch.compile with {backend} does not work here: {' '.join(str(error).split())[:300]}"
    return ""


def _stage(composition: Composition, index: int, dtype: torch.dtype, seed: int) -> Stage:
    stage = Stage(composition, index)
    generator = torch.Generator().manual_seed(stable_seed(seed, "training step", index))
    with torch.no_grad():
        for parameter in stage.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / WIDTH**0.5 + (parameter.dim() == 1))
    return stage.to(dtype)


def make_batch(composition: Composition, step: int, replica: int, *, dtype: torch.dtype, seed: int) -> Batch:
    """Return a replica's batch of a step on the CPU: as many rows of tokens as the composition says.

    If replicas share sequences, the batch of the first one is that of all.
    """
    generator = torch.Generator().manual_seed(stable_seed(seed, "training step", "batch", step, replica))
    count = composition.microbatches
    rows = (ROWS + 1) * count - 1 if composition.ragged else ROWS * count
    length = TOKENS if composition.context == "whole" else SHARED_TOKENS

    def tokens() -> Tensor:
        return torch.randint(VOCABULARY, (rows, length), generator=generator)

    x, target = tokens(), tokens()
    # Different numbers of tokens count: in a row only its first, or all.
    if composition.counted != "all":
        target[torch.rand((rows, length), generator=generator) < torch.rand((rows, 1), generator=generator)] = IGNORED
    if composition.counted == "first-half":
        target[:, length // 2 :] = IGNORED
    target[:, 0] = x[:, 0]
    # Each step and each replica has another order; tokens after a sequence would count if they were run.
    lengths = [TOKENS - 2 * ((mb + step + replica) % 3) for mb in range(count)] if composition.lengths else []
    kwargs = dict(_keywords(composition, rows, replica, generator, dtype))
    if composition.use:
        used = [_is_used(composition, step, replica, mb) for mb in range(count)]
        kwargs["used"] = torch.tensor([used[mb] for mb, own in enumerate(x.tensor_split(count)) for _ in own])
    return Batch(x=x, target=target, kwargs=kwargs, microbatches=count, lengths=tuple(lengths))


def _keywords(
    composition: Composition, rows: int, replica: int, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    drawn = torch.rand((rows, 1, 1), generator=generator, dtype=torch.float64)
    if composition.keyword:
        yield "scale", (drawn + 0.5).to(dtype)
    if composition.layers == "dropout":
        yield "seeds", torch.randint(1 << 30, (rows,), generator=generator)
    if composition.predicts_two:
        following = torch.randint(VOCABULARY, (rows, TOKENS), generator=generator)
        second = torch.randint(VOCABULARY, (rows, TOKENS), generator=generator)
        # Other tokens count than in the first loss, and of every row at least one.
        second[:, 1:][torch.rand((rows, TOKENS - 1), generator=generator) < torch.rand((), generator=generator)] = (
            IGNORED
        )
        yield "following", following
        yield SECOND_TARGET, second
    if composition.experts:
        yield "affinity", affinities(composition.routing, rows, TOKENS, replica, generator).to(dtype)


def _is_used(composition: Composition, step: int, replica: int, mb: int) -> bool:
    """Return whether a micro-batch uses the layer whose use data decide."""
    if composition.use == "replica":
        return replica == 0
    if composition.use == "microbatch":
        return mb == 0
    return composition.use == "step" and step == 0


def counts(target: Tensor) -> Tensor:
    """Return a mask of the tokens that count."""
    return target != IGNORED


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy over the tokens of a micro-batch that count, 0-d."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def summed_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the summed cross entropy over the tokens of a micro-batch that count, 0-d."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")


def loss_of(composition: Composition) -> Loss:
    """Return the loss function of a micro-batch, for the last stage's output and the targets."""
    loss = mean_loss if composition.reduction == "mean" else summed_loss
    return loss if composition.precision == "unmixed" else partial(_of_float32, loss)


def _of_float32(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss in float32 of outputs with lower precision, as models compute it."""
    return loss(output if output.dtype == torch.float64 else output.float(), target)
