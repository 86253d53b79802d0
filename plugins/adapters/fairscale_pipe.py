"""fairscale's ``Pipe``: the registered target ``fairscale``."""

from __future__ import annotations

from torch import nn

from gradconform.adapter import Capabilities, StageSpec, needed

from .full_only import PIPED, PipedSession

with needed("fairscale", "pip install 'gradconform[fairscale]'"):
    from fairscale.nn import Pipe


class FairscaleAdapter:
    """The adapter of fairscale: it claims stages with only tensors."""

    name = "fairscale"
    drives = "fairscale.nn.pipe.checkpoint"
    capabilities = Capabilities(**PIPED)

    def open(self, stage: nn.Module, spec: StageSpec) -> PipedSession:
        """Return a session on ``stage``."""
        return PipedSession(stage, spec, Pipe)
