"""Finds causes of wrong gradients after a training step, by how often each share of a gradient counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from .cause import Cause, Mistake, numbered
from .wrong_tensor import FITTED, largest, wrong_values


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """The gradient that one micro-batch of one replica adds to a parameter in one step, in float64, and its counts.

    ``loss`` is the gradient of the micro-batch's loss, ``auxiliary`` that of the auxiliary losses; None for none.
    ``tokens`` is the number of counted tokens, ``positions`` that of all. ``own`` is false for the gradient of another
    use of a tied parameter. ``second`` is true for the second loss of a micro-batch, which is a part of its own.
    """

    step: int
    replica: int
    mb: int
    loss: Tensor | None
    auxiliary: Tensor | None
    weight: float
    auxiliary_weight: float
    tokens: int
    positions: int
    own: bool = True
    second: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """The parts of a gradient on one rank, from the steps since gradients were cleared.

    ``step`` is the number of the last step, ``replica`` the rank's own.
    """

    parts: Sequence[StepPart]
    step: int
    replica: int
    replicas: int
    microbatches: int
    reduction: str
    tensor_ranks: int = 1
    #: Whether replicas have parts of the same micro-batches.
    shares_microbatches: bool = False


#: How near a divisor must be to a whole number.
_DIVISOR = 1e-4
#: How often the loss and the auxiliary losses of a part count.
_Counts = Callable[[StepPart], tuple[float, float]]


def of_step_gradient(sums: StepSums, right: Tensor, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a gradient that differs from the ``right`` one after a training step, if any."""
    if got is None:
        earlier = any(part.step < sums.step for part in sums.parts)
        return Cause(Mistake.CLEARED if earlier else Mistake.NEVER_ACCUMULATED)
    largest_part = max((largest(_value([part], lambda _: (1.0, 1.0))) for part in sums.parts), default=0.0)
    wrong = wrong_values(got, right, largest_part)
    if wrong is None:
        return None
    for cause, counts in _hypotheses(sums):
        if wrong.explained_by(_value(sums.parts, counts)):
            return cause
    square = float((right * right).sum())
    factor = float((wrong.got * right).sum()) / square if square else 0.0
    fits = factor and wrong.explained_by(factor * right, fitted=1, enough=FITTED)
    return _of_scale(sums, factor) if fits else None


def _of_scale(sums: StepSums, factor: float) -> Cause:
    """Return the cause of a gradient that is the right one times a factor: a divisor, if one is found."""
    tokens = sum(part.tokens for part in sums.parts if part.own and not part.second)
    divisor = round(tokens / factor)
    one_step = len({(part.step, part.second) for part in sums.parts}) == 1
    if sums.reduction == "tokens" and one_step and math.isclose(tokens / factor, divisor, rel_tol=_DIVISOR):
        return Cause(Mistake.DIVIDED_BY_OTHER, names=(f"{divisor} in place of the number of tokens, {tokens}",))
    return Cause(Mistake.SCALED, factors=(factor,))


def _value(parts: Sequence[StepPart], counts: _Counts) -> Tensor:
    """Return the sum of the parts, each by its count times its own weight."""
    total: Tensor | float = 0.0
    for part in parts:
        of_loss, of_auxiliary = counts(part)
        if part.loss is not None:
            total = total + of_loss * part.weight * part.loss
        if part.auxiliary is not None:
            total = total + of_auxiliary * part.auxiliary_weight * part.auxiliary
    return torch.as_tensor(total, dtype=torch.float64)


def _hypotheses(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    """Yield the possible mistakes, the simplest and commonest first."""
    yield from _of_auxiliary(sums)
    yield from _of_second_loss(sums)
    yield from _of_factors(sums)
    yield from _of_steps(sums)
    yield from _of_replicas(sums)
    yield from _of_microbatches(sums)
    yield from _of_tokens(sums)
    yield from _of_uses(sums)


def _numbers(sums: StepSums) -> dict[str, float]:
    counted = [part for part in sums.parts if part.step == sums.step and not part.second]
    tokens = sum(part.tokens for part in counted)
    found = {"the number of micro-batches": sums.microbatches, "the number of replicas": sums.replicas}
    found["the number of micro-batches of all replicas"] = sums.microbatches * sums.replicas
    found["the number of tokens"] = tokens
    own = sum(part.tokens for part in counted if part.replica == sums.replica)
    found["the number of tokens of a replica"] = own
    found["the number of tensor ranks"] = sums.tensor_ranks
    return {name: float(value) for name, value in found.items() if value > 1}


def _of_factors(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    """Yield the whole gradient times each known count, or 2."""
    for kind, inverse in ((Mistake.MULTIPLIED, False), (Mistake.DIVIDED, True)):
        by_value: dict[float, list[str]] = {}
        for name, number in _numbers(sums).items():
            by_value.setdefault(number, []).append(name)
        by_value.setdefault(2.0, []).append("2: counted twice" if not inverse else "2")
        for number, names in by_value.items():
            factor = 1.0 / number if inverse else number
            yield Cause(kind, factors=(number,), names=tuple(names)), _times(factor, factor)
    yield Cause(Mistake.ZERO), _times(0.0, 0.0)
    yield Cause(Mistake.SIGN_REVERSED), _times(-1.0, -1.0)


def _times(of_loss: float, of_auxiliary: float) -> _Counts:
    return lambda _: (of_loss, of_auxiliary)


def _where(wanted: Callable[[StepPart], bool], inside: float = 1.0, outside: float = 0.0) -> _Counts:
    return lambda part: (inside, inside) if wanted(part) else (outside, outside)


def _of_steps(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    if not any(part.step < sums.step for part in sums.parts):
        return

    def now(part: StepPart) -> bool:
        return part.step == sums.step

    yield Cause(Mistake.ONLY_THIS_STEP), _where(now)
    yield Cause(Mistake.ONLY_EARLIER_STEPS), _where(lambda part: not now(part))
    for name, number in _numbers(sums).items():
        yield Cause(Mistake.DIVIDED_AGAIN, names=(name,)), _where(now, 1.0, 1.0 / number)
    if sums.replicas > 1:
        count = float(sums.replicas)
        yield Cause(Mistake.EARLIER_REDUCED_AGAIN, factors=(count,)), _where(now, 1.0, count)
        alone = Cause(Mistake.EARLIER_NOT_REDUCED, slots=(sums.replica,))
        yield alone, _where(lambda part: now(part) or part.replica == sums.replica)


def _of_replicas(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    if sums.replicas == 1:
        return
    count = float(sums.replicas)
    for replica in sorted(range(sums.replicas), key=lambda one: one != sums.replica):

        def own(part: StepPart, replica: int = replica) -> bool:
            return part.replica == replica

        yield Cause(Mistake.NOT_REDUCED_NOR_DIVIDED, slots=(replica,)), _where(own, count)
        yield Cause(Mistake.NOT_REDUCED, slots=(replica,)), _where(own)
        yield Cause(Mistake.REPLICA_MISSING, slots=(replica,)), _where(own, 0.0, 1.0)
    for mb in range(sums.microbatches - 1, 0, -1):

        def late(part: StepPart, mb: int = mb) -> bool:
            return part.step == sums.step and part.mb >= mb

        behind = tuple(range(mb, sums.microbatches))
        for factor in (count, 1.0):
            yield Cause(Mistake.REDUCED_EARLY, microbatches=behind), _late(late, sums.replica, factor)
        yield Cause(Mistake.REDUCED_EARLY_ONLY, microbatches=behind), _where(late, 0.0, 1.0)


def _late(late: Callable[[StepPart], bool], replica: int, factor: float) -> _Counts:
    def counts(part: StepPart) -> tuple[float, float]:
        own = factor if part.replica == replica else 0.0
        return (own, own) if late(part) else (1.0, 1.0)

    return counts


def _of_microbatches(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    for mb in range(sums.microbatches):

        def this(part: StepPart, mb: int = mb) -> bool:
            return part.step == sums.step and part.mb == mb

        yield Cause(Mistake.MISSING, microbatches=(mb,)), _where(this, 0.0, 1.0)
        yield Cause(Mistake.COUNTED_TWICE, microbatches=(mb,), factors=(2.0,)), _where(this, 2.0, 1.0)
        yield Cause(Mistake.ONLY, microbatches=(mb,)), _where(this)
    for count in range(1, sums.microbatches):
        behind = tuple(range(count, sums.microbatches))
        yield Cause(Mistake.MISSING, microbatches=behind), _where(lambda part, mb=count: part.mb >= mb, 0.0, 1.0)  # type: ignore[misc] # mypy knows no default of a lambda


def _of_tokens(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    """Yield wrong means in place of the mean over all tokens or over micro-batches."""
    of_step: Counter[tuple[int, bool]] = Counter()
    of_replica: Counter[tuple[int, int, bool]] = Counter()
    of_microbatch: Counter[tuple[int, int]] = Counter()
    for part in sums.parts:
        of_step[part.step, part.second] += part.tokens
        of_replica[part.step, part.replica, part.second] += part.tokens
        of_microbatch[part.step, part.mb] += part.tokens
    parts = float(sums.microbatches * sums.replicas)
    if sums.reduction == "tokens":
        # A count multiplies the weight, which is one divided by the number of all tokens.
        yield (
            Cause(Mistake.MEAN_OF_REPLICAS),
            lambda part: (
                of_step[part.step, part.second]
                / max(1, of_replica[part.step, part.replica, part.second])
                / sums.replicas,
                1.0,
            ),
        )
        yield (
            Cause(Mistake.MEAN_OF_MICROBATCHES),
            lambda part: (of_step[part.step, part.second] / max(1, part.tokens) / parts, 1.0),
        )
        for name, number in _numbers(sums).items():
            yield (
                Cause(Mistake.DIVIDED_BY_OTHER, names=(f"{name} in place of the number of tokens",)),
                lambda part, number=number: (of_step[part.step, part.second] / number, 1.0),  # type: ignore[misc] # mypy knows no default of a lambda
            )
    elif sums.shares_microbatches and sums.reduction == "mean":
        yield (
            Cause(Mistake.MEAN_OF_REPLICAS),
            lambda part: (of_microbatch[part.step, part.mb] / max(1, part.tokens) / sums.replicas, 1.0),
        )


def _of_auxiliary(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    if all(part.auxiliary is None for part in sums.parts):
        return
    yield Cause(Mistake.AUXILIARY_MISSING), _times(1.0, 0.0)
    yield Cause(Mistake.ONLY_AUXILIARY), _times(0.0, 1.0)
    for name, number in {**_numbers(sums), "2: counted twice": 2.0}.items():
        times = Cause(Mistake.AUXILIARY_SCALED, factors=(number,), names=(f"multiplied by {name}",))
        yield times, _times(1.0, number)
        parted = Cause(Mistake.AUXILIARY_SCALED, factors=(1.0 / number,), names=(f"divided by {name}",))
        yield parted, _times(1.0, 1.0 / number)
    if sums.reduction == "tokens":
        yield from _of_auxiliary_tokens(sums)


def _of_auxiliary_tokens(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    """Yield wrong means of auxiliary losses in place of the mean over all tokens."""
    of_step: Counter[int] = Counter()
    of_replica: Counter[tuple[int, int]] = Counter()
    tokens_of: Counter[int] = Counter()
    tokens = positions = 0
    for part in sums.parts:
        of_step[part.step] += part.positions
        of_replica[part.step, part.replica] += part.positions
        tokens_of[part.step] += part.tokens
        if part.step == sums.step and part.own:
            tokens, positions = tokens + part.tokens, positions + part.positions
    if tokens:
        name = "divided by the number of tokens that count in the loss"
        other = Cause(Mistake.AUXILIARY_SCALED, factors=(positions / tokens,), names=(name,))
        yield other, lambda part: (1.0, of_step[part.step] / tokens_of[part.step])
    parts = float(sums.microbatches * sums.replicas)
    yield (
        Cause(Mistake.AUXILIARY_OF_REPLICAS),
        lambda part: (1.0, of_step[part.step] / of_replica[part.step, part.replica] / sums.replicas),
    )
    yield (
        Cause(Mistake.AUXILIARY_OF_MICROBATCHES),
        lambda part: (1.0, of_step[part.step] / max(1, part.positions) / parts),
    )


def _of_second_loss(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    if not any(part.second for part in sums.parts):
        return
    yield Cause(Mistake.SECOND_LOSS_MISSING), _of_second(lambda _: 0.0)
    of_step: Counter[tuple[int, bool]] = Counter()
    of_replica: Counter[tuple[int, int]] = Counter()
    for part in sums.parts:
        if part.own:
            of_step[part.step, part.second] += part.tokens
            of_replica[part.step, part.replica] += part.tokens if part.second else 0
    own, other = of_step[sums.step, True], of_step[sums.step, False]
    if sums.reduction == "tokens" and own and other:
        name = "divided by the number of tokens of the first loss"
        scaled = Cause(Mistake.SECOND_LOSS_SCALED, factors=(own / other,), names=(name,))
        yield scaled, _of_second(lambda part: of_step[part.step, True] / max(1, of_step[part.step, False]))
        yield (
            Cause(Mistake.SECOND_LOSS_OF_REPLICAS),
            _of_second(
                lambda part: of_step[part.step, True] / max(1, of_replica[part.step, part.replica]) / sums.replicas
            ),
        )
        parts = float(sums.microbatches * sums.replicas)
        mean = _of_second(lambda part: of_step[part.step, True] / max(1, part.tokens) / parts)
        yield Cause(Mistake.SECOND_LOSS_OF_MICROBATCHES), mean
    for name, number in {**_numbers(sums), "2: counted twice": 2.0}.items():
        times = Cause(Mistake.SECOND_LOSS_SCALED, factors=(number,), names=(f"multiplied by {name}",))
        yield times, _of_second(lambda _, factor=number: factor)  # type: ignore[misc] # mypy knows no default of a lambda
        parted = Cause(Mistake.SECOND_LOSS_SCALED, factors=(1.0 / number,), names=(f"divided by {name}",))
        yield parted, _of_second(lambda _, factor=1.0 / number: factor)  # type: ignore[misc] # the same


def _of_second(count: Callable[[StepPart], float]) -> _Counts:
    """Return the counts of the second loss of a part; all other losses count once."""
    return lambda part: (count(part) if part.second else 1.0, 1.0)


def _of_uses(sums: StepSums) -> Iterator[tuple[Cause, _Counts]]:
    if all(part.own for part in sums.parts):
        return
    yield Cause(Mistake.USES_MISSING, counts=(1, 2)), _where(lambda part: part.own)
    yield Cause(Mistake.USES_MISSING, counts=(1, 2)), _where(lambda part: not part.own)
    for own, other in ((1.0, 2.0), (2.0, 1.0)):
        counted = Cause(Mistake.USES_MISCOUNTED, counts=(2,), factors=(own, other))
        yield counted, _where(lambda part: part.own, own, other)
    for replica in sorted(range(sums.replicas), key=lambda one: one != sums.replica) if sums.replicas > 1 else ():
        for own in (True, False):
            yield Cause(Mistake.USE_OF_REPLICA_MISSING, slots=(replica,)), _of_one_use(replica, 0.0, 1.0, own=own)
            for factor in (float(sums.replicas), 1.0):
                yield Cause(Mistake.USE_NOT_REDUCED, slots=(replica,)), _of_one_use(replica, factor, 0.0, own=own)


def _of_one_use(replica: int, of_replica: float, of_others: float, *, own: bool) -> _Counts:
    """Return the counts of the own use of a tied parameter, or of the other one, by replica; the rest counts once."""

    def counts(part: StepPart) -> tuple[float, float]:
        count = 1.0 if part.own is not own else of_replica if part.replica == replica else of_others
        return count, count

    return counts


def of_tensor_rank(others: Tensor, right: Tensor, got: Tensor, tensor_rank: int) -> Cause | None:
    """Return the cause of a gradient that lacks the sum of the ``others``, the other tensor ranks."""
    wrong = wrong_values(got, right, largest(right))
    if wrong is None or not wrong.explained_by(right - others):
        return None
    return Cause(Mistake.TENSOR_RANK_ALONE, slots=(tensor_rank,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How many copies of the gradients of a whole model exist: by replicas, tied names, and tensor ranks (``alike``).

    ``stages`` has the stage of each name. ``experts`` are the parameters whose experts are divided over replicas, and
    ``expert_parts`` the squared norm of the experts on each rank that divides them, over replicas or tensor ranks.
    """

    stages: Mapping[str, int]
    replicas: int
    tied: Sequence[str]
    tensor_ranks: int
    alike: Collection[str]
    experts: Collection[str] = ()
    expert_parts: Sequence[float] = ()


def of_norm(squares: Mapping[str, float], held: Held, got: float, eps: float) -> Cause | None:
    """Return the likely cause of a wrong norm, from the squared norm of each parameter's gradient."""

    def is_got(square: float) -> bool:
        return math.isclose(math.sqrt(max(square, 0.0)), got, rel_tol=64 * eps)

    counted = {name: square for name, square in squares.items() if name not in held.tied[1:]}
    return (
        _of_copies(squares, counted, held, is_got)
        or _of_experts(counted, held, is_got)
        or _of_stages(counted, held, is_got)
    )


def _of_copies(
    squares: Mapping[str, float], counted: Mapping[str, float], held: Held, is_got: Callable[[float], bool]
) -> Cause | None:
    """Return the cause of a norm that counts copies of a gradient."""
    replicas, tied, whole = held.replicas, held.tied, sum(counted.values())
    if replicas > 1 and is_got(whole * replicas):
        return Cause(Mistake.NORM_OF_REPLICAS, counts=(replicas,))
    if tied and is_got(whole + sum(squares[name] for name in tied[1:])):
        return Cause(Mistake.NORM_OF_TIED, counts=(len(tied),))
    if held.tensor_ranks > 1:
        again = (held.tensor_ranks - 1) * sum(square for name, square in counted.items() if name in held.alike)
        if is_got(whole + again):
            return Cause(Mistake.NORM_OF_TENSOR_RANKS, counts=(held.tensor_ranks,))
    return None


def _of_experts(counted: Mapping[str, float], held: Held, is_got: Callable[[float], bool]) -> Cause | None:
    """Return the cause of a norm that leaves out experts of replicas, or counts all other parameters again."""
    whole = sum(counted.values())
    of_experts = sum(square for name, square in counted.items() if name in held.experts)
    if of_experts and is_got(whole - of_experts):
        return Cause(Mistake.NORM_LEAVES_OUT, names=("the experts",))
    for rank, own in enumerate(held.expert_parts):
        if is_got(whole - sum(held.expert_parts) + own):
            return Cause(Mistake.NORM_LEAVES_OUT, names=(f"the experts that rank {rank} does not have",))
    if of_experts and is_got(held.replicas * (whole - of_experts) + of_experts):
        return Cause(Mistake.NORM_COUNTS_COPIES, counts=(held.replicas,))
    return None


def _of_stages(counted: Mapping[str, float], held: Held, is_got: Callable[[float], bool]) -> Cause | None:
    """Return the cause of a norm of some stages only."""
    stages, whole = held.stages, sum(counted.values())
    every = sorted(set(stages.values()))
    for some in (some for count in range(1, len(every)) for some in combinations(every, count)):
        own = sum(square for name, square in counted.items() if stages[name] in some)
        if is_got(own):
            return Cause(Mistake.NORM_OF_STAGES, names=(numbered("stage", some),))
        if is_got(whole - own):
            return Cause(Mistake.NORM_WITHOUT_STAGES, names=(numbered("stage", some),))
    return None


def of_clipped(before: Tensor, right: Tensor, norm: float, max_norm: float, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a gradient that differs from the one ``before``, clipped by the ``norm``."""
    if got is None:
        return Cause(Mistake.CLEARED)
    wrong = wrong_values(got, right, largest(before))
    if wrong is None:
        return None
    if wrong.explained_by(before):
        return Cause(Mistake.NOT_CLIPPED)
    square = float((before * before).sum())
    factor = float((wrong.got * before).sum()) / square if square else 0.0
    if factor > 0.0 and wrong.explained_by(factor * before, fitted=1):
        return Cause(Mistake.CLIPPED_BY_OTHER_NORM, factors=(max_norm / factor, norm))
    return None


def of_batches(right: Tensor, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a buffer's wrong count of batches, if it is one."""
    if got is None or got.is_floating_point() or right.is_floating_point() or got.numel() != 1:
        return None
    return Cause(Mistake.BATCHES_COUNTED, counts=(int(got), int(right)))
