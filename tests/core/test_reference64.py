"""reference64 and what is expected of a parameter: float64 autograd, summed as the program says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities
from gradconform.drive.driver import drive
from gradconform.drive.evidence import Evidence
from gradconform.drive.reference64 import Computed, Expected, References, widen, widened
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference.autograd import AutogradAdapter
from gradconform.run.runner import one_thread
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))

#: How far plain autograd may be from reference64, in eps of the dtype times the largest partial sum. Measured: 6.8.
SANE = 32


def evidence_of(program: str, case: StageCase = LINEAR, dtype: torch.dtype = torch.float32, **options: Any) -> Evidence:
    trial = Trial(stages=(case,), program=program, **options)
    materials = Materials(trial, dtype=dtype, device=CPU, seed=20)
    oracle = drive(AutogradAdapter(), materials)
    return Evidence(References(materials), Capabilities(), (oracle,), oracle)


def by_hand(materials: Materials, mb: int, lane: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias of one Linear, worked out in float64."""
    stage = materials.stage(lane)
    (x,) = (arg.detach().double() for arg in materials.args(lane, mb, stage))
    (grad,) = (grad.double() for grad in materials.output_grads(lane, mb))
    return grad @ stage.weight.detach().double(), grad.t() @ x, grad.sum(0)  # type: ignore[operator] # None would fail the test


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradients_are_those_of_the_rounded_materials_in_float64(dtype: torch.dtype) -> None:
    evidence = evidence_of("F0 F3 B3 B0", dtype=dtype)
    found = evidence.reference(0, 3)
    expected = by_hand(evidence.materials, 3)
    got = (found.inputs[0], found.params["weight"], found.params["bias"])
    for one, other in zip(got, expected, strict=True):
        assert one is not None
        assert one.dtype == torch.float64
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss_scale", [1.0, 0.25])
def test_a_loss_is_the_mean_square_to_the_target_times_its_scale(loss_scale: float) -> None:
    materials = evidence_of("F0 B0", loss=True).materials
    stage = materials.stage(0).double()
    (x,) = (arg.detach().double().requires_grad_() for arg in materials.args(0, 0, materials.stage(0)))
    (target,) = materials.target(0, 0)
    (((stage(x) - target.double()) ** 2).mean() * loss_scale).backward()
    found = References(materials, loss_scale).of(0, 0)
    assert torch.allclose(found.inputs[0], x.grad, rtol=1e-12)  # type: ignore[arg-type] # None would fail the test
    assert torch.allclose(found.params["weight"], stage.weight.grad, rtol=1e-12)  # type: ignore[arg-type] # None would fail the test


def test_reference64_is_computed_once_per_micro_batch() -> None:
    evidence = evidence_of("F0 F1 B0 B1")
    assert evidence.reference(0, 1) is evidence.reference(0, 1)
    assert evidence.reference(0, 1) is not evidence.reference(0, 0)


def test_reference64_does_not_use_the_global_generator() -> None:
    evidence = evidence_of("F0 B0", ZOO["dropout"])
    before = torch.get_rng_state()
    evidence.reference(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=lambda d: str(d)[6:])
def test_plain_autograd_is_close_to_reference64_on_every_stage(dtype: torch.dtype) -> None:
    # Twice this distance is what an implementation is granted: were it large (another dropout mask, another
    # micro-batch), every gradient would pass.
    far: list[tuple[float, str]] = []
    for name, case in ZOO.items():
        try:
            with one_thread():
                evidence = evidence_of("F0 F1 B1 B0", case, dtype)
        except NotImplementedError:
            continue
        if evidence.oracle.raised is not None:
            assert "complex" in name
            continue
        far += [(error, f"{name}: {where}") for where, error in _distances(evidence)]
    assert max(far)[0] <= SANE
    assert len(far) > 400


def _distances(evidence: Evidence) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for step in evidence.oracle.steps:
        pairs: list[tuple[str, Tensor | None, Tensor | None, float]] = []
        if step.action.kind == "B":
            grads = evidence.reference(0, step.action.mb).inputs
            pairs += [(f"input {i}", g, r, _peak(r)) for i, (g, r) in enumerate(zip(step.input_grads or (), grads))]  # noqa: B905 (both have one per argument)
        for name, grad in step.param_grads.items() if step.action.kind == "finish" else ():
            expected = evidence.expected_param(name, step)
            pairs.append((name, grad, expected.total, expected.partials.peak))
        for where, got, wanted, scale in pairs:
            assert (got is None) == (wanted is None), where
            if got is not None and wanted is not None and got.numel():
                eps = torch.finfo(got.dtype).eps
                error = float((got.to_dense().to(wanted.dtype) - wanted.to_dense()).abs().max())
                found.append((f"{where} after {step.action}", error / (eps * scale) if scale else error * 1e300))
    return found


def _peak(tensor: Tensor | None) -> float:
    return float(tensor.to_dense().abs().max()) if tensor is not None and tensor.numel() else 0.0


def expected_after(evidence: Evidence, position: int, name: str = "weight") -> Expected:
    return evidence.expected_param(name, evidence.oracle.steps[position])


def summed(evidence: Evidence, *mbs: int, lane: int = 0) -> Tensor:
    return torch.stack([by_hand(evidence.materials, mb, lane)[1] for mb in mbs]).sum(0)


@pytest.mark.parametrize(
    ("program", "position", "mbs"),
    [
        ("F0 B0 F1 B1", 0, ()),
        ("F0 B0 F1 B1", 1, (0,)),
        ("F0 B0 F1 B1", 3, (0, 1)),
        ("F0 F1 I0 I1 W1 W0", 3, ()),
        ("F0 F1 I0 I1 W1 W0", 4, (1,)),
        ("F0 B0 zero_none F1 B1", 2, ()),
        ("F0 B0 zero_none F1 B1", 4, (1,)),
        ("F0 B0 zero_fill F1 B1", 4, (1,)),
        ("F0 I0 W0 W0!", 3, (0,)),
        ("F0 1F0 1B0 B0", 2, ()),
    ],
)
def test_a_parameter_has_the_sum_of_the_completed_weight_passes(
    program: str, position: int, mbs: tuple[int, ...]
) -> None:
    trial = Trial(stages=(LINEAR, LINEAR), program=program)
    materials = Materials(trial, dtype=torch.float32, device=CPU, seed=20)
    oracle = drive(AutogradAdapter(), materials)
    evidence = Evidence(References(materials), Capabilities(), (oracle,), oracle)
    step = next(step for step in oracle.steps if step.position == position)
    lane = step.action.stage
    total = evidence.expected_param("weight", step).total
    if lane == 1:
        mbs = (0,)
    if mbs:
        assert total is not None
        assert torch.allclose(total, summed(evidence, *mbs, lane=lane), rtol=1e-12, atol=1e-12)
    else:
        assert total is None


def test_prior_gradients_are_in_the_sum_until_they_are_zeroed() -> None:
    evidence = evidence_of("F0 B0 zero_none F1 B1", prior_grads=True)
    prior = evidence.materials.prior(0)[0].double()
    assert torch.allclose(expected_after(evidence, 0).total, prior)  # type: ignore[arg-type] # None would fail the test
    assert torch.allclose(expected_after(evidence, 1).total, prior + summed(evidence, 0))  # type: ignore[arg-type] # None would fail the test
    assert torch.allclose(expected_after(evidence, 4).total, summed(evidence, 1))  # type: ignore[arg-type] # None would fail the test


@pytest.mark.parametrize("program", ["F0 B0 zero_none F1 B1", "F1 B1 zero_fill F0 B0"])
def test_the_partial_sums_keep_the_largest_value_after_zeroing(program: str) -> None:
    evidence = evidence_of(program)
    met = [float(summed(evidence, mb).abs().max()) for mb in (0, 1)]
    assert expected_after(evidence, 4).partials.peak == pytest.approx(max(met))


def test_a_sum_that_cancels_keeps_its_scale() -> None:
    expected = Expected()
    expected = expected.plus(torch.full((2,), 8.0, dtype=torch.float64))
    expected = expected.plus(torch.full((2,), -8.0, dtype=torch.float64))
    expected = expected.plus(None)
    assert expected.total is not None
    assert expected.total.tolist() == [0.0, 0.0]
    assert expected.partials.peak == 8.0


def test_an_output_without_gradient_changes_the_reference() -> None:
    pair = ZOO["two-outputs"]
    evidence = evidence_of("F0 B0", pair, output_grads="none:1")
    whole = evidence_of("F0 B0", pair)
    name = next(iter(evidence.reference(0, 0).params))
    differs = [
        (one is None) != (other is None) or (one is not None and other is not None and not torch.equal(one, other))
        for one, other in zip(
            evidence.reference(0, 0).params.values(), whole.reference(0, 0).params.values(), strict=True
        )
    ]
    assert name
    assert any(differs)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(torch.ones(1, dtype=torch.bfloat16), torch.float64), (torch.ones(1, dtype=torch.complex64), torch.complex128)],
)
def test_real_and_complex_values_are_widened(value: Tensor, dtype: torch.dtype) -> None:
    assert widen(value).dtype == dtype


@pytest.mark.parametrize("value", [torch.tensor([1]), torch.tensor([True]), None, "text", 3])
def test_widen_returns_other_values_unchanged(value: object) -> None:
    assert widen(value) is value


def test_a_reference_of_unrounded_values_has_a_larger_error() -> None:
    evidence = evidence_of("F0 B0", dtype=torch.bfloat16)
    unrounded = Materials(evidence.trial, dtype=torch.float64, device=CPU, seed=20)  # what was drawn, before rounding
    shown = [(evidence.oracle.steps[1].input_grads or ())[0], *evidence.oracle.steps[1].param_grads.values()]
    found = evidence.reference(0, 0)
    rounded = [found.inputs[0], *found.params.values()]
    assert _error(shown, by_hand(unrounded, 0)) > 1.5 * _error(shown, rounded)


def _error(shown: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> float:
    pairs = [(one, other) for one, other in zip(shown, wanted, strict=True) if one is not None and other is not None]
    assert len(pairs) == len(shown) == 3
    return sum(float((one.double() - other).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=lambda d: str(d)[6:])
def test_every_input_of_reference64_is_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    evidence = evidence_of("F0 B0", ZOO["batch-norm"], dtype, prior_grads=True)
    materials = evidence.materials
    wide = [tensor for tensor in widened(materials.stage(0)).state_dict().values() if tensor.is_floating_point()]
    wide += [widen(tensor) for tensor in materials.args(0, 0, materials.stage(0))]
    wide += [widen(tensor) for tensor in (*materials.output_grads(0, 0), *materials.target(0, 0), *materials.prior(0))]
    assert len(wide) > 8
    for tensor in wide:
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, tensor.to(dtype).double())


def test_running_a_stage_in_eval_mode_does_not_change_the_mode_of_the_chain() -> None:
    drops = StageCase("drops", "dropout on rows of five", lambda: nn.Dropout(0.5), (Normal((7, 5)),))
    trial = Trial(stages=(drops, drops), program="F0 1F0 1B0 B0", chain=True)
    references = References(Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    modes = [references.passed(1, 0, 1, prepare).stage.training for prepare in (None, nn.Module.eval, None)]
    assert modes == [True, False, True]


def test_micro_batch_references_are_shared_by_programs_with_equal_inputs() -> None:
    def references(program: str, shared: Computed, **options: Any) -> References:
        trial = Trial(stages=(LINEAR,), program=program, **options)
        return References(Materials(trial, dtype=torch.float32, device=CPU, seed=20), shared=shared)

    shared = Computed()
    first = references("F0 B0 F1 B1", shared).of(0, 1)
    assert references("F1 F0 I1 W1 B0", shared).of(0, 1) is first
    for other in (
        references("F0 B0 F1 B1", shared).of(0, 0),
        references("F0 B0 F1 B1", shared).of(0, 1, wide=False),
        references("F0 B0 freeze0 F1 B1", shared).of(0, 1),
        references("F0 B0 F1 B1", shared, output_grads="zeros").of(0, 1),
        references("F0 B0 F1 B1", shared, loss=True).of(0, 1),
        references("F0 B0 F1 B1", shared, same_args=True).of(0, 1),
        references("F0 B0 F1 B1", Computed()).of(0, 1),
    ):
        assert other is not first
    frozen = references("F0 B0 freeze0 F1 B1", shared).of(0, 1)
    assert frozen.params["weight"] is None
    assert first.params["weight"] is not None


def _softmax_summed() -> nn.Module:
    """Return a stage in whose middle all terms cancel: a softmax adds up to 1, whatever comes before it."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(torch.softmax(self.linear(x), -1).sum(-1))

    return Summed()


def test_terms_are_as_large_as_the_gradient_unless_values_cancel() -> None:
    plain = evidence_of("F0 F1 B0 B1")
    last = plain.oracle.steps[-1]
    for name in ("weight", "bias"):
        total, terms = plain.expected_param(name, last).total, plain.terms_of_param(name, last)
        assert total is not None
        assert 0.1 < terms.peak / float(total.abs().max()) < 4
    grad = plain.reference(0, 1).inputs[0]
    assert grad is not None
    assert 0.1 < plain.terms_of_input(0, last).peak / float(grad.abs().max()) < 4

    summed = StageCase("summed", "a softmax that is summed", _softmax_summed, (Normal((7, 5)),))
    cancelling = evidence_of("F0 F1 B0 B1", summed)
    last = cancelling.oracle.steps[-1]
    total = cancelling.expected_param("linear.weight", last).total
    assert total is not None
    assert float(total.abs().max()) < 1e-15
    assert cancelling.terms_of_param("linear.weight", last).peak > 1e-3
    assert cancelling.terms_of_input(0, last).peak > 1e-3


def test_terms_are_measured_once_and_include_all_stages_of_a_chain() -> None:
    evidence = evidence_of("F0 B0")
    assert evidence.references.terms(0, 0) is evidence.references.terms(0, 0)
    square = StageCase("square", "one Linear", lambda: nn.Linear(5, 5), (Normal((7, 5)),))
    trial = Trial(stages=(square, square), program="F0 1F0 1B0 B0", chain=True)
    references = References(Materials(trial, dtype=torch.float32, device=CPU, seed=20))
    for lane in (0, 1):
        found = references.terms(lane, 0)
        assert all(grad is not None and bool(grad.any()) for grad in found.params.values())
