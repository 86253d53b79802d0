"""Runs a named stage once to measure its traits, or to find why it cannot be judged."""

from __future__ import annotations

import torch

from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.shown_traits import alike, outputs_twice, shown
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.trees import OpaqueOutputError

from .error import StageError


def traits_of(case: StageCase, description: str) -> frozenset[str]:
    """Return the traits of a stage in float32 or float64; raise if it cannot be judged by its gradients."""
    return frozenset().union(*(_shown(case, dtype, description) for dtype in (torch.float32, torch.float64)))


def _shown(case: StageCase, dtype: torch.dtype, description: str) -> frozenset[str]:
    try:
        with interrupts_seen():
            _refuse(case, dtype, description)
            return shown(case, dtype)
    except StageError:
        raise
    except OpaqueOutputError as error:
        msg = f"{description}: {error}"
        raise StageError(msg) from error
    except BaseException as error:
        pass_on_an_interrupt(error)
        shapes = ", ".join(str(tuple(getattr(recipe, "shape", ()))) for recipe in case.inputs)
        msg = (
            f"{description} failed to run forward and backward in {dtype}, a dtype of its comparison: "
            f"{type(error).__name__}: {error}. Its arguments had the shapes {shapes}"
        )
        raise StageError(msg) from error


def _refuse(case: StageCase, dtype: torch.dtype, description: str) -> None:
    """Raise for a stage without gradients, or with different outputs in two runs."""
    first, second = outputs_twice(case, dtype)
    if not any(output.requires_grad for output in first):
        msg = f"{description}: no output requires a gradient, so there is no backward to judge"
        raise StageError(msg)
    if not all(map(alike, first, second)):
        msg = (
            f"{description} gives different outputs for the same arguments, buffers and seed. Draw random values from "
            "torch's generator, and keep state only in buffers"
        )
        raise StageError(msg)
