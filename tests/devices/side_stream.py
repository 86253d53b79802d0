"""A target: the right split backward on a side stream, synchronized as torch requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gradconform.reference import split


def _on_a_side_stream(backward: Callable[..., Any]) -> Callable[..., Any]:
    def issued(*args: Any) -> Any:
        current = torch.accelerator.current_stream()
        side = torch.Stream(current.device)
        side.wait_stream(current)
        with side:
            found = backward(*args)
        current.wait_stream(side)
        for given in tree_leaves((args, found)):
            if isinstance(given, Tensor):
                given.record_stream(current)  # else its memory may be given away while the stream still reads it
        return found

    return issued


stage_backward = _on_a_side_stream(split.stage_backward)
stage_backward_input = _on_a_side_stream(split.stage_backward_input)
stage_backward_weight = _on_a_side_stream(split.stage_backward_weight)
