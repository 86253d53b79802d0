"""``--gradconform-require-device-execution``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_on_the_cpu_every_operation_runs_on_the_device(judge: Judge) -> None:
    result = judge("--gradconform-require-device-execution=100", checks=("full.gradients.mlp",))
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("given", ["101", "most", "-1", "nan"])
def test_an_invalid_percentage_is_refused(judge: Judge, given: str) -> None:
    result = judge(f"--gradconform-require-device-execution={given}", checks=("full.gradients.mlp",))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*require_device_execution: expected a number from 0 to 100, such as 95; got '{given}'*"]
    )
