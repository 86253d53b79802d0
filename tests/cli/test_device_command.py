"""``gradconform device``: one run of all that can be asked of a device, and one verdict on it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradconform import check_stage_backward
from gradconform.cli import main
from gradconform.report.device_verdict import device_verdict, standing_of_devices
from gradconform.report.page.pages import report_page
from gradconform.report.sections import sections, to_fix
from gradconform.report.to_fix import culprits
from gradconform.results import Report, Result
from gradconform.run import run

Command = Callable[..., Any]

SINGLE = ("--operation", "sin,linalg.cholesky", "--block", "lora", "--setting", "deterministic", "--fault", "overwrite")
FEW = (*SINGLE, "--profile", "quick", "--no-isolation")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_contract_operations_and_blocks_are_one_run_with_one_verdict(command: Command) -> None:
    written = ("--json", "cpu.json", "--ndjson", "cpu.ndjson", "--html", "cpu.html", "--junit", "cpu.xml")
    done = command("device", "cpu", "--dtype", "float32", *FEW, *written)
    assert (done.code, done.err) == (0, "")
    report = json.loads(Path("cpu.json").read_text(encoding="utf-8"))
    records = map(json.loads, Path("cpu.ndjson").read_text(encoding="utf-8").splitlines())
    checks = [record["check"] for record in records if record["record"] == "result"]
    assert sorted(checks) == sorted(result["check"] for result in report["results"])
    areas = {check.partition(".")[0] for check in checks}
    assert areas > {"full", "split", "schedule", "ops", "blocks", "settings", "faults"}
    beside = [
        check.partition(".")[0] for check in checks if check.startswith(("ops.", "blocks.", "settings.", "faults."))
    ]
    assert checks[len(checks) - len(beside) :] == [one for one in checks if one.partition(".")[0] in beside]
    assert list(dict.fromkeys(beside)) == ["ops", "blocks", "settings", "faults"]
    assert done.last == f"cpu is right in all {len(checks)} checks that it supports in float32"
    assert "of contract 1.3, profile quick, and beside it" in done.out
    assert "devices: 1 of 1 right" in done.out
    assert "checks that it supports in float32; 1 of 1 known faults found" in " ".join(done.out.split())
    page = Path("cpu.html").read_text(encoding="utf-8")
    assert "<h1>cpu, by reference-split" in page
    assert f'<p class="verdict good">{done.last}; 1 of 1 known faults found' in page
    assert "kernel calls compared in other layouts" in page
    assert Path("cpu.xml").read_text(encoding="utf-8").count("<testcase") == len(checks)


def test_the_number_of_checks_and_the_expected_time_are_printed_before_the_first_check(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []
    judge = run.judged

    def judged(*arguments: Any) -> Result:
        before.append(capsys.readouterr().out)
        return judge(*arguments)

    monkeypatch.setattr(run, "judged", judged)
    words = ("device", "cpu", "--operation", "sin", "--ndjson", "cpu.ndjson", "--no-isolation")
    assert command(*words).code == 0
    (checks,) = re.findall(
        r"^time      (\d+) checks, about \d+ s with 1 worker\s+\(estimate: ", before[0], re.MULTILINE
    )
    assert int(checks) == len(before)


def test_a_resumed_run_states_the_checks_that_are_left(command: Command) -> None:
    cut = command("device", "cpu", "--operation", "sin", "--ndjson", "cpu.ndjson", "--no-isolation")
    assert cut.code == 0
    lines = Path("cpu.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    ends = [at for at, line in enumerate(lines) if json.loads(line)["record"] == "result"]
    Path("cpu.ndjson").write_text("".join(lines[: ends[1] + 1]), encoding="utf-8")
    done = command("device", "--resume", "cpu.ndjson", "--no-isolation")
    assert f"time      {len(ends) - 2} checks, about " in done.out


@pytest.mark.parametrize(
    ("words", "more", "judged"),
    [
        (("--operation", "sin"), "by default: float32 alone; --dtype all judges more", "in float32"),
        (("--operation", "sin", "--dtype", "all"), "", "in float64, float32, bfloat16, float16"),
    ],
)
def test_the_default_fits_a_slow_device_and_says_how_to_judge_more(
    words: tuple[str, ...], more: str, judged: str, command: Command
) -> None:
    done = command("device", "cpu", *words, "--no-isolation")
    before, last = done.out.splitlines()[-2:]
    assert before.startswith("by default: ") == bool(more)
    assert more in before
    assert judged in f"{last};"


def test_without_options_float32_and_no_known_faults_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: dict[str, Any] = {}
    shown: list[str] = []

    def judge(arguments: argparse.Namespace, *_: object, **__: object) -> SimpleNamespace:
        planned.update(vars(arguments))
        return SimpleNamespace(report=report_of(result("a.b.c")), planned=(), code=0)

    monkeypatch.setattr("gradconform.cli.device.judge", judge)
    monkeypatch.setattr("gradconform.cli.device.write", lambda lines: shown.extend(map(str, lines)))
    assert main(["device", "npu"]) == 0
    assert (planned["dtype"], planned["profile"], planned["operation"]) == ("float32", "quick", "all")
    assert planned["fault"] == "none"
    assert planned["with_contract"]
    assert shown[0] == "by default: float32 alone, no known faults; --dtype all and --fault all judge more"


@pytest.mark.parametrize(
    ("words", "areas"),
    [
        (("--operation", "sin"), {"ops"}),
        (("--block", "lora"), {"blocks"}),
        (("--operation", "sin", "--setting", "deterministic"), {"ops", "settings"}),
        (("--operation", "sin", "--fault", "none"), {"ops"}),
    ],
)
def test_a_named_part_is_planned_alone(words: tuple[str, ...], areas: set[str], command: Command) -> None:
    done = command("device", "cpu", "--dtype", "float32", *words, "--no-isolation", "--json", "cpu.json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(Path("cpu.json").read_text(encoding="utf-8"))
    assert {result["check"].partition(".")[0] for result in report["results"]} == areas
    assert done.last == f"cpu is right in all {len(report['results'])} checks that it supports in float32"


def test_float32_runs_first_and_known_faults_last(command: Command) -> None:
    words = ("--checks", "full.gradients.mlp", "--checks", "ops.full.sin", "--checks", "blocks.full.lora.tiny")
    words += ("--checks", "settings.*", "--checks", "faults.*", "--ndjson", "cpu.ndjson", "--dtype", "all", *FEW)
    assert command("device", "cpu", *words).code == 5
    records = map(json.loads, Path("cpu.ndjson").read_text(encoding="utf-8").splitlines())
    ran = [(one["check"].partition(".")[0], one["dtype"]) for one in records if one["record"] == "result"]
    turns = list(dict.fromkeys((area, dtype if dtype == "float32" else "other") for area, dtype in ran))
    areas = ("full", "ops", "blocks", "settings")
    in_turn = [(area, dtype) for dtype in ("float32", "other") for area in areas]
    assert [one for one in turns if one[0] != "faults"] == in_turn
    assert [area for area, _ in ran].index("faults") == len(ran) - sum(area == "faults" for area, _ in ran)


def test_fault_none_runs_no_fault(command: Command) -> None:
    words = ("--dtype", "float32", *SINGLE[:-2], "--fault", "none", "--no-isolation")
    done = command("device", "cpu", *words, "--json", "cpu.json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(Path("cpu.json").read_text(encoding="utf-8"))
    assert "faults" not in {result["check"].partition(".")[0] for result in report["results"]}
    assert "known faults" not in done.out


def test_fault_none_with_another_fault_is_refused(command: Command) -> None:
    done = command("device", "cpu", *SINGLE[:-2], "--fault", "none,overwrite", "--no-isolation")
    assert done.code == 2
    assert "unknown fault 'none'" in done.err


def test_checks_after_the_time_budget_are_reported_and_resumed(command: Command) -> None:
    words = ("device", "cpu", "--dtype", "float32", "--block", "lora", "--setting", "deterministic", "--no-isolation")
    cut = command(*words, "--time-budget", "0.000001s", "--ndjson", "cpu.ndjson")
    assert cut.code == 5
    assert "--time-budget of 1e-06 s is used up; " in " ".join(cut.out.split())
    assert cut.last.startswith("cpu: no verdict: 0 of ")
    done = command("device", "--resume", "cpu.ndjson", "--no-isolation")
    assert done.code == 0
    assert done.last.startswith("cpu is right in all ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a device, such as cuda, npu:0 or auto"),
        (("cpu", "--time-budget", "10 minutes"), "h; got '10 minutes'"),
        (("cpu", "--time-budget=-5m"), "got '-5m'"),
        (("nosuch",), "device 'nosuch'"),
        (("cpu", "--sizes", "huge"), "unknown sizes 'huge'"),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(command: Command, words: tuple[str, ...], told: str) -> None:
    done = command("device", *words)
    assert done.code in {2, 4}
    assert told in done.err


def test_the_device_command_ignores_the_settings_file_of_run(command: Command) -> None:
    Path("gradconform.toml").write_text('target = "no.such.module"\nstage = ["no.py:stage"]\n', encoding="utf-8")
    assert command("device", "cpu", "--dtype", "float32", "--operation", "sin", "--no-isolation").code == 0


CAUSE = {"kind": "operation_wrong", "names": ["aten::mul", "float32 (3,)", "…"], "text": "aten::mul is wrong by itself"}
FINDING = {
    "kind": "mismatch", "where": "input 0", "action": "B0", "text": "worst at [0]", "sort": "input gradient",
    "raised": None, "headroom": 1e6, "cause": CAUSE, "needs": None, "error": 2.0, "bound": 1e-6,
}  # fmt: skip


def result(check: str, **values: Any) -> Result:
    given = {"status": "passed", "device": "npu", "dtype": "float32", "message": "", "error_ratio": None, **values}
    return Result(check=check, level="MUST", requirement="B MUST", duration_s=0.0, **given)


def wrong(check: str, name: str = "aten::mul", **values: Any) -> Result:
    cause = {**CAUSE, "names": [name, *CAUSE["names"][1:]]}
    return result(check, status="error", kind="device", findings=({**FINDING, "cause": cause},), **values)


def report_of(*results: Result) -> Report:
    made = check_stage_backward("reference-split", checks="full.gradients.mlp")
    made.results[:] = results
    return made


def test_the_operation_failing_most_checks_is_first_with_its_smallest_wrong_size() -> None:
    report = report_of(
        wrong("blocks.full.rms-norm.above-2-15"),
        wrong("blocks.split.rms-norm.above-2-15"),
        result("blocks.full.rms-norm.at-2-15"),
        result("blocks.full.rms-norm.tiny"),
        wrong("blocks.full.swiglu.tiny", "aten::silu"),
        result("full.gradients.mlp"),
    )
    mul, silu = culprits(report)
    assert (mul.name, mul.checks, mul.places) == ("aten::mul", 2, ("npu float32",))
    assert (mul.size, mul.passes) == (3, "blocks.full.rms-norm.at-2-15")
    assert (silu.name, silu.size, silu.passes) == ("aten::silu", 3, "")
    told = device_verdict(report, {"npu": 6})
    assert told.wrong
    assert [str(line) for line in told.lines] == [
        "npu is WRONG in 2 operations: 3 checks of 6 in float32; fix aten::mul first"
    ]


def test_the_size_of_an_operation_is_the_size_of_its_own_arguments() -> None:
    large = {**CAUSE, "names": ["aten::mul", "float32 (1, 513, 64), float32 ()", "…"]}
    small = {**CAUSE, "names": ["aten::mul", "float32 (5, 7)", "…"]}
    findings = tuple({**FINDING, "cause": cause} for cause in (large, small))
    report = report_of(result("blocks.full.mlp.above-2-15", status="error", kind="device", findings=findings))
    (mul,) = culprits(report)
    assert (mul.size, mul.passes) == (35, "")
    (item,) = to_fix(report).items
    assert item.text == "1. aten::mul: 1 check on npu float32; wrong from 35 elements; aten::mul is wrong by itself"


def test_the_size_of_an_operation_is_read_from_its_field_not_from_text() -> None:
    """Only a report without the field, from an earlier gradconform, is read by its shapes."""
    cause = {**CAUSE, "names": ["aten::mul", "float32 (5, 7)", "…"], "elements": 32_832}
    report = report_of(
        result("blocks.full.mlp.above-2-15", status="error", kind="device", findings=({**FINDING, "cause": cause},))
    )
    (mul,) = culprits(report)
    assert mul.size == 32_832


PROBED = {
    "choice": [], "skipped": [], "indices": {"npu": ["npu:0"]},
    "probes": [{"device": "npu:0", "reason": None, "dtypes": {}, "facts": {}, "limits": {}, "preflight": [
        {"requirement": "A MUST", "held": True, "message": ""}, {"requirement": "B MUST", "held": True, "message": ""},
    ]}],
}  # fmt: skip


def test_the_headline_of_a_stopped_run_has_the_pre_flight() -> None:
    nothing = replace(report_of(), devices=PROBED)
    assert [str(line) for line in device_verdict(nothing, {"npu": 5}).lines] == [
        "npu: no verdict: 0 of 5 checks ran; pre-flight 2 of 2"
    ]
    assert [str(one.line) for one in standing_of_devices(nothing)] == [
        "npu:0: no verdict: no check ran; pre-flight 2 of 2"
    ]
    part = replace(report_of(result("a.b.c")), devices=PROBED)
    assert [str(line) for line in device_verdict(part, {"npu": 3}).lines] == [
        f"{RIGHT}; 2 not tried; pre-flight 2 of 2"
    ]


def test_a_tolerated_line_of_the_pre_flight_is_a_note_and_other_lines_are_faults() -> None:
    (probe,) = PROBED["probes"]
    lines = [{**probe["preflight"][0], "held": False}, probe["preflight"][1]]
    told = {}
    for tolerated in (True, False):
        failing = {**probe, "preflight": [{**lines[0], "tolerated": tolerated}, lines[1]]}
        report = replace(report_of(result("a.b.c")), devices={**PROBED, "probes": [failing]})
        verdict = device_verdict(report, {"npu": 1})
        (standing,) = standing_of_devices(report)
        told[tolerated] = (str(verdict.lines[0]), verdict.wrong, standing.right, str(standing.line))
    assert told == {
        True: (RIGHT, False, True, f"{RIGHT}; pre-flight 1 of 2 (1 tolerated)"),
        False: (
            "npu is WRONG in 1 line of its pre-flight and 0 checks of 1 in float32",
            True,
            False,
            "npu is WRONG in 1 line of its pre-flight and 0 checks of 1 in float32; pre-flight 1 of 2",
        ),
    }


def test_a_device_without_a_judged_check_is_not_counted_as_right(command: Command) -> None:
    done = command("device", "cpu", "--dtype", "float32", "--operation", "sin", "--checks", "ops.additive.sin")
    assert "devices: 1 of 1 right" in done.out
    report = replace(report_of(), devices=PROBED, target={"name": "reference-split"}, options={"with_contract": True})
    (section,) = [one for one in sections(report) if one.heading.startswith("devices: ")]
    assert (section.heading, section.role) == ("devices: 1 without a verdict", "warning")


def test_a_device_pre_flight_is_one_text_that_names_indices_only_if_they_differ() -> None:
    (probe,) = PROBED["probes"]
    broken = {
        **probe,
        "device": "npu:1",
        "preflight": [{**probe["preflight"][0], "held": False}, probe["preflight"][1]],
    }
    third = {**probe, "device": "npu:2"}
    texts = {}
    for name, probes in {"alike": [probe, third], "different": [probe, broken, third]}.items():
        indices = {"npu": [one["device"] for one in probes]}
        report = replace(report_of(), devices={**PROBED, "indices": indices, "probes": probes})
        texts[name] = str(device_verdict(report, {"npu": 5}).lines[0]).partition("; pre-flight ")[2]
    assert texts == {
        "alike": "2 of 2",
        "different": "2 of 2 on npu:0, npu:2; pre-flight 1 of 2 on npu:1",
    }


def test_no_section_of_the_page_is_empty() -> None:
    told = replace(report_of(wrong("a.b.c"), result("a.b.d")), devices=PROBED)
    told = replace(
        told, target={**told.target, "name": "reference-split"}, options={**told.options, "with_contract": True}
    )
    page = report_page(told)
    assert "npu is WRONG in 1 operation: 1 check of 2 in float32; fix aten::mul first" in page
    sections = re.findall(r"<h([23])[^>]*>(.*?)</h[23]>\s*(</?\w+)", page, re.DOTALL)
    empty = [
        text
        for level, text, then in sections
        if then in ({"<h2", "<h3", "</section", "</div"} if level == "3" else {"<h2", "</section"})
    ]
    assert empty == []


def test_the_verdict_on_a_device_includes_its_other_facts() -> None:
    more = {"error_ratio": 0.1, "memory": {"peak": 3, "plain_autograd": 2, "undeferred": 2}}
    report = report_of(
        result("full.gradients.mlp", off_device_share=0.25, oracle_spread=1e-7, **more),
        result("full.gradients.lstm", off_device_share=0.0, error_ratio=0.0),
        result("faults.found.overwrite"),
        result("faults.found.doubled", status="error", kind="kit"),
    )
    known = (
        "npu is right in all 3 checks that it supports in float32; 1 could not be judged; 1 of 2 known faults found; "
        "two runs with one seed differ in 1 of 2 checks, by up to 1e-07 of the largest element; 1 check used the CPU "
        "fallback, for up to 25% of their operations; peak memory at most 1.50 times plain autograd's "
        "(full.gradients.mlp)"
    )
    assert [str(one.line) for one in standing_of_devices(report)] == [known]


RIGHT = "npu is right in the 1 check that it supports in float32"
NOTHING = "npu: no verdict: nothing was judged in float32"


@pytest.mark.parametrize(
    ("results", "planned", "said"),
    [
        ([result("a.b.c")], 1, RIGHT),
        (
            [result("a.b.c"), result("a.b.d", status="unsupported"), result("a.b.e", status="error", kind="kit")],
            5,
            f"{RIGHT}; 1 unsupported; 1 could not be judged; 2 not tried",
        ),
        ([result("a.b.d", status="unsupported")], 1, f"{NOTHING}; 1 unsupported"),
        ([result("a.b.c", status="failed", kind="mismatch")], 1, "npu is WRONG in 1 check of 1 in float32"),
    ],
)  # fmt: skip
def test_passed_and_untried_checks_are_counted_on_one_line(results: list[Result], planned: int, said: str) -> None:
    told = device_verdict(report_of(*results), {"npu": planned})
    assert [str(line) for line in told.lines] == [said]
    assert told.wrong == ("WRONG" in said)


def test_each_device_has_its_own_line() -> None:
    made = report_of(result("a.b.c", device="cpu"), wrong("a.b.c"))
    told = device_verdict(made, {"cpu": 2, "npu": 1, "xpu": 3})
    assert [str(line) for line in told.lines] == [
        "cpu is right in the 1 check that it supports in float32; 1 not tried",
        "npu is WRONG in 1 operation: 1 check of 1 in float32; fix aten::mul first",
        "xpu: no verdict: 0 of 3 checks ran",
    ]
