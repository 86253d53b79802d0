"""PiPPy's stage backward, the ancestor of torch's: the registered target ``torchpippy``."""

from __future__ import annotations

from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, Tree, needed

from .full_only import FULL_ONLY, FullOnlySession, flat

with needed("torchpippy", "pip install 'gradconform[torchpippy]'"):
    from pippy.backward import stage_backward


class TorchPippySession(FullOnlySession):
    """A session that calls ``stage_backward`` as PiPPy's ``PipelineStage`` does."""

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Pass all outputs, in a tuple as PiPPy normalises them, or the loss."""
        args, outputs = self._forwards.pop(mb)
        stage_output = outputs if isinstance(outputs, tuple) else flat(outputs)
        stage_output = stage_output if isinstance(stage_output, tuple) else (stage_output,)
        grads = (None,) if self._spec.loss_fn is not None else flat(output_grads)
        grads = (grads,) if isinstance(grads, dict) else grads
        found, _ = stage_backward(stage_output, grads, list(args), f"of {mb}", list(range(len(stage_output))))
        return tuple(found)


class TorchPippyAdapter:
    """The adapter of PiPPy: it claims plain autograd's full backward; arguments and outputs may be any tree."""

    name = "torchpippy"
    drives = "pippy.backward"
    capabilities = Capabilities(**FULL_ONLY)

    def open(self, stage: nn.Module, spec: StageSpec) -> TorchPippySession:
        """Return a session on ``stage``."""
        return TorchPippySession(stage, spec)
