"""Selects the checks on operations, and those by oracles on them; a plan file keeps the measured samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gradconform.fixtures.operations.measured import MeasuredError, to_json
from gradconform.run.in_short import device_as_a_whole, device_in_short, operations_in_short
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected
from gradconform.user_input.values import SelectionError

from . import oracle_checks
from .oracles import OperationOracles
from .plan_file import PlanFileError, plan_file
from .selected import OnOperations, select_checks

#: The number of an operation's samples that are judged in a stage if each is judged alone on the device.
IN_STAGES = 2


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return the checks on the operations and by the oracles that the options name.

    Raises :class:`~gradconform.user_input.values.SelectionError` for oracles without operations and for a name that
    torch does not list, and :class:`PlanFileError` for a file of ``--plan`` that does not fit.
    """
    if not options.operation:
        if options.oracle:
            msg = "--oracle requires operations, and none is selected; add --operation NAME, or --operation all"
            raise SelectionError(msg)
        return Selected(checks=())
    in_short, of_device = operations_in_short(options.profile, options.operation), device_in_short(options)
    whole = device_as_a_whole(options)
    alone = whole and options.profile != "full"
    selected = _on_operations(options, measured, in_turn=in_short or whole, in_stages=IN_STAGES if alone else None)
    checks = [replace(check, cpu_only=of_device) for check in selected.checks]
    lines = [f"operations: {selected.description}"]
    if options.oracle:
        by_oracles = oracle_checks.select_checks(options.oracle, selected, in_short=in_short, whole=whole, alone=alone)
        checks += by_oracles.checks
        lines.append(f"oracles: {by_oracles.description}")
    return Selected(checks=checks, lines=tuple(lines), measured=to_json(selected.outcomes))


def _on_operations(
    options: RunOptions, measured: Mapping[str, Any] | None, *, in_turn: bool, in_stages: int | None
) -> OnOperations:
    """Return the checks on operations; results not in ``measured`` are read from the plan file, or measured."""
    if measured is not None:
        return select_checks(options.operation, options.profile, measured, in_turn=in_turn, in_stages=in_stages)
    with plan_file(options.plan, options.profile) as file:
        select = partial(
            select_checks, options.operation, options.profile, in_turn=in_turn, in_stages=in_stages, keep=file.keep
        )
        try:
            return select(file.known)
        except MeasuredError as error:
            if options.plan is not None:
                msg = f"--plan {options.plan}: {error}"
                raise PlanFileError(msg) from error
            return select()


def engine(options: RunOptions, device: torch.device, dtype: torch.dtype) -> OperationOracles:
    """Return the judge of the checks by oracles."""
    return OperationOracles(device, dtype, options.seed)
