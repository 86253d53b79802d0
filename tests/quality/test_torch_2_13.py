"""Each failure that the kit reports on torch 2.13.0 is confirmed by a script that knows torch alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

import gradconform
from gradconform.contract import CHECKS

SCRIPTS = Path(__file__).with_name("torch_2_13")

# Keyed by script, one defect each; the globs are over check ids and name all checks that show it, in float32 as in
# float64. A check that begins to fail without a script is a false alarm until somebody has confirmed it.
EXPLAINED: dict[str, tuple[str, ...]] = {
    "activation_hook_applied_twice.py": ("split.*.linear-hook",),
    "bare_bias_shares_storage.py": ("state.output_grads.bare-bias-split", "state.stored_storage.bare-bias-split"),
    "custom_function_none.py": ("split.*.custom-none-for-weight",),
    "duplicate_input_doubled.py": ("split.*.duplicate-input",),
    "hooks_never_fire_in_w.py": ("hooks.post_accumulate.*-split",),
    "inner_output_detached.py": ("split.gradients.inner-output", "property.split.07"),
    "input_grads_share_storage.py": ("state.returned_storage.sum-of-inputs-split",),
    "merged_groups_counted_twice.py": ("split.*.merged-paths",),
    "module_backward_hook.py": ("hooks.last_module.mlp-split",),
    "no_input_grads_drop_params.py": (
        "property.mixed.0[23]",
        "property.mixed.1[01]",
        "property.mixed.2[18]",
        "property.mixed.34",
        "property.split.3[134]",
        "schedule.chain.embedding-first",
        "split.*.embedding*",
        "split.*.fixed-inputs",
    ),
    "expanded_weight_grad.py": ("split.*.summed-gain",),
    "output_parameter_frozen.py": (
        "property.mixed.35",
        "split.gradients.output-is-weight",
        "state.requires_grad.output-is-*-split",
    ),
    "penalty_output_lost.py": ("split.gradients.penalty-output",),
    "reused_input_changes_returned.py": ("accumulate.reused_input.mixed", "state.returned_same_args.split"),
    "summed_parameters_share_grad.py": ("split.*.two-bare-biases",),
    "transposed_input_grad.py": ("state.returned_layout.transposed-use-split",),
    "vector_loss_read_as_ones.py": ("grad_tuple.absent.split",),
    # What the machine of `gradconform fuzz` finds, and no check: nothing of the contract writes over what is returned.
    "returned_grad_is_parameter_grad.py": (),
    "output_reaches_no_input.py": (
        "property.split.05",
        "property.split.11",
        "property.split.29",
        "property.split.32",
        "split.*.parameter-only-outputs",
        "split.gradients.output-is-parameter",
        "split.gradients.parameter-only-output",
    ),
    "parameter_input_counted_twice.py": ("property.split.12", "split.*.parameter-input"),
    "parameter_input_loses_grad.py": ("full.*.parameter-input", "property.mixed.23"),
    "stale_weight_tuple.py": ("state.weight_result.*",),
    "surplus_output_grads.py": ("grad_tuple.too_long.split",),
    "tied_apart_freed_graph.py": (
        "repeat.graph_builds.looped-block",
        "repeat.graph_builds.tied-apart",
        "split.gradients.looped-block",
        "split.gradients.tied-apart*",
        "split.loss.looped-block",
        "split.loss.tied-apart*",
    ),
    "view_output.py": (
        "property.mixed.07",
        "property.mixed.2[05]",
        "property.mixed.33",
        "property.split.0[03]",
        "property.split.14",
        "property.split.35",
        "split.gradients.linear-3d",
        "split.gradients.output-chunks",
        "split.gradients.output-of-input-view",
        "split.gradients.output-slice",
        "split.gradients.output-transposed",
        "split.gradients.output-unbound",
        "split.gradients.output-view",
    ),
}

ALL = sorted(EXPLAINED)

on_torch_2_13_0 = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != "2.13.0",
    reason=f"the scripts tell of torch 2.13.0, this is {torch.__version__}; run them to see what was mended",
)

# One process for all: importing torch takes longer than all scripts together.
RUN_ALL = """
import contextlib, io, json, runpy, sys, traceback
seen = {}
for path in sys.argv[1:]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(path, run_name="__main__")
            code = "did not call sys.exit"
        except SystemExit as ending:
            code = ending.code
        except BaseException:
            code = traceback.format_exc()
    seen[path] = [code, printed.getvalue()]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def endings() -> dict[str, tuple[object, str]]:
    """Run every script and return its exit code and what it printed, by file name."""
    paths = [str(path) for path in sorted(SCRIPTS.glob("*.py"))]
    done = subprocess.run([sys.executable, "-c", RUN_ALL, *paths], capture_output=True, text=True, check=True)
    return {Path(path).name: (code, printed) for path, (code, printed) in json.loads(done.stdout).items()}


def ids_matching(globs: Sequence[str]) -> set[str]:
    """Return the ids of all checks, of whatever profile, that one of ``globs`` matches."""
    return {check for check in CHECKS for pattern in globs if fnmatchcase(check, pattern)}


@on_torch_2_13_0
@pytest.mark.parametrize("script", ALL)
def test_a_script_shows_its_defect_and_prints_what_is_expected_and_what_is_got(
    script: str, endings: dict[str, tuple[object, str]]
) -> None:
    code, printed = endings[script]
    assert code == 1, printed
    assert "expected" in printed
    assert "got" in printed


@on_torch_2_13_0
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_checks_that_fail_on_torch_are_exactly_those_that_a_script_explains(dtype: str) -> None:
    report = gradconform.check_stage_backward("torch", dtype=dtype)
    failed = {result.check for result in report.failures}
    explained = ids_matching([pattern for globs in EXPLAINED.values() for pattern in globs])
    explained = {check for check in explained if CHECKS[check].profile != "full"}
    assert sorted(explained - failed) == []
    assert sorted(failed - explained) == []
    assert [result.check for result in report.results if result.status == "error"] == []


@on_torch_2_13_0
def test_what_profile_full_probes_beyond_the_claims_accuses_of_nothing_more() -> None:
    report = gradconform.check_stage_backward("torch", profile="full")
    explained = ids_matching([pattern for globs in EXPLAINED.values() for pattern in globs])
    assert {result.check for result in report.failures} - explained == set()


@pytest.mark.parametrize("pattern", [pattern for globs in EXPLAINED.values() for pattern in globs])
def test_a_pattern_of_the_table_matches_checks(pattern: str) -> None:
    assert ids_matching([pattern])


def test_every_script_stands_in_one_table() -> None:
    assert sorted(path.name for path in SCRIPTS.glob("*.py")) == ALL


def test_no_check_is_explained_by_two_scripts() -> None:
    for script, globs in EXPLAINED.items():
        others = [pattern for other, found in EXPLAINED.items() if other != script for pattern in found]
        assert ids_matching(globs).isdisjoint(ids_matching(others)), script


@pytest.mark.parametrize("script", ALL)
def test_a_script_imports_nothing_but_torch_and_the_standard_library(script: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((SCRIPTS / script).read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or ".").partition(".")[0])
    assert "torch" in imported
    assert imported <= {"torch", *sys.stdlib_module_names}


@pytest.mark.parametrize("script", ALL)
def test_a_script_says_in_its_first_sentence_what_is_wrong(script: str) -> None:
    docstring = ast.get_docstring(ast.parse((SCRIPTS / script).read_text())) or ""
    assert docstring.partition("\n")[0].endswith(".")
