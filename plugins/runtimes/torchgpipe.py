"""torchgpipe's ``GPipe``: the registered runtime ``torchgpipe``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

from .piped import PIPED, PipedSession

with needed("torchgpipe", "pip install 'gradconform[torchgpipe]'"):
    from torchgpipe import GPipe


class TorchGpipeRuntime:
    """The runtime of torchgpipe, with all stages in one ``GPipe``."""

    name = "torchgpipe"
    claims = PIPED

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> PipedSession:
        """Return the session of a replica."""
        return PipedSession(stages, spec, GPipe)
