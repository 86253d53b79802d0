"""Likely causes of wrong tensors after an act, found from the gradients of each micro-batch and replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.diagnosis.training_step import (
    Held,
    StepPart,
    StepSums,
    of_batches,
    of_clipped,
    of_norm,
    of_step_gradient,
    of_tensor_rank,
)
from gradconform.diagnosis.wrong_tensor import largest, wrong_values
from gradconform.judge.values import Explain
from gradconform.results import Sort

from .attention import MISTAKES, MistakenAttention
from .composition import Composition
from .model import expert_layers, is_whole, shared_layers, tied_names
from .oracle import Plain, PlainRun

#: A norm is returned in float32 precision at best.
_EPS = 2.0**-23


@dataclass(frozen=True, slots=True)
class Causes:
    """The explanations of a wrong tensor after act ``number``, on one rank.

    ``plain`` is the plain run in float64, or in the precision of stages if that differs from their dtype. ``others``
    are the gradients that differ between ranks with the same data, as the sum of the other ranks' parts. ``mistaken``
    returns the plain run with a mistaken attention.
    """

    composition: Composition
    replica: int
    plain: PlainRun
    number: int
    tensor_rank: int
    others: Mapping[str, Tensor]
    mistaken: Callable[[MistakenAttention], PlainRun]

    def of(self, sort: Sort, name: str) -> Explain | None:
        """Return the explanation of a named wrong tensor; None if nothing is known of such tensors."""
        act = self.plain.acts[self.number]
        if sort == "buffer":
            right = act.buffers[self.replica][name]
            return lambda got: of_batches(right, got)
        exact = act.grads.get(name)
        if sort != "parameter gradient" or exact is None:
            return None
        before = self._before
        if act.act == "clip" and before is not None and before.grads[name] is not None and act.norm is not None:
            grad, norm = before.grads[name], float(act.norm)
            return lambda got: None if grad is None else of_clipped(grad, exact, norm, act.max_norm, got)
        return lambda got: self._of_gradient(name, exact, got)

    def _of_gradient(self, name: str, exact: Tensor, got: Tensor | None) -> Cause | None:
        alone = None
        if got is not None and name in self.others:
            alone = self._of_rank_alone(self.others[name], exact, got)
        return alone or of_step_gradient(self._sums(name), exact, got) or self._of_attention(name, exact, got)

    def _of_rank_alone(self, others: Tensor, exact: Tensor, got: Tensor) -> Cause | None:
        """Return the cause of a gradient that lacks the shares of other ranks with the same data."""
        found = of_tensor_rank(others, exact, got, self.tensor_rank)
        shares = self.composition.context != "whole" and self.composition.tensor_ranks == 1
        return Cause(Mistake.NOT_REDUCED, slots=(self.replica,)) if found and shares else found

    def _of_attention(self, name: str, exact: Tensor, got: Tensor | None) -> Cause | None:
        """Return the mistake of attention to shared sequences that gives a gradient, if any."""
        wrong = None if got is None else wrong_values(got, exact, largest(exact))
        if wrong is None or self.composition.context == "whole":
            return None
        for mistake in MISTAKES:
            attention = MistakenAttention(mistake, self.composition.context, self.composition.replicas)
            grad = self.mistaken(attention).acts[self.number].grads.get(name)
            if grad is not None and wrong.explained_by(grad):
                return Cause(mistake)
        return None

    def of_loss(self, mb: int) -> Explain:
        """Return the explanation of a wrong loss of a micro-batch: it may be this rank's share of it."""
        share = self.plain.shares.get((self.number, self.replica, mb))

        def explain(got: Tensor | None) -> Cause | None:
            if got is None or share is None or self.composition.context == "whole":
                return None
            own = math.isclose(float(got), share.value, rel_tol=64 * _EPS)
            return Cause(Mistake.NOT_REDUCED, slots=(self.replica,)) if own else None

        return explain

    def of_norm(self, got: Tensor | None) -> Cause | None:
        """Return the likely cause of a wrong norm."""
        before = self._before
        if got is None or before is None:
            return None
        squares = {name: float((grad * grad).sum()) for name, grad in before.grads.items() if grad is not None}
        shared, experts = shared_layers(self.composition), expert_layers(self.composition)
        of_replicas, of_tensor_ranks = (
            {name for name in squares if experts.get(name.rpartition(".")[0]) == style}
            for style in ("replicas", "tensor")
        )
        ranks = self.composition.replicas if of_replicas else self.composition.tensor_ranks
        parts = [before.grads[name] for name in sorted(of_replicas | of_tensor_ranks)]
        divided = [grad.chunk(ranks) for grad in parts if grad is not None]
        held = Held(
            stages={name: int(name.partition(".")[0]) for name in squares},
            replicas=self.composition.replicas,
            tied=tied_names(self.composition),
            tensor_ranks=self.composition.tensor_ranks,
            alike={name for name in squares if is_whole(name, shared)} - of_tensor_ranks,
            experts=of_replicas,
            expert_parts=[sum(float((one[rank] ** 2).sum()) for one in divided) for rank in range(ranks) if divided],
        )
        return of_norm(squares, held, float(got), _EPS)

    @property
    def _before(self) -> Plain | None:
        return self.plain.acts[self.number - 1] if self.number else None

    def _sums(self, name: str) -> StepSums:
        return StepSums(
            parts=list(self._parts(name)),
            step=self.number,
            replica=self.replica,
            replicas=self.composition.replicas,
            microbatches=self.composition.microbatches,
            reduction=self.composition.reduction,
            tensor_ranks=self.composition.tensor_ranks,
            shares_microbatches=self.composition.context != "whole",
        )

    def _parts(self, name: str) -> Iterator[StepPart]:
        acts = self.composition.steps[: self.number + 1]
        since = max((place + 1 for place, act in enumerate(acts) if act == "zero_grad"), default=0)
        tied = tied_names(self.composition)
        for (step, replica, mb), share in self.plain.shares.items():
            if not since <= step <= self.number:
                continue
            weight, auxiliary, second = self.plain.acts[step].weights
            for use in tied if name in tied else (name,):
                yield StepPart(
                    step=step,
                    replica=replica,
                    mb=mb,
                    loss=share.loss.get(use),
                    auxiliary=share.auxiliary.get(use) if self.composition.has_auxiliary else None,
                    weight=weight,
                    auxiliary_weight=auxiliary,
                    tokens=share.tokens,
                    positions=share.positions,
                    own=use == name,
                )
                if self.composition.predicts_two:
                    yield StepPart(
                        step=step,
                        replica=replica,
                        mb=mb,
                        loss=share.second.get(use),
                        auxiliary=None,
                        weight=second,
                        auxiliary_weight=0.0,
                        tokens=share.second_tokens,
                        positions=0,
                        own=use == name,
                        second=True,
                    )
