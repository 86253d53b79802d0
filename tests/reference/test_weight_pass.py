"""W computes the gradients of products itself, with the bits of plain autograd, except where the engine has to."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function, Variable, forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from gradconform.reference import weight_pass
from gradconform.reference.split import stage_backward_input, stage_backward_weight
from gradconform.torch_releases import engine, node_hooks, products
from gradconform.trees import as_tuple

WIDTH = 4


class Stage(nn.Module):
    """Layers and parameters that each case composes in its own way."""

    def __init__(self, run: Callable[[Stage, Tensor], Any]) -> None:
        """Take what the forward does."""
        super().__init__()
        self.run, self.seen = run, []  # type: ignore[var-annotated] # of gradients
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.flat = nn.Parameter(torch.randn(3 * WIDTH * WIDTH))
        self.three = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Any:
        """Run the case."""
        return self.run(self, x)


def layers(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(stage.one(x).tanh())  # type: ignore[no-any-return] # a module's


def of_three_dimensions(stage: Stage, x: Tensor) -> Tensor:
    return layers(stage, x[None])


def tied_side_by_side(stage: Stage, x: Tensor) -> Tensor:
    return stage.two(x) + stage.two(x.sin())  # type: ignore[no-any-return] # a module's


def biases_shared(stage: Stage, x: Tensor) -> Tensor:
    return F.linear(x, stage.matrix, stage.bias) + F.linear(x.sin(), stage.two.weight, stage.bias)


def fused(stage: Stage, x: Tensor) -> Tensor:
    q, k, v = (part.view(WIDTH, WIDTH) for part in stage.flat.chunk(3))
    return F.linear(x, q) * F.linear(x, k) + F.linear(x, v)


def sums_of_weights(stage: Stage, x: Tensor) -> Tensor:
    return F.linear(x, stage.matrix + stage.two.weight) + F.linear(x.cos(), stage.matrix)


def first_factors(stage: Stage, x: Tensor) -> Tensor:
    return stage.matrix @ x.t() + stage.two.weight.t() @ x.t()


def straight_for_leaves(stage: Stage, x: Tensor) -> Tensor:
    return (x @ stage.matrix).tanh() @ stage.two.weight


def strided(stage: Stage, x: Tensor) -> Tensor:
    return F.linear(x, stage.flat.view(WIDTH, -1)[:, ::3])


def batched(stage: Stage, x: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(x.expand(2, 3, WIDTH), stage.three), stage.three.tanh().transpose(1, 2))


def added_broadcast(stage: Stage, x: Tensor) -> Tensor:
    return torch.addmm(stage.bias[:1], x, stage.two.weight.t())


def of_experts(stage: Stage, x: Tensor) -> Tensor:
    rows = torch.tensor([0, 2])
    return stage.two(torch.zeros_like(x).index_add(0, rows, stage.one(x[rows])))  # type: ignore[no-any-return] # a module's


def scaled(stage: Stage, x: Tensor) -> Tensor:
    return torch.addmm(stage.matrix[:3], x, stage.two.weight, beta=0.5, alpha=2.0)


def hooked_tensor(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden.register_hook(lambda grad: 3.0 * grad)
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_before_the_node(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden.grad_fn.register_prehook(lambda grads: tuple(3.0 * grad for grad in grads))
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_behind_the_node(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden.grad_fn.register_hook(lambda given, _: tuple(None if one is None else 3.0 * one for one in given))
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_in_turn(stage: Stage, x: Tensor) -> Tensor:
    hidden, scales = stage.one(x), iter((3.0, 5.0))
    hidden.register_hook(lambda grad: next(scales) * grad)
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_in_turn_and_behind_the_node(stage: Stage, x: Tensor) -> Tensor:
    hidden, scales = stage.one(x), iter((3.0, 5.0))
    hidden.register_hook(lambda grad: next(scales) * grad)
    hidden.grad_fn.register_hook(lambda given, _: tuple(None if one is None else 7.0 * one for one in given))
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def hooked_where_a_weight_is_shared(stage: Stage, x: Tensor) -> Tensor:
    hidden, scales = stage.one(x), iter((3.0, 5.0))
    hidden.register_hook(lambda grad: next(scales) * grad)
    return hidden + torch.cosh(stage.one.weight).sum() * stage.two(x.sin()) + F.linear(x.cos(), stage.one.weight)


def hooked_below(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.two(x)
    (transposed,) = [node for node, _ in hidden.grad_fn.next_functions if node.name() == "TBackward0"]
    transposed.register_hook(lambda given, _: tuple(3.0 * one for one in given))
    return hidden.tanh()  # type: ignore[no-any-return] # a module's


def looked_on(stage: Stage, x: Tensor) -> Tensor:
    hidden = stage.one(x)
    hidden.register_hook(stage.seen.append)
    return stage.two(hidden)  # type: ignore[no-any-return] # a module's


def in_a_subclass(stage: Stage, x: Tensor) -> Tensor:
    return layers(stage, x.as_subclass(Sub))  # type: ignore[arg-type] # a subclass


class Sub(Tensor):
    """A subclass that does nothing."""


#: How often W calls the engine: once for all products that it computes itself, for each other use, and for uses that
#: share a parameter or have a matrix straight below them.
CALLS = {
    layers: 1, of_three_dimensions: 1, of_experts: 1, strided: 1, hooked_below: 1, looked_on: 1, added_broadcast: 1,
    tied_side_by_side: 1, fused: 1, biases_shared: 3, sums_of_weights: 2, first_factors: 2, straight_for_leaves: 2,
    batched: 1, scaled: 1, hooked_tensor: 1, hooked_before_the_node: 1, hooked_behind_the_node: 2, hooked_in_turn: 1,
    hooked_in_turn_and_behind_the_node: 2, hooked_where_a_weight_is_shared: 3, in_a_subclass: 2,
}  # fmt: skip


def made(
    case: Callable[[Stage, Tensor], Any], *, prior: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Stage, Tensor, list[Tensor], list[Tensor]]:
    """Return a stage, its argument, outputs and output gradients; the same numbers every time."""
    torch.manual_seed(20)
    stage = Stage(case).to(dtype)
    for parameter in stage.parameters():
        parameter.grad = torch.ones_like(parameter) if prior else None
    x = torch.randn(3, WIDTH, dtype=dtype, requires_grad=True)
    outputs = list(as_tuple(stage(x)))
    return stage, x, outputs, [torch.randn_like(output) for output in outputs]


def called(stage: Stage) -> list[str]:
    """Return a list to which hooks of the parameters add what is called."""
    calls: list[str] = []
    for name, parameter in stage.named_parameters():
        parameter.register_hook(lambda _, name=name: calls.append(f"hook of {name}"))
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(f"{name} accumulated"))
    return calls


@contextmanager
def calls_of_the_engine() -> Iterator[list[int]]:
    """Note each call of the engine meanwhile."""
    calls: list[int] = []

    class Noting:
        def run_backward(self, *args: Any, **options: Any) -> Any:
            calls.append(1)
            return before.run_backward(*args, **options)

    before = Variable._execution_engine
    Variable._execution_engine = Noting()  # type: ignore[assignment] # all that is called of it
    try:
        yield calls
    finally:
        Variable._execution_engine = before


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.__name__)
def test_w_matches_the_bits_layouts_and_hook_calls_of_plain_autograd(case: Callable[..., Any], *, prior: bool) -> None:
    expected, of_input, outputs, grads = made(case, prior=prior)
    expected_calls = called(expected)
    torch.autograd.backward(outputs, grads)
    stage, x, outputs, grads = made(case, prior=prior)
    calls = called(stage)
    (found,), context = stage_backward_input(outputs, grads, [x], stage.parameters())
    assert calls == []
    del outputs
    stage_backward_weight(stage.parameters(), context)
    assert torch.equal(found, of_input.grad)  # type: ignore[arg-type] # None would fail the test
    assert sorted(calls) == sorted(expected_calls)
    for (name, got), wanted in zip(stage.named_parameters(), expected.parameters(), strict=True):
        assert (got.grad is None) == (wanted.grad is None), name
        if got.grad is not None and wanted.grad is not None:
            assert torch.equal(got.grad, wanted.grad), name
            assert got.grad.stride() == wanted.grad.stride(), name


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.__name__)
def test_w_calls_the_autograd_engine_once_for_all_products(case: Callable[..., Any]) -> None:
    stage, x, outputs, grads = made(case)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    with calls_of_the_engine() as calls:
        stage_backward_weight(stage.parameters(), context)
    assert len(calls) == CALLS[case]


@pytest.mark.parametrize("case", [hooked_tensor, hooked_before_the_node, hooked_in_turn_and_behind_the_node])
@pytest.mark.parametrize("mode", ["forward mode", "function mode"])
def test_the_engine_runs_a_product_on_the_gradient_that_hooks_gave_in_i(mode: str, case: Callable[..., Any]) -> None:
    runs = complete(case)
    expected = next(runs)
    next(runs)
    with LOOKING_ON[mode]():
        torch.testing.assert_close(next(runs), expected, rtol=0.0, atol=0.0)


def test_a_hook_on_an_inner_tensor_is_called_once() -> None:
    stage, x, outputs, grads = made(looked_on)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    stage_backward_weight(stage.parameters(), context)
    assert len(stage.seen) == 1


def complete(case: Callable[..., Any], **options: Any) -> Iterator[list[Tensor | None]]:
    """Yield the gradients of plain autograd, then, when I has run, those of the split."""
    stage, _, outputs, grads = made(case, **options)
    torch.autograd.backward(outputs, grads)
    yield [parameter.grad for parameter in stage.parameters()]
    stage, x, outputs, grads = made(case, **options)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    yield []
    stage_backward_weight(stage.parameters(), context)
    yield [parameter.grad for parameter in stage.parameters()]


class Passing(TorchFunctionMode):
    """A mode that sees each of torch's functions and does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it."""
        del types
        return func(*args, **(kwargs or {}))


#: What the engine alone calls or obeys.
LOOKING_ON: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),  # type: ignore[no-untyped-call] # torch's
    "forward mode": forward_ad.dual_level,
    "function mode": Passing,
    "inference": torch.inference_mode,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("between", [False, True], ids=["around both", "around W"])
@pytest.mark.parametrize("mode", LOOKING_ON)
def test_if_an_autograd_mode_is_active_the_engine_computes_everything(
    mode: str, monkeypatch: pytest.MonkeyPatch, *, between: bool
) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("a product was computed beside the engine")

    monkeypatch.setattr(weight_pass, "factor_grads", refuse)
    runs = complete(layers)
    expected = next(runs)
    if between:
        next(runs)
        with LOOKING_ON[mode]():
            found = next(runs)
    else:
        with LOOKING_ON[mode]() if mode != "inference" else nullcontext():
            next(runs)
            with LOOKING_ON[mode]() if mode == "inference" else nullcontext():
                found = next(runs)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


NAMES = (products.LEVEL, products.MODES, engine.RUN, node_hooks.OTHER_HOOKS)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.spellings[0])
def test_without_a_private_torch_name_public_functions_compute_the_same(name: Any) -> None:
    spellings = name.spellings
    object.__setattr__(name, "spellings", ("renamed",))
    try:
        runs = complete(layers)
        expected = next(runs)
        next(runs)
        torch.testing.assert_close(next(runs), expected, rtol=0.0, atol=0.0)
    finally:
        object.__setattr__(name, "spellings", spellings)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_products_of_other_dtypes_equal_those_of_plain_autograd(dtype: torch.dtype) -> None:
    runs = complete(layers, dtype=dtype)
    expected = next(runs)
    next(runs)
    torch.testing.assert_close(next(runs), expected, rtol=0.0, atol=0.0)


def test_a_tensor_changed_between_i_and_w_raises_as_in_plain_autograd() -> None:
    held: list[Tensor] = []

    def keeps(stage: Stage, x: Tensor) -> Tensor:
        held.append(stage.one(x).tanh())
        return stage.two(held[-1])  # type: ignore[no-any-return] # a module's

    stage, x, outputs, grads = made(keeps)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    with torch.no_grad():
        held[0].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stage_backward_weight(stage.parameters(), context)


def test_a_graph_that_was_freed_raises_as_in_plain_autograd() -> None:
    stage, x, outputs, grads = made(layers)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    torch.autograd.backward(outputs, grads)
    with pytest.raises(RuntimeError, match="second time"):
        stage_backward_weight(stage.parameters(), context)


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    stage, x, outputs, grads = made(layers)
    for _ in range(2):
        _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
        stage_backward_weight(stage.parameters(), context, retain_graph=True)
    twice = [parameter.grad for parameter in stage.parameters() if parameter.grad is not None]
    runs = complete(layers)
    once = [grad for grad in next(runs) if grad is not None]
    torch.testing.assert_close(twice, [2.0 * grad for grad in once])


def test_w_unpacks_only_needed_saved_tensors_and_each_once() -> None:
    unpacked: list[Tensor] = []

    def packs(stage: Stage, x: Tensor) -> Tensor:
        def unpack(tensor: Tensor) -> Tensor:
            unpacked.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 1.0, unpack):
            return stage.two(x)  # type: ignore[no-any-return] # a module's

    stage, x, outputs, grads = made(packs)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    unpacked.clear()
    stage_backward_weight(stage.parameters(), context)
    assert [tuple(tensor.shape) for tensor in unpacked] == [(3, WIDTH)]


def test_the_engine_accumulates_a_large_gradient_that_goes_directly_to_its_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_pass, "_AT_ONCE", WIDTH)
    monkeypatch.setattr(weight_pass, "factor_grads", lambda *_: pytest.fail("it would be copied"))
    runs = complete(straight_for_leaves)
    expected = next(runs)
    next(runs)
    torch.testing.assert_close(next(runs), expected, rtol=0.0, atol=0.0)


def test_large_gradients_are_accumulated_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_pass, "_AT_ONCE", 8 * WIDTH * WIDTH - 1)
    stage, x, outputs, grads = made(layers)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    with calls_of_the_engine() as calls:
        stage_backward_weight(stage.parameters(), context)
    assert len(calls) == 2


def branching(stage: Stage, x: Tensor) -> Tensor:
    return layers(stage, x) if x.shape[0] % 2 else stage.one(stage.two(x).tanh())  # type: ignore[no-any-return] # a module's


def checkpointed_in_turn(stage: Stage, x: Tensor) -> Tensor:
    stage.seen.append(x)
    if len(stage.seen) % 2:
        return layers(stage, x)
    return checkpoint(layers, stage, x, use_reentrant=False)  # type: ignore[no-any-return] # torch's


@pytest.mark.parametrize("case", [branching, checkpointed_in_turn], ids=lambda case: case.__name__)
def test_micro_batches_of_one_stage_may_have_different_graphs(case: Callable[..., Any]) -> None:
    sums: list[list[Tensor]] = []
    for split in (False, True):
        torch.manual_seed(20)
        stage = Stage(case).double()
        for rows in (3, 2, 3, 4):
            x = torch.randn(rows, WIDTH, dtype=torch.float64, requires_grad=True)
            output = stage(x)
            if split:
                _, context = stage_backward_input([output], [torch.ones_like(output)], [x], stage.parameters())
                stage_backward_weight(stage.parameters(), context)
            else:
                output.backward(torch.ones_like(output))
        sums.append([parameter.grad for parameter in stage.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*sums, rtol=0.0, atol=0.0)


def test_concurrent_threads_do_not_disturb_each_other() -> None:
    runs = complete(layers)
    expected = next(runs)
    found: list[list[Tensor | None]] = []

    def run() -> None:
        for _ in range(5):
            stage, x, outputs, grads = inputs.pop()
            _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
            stage_backward_weight(stage.parameters(), context)
            found.append([parameter.grad for parameter in stage.parameters()])

    inputs = [made(layers) for _ in range(20)]
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for one in found:
        torch.testing.assert_close(one, expected, rtol=0.0, atol=0.0)


def test_the_shape_cache_keeps_no_custom_function_class_alive() -> None:
    class Mine(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            del ctx
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            del ctx
            return grads[0]

    def custom(stage: Stage, x: Tensor, function: Any = Mine) -> Any:
        return stage.one(function.apply(x))

    stage, x, outputs, grads = made(custom)
    _, context = stage_backward_input(outputs, grads, [x], stage.parameters())
    stage_backward_weight(stage.parameters(), context)
    gone = weakref.ref(Mine)
    del Mine, custom, stage, x, outputs, context
    gc.collect()
    assert gone() is None
