"""The oracle of training steps: the whole model and the whole batch in one plain process, act by act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradconform.drive.watches import copy_of
from gradconform.reference.autograd import accumulate, run_forward
from gradconform.reference.runtime import LOWER
from gradconform.runtime import Batch, balance_experts, own_positions, scale_auxiliary, scale_second
from gradconform.tolerance import Partials

from .attention import MistakenAttention
from .bfloat16_stages import lowered, name_of
from .composition import Act, Composition
from .experts import Router
from .model import IGNORED, SECOND_TARGET, attention_layers, counts, loss_of, make_batch, make_stages, tied_names

#: The limit for clipping, as a part of the gradients' norm, and the step size of SGD after it.
CLIPPED_TO, LR = 0.5, 0.125

#: The parts that are added to a gradient: the step (counted over acts), the replica, the micro-batch.
Part = tuple[int, int, int]
#: The weights of a micro-batch's loss, auxiliary losses and second loss in the loss of the step.
Weights = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Share:
    """The gradients of one micro-batch by full name: from the loss itself, the auxiliary losses, and the second loss.

    For a tied parameter, it is the gradient of this use. ``tokens`` are those that count, ``positions`` all, and
    ``second_tokens`` those that count in the second loss. ``value`` is the loss itself, or a replica's share of it.
    """

    loss: Mapping[str, Tensor]
    auxiliary: Mapping[str, Tensor]
    second: Mapping[str, Tensor]
    tokens: int
    positions: int
    second_tokens: int
    value: float


@dataclass(frozen=True, slots=True)
class Plain:
    """The results of one act: losses by replica, and by full name gradients, parameters, and buffers of each replica.

    ``partials`` are the largest partial sums in each gradient. ``norm`` is the norm before clipping. ``weights`` are
    the weights of a micro-batch's loss, auxiliary losses and second loss in the loss of the step.
    """

    act: Act
    losses: list[list[Tensor]]
    grads: Mapping[str, Tensor | None]
    params: Mapping[str, Tensor]
    buffers: Sequence[Mapping[str, Tensor]]
    partials: Mapping[str, Partials]
    norm: Tensor | None = None
    max_norm: float = 0.0
    weights: Weights = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class PlainRun:
    """The results of a composition's acts; ``shares`` are in float64, or in the stages' lower precision."""

    acts: list[Plain]
    shares: Mapping[Part, Share] = field(default_factory=dict)


_CPU = torch.device("cpu")


def run_plain(  # noqa: PLR0913 (the run and its place)
    composition: Composition,
    *,
    dtype: torch.dtype,
    seed: int,
    device: torch.device = _CPU,
    wide: bool = False,
    max_norms: Sequence[float] = (),
    mistaken: MistakenAttention | None = None,
) -> PlainRun:
    """Return plain autograd's results on ``device``, in ``dtype`` or ``wide``: float64, first rounded to ``dtype``.

    The returned tensors are on the CPU. ``max_norms`` are the clipping limits, act by act; half of the norm if none are
    given. With a ``mistaken`` attention, all layers of attention have it, and no shares are computed.
    """
    return _Run(composition, dtype, seed, device, wide, max_norms, mistaken).result()


def _routers(stages: Sequence[nn.Module]) -> list[Router]:
    return [inner for stage in stages for inner in stage.modules() if isinstance(inner, Router)]


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Replace a parameter of a module."""
    inner, _, own = name.rpartition(".")
    module.get_submodule(inner).register_parameter(own, parameter)


class _Run:
    def __init__(  # noqa: PLR0913, PLR0917 (as run_plain is given it)
        self,
        composition: Composition,
        dtype: torch.dtype,
        seed: int,
        device: torch.device,
        wide: bool,  # noqa: FBT001 (as run_plain is given it)
        max_norms: Sequence[float],
        mistaken: MistakenAttention | None,
    ) -> None:
        self.composition, self.dtype, self.seed, self.device, self.wide = composition, dtype, seed, device, wide
        self.max_norms, self.mistaken = max_norms, mistaken
        # Each batch has its own buffers, those of its replicas; parameters and gradients are those of the first one.
        self.replicas = [self._stages() for _ in range(composition.batches)]
        self.named = self._named(self.replicas[0])
        self.partials: dict[str, Partials] = {}
        self.shares: dict[Part, Share] = {}

    def _stages(self) -> list[nn.Module]:
        made = make_stages(self.composition, dtype=self.dtype, seed=self.seed)
        for name in attention_layers(self.composition) if self.mistaken else ():
            index, _, inner = name.partition(".")
            vars(made[int(index)].get_submodule(inner))["forward"] = self.mistaken
        if self.wide:
            return [stage.double() for stage in made.values()]
        for stage in made.values():
            stage.to(self.device)
        return [lowered(stage) if self.composition.precision == "mixed" else stage for stage in made.values()]

    @staticmethod
    def _named(stages: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
        """Return the parameters by full name; a tied one appears under each of its names."""
        return {
            f"{index}.{name_of(name)}": parameter
            for index, stage in enumerate(stages)
            for name, parameter in stage.named_parameters()
        }

    def result(self) -> PlainRun:
        acts = [self._act(number, act) for number, act in enumerate(self.composition.steps)]
        return PlainRun(acts, self.shares)

    def _act(self, number: int, act: Act) -> Plain:
        losses: list[list[Tensor]] = []
        norm, max_norm, weights = None, 0.0, (1.0, 1.0, 1.0)
        if act in {"train", "accumulate", "evaluate"}:
            batches = [self._batch(number, replica) for replica in range(self.composition.batches)]
            weights = self._weights(batches)
            losses = [self._step(act, number, replica, batch, weights) for replica, batch in enumerate(batches)]
        elif act == "zero_grad":
            self._let_go()
        elif act == "clip":
            norm, max_norm = self._clip(number)
        else:
            with torch.no_grad():
                for parameter in self._every():
                    if parameter.grad is not None:
                        parameter.sub_(LR * parameter.grad)
            self._spread()
            self._balance()
        sharing = self.composition.replicas // self.composition.batches
        return Plain(
            act=act,
            losses=losses * sharing,
            grads={name: copy_of(parameter.grad) for name, parameter in self.named.items()},
            params={name: copy_of(parameter) for name, parameter in self.named.items()},
            buffers=[self._buffers(stages) for stages in self.replicas] * sharing,
            partials=dict(self.partials),
            norm=copy_of(norm),
            max_norm=max_norm,
            weights=weights,
        )

    def _every(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(self.named.values()))

    def _spread(self) -> None:
        """Copy the parameters of the first replica to the others."""
        for stages in self.replicas[1:]:
            for name, parameter in self._named(stages).items():
                parameter.data.copy_(self.named[name].data)

    def _balance(self) -> None:
        """Update the biases of routers by the tokens of all replicas."""
        every = [[one.counts.clone() for one in _routers(stages)] for stages in self.replicas]
        totals = [torch.stack(counts).sum(0) for counts in zip(*every, strict=True)]
        for stages in self.replicas:
            waiting = iter(totals)
            balance_experts(stages, lambda _, waiting=waiting: next(waiting))  # type: ignore[misc] # mypy knows no default of a lambda

    def _batch(self, number: int, replica: int) -> Batch:
        batch = make_batch(self.composition, number, replica, dtype=self.dtype, seed=self.seed)
        if not self.wide:
            return batch.map(lambda value: value.to(self.device))
        return batch.map(lambda value: value.double() if value.is_floating_point() else value)

    def _weights(self, batches: Sequence[Batch]) -> Weights:
        """Return the weights of one micro-batch's losses in the loss of the step."""
        if self.composition.reduction == "tokens":
            positions = sum(batch.positions() for batch in batches)
            second = 1.0
            if self.composition.predicts_two:
                second = 1.0 / sum(batch.second_tokens(counts, SECOND_TARGET) for batch in batches)
            return 1.0 / sum(batch.tokens(counts) for batch in batches), 1.0 / positions, second
        mean = self.composition.reduction == "mean"
        weight = 1.0 / (len(batches) * self.composition.microbatches) if mean else 1.0
        return weight, weight, weight

    def _step(self, act: Act, number: int, replica: int, batch: Batch, weights: Weights) -> list[Tensor]:
        stages, trains = self.replicas[replica], act != "evaluate"
        for stage in stages:
            stage.train(trains)
        losses = []
        for mb, chunk in enumerate(batch.split()):
            if trains and not self.mistaken and (self.wide or self.composition.precision != "unmixed"):
                for own, part in self._parts(replica, chunk):
                    self.shares[number, own, mb] = self._share(stages, part, chunk)
            with torch.set_grad_enabled(trains):
                loss = self._loss(stages, chunk, *weights[1:])
            losses.append(copy_of(loss))
            if trains:
                self._accumulate(stages, loss * weights[0])
        return losses

    def _parts(self, replica: int, chunk: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield the micro-batch for each replica that has a part of it, with only the tokens of this part counted."""
        composition = self.composition
        if composition.context == "whole":
            yield replica, chunk
            return
        for own in range(composition.replicas):
            target = torch.full_like(chunk.target, IGNORED)
            positions = own_positions(composition.context, own, composition.replicas, target.shape[1])
            target[:, positions] = chunk.target[:, positions]
            yield own, replace(chunk, target=target)

    def _loss(self, stages: Sequence[nn.Module], chunk: Batch, auxiliary: float, second: float) -> Tensor:
        scale_auxiliary(stages, auxiliary)
        scale_second(stages, second)
        lower = self.composition.precision == "autocast" and not self.wide
        # A weight that a stage uses twice is rounded once, so its gradient in a micro-batch is summed in bfloat16.
        with parametrize.cached(), torch.autocast(self.device.type, LOWER, enabled=lower):
            output = run_forward(stages, (chunk.x,), chunk.kwargs)[-1].outputs
            return loss_of(self.composition)(output, chunk.target)

    def _accumulate(self, stages: Sequence[nn.Module], loss: Tensor) -> None:
        """Add the gradients of one micro-batch to those of the first replica, and record their size."""
        own = self._named(stages)
        if stages is not self.replicas[0]:
            for parameter in own.values():
                parameter.grad = None
        added = accumulate(loss, dict.fromkeys(own.values()))
        seen: set[nn.Parameter] = set()
        for name, parameter in own.items():
            total, grad = self.named[name], added.get(id(parameter))
            if grad is None:
                continue
            if stages is not self.replicas[0] and total not in seen:
                total.grad = grad.clone() if total.grad is None else total.grad + grad
            seen.add(total)
            if total.grad is not None:
                self.partials[name] = self.partials.get(name, Partials()).with_(grad).with_(total.grad)

    def _share(self, stages: Sequence[nn.Module], chunk: Batch, whole: Batch) -> Share:
        """Return the gradients of a micro-batch, or of a part of it; changed state is restored.

        They are those of its loss, of the auxiliary losses, and of the second loss. A part's loss is its share of the
        loss of the ``whole``.
        """
        tokens = int(counts(chunk.target).sum())
        of_part = 1.0
        if self.composition.context != "whole" and self.composition.reduction == "mean":
            of_part = tokens / int(counts(whole.target).sum())
        before = [{name: value.clone() for name, value in stage.named_buffers()} for stage in stages]
        found, values = [], []
        with self._untied(stages):
            alone = [(of_part, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
            for of_loss, *others in alone if self.composition.predicts_two else alone[:2]:
                own = self._named(stages)
                kept = {parameter: parameter.grad for parameter in own.values()}
                loss = of_loss * self._loss(stages, chunk, *others)
                values.append(float(loss.detach()))
                added = accumulate(loss, dict.fromkeys(own.values()))
                for parameter, grad in kept.items():
                    parameter.grad = grad
                found.append({name: copy_of(added[id(one)]) for name, one in own.items() if id(one) in added})
        for stage, buffers in zip(stages, before, strict=True):
            for name, value in stage.named_buffers():
                value.copy_(buffers[name])
        positions = chunk.x.numel() // (self.composition.replicas // self.composition.batches)
        second = chunk.second_tokens(counts, SECOND_TARGET) if self.composition.predicts_two else 0
        return Share(found[0], found[1], found[2] if second else {}, tokens, positions, second, values[0])

    @contextmanager
    def _untied(self, stages: Sequence[nn.Module]) -> Iterator[None]:
        """Give the last stage its own copy of a tied parameter, so that each use has its own gradient."""
        tied = set(stages[0].parameters()) & set(stages[-1].parameters()) if tied_names(self.composition) else set()
        names = stages[-1].named_parameters(remove_duplicate=False)
        places = [(name, parameter) for name, parameter in names if parameter in tied]
        copies = {parameter: nn.Parameter(parameter.detach().clone()) for parameter in tied}
        for name, parameter in places:
            _put(stages[-1], name, copies[parameter])
        yield
        for name, parameter in places:
            _put(stages[-1], name, parameter)

    def _clip(self, number: int) -> tuple[Tensor, float]:
        grads = [parameter.grad for parameter in self._every() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
        max_norm = self.max_norms[number] if self.max_norms else float(CLIPPED_TO * norm)
        # The formula of torch.nn.utils.clip_grad_norm_.
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for parameter in self._every():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * factor
        return norm, max_norm

    def _let_go(self) -> None:
        for parameter in self._every():
            parameter.grad = None
        self.partials = {}

    @staticmethod
    def _buffers(stages: Sequence[nn.Module]) -> dict[str, Tensor]:
        return {
            f"{index}.{name}": copy_of(value)
            for index, stage in enumerate(stages)
            for name, value in stage.named_buffers()
        }
