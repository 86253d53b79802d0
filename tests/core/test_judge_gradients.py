"""The judge of gradients, over small broken adapters: every wrong tensor is told once, at its first wrong action."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor, nn

from gradconform import tolerance
from gradconform.adapter import Capabilities, StageSpec
from gradconform.drive.driver import drive
from gradconform.drive.evidence import Evidence
from gradconform.drive.reference64 import References
from gradconform.fixtures.inputs import Normal, SameAs
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import Finding, error_ratios_in, findings_in
from gradconform.judge.gradients import gradients
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
Grads = tuple[Tensor | None, ...]
Returned = Callable[[int, Grads], Grads]
Stored = Callable[[list[str], dict[str, Tensor | None]], dict[str, Tensor | None]]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 3), nn.Linear(3, 2)])

    def forward(self, x: Tensor) -> Any:
        """Apply one layer after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Use one tensor twice."""
        return self.linear(x * torch.tanh(y))


LAYERS = StageCase("layers", "two layers", Layers, (Normal((7, 5)),))
TWICE = StageCase("twice", "one tensor passed twice", Square, (Normal((7, 5)), SameAs(0)))


class Edited(AutogradSession):
    """Plain autograd whose gradients are edited as they are handed out; ``log`` holds the actions so far."""

    def __init__(self, stage: nn.Module, spec: StageSpec, returned: Returned | None, stored: Stored | None) -> None:
        super().__init__(stage, spec)
        self._edit_returned, self._edit_stored = returned, stored
        self.log: list[str] = []

    def backward(self, mb: int, output_grads: Any) -> Grads:
        """Run B and edit what it returns."""
        self.log.append(f"B{mb}")
        grads = super().backward(mb, output_grads)
        return self._edit_returned(mb, grads) if self._edit_returned else grads

    def backward_weight(self, mb: int) -> None:
        """Run W."""
        self.log.append(f"W{mb}")
        super().backward_weight(mb)

    def param_grads(self) -> dict[str, Tensor | None]:
        """Edit what is stored."""
        grads = super().param_grads()
        return self._edit_stored(self.log, grads) if self._edit_stored else grads


class EditingAdapter(AutogradAdapter):
    """Opens :class:`Edited` sessions."""

    def __init__(self, returned: Returned | None = None, stored: Stored | None = None) -> None:
        self._edits = returned, stored

    def open(self, stage: nn.Module, spec: StageSpec) -> Edited:
        """Return a session on ``stage``."""
        return Edited(stage, spec, *self._edits)


class SwapsWeights(AutogradAdapter):
    """Runs the W of the other one of two micro-batches."""

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session that swaps."""

        class Swapped(AutogradSession):
            def backward_weight(self, mb: int) -> None:
                super().backward_weight(1 - mb)

        return Swapped(stage, spec)


def judged(
    adapter: AutogradAdapter,
    program: str = "F0 B0 F1 B1",
    *,
    case: StageCase = LAYERS,
    claims: Capabilities | None = None,
    runs: int = 1,
    **options: Any,
) -> tuple[list[Finding], Evidence]:
    trial = Trial(stages=(case,), program=program, **options)
    materials = Materials(trial, dtype=torch.float32, device=CPU, seed=20)
    oracle = drive(AutogradAdapter(), materials)
    observations = tuple(drive(adapter, materials) for _ in range(runs))
    evidence = Evidence(References(materials), claims or Capabilities(), observations, oracle)
    return findings_in(gradients(evidence)), evidence


def placed(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.kind, finding.where, finding.action) for finding in found]


def perturb(name: str, change: Callable[[Tensor], Any], after: str) -> Stored:
    def stored(log: list[str], grads: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        grad = grads[name]
        return {**grads, name: change(grad.clone())} if after in log and grad is not None else grads

    return stored


def off_by_one(grad: Tensor) -> Tensor:
    grad[..., 1] += 1.0
    return grad


@pytest.mark.parametrize("program", ["F0 B0 F1 B1", "F0 F1 I1 I0 W0 W1", "F0 B0 zero_none F1 B1", "F0 B0 zero_fill"])
@pytest.mark.parametrize("options", [{}, {"loss": True}, {"prior_grads": True}, {"same_args": True}], ids=str)
def test_plain_autograd_passes_against_itself(program: str, options: dict[str, Any]) -> None:
    found, evidence = judged(AutogradAdapter(), program, **options)
    assert not found
    assert set(error_ratios_in(gradients(evidence))) == {0.0}


def test_judging_does_not_change_the_evidence_and_can_be_repeated() -> None:
    _, evidence = judged(EditingAdapter(stored=perturb("layers.0.weight", off_by_one, "B1")))
    assert list(gradients(evidence)) == list(gradients(evidence))
    for field in dataclasses.fields(evidence):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(evidence, field.name, None)


def test_one_wrong_gradient_is_reported_with_path_action_index_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_OVERRIDES", {"float32": 4.0})
    found, _ = judged(EditingAdapter(stored=perturb("layers.0.weight", off_by_one, "B1")))
    text = "\n".join(map(str, found))
    # Three digits: the last ones depend on the processor.
    text = re.sub(r"-?\d+\.\d+(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", text)
    text = re.sub(r"(bound|error/bound) \S+", r"\1 …", text)
    assert_expected_inline(
        text,
        """layers.0.weight, after B1: worst at [0, 1]: expected -0.457, got 0.543; error 1, bound … error/bound …""",
    )


def test_every_wrong_tensor_is_reported_once_at_its_first_wrong_action() -> None:
    def stored(log: list[str], grads: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        one = perturb("layers.1.bias", lambda grad: grad * 2, "B0")(log, grads)
        return perturb("layers.0.weight", off_by_one, "B1")(log, one)

    def returned(mb: int, grads: Grads) -> Grads:
        del mb
        return tuple(None if grad is None else grad + 1 for grad in grads)

    found, _ = judged(EditingAdapter(returned, stored), "F0 B0 F1 B1 F2 B2")
    assert placed(found) == [
        ("mismatch", "input 0", "B0"),
        ("mismatch", "layers.1.bias", "B0"),
        ("mismatch", "layers.0.weight", "B1"),
    ]


def test_a_gradient_that_is_wrong_only_before_the_last_action_is_reported() -> None:
    def stored(log: list[str], grads: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        doubled = {name: None if grad is None else grad * 2 for name, grad in grads.items()}
        return doubled if log == ["B0"] else grads

    found, _ = judged(EditingAdapter(stored=stored))
    assert {finding.action for finding in found} == {"B0"}
    assert len(found) == 4


def test_swapped_weight_passes_are_found_at_the_first_although_the_sum_is_right() -> None:
    found, evidence = judged(SwapsWeights(), "F0 F1 I0 I1 W0 W1")
    last, wanted = evidence.observation.steps[-1], evidence.oracle.steps[-1]
    for name, grad in wanted.param_grads.items():
        assert torch.allclose(last.param_grads[name], grad, atol=1e-5)  # type: ignore[arg-type] # None would fail the test
    names = [name for name, _ in Layers().named_parameters()]
    assert placed(found) == [("mismatch", name, "W0") for name in names]


def test_none_instead_of_a_tensor_and_a_tensor_instead_of_none_are_reported() -> None:
    found, _ = judged(EditingAdapter(lambda _, grads: (None,) * len(grads)))
    assert placed(found) == [("missing", "input 0", "B0")]
    frozen = StageCase("frozen", "an input without gradient", Layers, (Normal((7, 5), requires_grad=False),))
    found, _ = judged(EditingAdapter(lambda *_: (torch.zeros(7, 5),)), case=frozen)
    assert placed(found) == [("unexpected", "input 0", "B0")]


def test_a_stored_gradient_before_the_first_backward_is_unexpected() -> None:
    def stored(log: list[str], grads: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        return grads if log else {name: torch.zeros(1) for name in grads}

    found, _ = judged(EditingAdapter(stored=stored), "F0 B0")
    assert {(kind, action) for kind, _, action in placed(found)} == {("unexpected", "F0")}


def test_an_omitted_parameter_is_missing() -> None:
    found, _ = judged(EditingAdapter(stored=lambda _, grads: {k: v for k, v in grads.items() if "bias" not in k}))
    assert placed(found) == [("missing", "layers.0.bias", "B0"), ("missing", "layers.1.bias", "B0")]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(
    ("change", "kind"),
    [(lambda grad: grad.t(), "shape"), (lambda grad: grad.double(), "dtype"), (lambda g: g.to_sparse(), "layout")],
    ids=["shape", "dtype", "layout"],
)
def test_a_stored_gradient_of_wrong_shape_dtype_or_layout_is_reported(
    change: Callable[[Tensor], Tensor], kind: str
) -> None:
    found, _ = judged(EditingAdapter(stored=perturb("layers.0.weight", change, "B0")))
    assert placed(found) == [(kind, "layers.0.weight", "B0")]


def test_a_tuple_of_wrong_length_is_reported_with_both_lengths() -> None:
    found, _ = judged(EditingAdapter(lambda _, grads: (*grads, None)))
    assert_expected_inline(
        str(found[0]),
        """the returned tuple, after B0: expected one input gradient per argument (1), got 2""",
    )


def test_an_action_that_raises_is_reported_with_its_error() -> None:
    def broken(mb: int, grads: Grads) -> Grads:
        del mb, grads
        msg = "no backward today"
        raise RuntimeError(msg)

    found, _ = judged(EditingAdapter(broken))
    assert_expected_inline(
        "\n".join(map(str, found)),
        """the action, after B0: raised RuntimeError: no backward today; plain autograd does not""",
    )


def test_a_wrong_later_repeat_is_reported() -> None:
    calls: list[int] = []

    def returned(mb: int, grads: Grads) -> Grads:
        calls.append(mb)
        return tuple(None if g is None else g * 2 for g in grads) if len(calls) == 3 else grads

    found, _ = judged(EditingAdapter(returned), "F0 B0", runs=4)
    assert placed(found) == [("mismatch", "input 0", "B0")]


@pytest.mark.parametrize(
    ("reading", "right"),
    [
        (lambda g: (g, g), True),
        (lambda g: (g, None), True),
        (lambda g: (None, g), True),
        (lambda g: (g * 0.25, g * 0.75), True),
        (lambda g: (g * 0.5, g * 0.75), False),
        (lambda g: (g * 2, None), False),
        (lambda _: (None, None), False),
        (lambda g: (g, g * 2), False),
        (lambda g: (g.t(), g), False),
    ],
    ids=["each", "first", "second", "parts", "too much", "double", "none", "one double", "transposed"],
)
def test_a_tensor_passed_twice_may_have_its_gradient_in_each_slot_or_summed(
    reading: Callable[[Tensor], Grads], *, right: bool
) -> None:
    def returned(mb: int, grads: Grads) -> Grads:
        del mb
        assert grads[0] is not None
        return reading(grads[0])

    found, _ = judged(EditingAdapter(returned), case=TWICE)
    assert (not found) == right


def test_a_rejected_reading_gives_no_error_ratio() -> None:
    found, evidence = judged(AutogradAdapter(), case=TWICE)
    assert not found
    assert max(error_ratios_in(gradients(evidence))) == 0.0


def test_a_non_tensor_in_a_slot_of_a_tensor_passed_twice_is_a_finding() -> None:
    found, _ = judged(EditingAdapter(lambda _, grads: (7, grads[1])), case=TWICE)  # type: ignore[return-value,arg-type] # a wrong type is what is tried
    assert ("missing", "input 0", "B0") in placed(found)


@pytest.mark.parametrize("program", ["F0 B0 F1 B1", "F0 I0 W0"])
def test_an_input_pass_that_may_touch_parameters_still_needs_right_sums(program: str) -> None:
    def stored(log: list[str], grads: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        return {name: None if grad is None else grad * 2 for name, grad in grads.items()} if log else grads

    claims = Capabilities(input_pass_touches_params=True)
    assert judged(EditingAdapter(stored=stored), program, claims=claims)[0]


def test_an_input_pass_that_touches_parameters_as_claimed_passes() -> None:
    class EagerSession(AutogradSession):
        """I accumulates all parameter gradients at once; W has nothing left to do."""

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            found = super().backward_input(mb, output_grads)
            super().backward_weight(mb)
            return found

        def backward_weight(self, mb: int) -> None:
            del mb

    class Eager(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            return EagerSession(stage, spec)

    claims = Capabilities(input_pass_touches_params=True)
    assert not judged(Eager(), "F0 I0 F1 I1 W0 W1", claims=claims)[0]
    assert judged(Eager(), "F0 I0 F1 I1 W0 W1")[0]
