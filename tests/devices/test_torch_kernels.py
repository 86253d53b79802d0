"""Torch's wrong CPU kernels, which need no second device to be found: a script of torch alone confirms each."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from gradconform.run.run import check_stage_backward

FOLDER = Path(__file__).with_name("torch_2_13")
#: The kernels that each script confirms, by an operation whose layout check accuses it. No sample shows that of
#: ctc_loss. Finite differences show that of as_strided_scatter, and samples at edges that of median. A backend in
#: Python shows how a process ends.
CONFIRMED = {
    "as_strided_scatter_gradient_of_overwritten": {},
    "batch_norm_weight_read_as_contiguous": {"nn.BatchNorm1d": "aten::native_batch_norm_backward"},
    "ctc_targets_read_as_contiguous": {},
    "group_norm_weight_read_as_contiguous": {"native_group_norm": "aten::native_group_norm"},
    "layer_norm_mean_read_as_contiguous": {"native_layer_norm": "aten::native_layer_norm_backward"},
    "median_of_expanded_reads_past_it": {},
    "mkldnn_rnn_layer_input_read_as_contiguous": {"nn.LSTM": "aten::mkldnn_rnn_layer"},
    "pooling_indices_read_as_contiguous": {
        "nn.functional.adaptive_max_pool3d": "aten::adaptive_max_pool3d_backward",
        "nn.functional.fractional_max_pool2d": "aten::fractional_max_pool2d_backward",
        "nn.functional.fractional_max_pool3d": "aten::fractional_max_pool3d_backward",
    },
    "python_backend_error_ends_process": {},
}
ON_ITS_TORCH = pytest.mark.skipif(
    not torch.__version__.startswith("2.13.0"), reason="the scripts were written for torch 2.13.0"
)


def test_every_script_in_the_folder_is_in_the_list() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CONFIRMED)


@ON_ITS_TORCH
@pytest.mark.parametrize("name", CONFIRMED)
def test_a_script_exits_with_1_and_prints_expected_and_got(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng(devices=[]), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 1, printed
    assert "expected: " in printed
    assert "got: " in printed


@ON_ITS_TORCH
def test_the_kernels_confirmed_by_scripts_fail() -> None:
    confirmed = {entry: kernel for several in CONFIRMED.values() for entry, kernel in several.items()}
    options = {"operation": list(confirmed), "oracle": "layout", "checks": "ops.layout.*", "profile": "quick"}
    report = check_stage_backward("reference-split", **options)
    accused = {result.check.removeprefix("ops.layout."): result.findings[0]["where"] for result in report}
    assert accused == confirmed
    assert {finding["cause"]["kind"] for result in report for finding in result.findings} == {"layout_ignored"}
