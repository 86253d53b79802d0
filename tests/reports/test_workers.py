"""Waivers and shards in worker processes: the report is that of one process, and a run goes on only as it began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli import main
from gradconform.contract.shard import Shard
from gradconform.reading.report import read_report
from gradconform.results import Report
from gradconform.run.run import check_stage_backward

GLOBS = "split.gradients.list-output,split.gradients.mlp,split.gradients.output-[tv]*"
WAIVERS = """
[[waiver]]
check = "split.gradients.output-view"
verdict = "error"
reason = "known"
issue = "#7"
owner = "ada"
expires = 2999-12-31
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gradconform-waivers.toml").write_text(WAIVERS, encoding="utf-8")


#: Of a result: its time, and its numbers' last bits, which follow where memory lies, as no two processes have it.
OF_A_PROCESS = {"duration_s": 0, "bit_equal": None, "headroom": None, "oracle_spread": None}


def comparable(report: Report) -> Any:
    values = report.to_dict()
    # Another test may have loaded a device into the process that runs this one, or set what torch's backends do.
    values["environment"] = {**values["environment"], "accelerator": None, "backends": None}
    values |= {"made": "", "results": [{**one, **OF_A_PROCESS} for one in values["results"]]}
    return json.loads(json.dumps(values))


def test_workers_give_the_same_report_as_one_process_with_waivers_and_shards() -> None:
    run = ["run", "torch", "--checks", GLOBS, "--shard", "2/2", "--json", "run.json", "--ndjson", "run.ndjson"]
    assert main([*run, "--workers", "2"]) in {1, 5}
    options = {"checks": GLOBS.split(","), "shard": Shard(2, 2), "waivers": "gradconform-waivers.toml"}
    library = check_stage_backward("torch", **options)  # type: ignore[arg-type] # one mapping of options of several types
    assert comparable(read_report("run.json")) == comparable(library)
    assert {"waived", "passed"} <= {result.status for result in library.results}


def test_a_run_is_resumed_only_with_its_original_waivers(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "torch", "--checks", "split.gradients.output-view", "--no-isolation"]
    assert main([*run, "--ndjson", "run.ndjson"]) == 5
    Path("gradconform-waivers.toml").write_text(WAIVERS.replace("ada", "eve"), encoding="utf-8")
    capsys.readouterr()
    assert main(["run", "--no-isolation", "--resume", "run.ndjson"]) == 2
    assert "waivers" in capsys.readouterr().err
