"""The runtimes of other projects that ship: which compositions each passes, fails and does not claim."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradconform.pipeline.training_step.dimensions import DIMENSIONS
from gradconform.pipeline.training_step.runtimes import ENTRY_POINTS, runtime_named
from gradconform.target.resolve import registered

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The package that a runtime drives, and what comes of some of the checks.
EXPECTED: dict[str, tuple[str, dict[str, str]]] = {
    "d9d": (
        "d9d",
        {
            "step.gpipe-sum": "passed",
            "step.ddp": "unsupported",
            "step.zero-bubble-clipped": "passed",
            "step.low-rank-dropout": "passed",
            "step.auxiliary": "passed",
            "step.compiled": "passed",
            "step.lengths": "passed",
            "step.hooked": "passed",
            "step.pairs.interleaved-1f1b-2": "passed",
        },
    ),
    "deepspeed": (
        "deepspeed",
        {
            "step.gpipe-sum": "unsupported",
            "step.ddp": "passed",
            "step.tied-clipped": "failed",  # deepspeed/clipped_by_norm_of_first_stage.py
            "step.compiled": "failed",  # the same
            "step.lengths": "passed",
            "step.ddp-tied": "passed",
            "step.experts": "failed",  # deepspeed/norm_averaged_over_experts.py
            "step.whole-experts": "passed",
            "step.ddp-unreduced": "unsupported",
            "step.pairs.two-replicas-2": "passed",
            "step.pairs.column-row-1": "unsupported",
            "step.pairs.ddp-4": "failed",  # the same, compiled by inductor
        },
    ),
    "fairscale": (
        "fairscale",
        {
            "step.ddp": "unsupported",  # 1F1B
            "step.ddp-tokens": "passed",
            "step.lengths": "unsupported",
            "step.gpipe-unreduced": "passed",
            "step.pairs.ddp-1": "passed",  # two partitions
        },
    ),
    "megatron-core": (
        "megatron",
        {
            "step.gpipe-sum": "unsupported",
            "step.ddp": "passed",
            "step.tied-clipped": "passed",
            "step.autocast": "passed",
            "step.compiled": "passed",
            "step.context": "unsupported",  # its attention over ranks is Transformer Engine's
            "step.experts": "passed",
            "step.lengths": "passed",
            "step.hooked": "passed",
            "step.used-on-one-replica": "passed",
            "step.whole-experts": "passed",
            "step.two-predictions": "passed",
            "step.ddp-predictions": "passed",
            "step.ddp-tied": "passed",
            "step.ddp-unreduced": "passed",
            "step.pairs.interleaved-1f1b-1": "unsupported",  # interleaving over two ranks refuses three micro-batches
            "step.pairs.interleaved-1f1b-2": "passed",
            "step.column-row-clipped": "passed",
            "step.ddp-sequence": "passed",
            "step.ddp-vocabulary": "passed",
            "step.tied-vocabulary": "passed",
            "step.sequence-experts": "passed",
            "step.interleaved-sequence": "passed",
            "step.experts-over-tensor-ranks": "passed",
            "step.pairs.uneven-routing-1": "passed",
            "step.pairs.column-row-1": "passed",  # accumulated
            "step.pairs.hooked-2": "passed",  # accumulated with an evaluation between
            "step.pairs.idle-rank-2": "unsupported",  # its experts need sequence parallelism, also finalized
            "step.used-in-first-step": "unsupported",  # finalized gradients would be reduced twice
            "step.fsdp-evaluated": "unsupported",  # fully_shard with a pipeline
            "step.fsdp-accumulated": "failed",  # megatron_core/fully_sharded_grads_not_finalized.py
            "step.fsdp-used-on-one-replica": "failed",  # the same
            "step.pairs.batch-norm-2": "failed",
            "step.pairs.evaluated-2": "failed",
            "step.pairs.four-replicas-1": "failed",
            "step.pairs.inductor-1": "failed",
            "step.pairs.never-used-1": "failed",
            "step.pairs.tokens-3": "failed",
            "step.pairs.one-stage-5": "passed",  # experts over tensor ranks, with a second loss
            "step.pairs.two-predictions-3": "passed",  # a second loss of a divided head
        },
    ),
}
EXPECTED["nanotron"] = (
    "nanotron",
    {
        "step.plain": "passed",
        "step.ddp-tokens": "passed",
        "step.fsdp-accumulated": "unsupported",
        "step.tied-clipped": "passed",
        "step.compiled": "passed",
        "step.lengths": "passed",
        "step.hooked": "passed",
        "step.column-row-clipped": "passed",
        "step.ddp-tied": "passed",
        "step.ddp-vocabulary": "passed",
        "step.tied-vocabulary": "passed",
        "step.ddp-sequence": "unsupported",
        "step.ddp-predictions": "passed",
        "step.mean-of-predictions": "passed",
        "step.experts": "unsupported",
        "step.pairs.column-row-1": "passed",  # BatchNorm
        "step.pairs.three-mb-3": "unsupported",  # tied weights of two stages would be summed again
        "step.pairs.zeroed-1": "passed",
        "step.pairs.evaluated-first-2": "failed",  # nanotron/validation_requires_grad.py
        "step.pairs.four-replicas-3": "failed",  # the same
        "step.pairs.hooked-2": "failed",
        "step.pairs.sum-2": "failed",
        "step.pairs.tied-1": "failed",
        "step.pairs.tokens-1": "failed",
    },
)
EXPECTED["torchgpipe"] = "torchgpipe", EXPECTED["fairscale"][1]

#: What is said where there is no compiler of C++.
NO_COMPILER = "torch.compile with inductor does not work here: "

#: The scripts that explain what fails, by runtime.
TABLES: dict[str, tuple[Path, dict[str, Any]]] = {
    table["target"]: (path.parent, table)
    for path in sorted(Path(__file__).parent.glob("*/explained.toml"))
    if (table := tomllib.loads(path.read_text(encoding="utf-8")))["target"] in EXPECTED
}
SCRIPTS = [(name, folder / script) for name, (folder, table) in TABLES.items() for script in table["scripts"]]


def _installed(name: str) -> None:
    package = EXPECTED[name][0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: CONTRIBUTING.md says how")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_runtime_gives_its_recorded_results(name: str, tmp_path: Path) -> None:
    _installed(name)
    expected = EXPECTED[name][1]
    command = [sys.executable, "-m", "gradconform", "pipeline", name, "--profile", "standard"]
    done = subprocess.run(
        [*command, "--checks", ",".join(expected), "--json", "report.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    report = json.loads((tmp_path / "report.json").read_text())
    found = {result["check"]: result["status"] for result in report["results"]}
    no_compiler = {result["check"] for result in report["results"] if result["message"].startswith(NO_COMPILER)}
    assert found == {**expected, **dict.fromkeys(no_compiler, "unsupported")}, done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_explains_each_failure_of_a_runtime(name: str) -> None:
    scripts = TABLES[name][1]["scripts"] if name in TABLES else {}
    failed = {check for check, status in EXPECTED[name][1].items() if status == "failed"}
    assert {check for checks in scripts.values() for check in checks} == failed


@pytest.mark.parametrize(("name", "path"), SCRIPTS, ids=[f"{name}-{path.stem}" for name, path in SCRIPTS])
def test_a_script_without_the_kit_shows_the_failures_of_a_runtime(name: str, path: Path) -> None:
    _installed(name)
    table = TABLES[name][1]
    found, version = importlib.metadata.version(table["distribution"]), table["version"]
    if found != version:
        pytest.skip(f"the script tells of {version}, this is {found}; run it to see what was mended")
    assert "gradconform" not in path.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "expected" in done.stdout
    assert "got" in done.stdout


@pytest.mark.filterwarnings("ignore:::megatron")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", EXPECTED)
def test_runtime_claims_are_words_of_the_space(name: str) -> None:
    _installed(name)
    words = {dimension.name: {value.word for value in dimension.values} for dimension in DIMENSIONS}
    for dimension, claimed in runtime_named(name).claims.items():
        assert set(str(claimed).split()) < words[dimension]


def test_every_registered_third_party_runtime_is_tested_here() -> None:
    assert set(registered(ENTRY_POINTS)) == {"reference-runtime", "torch", *EXPECTED}
