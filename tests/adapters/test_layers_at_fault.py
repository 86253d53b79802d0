"""An adapter that is right on parameters of no layer: what its layers do wrong is a failure of the target."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from gradconform import check_stage_backward
from gradconform.adapter import StageSpec
from gradconform.bench.code.delayed_weights import DelayedSession, delayed
from gradconform.bench.code.rebuilt import StageTarget

CHECKS = ["full.gradients.mlp", "full.gradients.bare-*", "accumulate.in_flight.full"]


class NeverFlushed(DelayedSession):
    """Megatron-DeepSpeed-442: B leaves weight gradients to a store that W alone empties."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Run the backward of the swapped layers, and no W."""
        return self.backward_input(mb, output_grads)


class BlindToParameters(NeverFlushed):
    """Looks for parameter gradients in the wrong place, whatever layers the stage has."""

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return nothing for every name."""
        return dict.fromkeys(self._parameters)


class Renaming(NeverFlushed):
    """Reports the parameters of Linears by names of its own."""

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return other names where a Linear was swapped."""
        swapped = isinstance(self._stage, nn.Linear)
        return {f"inner.{name}" if swapped else name: grad for name, grad in super().param_grads().items()}


class Slipping(NeverFlushed):
    """Raises what wrong code of an adapter raises, where a Linear was swapped."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Read an attribute that no session has."""
        return super().backward(mb, self.absent if isinstance(self._stage, nn.Linear) else output_grads)  # type: ignore[attr-defined] # the slip


class Adapter(StageTarget):
    """An adapter of this file, so that what a session here raises is its own mistake."""

    def __init__(self, session: type[DelayedSession]) -> None:
        """Claim what the mended session claims."""
        super().__init__(session.__name__, session)
        self.capabilities = delayed.capabilities

    def open(self, stage: nn.Module, spec: StageSpec) -> Any:
        """Return a session."""
        return super().open(stage, spec)


def test_weight_gradients_that_b_never_flushes_are_a_target_failure() -> None:
    report = check_stage_backward(Adapter(NeverFlushed), checks=CHECKS)
    assert {result.check: result.status for result in report} == {
        "accumulate.in_flight.full": "failed",
        "full.gradients.bare-bias": "failed",
        "full.gradients.mlp": "failed",
    }
    found = [finding for result in report for finding in result.findings if result.check == "full.gradients.mlp"]
    assert [(finding["kind"], finding["where"], finding["action"]) for finding in found] == [
        ("missing", "0.weight", "B0"),
        ("missing", "2.weight", "B0"),
    ]
    assert found[0]["cause"]["kind"] == "never_accumulated"


@pytest.mark.parametrize(
    ("session", "told"),
    [
        (BlindToParameters, "weight, after B0: expected a tensor of shape (3, 5)"),
        (Renaming, "weight, after B0: expected a tensor of shape (3, 5)"),
        (Slipping, "AttributeError"),
    ],
)
def test_a_wrong_adapter_is_an_adapter_error_at_pre_flight(session: type[DelayedSession], told: str) -> None:
    (result,) = check_stage_backward(Adapter(session), checks="full.gradients.mlp")
    assert (result.status, result.kind) == ("error", "adapter")
    assert "failed its pre-flight (one Linear, one micro-batch, F0 B0): " in result.message
    assert told in result.message


def test_the_fixed_store_passes() -> None:
    assert {result.status for result in check_stage_backward(delayed, checks=CHECKS)} == {"passed"}
