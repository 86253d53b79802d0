"""One stage of a trial, its session, and the tensors that the stage's caller holds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from gradconform.adapter import Adapter, Session, StageSpec, Tree, claims_of
from gradconform.target.layer_swap import noting_swaps
from gradconform.target.named_tensors import NamedTensors
from gradconform.trial.materials import Materials, mean_squares
from gradconform.trial.modes import call_in

from .gradient_hooks import GradientHooks
from .main_grad import clear
from .observation import State
from .process_state import Handed, left_on
from .receive_buffers import ReceiveBuffers
from .upstream_graph import UpstreamGraph
from .watches import HookWatch, LifetimeWatch


class Lane:
    """One stage of the trial, its session, and the caller's tensors: arguments, outputs, gradients.

    ``received`` holds the tensors that it receives into. ``one_grad`` has the output gradients of all micro-batches if
    they are the same. ``buffer`` has the parts of the caller's own buffer that it reads gradients from, by parameter
    name. ``param_grads`` and ``state`` are the copies made after the last action. ``failed`` has the
    micro-batches whose I raised as intended.
    """

    def __init__(self, index: int, stage: nn.Module, adapter: Adapter, materials: Materials, loss_scale: float) -> None:
        trial, actions = materials.trial, materials.trial.actions
        self.index, self.stage, self.named = index, stage, NamedTensors(stage)
        #: Whether its backward starts at a loss.
        self.has_loss = trial.loss_at(index)
        modules = "module_hooks" in trial.watch
        self.hooks = HookWatch(self.stage, modules=modules) if modules or "hooks" in trial.watch else None
        self.altering = GradientHooks(self.stage, trial.altering) if trial.altering else None
        self.lifetime = LifetimeWatch() if "lifetime" in trial.watch else None
        self.args: dict[int, tuple[Any, ...]] = {}
        self.outputs: dict[int, Tree] = {}
        self.output_grads: dict[int, Tree] = {}
        self.returned: dict[int, tuple[Tensor | None, ...]] = {}
        self.handed: dict[int, Handed] = {}
        self.received = ReceiveBuffers()
        self.upstream = UpstreamGraph() if trial.upstream else None
        self.one_grad: Tree = None
        self.failed: set[int] = set()
        self.buffer: Mapping[str, Tensor] = {}
        self.param_grads: Mapping[str, Tensor | None] = {}
        self.state: State | None = None
        self.stopped = self.closed = False
        example = materials.example_args(index, self.stage)
        #: The structure of the stage's outputs, with meaningless tensors in it.
        self.example_outputs = materials.example_outputs(index)
        self._adapter, self._modes, self._device = adapter, trial.modes, materials.device
        self._spec = StageSpec(
            is_first=trial.chain and index == 0,
            is_last=self.has_loss,
            n_microbatches=trial.microbatches(index),
            loss_fn=partial(_scaled_loss, loss_scale) if self.has_loss else None,
            example_args=example,
            example_outputs=self.example_outputs,
            example_target=materials.target(index, 0) if self.has_loss else None,
            args_require_grad=tuple([isinstance(arg, Tensor) and arg.requires_grad for arg in example]),
            repeats_weight=not {a.mb for a in actions if a.kind == "W" and a.misuse}.issubset(trial.raising),
            retain_graph=trial.retain_graph,
            retained=trial.retained,
            releases_outputs=("send", index) in {(action.kind, action.stage) for action in actions},
            kept_lists=trial.kept_lists,
            weights=trial.weights,
        )
        self.session: Session = self._open()

    def _open(self) -> Session:
        with noting_swaps() as self._swaps:
            opened = call_in(self._modes, "open", self._device, partial(self._adapter.open, self.stage, self._spec))
        return cast("Session", opened)  # a trial calls no action that is not claimed

    def reopen(self) -> None:
        """Close the session and open another one on the same module."""
        self.close()
        self.session, self.closed = self._open(), False

    def zero_grads(self, *, set_to_none: bool) -> None:
        """Clear the gradients between two steps, wherever they are."""
        self.stage.zero_grad(set_to_none=set_to_none)
        self.clear_grads_outside_parameters()

    def clear_grads_outside_parameters(self) -> None:
        """Clear the gradients that the session keeps outside ``Parameter.grad``."""
        if not (self.closed or claims_of(self._adapter).grads_in_param_grad):
            clear(self.session)

    def close(self) -> None:
        """Close the session once, whatever it raises, and restore the swapped layers of the stage."""
        if not self.closed:
            self.closed = True
            with self._swaps:
                self.session.close()

    def passed_objects(self) -> dict[str, bool]:
        """Return by name whether each passed object is unchanged, and whether it has hooks."""
        kept = {f"the list of output gradients of micro-batch {mb}": one.unchanged for mb, one in self.handed.items()}
        return kept | left_on(self.args)

    def let_go(self, mb: int) -> None:
        """Free the tensors of one micro-batch that the stage's caller holds."""
        for held in (self.args, self.outputs, self.output_grads, self.returned, self.handed):
            held.pop(mb, None)


def _scaled_loss(scale: float, outputs: Tree, target: Tree) -> Tensor:
    """Return the loss. It stores nothing: an implementation may call it at any time, and on fake tensors."""
    loss = mean_squares(outputs, target)
    return loss if scale == 1.0 else loss * scale
