"""A section of a report is computed once, and told by the terminal, the page and Markdown alike."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

from gradconform.contract import checks_of
from gradconform.report import sections
from gradconform.report.by_cause import FailureGroup, by_cause
from gradconform.report.clauses import GAP, Clause, clause_of
from gradconform.report.page.pages import report_markdown, report_page
from gradconform.report.sections import Item, Section
from gradconform.report.terminal import closing
from gradconform.results import Report, Result, Status
from tests.quality.written import mistakes_in


def layouts(report: Report) -> list[str]:
    """Return the report as each layout tells it, white space made alike."""
    lines = "\n".join(map(str, closing(report, 100)))
    return [" ".join(made.split()) for made in (lines, report_page(report), report_markdown(report))]


def test_every_layout_shows_every_section_with_its_heading(real: Report) -> None:
    failed = [result for result in real.results if result.status == "failed"]
    waiver = {"reason": "known", "issue": "#7", "owner": "ada", "expires": "2027-01-31"}
    cause = {"kind": "operation_wrong", "names": ["aten::mul", "float32 (3,)", "…"], "text": "aten::mul is wrong"}
    changes = (
        {"status": "error", "kind": "device", "findings": ({**failed[0].findings[0], "cause": cause},)},
        {"status": "error", "kind": "kit", "findings": ()},
        {"level": "SHOULD"},
        {"status": "waived", "waiver": waiver},
        {"status": "unexpectedly_passed", "waiver": waiver},
        {"status": "unsupported", "findings": ()},
        {"status": "unsupported", "kind": "withheld", "findings": ()},
        {"level": "MUST"},
        {
            "status": "passed",
            "findings": (),
            "check": "ops.full.sin",
            "as_it_is": "failed",
            "imprecise": {"aten::sin": 9},
        },
        {
            "status": "passed",
            "findings": (),
            "check": "ops.layout.sin",
            "oracle": {"compared": 9, "tried": ["aten::sin"], "not_tried": {}},
        },
    )
    results = [replace(failed[0], **{"check": f"a.b.{n}", **change}) for n, change in enumerate(changes)]
    of_devices = {
        "target": {**real.target, "name": "reference-split"},
        "options": {**real.options, "with_contract": True},
    }
    report = replace(real, results=results, **of_devices)
    found = sections.sections(report)
    # What is wrong on the device is a fault of it, to be mended, and the standing of the device; what passed is an
    # operation, imprecise, and mended in torch.
    of_operations = 2  # which one function of SECTIONS yields, as those of every source
    assert len(found) == len(sections.SECTIONS) - 1 + of_operations == len(changes) + 4
    for made in layouts(report):
        # The page leaves out a section of which the headline has said every line.
        untold = [section for section in found if section.heading not in made]
        assert [section.heading for section in untold if section.causes] == []
        assert [item.text for section in untold for item in section.items if item.text not in unescape(made)] == []


def test_every_layout_shows_an_added_section(real: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def last(report: Report) -> Section:
        result = [result for result in report.results if result.level == "MUST"][-1]
        return Section(heading="the last check", items=(Item(text=f"{result.level} {result.dtype}"),))

    def first(report: Report) -> Section:
        return Section(heading="the first check", note="It comes first.", causes=tuple(by_cause(report.results[:1])))

    monkeypatch.setattr(sections, "SECTIONS", (last, first))
    for made in layouts(real):
        assert "the last check" in made
        assert "MUST float32" in made
        assert "the first check" in made
        assert "It comes first." in made


def test_the_smallest_result_has_fewest_actions_then_shortest_stage_then_first_id(
    real: Report,
) -> None:
    def of(check: str, *programs: str, on: str = "mlp") -> Result:
        return replace(real.results[0], check=check, programs=programs, requirement=f"I MUST, on the stage {on}.")

    unknown, long, special = of("a"), of("b", "F0 B0", "F0 B0 F1 B1"), of("c", "F0 I0 W0", on="a special one")
    first, second = of("d", "F0 B0 finish"), of("e", "F0 B0 finish")
    assert FailureGroup("wrong", (unknown, long, special, second, first)).smallest == first
    assert FailureGroup("wrong", (unknown, long, special)).smallest == special
    assert FailureGroup("wrong", (unknown, long)).smallest == long
    assert FailureGroup("wrong", (unknown,)).smallest == unknown


def test_shared_parts_of_requirements_are_printed_once_and_programs_stay_whole() -> None:
    found = clause_of(["B MUST be right in F0 B0 on a.", "B MUST be right in F0 B0 F1 B1 on b."])
    assert found == Clause("B MUST be right in …", ("F0 B0 on a", "F0 B0 F1 B1 on b"))
    words = clause_of(["B MUST be right in F0 send0 B0 now.", "B MUST be right in F0 send0 I0 now."])
    assert words == Clause("B MUST be right in … now.", ("F0 send0 B0", "F0 send0 I0"))
    middle = clause_of(["B MUST be right in F0 B0 on the stage.", "B MUST be right in F1 B0 on the stage."])
    assert middle == Clause("B MUST be right in … on the stage.", ("F0 B0", "F1 B0"))
    apart = ("B MUST be right.", "W SHOULD be fast.")
    assert clause_of(apart) == Clause("", apart)
    assert clause_of(["B MUST be right"]) == Clause("", ("B MUST be right",))
    brackets = clause_of(["B MUST be right, in F0 … B0 (17 actions).", "B MUST be right, in F0 … W0 (23 actions)."])
    assert brackets == Clause("B MUST be right, in …", ("F0 … B0 (17 actions)", "F0 … W0 (23 actions)"))
    noun = clause_of(["B MUST be right on a (the one).", "B MUST be right on the other (two)."])
    assert noun == Clause("B MUST be right on …", ("a (the one)", "the other (two)"))


def test_no_topic_of_the_contract_is_cut_in_brackets_or_after_an_article() -> None:
    topics: dict[str, dict[str, None]] = {}
    for check in checks_of().values():
        topics.setdefault(check.id.rpartition(".")[0], {})[check.requirement] = None
    clauses = [clause_of(list(topic)) for topic in topics.values()]
    assert sum(bool(clause.shared) for clause in clauses) > 20
    texts = [text for clause in clauses if clause.shared for text in (clause.shared.replace(GAP, ","), *clause.own)]
    assert [mistake for text in texts for mistake in mistakes_in(text)] == []


def test_with_the_right_split_in_torch_fixed_and_remaining_failures_are_listed(real: Report) -> None:
    def of(check: str, as_it_is: Status, status: Status, of_runtime: bool | None = None) -> Result:  # noqa: FBT001 (a field)
        found = () if status == "passed" else real.failures[0].findings
        told = {"check": check, "status": status, "as_it_is": as_it_is, "of_runtime": of_runtime, "findings": found}
        return replace(real.failures[0], **told)

    results = [
        of("step.ddp-zero-bubble", "failed", "passed"),
        of("step.batch-norm", "failed", "failed", of_runtime=True),
        of("step.plain", "passed", "failed", of_runtime=False),
        of("step.ddp", "passed", "passed"),
    ]
    report = replace(real, results=results, extra=("training steps",), manifest=4, planned=4)
    text = " ".join(" ".join(map(str, closing(report, 100))).split())
    assert "the right split in torch: 1 of 2 failures gone" in text
    assert "1 wrong with torch, right with the right split: step.ddp-zero-bubble" in text
    assert "also wrong with plain autograd as I and W, a fault of torch's runtime: step.batch-norm" in text
    assert "wrong with the right split, right with plain autograd as I and W: step.plain" in text
    assert "2 of 4 checks failed, 1 by torch's runtime itself; no verdict" in text
    told = closing(replace(report, results=results[:2], manifest=2, planned=2), 100)[-1]
    assert "1 of 2 checks failed, all by torch's runtime itself; no verdict" in str(told)


def test_unclaimed_checks_have_a_line_per_claim_not_per_combination(real: Report) -> None:
    lacking = [("split",), ("split",), ("split", "mixed"), ("edge_roots", "split"), ("edge_roots", "mixed", "split")]
    results = [
        Result(
            check=f"a.b.{number}", level="MUST", device="cpu", dtype="float32", status="unsupported",
            requirement="It MUST.", message=f"not claimed: {', '.join(claims)}", unclaimed=claims,
        )
        for number, claims in enumerate(lacking)
    ]  # fmt: skip
    (section,) = sections.sections(replace(real, results=results))
    assert [f"{item.number}  {item.text}" for item in section.items] == [
        "5  not claimed: split; 2 need only this",
        "2  not claimed: mixed; none needs only this",
        "2  not claimed: edge_roots; none needs only this",
    ]
