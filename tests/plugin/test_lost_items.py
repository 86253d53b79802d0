"""A worker of pytest-xdist that crashes: the check it was at is in the report, in both forms."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gradconform.reading.record_file import read_run

Judge = Callable[..., pytest.RunResult]

#: Plain autograd, full backward only, but an abort where the output has four dimensions: on a stage of a convolution.
ABORTS = """
import os
import torch

def stage_backward(stage_output, output_grads, input_values, outputs_with_grads_idxs=None):
    outputs = list(stage_output) if isinstance(stage_output, (tuple, list)) else [stage_output]
    if outputs[0].dim() == 4:
        os.abort()
    torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
    return tuple(value.grad for value in input_values)
"""


@pytest.mark.slow
def test_a_check_that_crashes_its_worker_is_an_environment_error(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(aborts=ABORTS)
    pytester.makepyfile(
        """
        import gradconform

        names = ["full.gradients.conv2d-channels-last", "full.gradients.mlp"]

        @gradconform.parametrize_checks("aborts.py", checks=names)
        def test_ours(check):
            check()
        """
    )
    checks = ("full.gradients.conv2d-channels-last", "full.gradients.mlp", "full.gradients.batch-norm")
    files = ("--gradconform-json=report.json", "--gradconform-ndjson=run.ndjson")
    result = judge("-n2", *files, target="aborts.py", checks=checks)
    assert result.parseoutcomes() == {"failed": 2, "passed": 3}
    for name, planned in (("report.json", 3), ("report-2.json", 2)):
        report = json.loads((pytester.path / name).read_text())
        told = {found["check"]: (found["status"], found["kind"]) for found in report["results"]}
        assert told["full.gradients.conv2d-channels-last"] == ("error", "environment")
        assert list(told.values()).count(("passed", None)) == planned - 1
        assert (report["summary"]["planned"], report["summary"]["not_run"]) == (planned, 0)
    run = read_run(pytester.path / "run.ndjson")
    assert ([place.check for place in run.header.places], run.missing, run.ended) == (sorted(checks), [], True)
    result.stdout.fnmatch_lines(["[[]1] 1 check: the worker process of pytest-xdist ended in the middle of *"])
    assert "isolation is off" not in result.stdout.str()
