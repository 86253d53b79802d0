"""The work of one rank on a composition: runs its acts on a runtime, and judges this rank's state after each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from gradconform.adapter import UnsupportedError
from gradconform.drive.watches import copy_of
from gradconform.judge.finding import Finding, Judged
from gradconform.judge.values import compare
from gradconform.pipeline.whole_model import given
from gradconform.reference.runtime import LOWER
from gradconform.results import Sort
from gradconform.runtime import AccumulatingSession, Batch, Kept, Runtime, RuntimeSession, StepSpec
from gradconform.text.counts import count
from gradconform.tolerance import Partials, floor_factor

from .attention import MistakenAttention, own_part
from .causes import Causes
from .composition import Act, Composition
from .gathering import Replicas
from .model import (
    CALLS,
    SECOND_TARGET,
    attention_layers,
    compile_in_place,
    counts,
    expert_layers,
    loss_of,
    make_batch,
    make_stages,
    no_compiler,
    occasional_layers,
    shared_layers,
    summed_loss,
    tied_names,
)
from .oracle import LR, Plain, PlainRun, run_plain

#: The factor beyond plain autograd, which rounds once as well, by which a right bfloat16 runtime may err.
_MORE = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process's place and its progress marks: ``note`` an action, ``within`` while the runtime runs."""

    rank: int
    device: torch.device
    dtype: torch.dtype
    seed: int
    note: Callable[[str], None]
    within: Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class _Seen:
    """This rank's observations after one act; tensors are whole, by full name."""

    losses: list[Tensor] | None = None
    norm: float | None = None
    grads: Mapping[str, Tensor | None] = field(default_factory=dict)
    params: Mapping[str, Tensor | None] = field(default_factory=dict)
    buffers: Mapping[str, Tensor | None] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)


def lacking(composition: Composition, dtype: torch.dtype) -> str:
    """Return why no runtime can run a composition here; empty if it can run."""
    if composition.precision != "unmixed" and dtype != torch.float32:
        return f"precision={composition.precision} requires parameters in float32, got {dtype}"
    return no_compiler(composition.compiled) if composition.compiled else ""


def judged_step(composition: Composition, runtime: Runtime, place: Place) -> Judged:
    """Run a composition on this rank; yield the differences from one plain process, act by act."""
    plain, moved, wide = _plain_runs(composition, place.dtype, place.seed, place.device)
    spec = spec_of(composition, place)
    replicas = Replicas(spec, place.rank)
    made = make_stages(composition, dtype=place.dtype, seed=place.seed)
    stages = {index: made[index].to(place.device) for index in spec.placement[spec.pipeline_rank]}
    if composition.compiled:
        torch.compiler.reset()  # forget the previous composition's compilations
        compile_in_place(stages, composition.compiled)
    with _opened(runtime, stages, spec, place) as session:
        yield from _acts(session, stages, composition, place, replicas, plain, moved, wide)


@lru_cache(maxsize=1)
def _plain_runs(
    composition: Composition, dtype: torch.dtype, seed: int, device: torch.device
) -> tuple[PlainRun, PlainRun, PlainRun]:
    """Return plain autograd's run, the same with a nudged clipped norm, and the run in float64.

    The last ones are kept: cases in a row may differ in their target alone.
    """
    wide = run_plain(composition, dtype=dtype, seed=seed, wide=True)
    max_norms = [act.max_norm for act in wide.acts]
    run_here = partial(run_plain, composition, dtype=dtype, seed=seed, device=device)
    plain = run_here(max_norms=max_norms)
    # A change of the clipped norm by one rounding moves the values after a step of SGD as rounding of parameters does.
    nudged = [max_norm * (1.0 + torch.finfo(dtype).eps) for max_norm in max_norms]
    moved = run_here(max_norms=nudged) if any(nudged) else plain
    return plain, moved, wide


@lru_cache(maxsize=8)
def _mistaken_run(composition: Composition, dtype: torch.dtype, seed: int, attention: MistakenAttention) -> PlainRun:
    """Return the run in float64 with a mistaken attention, to name it as a cause."""
    return run_plain(composition, dtype=dtype, seed=seed, wide=True, mistaken=attention)


@contextmanager
def _opened(
    runtime: Runtime, stages: Mapping[int, nn.Module], spec: StepSpec, place: Place
) -> Iterator[RuntimeSession]:
    """Open a session, and close it unless an error was raised, after which this process ends."""
    place.note("opening the runtime")
    with place.within():
        session = runtime.open(dict(stages), spec)
    try:
        yield session
    except UnsupportedError:
        session.close()
        raise
    place.note("closing the runtime")
    with place.within():
        session.close()


def spec_of(composition: Composition, place: Place) -> StepSpec:
    """Return the description of the step for a rank's runtime."""
    return StepSpec(
        schedule=composition.schedule,
        placement=composition.placement,
        pipeline_rank=place.rank // composition.tensor_ranks // composition.replicas,
        replica=place.rank // composition.tensor_ranks % composition.replicas,
        replicas=composition.replicas,
        microbatches=composition.microbatches,
        loss=loss_of(composition) if composition.context == "whole" else summed_loss,
        counts=counts,
        reduction=composition.reduction,
        data_parallel=composition.data_parallel,
        device=place.device,
        dtype=place.dtype,
        clips="clip" in composition.steps,
        order=composition.rows,
        precision=composition.precision,
        tied=tied_names(composition),
        tensor_rank=place.rank % composition.tensor_ranks,
        tensor_ranks=composition.tensor_ranks,
        shared=shared_layers(composition),
        experts=expert_layers(composition),
        context=composition.context,
        attentions=attention_layers(composition),
        occasional=occasional_layers(composition),
        second_target=SECOND_TARGET if composition.predicts_two else "",
        note=place.note,
    )


def _acts(  # noqa: PLR0913, PLR0917 (a session, its subject and its reference)
    session: RuntimeSession, stages: Mapping[int, nn.Module], composition: Composition, place: Place,
    replicas: Replicas, plain: PlainRun, moved: PlainRun, wide: PlainRun,
) -> Judged:  # fmt: skip
    reported: set[tuple[str, str]] = set()
    held: Mapping[str, int] = {}
    for number, act in enumerate(composition.steps):
        label = composition.labels[number]
        place.note(label)
        whole = replicas.replica % composition.batches
        batch = make_batch(composition, number, whole, dtype=place.dtype, seed=place.seed)
        if composition.context != "whole":
            batch = own_part(batch, composition.context, replicas.replica, composition.replicas)
        batch = batch.map(lambda value: value.to(place.device))
        for stage in stages.values():
            stage.train(act != "evaluate")
        with place.within():
            seen = _run(session, act, batch, plain.acts[number].max_norm)
        place.note(f"{label}: reading its results")
        with place.within():
            kept = session.param_grads(), session.params(), session.buffers()
            seen.held = session.held()
        unused = {name for name, grad in plain.acts[number].grads.items() if composition.use and grad is None}
        seen.grads, seen.params = _grads(act, replicas, kept[0], unused), replicas.whole(kept[1])
        seen.buffers = {name: None if value is None else value.detach().clone() for name, value in kept[2].items()}
        yield from _first_seen(_off_device(seen, label, place.device), reported)
        seen = _on_cpu(seen)
        others = replicas.of_others(seen.grads)
        # Each micro-batch's share rounds as the stages do; otherwise its sum could not be recognised.
        summed = wide if composition.precision == "unmixed" else plain
        mistaken = partial(_mistaken_run, composition, place.dtype, place.seed)
        causes = Causes(composition, replicas.replica, summed, number, replicas.tensor_rank, others, mistaken)
        judge = _Judge(label, replicas, plain.acts[number], wide.acts[number], moved.acts[number], causes)
        yield from _first_seen(judge.judged(seen), reported)
        if act == "train":
            yield from _grown(seen.held, held, label)
            held = held or seen.held


def _run(session: RuntimeSession, act: Act, batch: Batch, max_norm: float) -> _Seen:
    if act == "train":
        return _Seen(losses=session.step(batch))
    if act == "accumulate":
        if not isinstance(session, AccumulatingSession):
            msg = "the session has no accumulate(batch): its runtime is not to claim steps=unreduced"
            raise UnsupportedError(msg)
        return _Seen(losses=session.accumulate(batch))
    if act == "evaluate":
        return _Seen(losses=session.evaluate(batch))
    if act == "clip":
        return _Seen(norm=session.clip(max_norm))
    if act == "update":
        session.update(LR)
    else:
        session.zero_grad()
    return _Seen()


def _grads(act: Act, replicas: Replicas, kept: Mapping[str, Kept], unused: Collection[str]) -> dict[str, Tensor | None]:
    """Return whole gradients: none before they are reduced.

    Zeros become None if the act should free them, or if no data used the parameter.
    """
    if act == "accumulate":
        return {}
    found = replicas.whole(kept)
    free = found if act == "zero_grad" else unused
    return {name: None if name in free and (grad is None or not grad.any()) else grad for name, grad in found.items()}


def _off_device(seen: _Seen, label: str, device: torch.device) -> Judged:
    """Yield the tensors that are not on the stages' device."""
    sorts: Mapping[Sort, Mapping[str, Tensor | None]] = {
        "parameter gradient": seen.grads, "parameter": seen.params, "buffer": seen.buffers,
    }  # fmt: skip
    for sort, named in sorts.items():
        for name, value in named.items():
            if value is not None and value.device != device:
                stage, _, short = name.partition(".")
                text = f"expected device {device}, got {value.device}"
                yield Finding("device", f"stage {stage} {short}", label, text, sort=sort)
    for mb, loss in enumerate(seen.losses or ()):
        if loss.device != device:
            text = f"expected device {device}, got {loss.device}"
            yield Finding("device", f"the loss of micro-batch {mb}", label, text)


def _on_cpu(seen: _Seen) -> _Seen:
    """Return the observations with tensors on the CPU, for the comparison with the oracle's."""

    def copied(named: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        return {name: copy_of(value) for name, value in named.items()}

    losses = None if seen.losses is None else list(map(copy_of, seen.losses))
    return replace(
        seen, losses=losses, grads=copied(seen.grads), params=copied(seen.params), buffers=copied(seen.buffers)
    )


def _first_seen(judged: Judged, reported: set[tuple[str, str]]) -> Judged:
    """Yield only the first finding of each wrong tensor: later ones are consequences."""
    for seen in judged:
        if isinstance(seen, Finding):
            if (seen.sort, seen.where) in reported:
                continue
            reported.add((seen.sort, seen.where))
        yield seen


def _without_calls(buffers: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Return buffers without those that count hook calls."""
    return {name: value for name, value in buffers.items() if name.partition(".")[2] != CALLS}


def _grown(held: Mapping[str, int], before: Mapping[str, int], label: str) -> Judged:
    for name, number in held.items():
        if name in before and number > before[name]:
            yield Finding("alive", name, label, f"it grows: it holds {number}; after the first step: {before[name]}")


@dataclass(frozen=True, slots=True)
class _Judge:
    """The references of one act on this rank; ``moved`` is plain too, with other roundings."""

    label: str
    replicas: Replicas
    plain: Plain
    wide: Plain
    moved: Plain
    causes: Causes

    def judged(self, seen: _Seen) -> Judged:
        """Yield the errors after the act: losses, the norm, gradients, parameters, buffers."""
        if self.plain.losses and self.replicas.is_last:
            yield from self._losses(seen.losses or [])
        if self.plain.norm is not None and self.wide.norm is not None:
            got = None if seen.norm is None else torch.tensor(seen.norm, dtype=self.plain.norm.dtype)
            right, norm = self.plain.norm, given(self.wide.norm, Partials().with_(self.wide.norm))
            where, room = "the norm of all gradients", self._room(right, self.wide.norm)
            yield from compare("thing", where, self.label, got, right, norm, explain=self.causes.of_norm, spread=room)
        own = self.replicas.replica
        plain, wide = self.plain, self.wide
        if plain.act != "accumulate":
            yield from self._named("parameter gradient", seen.grads, plain.grads, wide.grads)
        yield from self._named("parameter", seen.params, plain.params, wide.params)
        yield from self._named("buffer", *map(_without_calls, (seen.buffers, plain.buffers[own], wide.buffers[own])))
        yield from self._hooks(seen.buffers, plain.buffers[own])
        yield from self.replicas.unlike(self.label, {"parameter gradient": seen.grads, "parameter": seen.params})

    def _losses(self, losses: Sequence[Tensor]) -> Judged:
        plain, wide = (act.losses[self.replicas.replica] for act in (self.plain, self.wide))
        if len(losses) != len(plain):
            text = f"expected one loss per micro-batch ({len(plain)}), got {len(losses)}"
            yield Finding("missing", "the losses", self.label, text)
        for mb, (got, expected, exact) in enumerate(zip(losses, plain, wide, strict=False)):
            where = f"the loss of micro-batch {mb}"
            room = self._room(expected, exact)
            explain = self.causes.of_loss(mb)
            yield from compare("thing", where, self.label, got, expected, given(exact), explain=explain, spread=room)

    def _named(
        self,
        sort: Sort,
        got: Mapping[str, Tensor | None],
        plain: Mapping[str, Tensor | None],
        wide: Mapping[str, Tensor | None],
    ) -> Judged:
        """Yield the errors of this rank's tensors, each by its full name."""
        own = {name: value for name, value in plain.items() if int(name.partition(".")[0]) in self.replicas.stages}
        for name, right in own.items():
            stage, _, short = name.partition(".")
            partials = self.plain.partials.get(name) if sort == "parameter gradient" else None
            reference, explain = given(wide[name], partials), self.causes.of(sort, name)
            where = f"stage {stage} {short}"
            spread = self._room(right, wide[name], partials)
            if sort == "parameter gradient":
                spread += self._spread(name)
            yield from compare(sort, where, self.label, got.get(name), right, reference, explain=explain, spread=spread)
        for name in sorted(set(got) - set(own)):
            yield Finding("unknown_name", name, self.label, f"this rank has no {sort} with this name", sort=sort)

    def _hooks(self, got: Mapping[str, Tensor | None], plain: Mapping[str, Tensor]) -> Judged:
        """Yield the hooks on this rank's stage inputs that were not called as often as by plain autograd."""
        for name, right in plain.items():
            stage, _, short = name.partition(".")
            if short == CALLS and int(stage) in self.replicas.stages:
                calls = got.get(name)
                if calls is None or int(calls) != int(right):
                    seen = "an unknown number of calls" if calls is None else count(int(calls), "call")
                    text = (
                        "a hook that each forward sets on it is not called once for each micro-batch: "
                        f"{seen} by now, expected {int(right)}"
                    )
                    yield Finding("hooks", f"what stage {stage} receives", self.label, text)

    def _room(self, plain: Tensor | None, wide: Tensor | None, partials: Partials | None = None) -> float:
        """Return how much further from float64 than plain autograd a tensor may be if stages run in bfloat16.

        Roundings in another order give an error of similar size, and by luck a much smaller one in a small tensor. The
        bound never exceeds the rule's bound for a bfloat16 tensor.
        """
        if self.causes.composition.precision == "unmixed" or plain is None or wide is None:
            return 0.0
        scale = (partials or Partials()).with_(wide)
        error = Partials().with_(plain.double() - wide)
        return min(floor_factor(LOWER) * torch.finfo(LOWER).eps * scale.peak, _MORE * error.peak)

    def _spread(self, name: str) -> float:
        """Return the distance of two plain gradients."""
        one, other = self.plain.grads[name], self.moved.grads[name]
        return 0.0 if one is None or other is None else float((one - other).abs().max())
