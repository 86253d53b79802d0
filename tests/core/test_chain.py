"""Chains: stages of one trial hand over to each other in the driver, and are held against the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform import check_stage_backward
from gradconform.adapter import Capabilities, StageSpec
from gradconform.drive.driver import drive
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation
from gradconform.drive.reference64 import References
from gradconform.fixtures.inputs import Integers, Normal
from gradconform.fixtures.schedules import recorded
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.chains import CHAINABLE, EMBEDDING, FORK, JOIN, MLP, RESIDUAL, TIED, chain_of
from gradconform.judge.chain import chained, origins, whole_model
from gradconform.judge.finding import Finding, error_ratios_in, findings_in
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.results import Sort
from gradconform.trial.materials import Materials, mean_squares
from gradconform.trial.program import ProgramError
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
Grads = tuple[Tensor | None, ...]

#: Two micro-batches through three stages, the second half of the backwards split.
PROGRAM = "F0 1F0 2F0 2B0 F1 1B0 1F1 B0 2F1 2I1 1I1 2W1 I1 W1 1W1"


def chain(*stages: StageCase, program: str = PROGRAM, **options: Any) -> Trial:
    return Trial(stages=stages or (MLP, FORK, JOIN), program=program, chain=True, **{"loss": True, **options})


def materials_of(trial: Trial, dtype: torch.dtype = torch.float32) -> Materials:
    return Materials(trial, dtype=dtype, device=CPU, seed=20)


def evidence_of(trial: Trial, adapter: Any = None, dtype: torch.dtype = torch.float32) -> Evidence:
    materials = materials_of(trial, dtype)
    seen = drive(adapter or AutogradAdapter(), materials)
    return Evidence(References(materials), Capabilities(), (seen,), drive(AutogradAdapter(), materials))


class Recording:
    """Plain autograd that keeps what each stage was opened with and fed; ``edit`` may change what B and I return."""

    name = "recording"
    capabilities = Capabilities()

    def __init__(self, edit: Callable[[int, int, Grads], Any] = lambda _, __, grads: grads) -> None:
        self.edit = edit
        self.specs: list[StageSpec] = []
        self.args: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.outputs: dict[tuple[int, int], Any] = {}
        self.grads: dict[tuple[int, int], Any] = {}
        self.returned: dict[tuple[int, int], Any] = {}

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        lane, kit = len(self.specs), self
        self.specs.append(spec)

        class Session(AutogradSession):
            def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
                kit.args[lane, mb] = args
                kit.outputs[lane, mb] = super().forward(mb, args, target)
                return kit.outputs[lane, mb]

            def backward(self, mb: int, output_grads: Any) -> Any:
                return self._returned(mb, output_grads, super().backward)

            def backward_input(self, mb: int, output_grads: Any) -> Any:
                return self._returned(mb, output_grads, super().backward_input)

            def _returned(self, mb: int, output_grads: Any, run: Callable[[int, Any], Grads]) -> Any:
                kit.grads[lane, mb] = output_grads
                kit.returned[lane, mb] = kit.edit(lane, mb, run(mb, output_grads))
                return kit.returned[lane, mb]

        return Session(stage, spec)


def test_each_stage_gets_the_previous_outputs_as_new_leaves() -> None:
    kit = Recording()
    drive(kit, materials_of(chain()))
    for lane, mb in ((1, 0), (2, 0), (1, 1), (2, 1)):
        before = kit.outputs[lane - 1, mb]
        outputs = before if isinstance(before, tuple) else (before,)
        assert len(kit.args[lane, mb]) == len(outputs) == (2 if lane == 2 else 1)
        for arg, output in zip(kit.args[lane, mb], outputs, strict=True):
            assert torch.equal(arg, output)
            assert (arg.is_leaf, arg.requires_grad, output.is_leaf) == (True, True, False)


def test_each_stage_gets_the_gradients_of_the_next_stage_and_the_last_gets_the_loss() -> None:
    kit = Recording()
    drive(kit, materials_of(chain()))
    assert [(spec.is_first, spec.is_last, spec.loss_fn is not None) for spec in kit.specs] == [
        (True, False, False),
        (False, False, False),
        (False, True, True),
    ]
    for mb in (0, 1):
        assert kit.grads[2, mb] is None
        for lane in (0, 1):
            for given, returned in zip(kit.grads[lane, mb], kit.returned[lane + 1, mb], strict=True):
                assert torch.equal(given, returned)
                assert given.grad_fn is None


def test_without_a_loss_the_last_stage_gets_output_gradients() -> None:
    kit = Recording()
    trial = chain(MLP, RESIDUAL, program="F0 1F0 1B0 B0", loss=False)
    drive(kit, materials_of(trial))
    (wanted,) = materials_of(trial).output_grads(1, 0)
    (given,) = kit.grads[1, 0]
    assert torch.equal(given, wanted)
    assert findings_in(chained(evidence_of(trial))) == []


def test_the_recorded_loss_ignores_the_loss_scale() -> None:
    materials = materials_of(chain())
    for scale in (1.0, 0.25):
        losses = [step.loss for step in drive(AutogradAdapter(), materials, loss_scale=scale).steps]
        found = [loss for loss in losses if loss is not None]
        assert [n for n, loss in enumerate(losses) if loss is not None] == [2, 8]
        assert all(loss.shape == () and not loss.requires_grad for loss in found)
    kit = Recording()
    drive(kit, materials)
    assert torch.equal(found[0], mean_squares(kit.outputs[2, 0], materials.target(2, 0)).detach())


def test_an_error_in_one_stage_ends_the_whole_chain() -> None:
    def refuse(lane: int, mb: int, grads: Grads) -> Grads:
        if (lane, mb) == (1, 0):
            msg = "no"
            raise RuntimeError(msg)
        return grads

    seen = drive(Recording(refuse), materials_of(chain()))
    assert [str(step.action) for step in seen.steps] == ["F0", "1F0", "2F0", "2B0", "F1", "1B0"]
    assert str(seen.steps[-1].raised) == "RuntimeError: no"
    assert [str(f) for f in findings_in(chained(evidence_of(chain(), Recording(refuse))))] == [
        "the action, after 1B0: raised RuntimeError: no; plain autograd does not"
    ]


def test_a_stage_that_cannot_be_opened_ends_the_whole_chain() -> None:
    class Refusing(Recording):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            if self.specs:
                msg = "one is enough"
                raise RuntimeError(msg)
            return super().open(stage, spec)

    seen = drive(Refusing(), materials_of(chain()))
    assert [(str(step.action), str(step.raised)) for step in seen.steps] == [
        ("F0", "None"),
        ("1F0", "RuntimeError: one is enough"),
    ]


def whole_by_hand(trial: Trial, mb: int, dtype: torch.dtype) -> tuple[Tensor, dict[tuple[int, str], Tensor]]:
    """Run the whole model without the kit's own code for that; return the loss and all parameter gradients."""
    materials = materials_of(trial)
    stages = [materials.stage(lane).to(dtype) for lane in range(len(trial.stages))]
    values: Any = tuple(arg.detach().to(dtype).requires_grad_() for arg in materials.args(0, mb, stages[0]))
    for stage in stages:
        outputs = stage(*values)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
    targets = materials.target(len(stages) - 1, mb)
    loss = torch.stack([(o - t.to(dtype)).square().mean() for o, t in zip(values, targets, strict=True)]).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    named = {(n, name): p.grad for n, stage in enumerate(stages) for name, p in stage.named_parameters()}
    return loss.detach(), {key: grad for key, grad in named.items() if grad is not None}


@pytest.mark.parametrize("wide", [True, False])
def test_the_reference_is_one_backward_of_the_whole_model(*, wide: bool) -> None:
    evidence = evidence_of(chain())
    for mb in (0, 1):
        loss, grads = whole_by_hand(chain(), mb, torch.float64 if wide else torch.float32)
        found = [(evidence.reference if wide else evidence.on_device)(lane, mb) for lane in range(3)]
        mine = {(n, name): g for n, one in enumerate(found) for name, g in one.params.items() if g is not None}
        assert mine.keys() == grads.keys()
        rtol = 1e-12 if wide else 1e-5
        assert all(torch.allclose(mine[key], grads[key], rtol=rtol, atol=rtol) for key in grads)
        assert found[2].loss is not None
        assert torch.allclose(found[2].loss, loss, rtol=rtol)
        assert (found[0].loss, found[1].loss) == (None, None)
        assert [len(one.outputs) for one in found] == [1, 2, 1]
        assert [len(one.inputs) for one in found] == [1, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_chain_with_plain_autograd_matches_the_whole_model(dtype: torch.dtype) -> None:
    stages = (EMBEDDING, TIED, FORK, JOIN)
    for name in ("1F1B-4x1x5", "ZBVZeroBubble-2x2x3", "DualPipeV-2x2x5", "LoopedBFS-2x2x3"):
        evidence = evidence_of(chain(*stages, program=recorded(name).program), dtype=dtype)
        assert findings_in(whole_model(evidence)) == []
        judged = list(chained(evidence))
        assert findings_in(judged) == []
        assert error_ratios_in(judged)


def test_the_whole_model_is_compared_even_if_each_stage_matches_plain_autograd() -> None:
    def halve(_: int, __: int, grads: Grads) -> Grads:
        return tuple(None if grad is None else grad / 2 for grad in grads)

    trial = chain()
    materials = materials_of(trial)
    seen, same = (drive(Recording(halve), materials) for _ in range(2))
    evidence = Evidence(References(materials), Capabilities(), (seen,), same)
    assert [f.where for f in findings_in(whole_model(evidence))][:2] == ["input 0", "input 1"]
    assert [f.action for f in findings_in(chained(evidence))][:2] == ["2B0", "2B0"]


def test_consequences_of_a_wrong_gradient_are_not_reported() -> None:
    def double(lane: int, mb: int, grads: Grads) -> Grads:
        return tuple(g * 2 for g in grads if g is not None) if (lane, mb) == (2, 1) else grads

    found = findings_in(chained(evidence_of(chain(), Recording(double))))
    assert [(f.where, f.action) for f in found] == [("input 0", "2I1"), ("input 1", "2I1")]
    assert {str(f.cause) for f in found} == {"2.0 × micro-batch 1: counted twice"}


def test_findings_after_a_wrong_output_and_before_a_wrong_gradient_are_consequences() -> None:
    sorts: dict[str, Sort] = {"input": "input gradient", "output": "output", "w": "parameter gradient", "the": "thing"}

    def finding(where: str, action: str) -> Finding:
        return Finding("mismatch", where, action, "is wrong", sort=sorts[where.split(maxsplit=1)[0]])

    given = [finding(*one) for one in (
        ("w", "1B0"), ("input 0", "2B0"), ("w", "2B0"), ("w", "1W0"), ("w", "3W0"), ("output 0", "2F1"),
        ("output 1", "2F1"), ("output 0", "3F1"), ("the session", "close"),
    )]  # fmt: skip
    told = [(f.where, f.action) for f in findings_in(origins(given))]
    assert told == [
        ("w", "1B0"),
        ("input 0", "2B0"),
        ("w", "2B0"),
        ("w", "3W0"),
        ("output 0", "2F1"),
        ("output 1", "2F1"),
    ]


def test_a_loss_with_a_wrong_target_is_reported_through_its_gradients() -> None:
    class OtherTarget(Recording):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            session = super().open(stage, spec)
            if spec.is_last:
                forward = session.forward
                session.forward = lambda mb, args, target: forward(mb, args, target * 1.5)  # type: ignore[method-assign] # the test stands in for it
            return session

    trial = chain(MLP, program="F0 B0")
    kit = OtherTarget()
    materials = materials_of(trial)
    assert isinstance(materials.target(0, 0), tuple)
    target = materials.target

    def lone(lane: int, mb: int) -> Any:
        return target(lane, mb)[0]

    materials.target = lone  # type: ignore[method-assign] # the test stands in for it
    evidence = Evidence(
        References(materials), Capabilities(), (drive(kit, materials),), drive(AutogradAdapter(), materials)
    )
    told = findings_in(chained(evidence))
    assert {(finding.where, finding.action) for finding in told} >= {("input 0", "B0")}
    assert len(told) == 1 + len(list(MLP.make(dtype=torch.float32, device=torch.device("cpu"), seed=20).parameters()))


def test_a_chain_needs_the_capabilities_of_its_trial() -> None:
    needs = chain(FORK, JOIN, program="F0 1F0 1I0 I0 W0 1W0").needs
    assert {"loss", "mid_stage", "split", "global_state=False", "multi_input", "multi_output"} <= needs
    assert "full" not in needs
    assert "mid_stage" not in chain(MLP, program="F0 B0").needs
    assert "loss" not in chain(MLP, RESIDUAL, program="F0 1F0 1B0 B0", loss=False).needs


@pytest.mark.parametrize(
    "options", [{"program": "F0 B0!"}, {"program": "F0 zero_none B0"}, {"same_args": True}, {"prior_grads": True}]
)
def test_a_chain_refuses_unsupported_actions_and_options(options: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match=r"a chain is a plain pipeline: expected only F, B, I, W and finish"):
        chain(MLP, **{"program": "F0 B0", **options})


@pytest.mark.parametrize("case", CHAINABLE, ids=lambda case: case.name)
def test_a_chainable_stage_accepts_and_returns_rows_of_five_values(case: StageCase) -> None:
    for recipe in case.inputs:
        assert recipe == Normal((7, 5)) or isinstance(recipe, Integers)
    outputs = materials_of(Trial(stages=(case,), program="F0 B0")).example_outputs(0)
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        assert output.shape == (7, 5)
        assert output.requires_grad


def test_a_chain_of_any_length_uses_plain_stages() -> None:
    for stages in (1, 2, 7):
        found = chain_of(stages)
        assert len(found) == stages
        assert all(not case.traits for case in found)


@pytest.mark.parametrize("target", ["autograd", "reference-split"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_right_target_passes_every_schedule(target: str, dtype: str) -> None:
    report = check_stage_backward(target, dtype=dtype, profile="full", checks="schedule.*")
    assert {result.check: result.message for result in report if result.status != "passed"} == {}
    assert len(report.results) >= 27


def test_an_observation_without_steps_has_no_findings() -> None:
    trial = chain()
    evidence = Evidence(References(materials_of(trial)), Capabilities(), (Observation(),), Observation())
    assert list(whole_model(evidence)) == []
