"""The checks of area ``stage``: each takes a framework's stage objects and yields findings."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import UnsupportedError
from gradconform.judge.finding import Finding, Judged
from gradconform.pipeline.extra_checks import Judge, check
from gradconform.pipeline.whole_model import NUMBERS, ROWS
from gradconform.reference.deferred_linear import DeferredLinear, WeightGradStore
from gradconform.requirements.clause import Clause, register
from gradconform.target.layer_swap import swap

from . import DwBuilder, StageObject
from .chain import MICROBATCHES, Subject, against_whole, run_chain

FULL = "F0 F1 B0 F2 B1 B2"
SPLIT = "F0 F1 I0 F2 I1 W0 I2 W2 W1"


#: Every check, in order.
CHECKS: dict[Clause, Judge] = {}


def _manual(subject: Subject, **options: Any) -> Sequence[StageObject]:
    return subject.objects.manual(list(subject.whole().blocks), subject.example(), MICROBATCHES, **options)


def _parameters(stages: Sequence[StageObject], *, manual: bool) -> dict[str, nn.Parameter]:
    """Return the parameters of all stages by their names in the model."""
    prefixes = [f"blocks.{number}." if manual else "" for number in range(len(stages))]
    return {
        f"{prefix}{name.removeprefix('_orig_mod.')}": parameter  # torch.compile adds this prefix
        for prefix, stage in zip(prefixes, stages, strict=True)
        for name, parameter in stage.module.named_parameters()
    }


def _equals_whole(subject: Subject, *, kind: str, order: str, gated: str) -> Judged:
    """A chain of {kind} stages{gated} MUST give what the whole model gives, in {order}."""
    model, data, manual = subject.whole(), subject.batches(gated=bool(gated)), kind == "manual"
    if manual:
        stages = _manual(subject)
    else:
        cuts = [f"blocks.{number}" for number in range(1, len(model.blocks))]
        stages = subject.objects.traced(subject.whole(), cuts, subject.example(), data[0].kwargs, MICROBATCHES)
    outputs = run_chain(stages, data, order)
    yield from against_whole(model, _parameters(stages, manual=manual), outputs, data)


CHECKS.update(
    check(f"stage.{kind}.{word}{way}", _equals_whole, kind=kind, order=order, gated=gated)
    for kind in ("manual", "traced")
    for way, order in (("full", FULL), ("split", SPLIT))
    for word, gated in (("", ""), ("keyword-arguments-", " with a keyword argument on the first"))
)


class _Counted:
    """A ``dw_builder`` that counts its own calls and those of the functions that it returns."""

    def __init__(self, builder: DwBuilder) -> None:
        self._builder = builder
        self.built = self.run = 0

    def __call__(self) -> Callable[[], None]:
        self.built += 1
        runner = self._builder()

        def counted() -> None:
            self.run += 1
            runner()

        return counted


def _deferred(subject: Subject, order: str) -> Judged:
    model, data = subject.whole(), subject.batches()
    modules = list(subject.whole().blocks)
    stores = [WeightGradStore() for _ in modules]
    for module, store in zip(modules, stores, strict=True):
        swap(module, nn.Linear, DeferredLinear, store=store)
    builders = [_Counted(store.take) for store in stores]
    stages = subject.objects.manual(modules, subject.example(), MICROBATCHES, dw_builders=builders)
    for store in stores:
        store.take()  # left by the example
    expected = {"built": 0, "run": 0}
    found: list[Finding] = []

    def after(letter: str, mb: int) -> None:
        expected["built"] += letter in "BI"
        expected["run"] += letter in "BW"
        for number, builder in enumerate(builders):
            got = {"built": builder.built, "run": builder.run}
            if got != expected and not found:
                text = f"expected {expected} after {letter}{mb}, got {got}"
                found.append(Finding("mismatch", f"the dw_builder of stage {number}", f"{letter}{mb}", text))

    outputs = run_chain(stages, data, order, after)
    yield from found
    yield from against_whole(model, _parameters(stages, manual=True), outputs, data)


@register(CHECKS, "stage.dw_builder.full")
def _dw_builder_full(subject: Subject) -> Judged:
    """Under a schedule of F and B alone dw_builder MUST be called once per backward, and what it makes at once."""
    yield from _deferred(subject, FULL)


@register(CHECKS, "stage.dw_builder.split")
def _dw_builder_split(subject: Subject) -> Judged:
    """dw_builder MUST be called once in each I, and what it makes once in the W of that micro-batch."""
    yield from _deferred(subject, SPLIT)


def _must_raise(call: Callable[[], object], what: str, *words: str) -> Iterator[Finding]:
    """Yield a finding if nothing is raised, or if the message lacks one of the words."""
    try:
        call()
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001 (any other exception is examined)
        missing = [word for word in words if word not in str(error)]
        if missing:
            text = f"names {' and '.join(missing)} nowhere: {' '.join(str(error).split())[:300]}"
            yield Finding("no_error", "the error", "", text)
        return
    yield Finding("no_error", what, "", "is accepted where an error was expected")


@register(CHECKS, "stage.refuses.w-without-b")
def _weight_alone(subject: Subject) -> Iterator[Finding]:
    """A W without its I MUST be refused with an error that names the micro-batch."""
    stages = _manual(subject)
    run_chain(stages, subject.batches(), "F0 F1 I0")
    yield from _must_raise(lambda: stages[-1].weight(1), "the W", "1")


@register(CHECKS, "stage.refuses.w-without-b-dw-builder")
def _weight_alone_with_builder(subject: Subject) -> Iterator[Finding]:
    """A W without its I MUST be refused where there is a dw_builder as well."""
    stages = _manual(subject, dw_builders=[lambda: lambda: None] * 3)
    run_chain(stages, subject.batches(), "F0")
    yield from _must_raise(lambda: stages[-1].weight(0), "the W", "0")


@register(CHECKS, "stage.refuses.shape")
def _wrong_shape(subject: Subject) -> Iterator[Finding]:
    """An argument of another shape than the stage was made for MUST be refused, both shapes named."""
    stages = _manual(subject, checked=True)
    wrong = torch.ones(ROWS + 1, NUMBERS, device=subject.device)
    call = lambda: stages[0].forward(0, (wrong,), {})  # noqa: E731 (passed on once)
    yield from _must_raise(call, "the argument", str(ROWS), str(ROWS + 1))


@register(CHECKS, "stage.refuses.dtype")
def _wrong_dtype(subject: Subject) -> Iterator[Finding]:
    """An argument of another dtype than the stage was made for MUST be refused, both dtypes named."""
    stages = _manual(subject, checked=True)
    (wrong,) = (one.double() for one in subject.example())
    for stage in stages:
        stage.module.double()
    call = lambda: stages[0].forward(0, (wrong,), {})  # noqa: E731 (passed on once)
    yield from _must_raise(call, "the argument", "float32", "float64")


def _hooked(subject: Subject, change: Callable[[Tensor], Tensor], *words: str) -> Iterator[Finding]:
    stages = _manual(subject, checked=True)
    stages[0].module.register_forward_hook(lambda _module, _args, output: change(output))
    yield from _must_raise(lambda: stages[0].forward(0, subject.example(), {}), "what the hook returns", *words)


@register(CHECKS, "stage.refuses.hook-dtype")
def _hook_dtype(subject: Subject) -> Iterator[Finding]:
    """A hook that changes the dtype of a stage's output MUST be noticed, both dtypes named."""
    yield from _hooked(subject, lambda output: output.to(torch.bfloat16), "float32", "bfloat16")


@register(CHECKS, "stage.refuses.hook-shape")
def _hook_shape(subject: Subject) -> Iterator[Finding]:
    """A hook that changes the shape of a stage's output MUST be noticed, both shapes named."""
    yield from _hooked(subject, lambda output: output[1:], str(ROWS), str(ROWS - 1))


def _compiled(block: nn.Module, example: Tensor) -> nn.Module:
    """Return a block compiled by torch.compile; raise UnsupportedError if that fails here without a pipeline."""
    try:
        # This backend needs no compiler.
        compiled: nn.Module = torch.compile(block, backend="aot_eager")  # type: ignore[assignment] # of a module it is one
        compiled(example.requires_grad_())
    except Exception as error:
        msg = f"torch.compile does not work here: {' '.join(str(error).split())[:300]}"
        raise UnsupportedError(msg) from error
    return compiled


@register(CHECKS, "stage.refuses.compiled-split")
def _compiled_split(subject: Subject) -> Judged:
    """A schedule that splits the backward MUST refuse a stage that torch.compile made, or give what the model gives."""
    model, data = subject.whole(blocks=2), subject.batches()
    first, last = subject.whole(blocks=2).blocks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the compiler, about the running Python
        # Not the first stage: if no input needs a gradient, there may be nothing to split.
        stages = subject.objects.manual([first, _compiled(last, *subject.example())], subject.example(), MICROBATCHES)
        try:
            subject.objects.split_schedule(stages, MICROBATCHES)
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 (any other exception is examined)
            if "compile" not in str(error):
                text = f"does not say what is refused: {' '.join(str(error).split())[:300]}"
                yield Finding("no_error", "the error", "", text)
            return
        outputs = run_chain(stages, data, SPLIT)
    yield from against_whole(model, _parameters(stages, manual=True), outputs, data)


def _alive(references: Sequence[weakref.ref[Tensor]]) -> int:
    return sum(reference() is not None for reference in references)


def _released(subject: Subject, which: int, outputs: int) -> Iterator[Finding]:
    """Run a stage of the chain and yield its objects that stay alive, except ``outputs`` of its outputs."""
    stages, data = _manual(subject), subject.batches()
    held: list[weakref.ref[Tensor]] = []
    handle = stages[which].module.linear.register_forward_hook(  # type: ignore[union-attr] # a Block's Linear
        lambda _module, _args, output: held.append(weakref.ref(output))
    )
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        run_chain(stages, data, FULL)
        alive = _alive(held)
    finally:
        if was_enabled:
            gc.enable()
        handle.remove()
    if alive:
        text = f"{alive} of {len(held)} activations are alive after their backward, with the collector off"
        yield Finding("alive", f"the activations of stage {which}", "the last action", text)
    expected = {"output chunks": outputs, "forward cache": 0}
    kept = {name: stages[which].kept().get(name, 0) for name in expected}
    if kept != expected:
        yield Finding("alive", f"the caches of stage {which}", "the last action", f"expected {expected}, got {kept}")
    stages[which].clear()
    left = {name: count for name, count in stages[which].kept().items() if count and name != "backward cache"}
    if left:
        yield Finding("alive", f"the caches of stage {which}", "clear", f"expected nothing kept, got {left}")


def _releases(subject: Subject, *, place: str) -> Iterator[Finding]:
    """The {place} stage MUST free activations and forward caches in the backward, and keep no outputs."""
    yield from _released(subject, ("first", "middle").index(place), 0)


CHECKS.update(check(f"stage.releases.{place}", _releases, place=place) for place in ("first", "middle"))


@register(CHECKS, "stage.releases.last")
def _last_releases(subject: Subject) -> Iterator[Finding]:
    """The last stage MUST free activations and forward caches in the backward, and keep its outputs until the
    step is over.
    """  # noqa: D205 (one sentence)
    yield from _released(subject, 2, MICROBATCHES)
