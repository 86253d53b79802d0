"""fairscale's ``Pipe``: the registered target ``fairscale``."""

from __future__ import annotations

from torch import nn

from gradconform.adapter import Capabilities, StageSpec, needed

from .full_only import PIPED, PipedSession

with needed("fairscale", "pip install 'gradconform[fairscale]'"):
    from fairscale.nn import Pipe


class FairscaleAdapter:
    """Claims what a stage of tensors alone can have."""

    name = "fairscale"
    drives = "fairscale.nn.pipe.checkpoint"
    capabilities = Capabilities(**PIPED)

    def open(self, stage: nn.Module, spec: StageSpec) -> PipedSession:
        """Return a session on ``stage``."""
        return PipedSession(stage, spec, Pipe)
