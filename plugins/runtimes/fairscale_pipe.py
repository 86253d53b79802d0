"""fairscale's ``Pipe``: the registered runtime ``fairscale``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

from .piped import PIPED, PipedSession

with needed("fairscale", "pip install 'gradconform[fairscale]'"):
    from fairscale.nn import Pipe


class FairscaleRuntime:
    """The runtime of fairscale, with all stages in one ``Pipe``."""

    name = "fairscale"
    claims = PIPED

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> PipedSession:
        """Return the session of a replica."""
        return PipedSession(stages, spec, Pipe)
