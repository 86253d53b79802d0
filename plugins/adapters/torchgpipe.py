"""torchgpipe's ``GPipe``: the registered target ``torchgpipe``."""

from __future__ import annotations

from torch import nn

from gradconform.adapter import Capabilities, StageSpec, needed

from .full_only import PIPED, PipedSession

with needed("torchgpipe", "pip install 'gradconform[torchgpipe]'"):
    from torchgpipe import GPipe


class TorchGpipeAdapter:
    """The adapter of torchgpipe: it claims stages with only tensors."""

    name = "torchgpipe"
    drives = "torchgpipe.checkpoint"
    capabilities = Capabilities(**PIPED)

    def open(self, stage: nn.Module, spec: StageSpec) -> PipedSession:
        """Return a session on ``stage``."""
        return PipedSession(stage, spec, GPipe)
