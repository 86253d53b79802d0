"""The adapter over torch's functions: how each is called, and what is refused of what they return."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec, UnsupportedError
from gradconform.reference import split
from gradconform.target.functions import FunctionsAdapter, FunctionsSession, signature_problem
from gradconform.torch_releases import pipelining

ALL = {name: getattr(split, name) for name in ("stage_backward", "stage_backward_input", "stage_backward_weight")}


class Tree(nn.Module):
    """A stage with nested outputs, one of them no tensor."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        """Return the output in the form asked for."""
        y = self.linear(x)
        return {"lone": y, "tuple": (y, y * 2), "dict": {"a": y, "b": [y * 2, "text"]}}[self.form]


def recording(**results: Any) -> tuple[FunctionsAdapter, dict[str, tuple[Any, ...]]]:
    calls: dict[str, tuple[Any, ...]] = {}

    def function(name: str) -> Any:
        def called(*args: Any) -> Any:
            calls[name] = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            return results[name]

        return called

    return FunctionsAdapter("recorded", {name: function(name) for name in results}, {}), calls


def opened(adapter: FunctionsAdapter, form: str = "lone", **spec: Any) -> tuple[FunctionsSession, Tree]:
    stage = Tree(form)
    return adapter.open(stage, StageSpec(**spec)), stage


X = torch.ones(7, 5)
G = torch.ones(7, 3)
GRADS = {"lone": (G,), "tuple": (G, None), "dict": {"a": G, "b": [None, None]}}


@pytest.mark.parametrize("form", GRADS)
def test_full_backward_is_called_with_outputs_and_gradients_in_the_structure_of_the_stage(form: str) -> None:
    adapter, calls = recording(stage_backward=(X,))
    session, _ = opened(adapter, form)
    outputs = session.forward(0, (X,))
    assert session.backward(0, GRADS[form]) == (X,)
    roots, grads, inputs = calls["stage_backward"]
    assert roots is outputs if form != "lone" else roots[0] is outputs
    assert type(roots) is (dict if form == "dict" else tuple)
    assert grads is GRADS[form]
    assert isinstance(inputs, list)
    assert inputs[0] is X


def test_a_loss_is_passed_without_tuple_and_without_gradients() -> None:
    adapter, calls = recording(stage_backward=(X,), stage_backward_input=((X,), []), stage_backward_weight=())
    for method in ("backward", "backward_input"):
        session, _ = opened(adapter, loss_fn=lambda outputs, target: (outputs - target).sum())
        session.forward(0, (X,), G)
        getattr(session, method)(0, None)
    loss, grads, _ = calls["stage_backward"]
    assert loss.shape == ()
    assert grads is None
    (loss,), grads, *_ = calls["stage_backward_input"]
    assert loss.shape == ()
    assert grads is None


@pytest.mark.parametrize(
    ("form", "flat"), [("lone", [G]), ("tuple", [G, None]), ("dict", [G, None])], ids=["lone", "tuple", "dict"]
)
def test_the_input_pass_gets_flat_lists_of_tensors_and_the_parameters(form: str, flat: list[Tensor | None]) -> None:
    adapter, calls = recording(stage_backward_input=((X,), ["context"]), stage_backward_weight=None)
    session, stage = opened(adapter, form)
    session.forward(0, (X,))
    assert session.backward_input(0, GRADS[form]) == (X,)
    roots, grads, inputs, weights = calls["stage_backward_input"]
    assert [tuple(root.shape) for root in roots] == [(7, 3)] * len(flat)
    assert [None if grad is None else id(grad) for grad in grads] == [None if g is None else id(g) for g in flat]
    assert inputs[0] is X
    assert [id(weight) for weight in weights] == [id(parameter) for parameter in stage.parameters()]


def test_gradients_of_another_structure_reach_the_function_unchanged() -> None:
    adapter, calls = recording(stage_backward_input=((X,), []), stage_backward_weight=())
    session, _ = opened(adapter, "tuple")
    session.forward(0, (X,))
    session.backward_input(0, (G,))
    assert len(calls["stage_backward_input"][1]) == 1


@pytest.mark.parametrize(("result", "told"), [((X, None), (X, None)), ([X], (X,)), (None, None), (7, None)])
def test_the_weight_pass_gets_the_context_of_its_microbatch(result: Any, told: Any) -> None:
    adapter, calls = recording(stage_backward_input=((X,), context := ["context"]), stage_backward_weight=result)
    session, _ = opened(adapter)
    session.forward(3, (X,))
    session.backward_input(3, (G,))
    assert session.backward_weight(3) == told
    assert calls["stage_backward_weight"][1] is context
    assert len(calls["stage_backward_weight"][0]) == 2


@pytest.mark.parametrize("repeats", [False, True])
def test_a_context_is_freed_unless_the_weight_pass_will_be_repeated(*, repeats: bool) -> None:
    adapter, _ = recording(stage_backward_input=((X,), ["context"]), stage_backward_weight=())
    session, _ = opened(adapter, repeats_weight=repeats)
    session.forward(0, (X,))
    session.backward_input(0, (G,))
    session.backward_weight(0)
    if repeats:
        session.backward_weight(0)
    else:
        with pytest.raises(UnsupportedError, match="W of micro-batch 0 has no param_groups, because its I did not run"):
            session.backward_weight(0)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ((), "returned a tuple of length 0;"),
        ((X, X), "returned a tuple of length 2;"),
        (X, "returned Tensor;"),
        (None, "returned NoneType;"),
        ({"x": X}, "returned dict;"),
    ],
    ids=["none", "two", "tensor", "None", "dict"],
)
def test_a_result_without_one_entry_per_argument_is_a_type_error(returned: Any, said: str) -> None:
    adapter, _ = recording(stage_backward=returned, stage_backward_input=(returned, []), stage_backward_weight=())
    for method in ("backward", "backward_input"):
        session, _ = opened(adapter)
        session.forward(0, (X,))
        with pytest.raises(TypeError, match=said) as raised:
            getattr(session, method)(0, (G,))
        assert str(raised.value).startswith("stage_backward")
        assert str(raised.value).endswith("expected one gradient or None per argument (1)")


@pytest.mark.parametrize(
    ("names", "full", "is_split"),
    [
        (["stage_backward"], True, False),
        (["stage_backward_input", "stage_backward_weight"], False, True),
        (list(ALL), True, True),
        (["stage_backward", "stage_backward_input"], True, False),
    ],
    ids=["full", "split", "all", "half"],
)
def test_only_existing_functions_are_claimed(names: list[str], *, full: bool, is_split: bool) -> None:
    claims = FunctionsAdapter("some", {name: ALL[name] for name in names}, {}).capabilities
    assert (claims.full, claims.split) == (full, is_split)
    assert claims.mixed == (full and is_split)
    assert claims.param_groups == claims.weight_result == claims.retain_graph == is_split


@pytest.mark.parametrize(
    ("method", "name"), [("backward", "stage_backward"), ("backward_input", "stage_backward_input")]
)
def test_a_missing_function_is_unsupported(method: str, name: str) -> None:
    session, _ = opened(FunctionsAdapter("none", {}, {}))
    session.forward(0, (X,))
    with pytest.raises(UnsupportedError, match=f"^the target has no {name}$"):
        getattr(session, method)(0, (G,))


def test_param_grads_reads_the_parameters_and_close_frees_the_graphs() -> None:
    session, stage = opened(FunctionsAdapter("split", ALL, {}))
    session.forward(0, (X.clone().requires_grad_(),))
    assert session.param_grads() == {"linear.weight": None, "linear.bias": None}
    session.backward(0, (G,))
    assert session.param_grads()["linear.weight"] is stage.linear.weight.grad
    session.forward(1, (X,))
    session.close()
    with pytest.raises(KeyError):
        session.backward(1, (G,))


def test_a_manual_weight_context_starts_at_its_node_with_the_given_gradients() -> None:
    session, stage = opened(FunctionsAdapter("split", ALL, {}))
    output = session.forward(0, (X,))
    session.put_weight_context(0, output.grad_fn, (G,))
    session.backward_weight(0)
    assert stage.linear.bias.grad is not None
    assert stage.linear.bias.grad.tolist() == [7.0, 7.0, 7.0]


class Several(nn.Module):
    """A stage with a view of one output, an output without a gradient, and one that is no leaf of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return halves of one product around what is detached."""
        left, right = self.linear(x).chunk(2, dim=1)
        return left, left.detach() * 2, right


@pytest.mark.parametrize("name", ["stage_backward", "stage_backward_input"])
def test_freed_outputs_are_passed_as_gradient_edges_with_their_output_numbers(name: str) -> None:
    adapter, calls = recording(**{name: (X,) if name == "stage_backward" else ((X,), [])})
    session = adapter.open(Several(), StageSpec(releases_outputs=True))
    outputs = session.forward(0, (X,))
    kept, released = outputs[0], [weakref.ref(output) for output in outputs[1:]]
    session.release_outputs(0, (0,))
    del outputs
    assert [one() for one in released] == [None, None]
    getattr(session, name.removeprefix("stage_"))(0, (G, None, G))
    tensor, none, edge = calls[name][0]
    assert tensor is kept
    assert none is None
    assert (edge.node.name(), edge.output_nr) == (kept.grad_fn.name(), 1)
    assert calls[name][1] == (G, None, G)


def none_for_edges(stage_output: Any, output_grads: Any, input_values: Any) -> Any:
    """Take an edge for an output that needs no gradient."""
    kept = [output if isinstance(output, Tensor) else None for output in stage_output]
    return split.stage_backward(kept, output_grads, input_values)


@pytest.mark.parametrize(
    ("functions", "taken"),
    [
        (ALL, True),
        ({"stage_backward": split.stage_backward}, True),
        ({"stage_backward": none_for_edges}, False),
        ({**ALL, "stage_backward": none_for_edges}, False),
        ({}, False),
    ],
    ids=["all", "full", "none-for-edges", "one-of-three", "nothing"],
)
def test_edge_support_is_detected_from_the_returned_gradients(functions: dict[str, Any], *, taken: bool) -> None:
    shown = FunctionsAdapter("some", functions, {}).claims_withheld(torch.device("cpu"), torch.float32)
    assert ("edge_roots" in shown) is not taken


def test_torch_functions_accept_edges_if_their_source_supports_them() -> None:
    functions = pipelining.functions()
    knows = "GradientEdge" in inspect.getsource(functions["stage_backward"])
    shown = FunctionsAdapter("torch", functions, {}).claims_withheld(torch.device("cpu"), torch.bfloat16)
    assert ("edge_roots" in shown) is not knows


def test_an_explicit_edge_claim_is_not_probed() -> None:
    for claimed in (True, False):
        adapter = FunctionsAdapter("some", {"stage_backward": none_for_edges}, {"edge_roots": claimed})
        assert adapter.capabilities.edge_roots is claimed
        assert not adapter.claims_withheld(torch.device("cpu"), torch.float32)


def _exact(a: Any, b: Any, c: Any) -> None: ...


def _with_defaults(a: Any, b: Any, c: Any, d: int = 1, *, e: int = 2) -> None: ...


def _star(*args: Any) -> None: ...


def _two(a, b): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 (its text is in the message)


def _keyword(a: Any, b: Any, c: Any, *, d: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_exact, None),
        (_with_defaults, None),
        (_star, None),
        (max, None),
        (_two, "stage_backward(a, b) cannot be called with 3 positional arguments: too many positional"),
        (_keyword, "argument: 'd'"),
        (7, "stage_backward is int, not a function"),
    ],
    ids=["exact", "defaults", "star", "builtin", "two", "keyword", "number"],
)
def test_a_signature_is_judged_by_how_the_function_is_called(function: Any, problem: str | None) -> None:
    found = signature_problem("stage_backward", function)
    assert found == problem if problem is None else problem in str(found)
