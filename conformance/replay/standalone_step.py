"""The main program of a training step's script: its acts in one plain process and on this rank, compared.

The parts that a composition needs are copied into a script. A script defines the names that they read: ``composition``
and ``spec`` (the model's and the runtime's descriptions), ``open_session``, DTYPE, SEED and TOLERANCE. It also defines
OWN_STAGES (those of this rank), PEERS (the ranks that have the same) and NEAREST_LAST (their places there). ROUNDING is
the largest error of stages in bfloat16, as a part of the largest number. The other names are known when it is written:
see gradconform.replay.step_script. Its plain process is the only copy of that in
gradconform.pipeline.training_step.oracle, and tests/replay/test_replay_step.py compares the two.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradconform.pipeline.training_step.attention import own_part
from gradconform.pipeline.training_step.bfloat16_stages import lowered, name_of
from gradconform.pipeline.training_step.gathering import Part, part_of, put_together
from gradconform.pipeline.training_step.model import compile_in_place, counts, make_batch, make_stages
from gradconform.pipeline.training_step.oracle import CLIPPED_TO
from gradconform.runtime import (
    Batch,
    ModuleSession,
    RuntimeSession,
    Shard,
    balance_experts,
    scale_auxiliary,
    scale_second,
)

from .comparison import copy, excerpt

if TYPE_CHECKING:
    from gradconform.pipeline.training_step.composition import Composition
    from gradconform.runtime import StepSpec

    BALANCES = BUFFERS = DIVIDED = EVALUATES = GROWS = IN_PARTS = ON_CPU = REPLACED = ROUNDED = SHARED = UNREDUCED = (
        UNUSED
    ) = ZEROS = False
    SEED = 0
    LR = TOLERANCE = ROUNDING = 0.0
    DTYPE: torch.dtype
    OWN_STAGES: tuple[int, ...]
    PEERS: tuple[int, ...]
    NEAREST_LAST: tuple[int, ...]
    composition: Composition
    spec: StepSpec
    open_session: Callable[[dict[int, nn.Module], StepSpec], RuntimeSession]
    put_in_place: Callable[[], None]

#: The observations after one act, by kind and then by name.
Seen = dict[str, dict[Any, Any]]


class Plain(ModuleSession):
    """The whole model and the whole batch in this process; its parameters are those of all replicas."""

    def __init__(self) -> None:
        super().__init__(make_stages(composition, dtype=DTYPE, seed=SEED), spec)
        if BUFFERS:
            self.of_replicas = [copy(self.buffers()) for _ in range(composition.batches)]

    def step(self, batches: list[Batch]) -> list[Tensor]:
        weight = 1.0 / (composition.batches * composition.microbatches) if composition.reduction == "mean" else 1.0
        if composition.reduction == "tokens":
            weight = 1.0 / sum(batch.tokens(counts) for batch in batches)
        if composition.has_auxiliary:
            scale_auxiliary(self.modules.values(), self.auxiliary_weight(batches, weight))
        if composition.predicts_two:
            scale_second(self.modules.values(), self.second_weight(batches, weight))
        losses = [self.of_one(replica, batch, weight) for replica, batch in enumerate(batches)]
        if BUFFERS:
            self.take_buffers(spec.replica % composition.batches)
        return losses[spec.replica % composition.batches]

    def auxiliary_weight(self, batches: list[Batch], weight: float) -> float:
        return 1.0 / sum(one.positions() for one in batches) if composition.reduction == "tokens" else weight

    def second_weight(self, batches: list[Batch], weight: float) -> float:
        if composition.reduction == "tokens":
            weight = 1.0 / sum(one.second_tokens(counts, "second_target") for one in batches)
        return weight

    def accumulate(self, batches: list[Batch]) -> list[Tensor]:
        return self.step(batches)

    def evaluate(self, batches: list[Batch]) -> list[Tensor]:
        with torch.no_grad():
            return self.step(batches)

    def of_one(self, replica: int, batch: Batch, weight: float) -> list[Tensor]:
        if BUFFERS:
            self.take_buffers(replica)
        losses = []
        for chunk in batch.split():
            losses.append(self.loss(chunk))
            if torch.is_grad_enabled():
                (losses[-1] * weight).backward()
        if BUFFERS:
            self.of_replicas[replica] = copy(self.buffers())
        return losses

    def loss(self, chunk: Batch) -> Tensor:
        value = chunk.x
        for stage in self.modules.values():
            value = stage(value, **chunk.kwargs)
        loss = spec.loss(value, chunk.target)
        return loss / counts(chunk.target).sum() if DIVIDED else loss

    def take_buffers(self, replica: int) -> None:
        for name, value in self.buffers().items():
            value.copy_(self.of_replicas[replica][name])

    def update(self, lr: float) -> None:
        super().update(lr)
        if BALANCES:
            routers = {name: value for name, value in self.buffers().items() if ".router." in name}
            for name, value in routers.items():
                if name.endswith(".counts"):
                    value.copy_(sum(of_replica[name] for of_replica in self.of_replicas))
            balance_experts(self.modules.values(), lambda counts: counts)
            for of_replica in self.of_replicas:
                of_replica.update(copy(routers))

    def clip(self, max_norm: float) -> float:
        trained = dict.fromkeys(one for _, one in self.named("named_parameters") if one.grad is not None)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one.grad) for one in trained]))
        factor = torch.clamp((max_norm or float(CLIPPED_TO * norm)) / (norm + 1e-6), max=1.0)
        for one in trained:
            one.grad = one.grad * factor
        return float(norm)


class Autocast(Plain):
    """Stages and the loss under autocast."""

    def loss(self, chunk: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(chunk)


class Mixed(Plain):
    """Stages with parameters rounded to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        for stage in self.modules.values():
            lowered(stage)

    def named(self, which: str) -> Iterator[tuple[str, Any]]:
        return ((name_of(name), value) for name, value in super().named(which))


#: A session's call for each act, given its batch and the norm of all gradients in the plain process.
ACTS: dict[str, Callable[[Any, Any, float], Seen]] = {
    "train": lambda session, batch, _: losses_in(session.step(batch)),
    "accumulate": lambda session, batch, _: losses_in(session.accumulate(batch)),
    "evaluate": lambda session, batch, _: losses_in(session.evaluate(batch)),
    "zero_grad": lambda session, *_: session.zero_grad() or {},
    "clip": lambda session, _, norm: {"the norm of all": {"gradients": session.clip(CLIPPED_TO * norm)}},
    "update": lambda session, *_: session.update(LR) or {},
}


def losses_in(losses: list[Tensor] | None) -> Seen:
    return {"the loss of micro-batch": dict(enumerate(losses or ())) if spec.is_last else {}}


def behind_each_act(session: Any, stages: Mapping[int, nn.Module], norm: float = 0.0) -> Iterator[Seen]:
    """Yield the observations after each act: whole tensors of the stages of this rank."""
    held: dict[str, int] = {}
    for number, act in enumerate(composition.steps):
        batches = [
            make_batch(composition, number, replica, dtype=DTYPE, seed=SEED) for replica in range(composition.batches)
        ]
        batch = batches[spec.replica % composition.batches]
        if composition.context != "whole":
            batch = own_part(batch, composition.context, spec.replica, composition.replicas)
        if not ON_CPU:
            batch = batch.map(lambda value: value.to(spec.device))
        if EVALUATES:
            for stage in stages.values():
                stage.train(act != "evaluate")
        seen = ACTS[act](session, batches if isinstance(session, Plain) else batch, norm)
        if not UNREDUCED or act != "accumulate":
            grads = gathered(session.param_grads())
            if UNUSED or (ZEROS and act == "zero_grad"):
                grads = {name: None if grad is None or not grad.any() else grad for name, grad in grads.items()}
            seen["the gradient of"] = grads
        seen["parameter"] = gathered(session.params())
        if BUFFERS:
            seen["buffer"] = gathered(session.buffers())
        if GROWS and act == "train":
            now = session.held()
            held = held or now
            seen["more than after the first step:"] = {name: now[name] for name in held if now[name] > held[name]}
        yield {what: {name: copy(value) for name, value in named.items()} for what, named in seen.items()}


def gathered(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of this rank's stages; if peers hold different parts, only the local part."""
    own = {name: value for name, value in sorted(kept.items()) if int(name.partition(".")[0]) in OWN_STAGES}
    if IN_PARTS:
        if SHARED:
            kinds = of_peers({name: form_of(value) for name, value in own.items()})
        for name, value in own.items():
            if isinstance(value, DTensor):
                alike = not SHARED or all(one.get(name) == "DTensor" for one in kinds)
                own[name] = value.full_tensor() if alike else value.to_local()
            if isinstance(value, Shard):
                parts = [kinds[place].get(name) for place in NEAREST_LAST]
                own[name] = put_together(part for part in parts if isinstance(part, Part))
    return own


def form_of(value: Any) -> Any:
    if isinstance(value, Shard):
        part = part_of(value)
        return replace(part, value=copy(part.value))
    return type(value).__name__


def of_peers(mine: Any) -> list[Any]:
    """Return the value of each rank with the same stages."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [found[rank] for rank in PEERS]


def tolerance_of(expected: Any, exact: Any) -> float:
    """Return the tolerance of a tensor against plain, as a part of its largest number, given its float64 value.

    A correct tensor may be twice as far from float64 as plain; in bfloat16, a small plain tensor may be close by luck.
    """
    if expected is None:
        return TOLERANCE
    expected, exact = torch.as_tensor(expected), torch.as_tensor(exact)
    rounding = float((expected - exact).abs().max()) / max(float(expected.abs().max()), 1e-30)
    return TOLERANCE + (min(ROUNDING, 15 * rounding) if ROUNDED else 3 * rounding)


def same(got: Any, expected: Any, tolerance: float) -> bool:
    if got is None or expected is None:
        return got is expected
    got, expected = torch.as_tensor(got), torch.as_tensor(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return torch.allclose(got, expected, rtol=0.0, atol=tolerance * float(expected.abs().max()))


def wrong_on_rank() -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the differences from one plain process, or from the first rank with the same stages."""
    lower = Mixed if composition.precision == "mixed" else Autocast
    plain = lower() if ROUNDED else Plain()
    right = list(behind_each_act(plain, plain.modules))
    norm = next((seen["the norm of all"]["gradients"] for seen in right if "the norm of all" in seen), 0.0)
    wide = Plain()
    for stage in wide.modules.values():
        stage.double()
    exact = list(behind_each_act(wide, wide.modules, norm))
    made = make_stages(composition, dtype=DTYPE, seed=SEED)
    stages: dict[int, nn.Module] = {index: made[index].to(spec.device) for index in OWN_STAGES}
    if composition.compiled:
        compile_in_place(stages, composition.compiled)
    session = open_session(dict(stages), spec)
    for number, (expected, got) in enumerate(zip(right, behind_each_act(session, stages, norm), strict=True)):
        label = f"after act {number + 1} ({composition.steps[number]})"
        for what, named in got.items():
            right_ones = expected.get(what, {})
            for name in {**right_ones, **named}:
                one = right_ones.get(name)
                if not same(named.get(name), one, tolerance_of(one, exact[number][what].get(name))):
                    yield f"{what} {name}", label, one, named.get(name)
            if SHARED and what in {"the gradient of", "parameter"}:
                first = of_peers(named)[0]
                for name, value in named.items():
                    if not same(value, first.get(name), 0.0):
                        yield f"{what} {name}", f"{label}, by what rank {PEERS[0]} has", first.get(name), value


def main() -> int:
    """Compare this rank with one plain process; return 1 if some rank is wrong."""
    torch.set_num_threads(1)
    dist.init_process_group(dist.get_default_backend_for_device(spec.device), timeout=timedelta(seconds=60))
    if REPLACED:
        put_in_place()
    wrong: dict[str, list[Any]] = {}
    for what, *how in wrong_on_rank():
        wrong.setdefault(what, how)  # later acts repeat an earlier error of a tensor
    lines = []
    for what, (label, expected, got) in wrong.items():
        place = 0
        if isinstance(expected, Tensor) and isinstance(got, Tensor) and got.shape == expected.shape:
            place = int((got - expected).abs().argmax())
        lines += [f"{what}, {label}:", f"  expected {excerpt(expected, place)}", f"  got      {excerpt(got, place)}"]
    lines.append(f"WRONG: {len(wrong)} tensors or numbers" if wrong else "right: all is as in one plain process")
    sys.stdout.write("".join(f"rank {dist.get_rank()}: {line}\n" for line in lines))
    sys.stdout.flush()
    on_all = torch.tensor(len(wrong), device=spec.device)
    dist.all_reduce(on_all)  # a rank that ends before the others would end them
    gc.collect()  # a reducer of DistributedDataParallel that outlives its group hangs
    dist.destroy_process_group()
    return int(bool(on_all))
