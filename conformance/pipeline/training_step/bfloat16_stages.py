"""Stages that run in bfloat16 while their parameters keep their dtype: each forward rounds the parameters again."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradconform.reference.runtime import LOWER


class _Rounded(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.to(LOWER)


def lowered(stage: nn.Module) -> nn.Module:
    """Make a stage use its parameters and floating arguments in bfloat16; return it.

    Its parameters then have other names, which :func:`name_of` maps back.
    """
    for module in list(stage.modules()):
        for name, _ in list(module.named_parameters(recurse=False)):
            parametrize.register_parametrization(module, name, _Rounded(), unsafe=True)
    stage.register_forward_pre_hook(_round_arguments, with_kwargs=True)
    return stage


def name_of(parameter: str) -> str:
    """Return the earlier name of a parameter."""
    return parameter.replace("parametrizations.", "").removesuffix(".original")


def _round_arguments(
    stage: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    del stage
    return tuple(map(_rounded, args)), {name: _rounded(value) for name, value in kwargs.items()}


def _rounded(value: Any) -> Any:
    return value.to(LOWER) if isinstance(value, Tensor) and value.is_floating_point() else value
