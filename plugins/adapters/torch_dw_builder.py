"""torch's ``PipelineStage`` with a ``dw_builder`` of the stage's own: the registered target ``torch-dw-builder``.

The stage runs a full backward in B and in I, and asks ``dw_builder`` for what that has left to be done. Every
``nn.Linear`` of the stage is swapped for one that leaves its weight's gradient behind, as the layers of who uses a
``dw_builder`` do.
"""

from __future__ import annotations

from torch import nn

from gradconform.adapter import Capabilities, StageSpec
from gradconform.plugins.adapters.torch_stage import CLAIMS, TorchStageSession
from gradconform.reference.deferred_linear import WeightGradStore, swap_back, swap_linears


class TorchDwBuilderSession(TorchStageSession):
    """A ``PipelineStage`` over swapped layers."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Swap the Linears of ``stage``; names stay."""
        self._store = WeightGradStore()
        self._swapped = swap_linears(stage, self._store)
        super().__init__(stage, spec, dw_builder=self._store.take)

    def close(self) -> None:
        """Give the stage its layers back."""
        super().close()
        swap_back(self._swapped)


class TorchDwBuilderAdapter:
    """Claims what ``torch-stage`` claims, but that I writes all but the weights that were left behind."""

    name = "torch-dw-builder"
    drives = "torch.distributed.pipelining.stage"
    capabilities = Capabilities(
        **CLAIMS,
        input_pass_touches_params=True,  # biases, norms, embeddings: I is a full backward
        hooks="early",  # theirs fire in I; those of the weights left behind never do
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> TorchDwBuilderSession:
        """Return a session on ``stage``."""
        return TorchDwBuilderSession(stage, spec)
