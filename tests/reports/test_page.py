"""``gradconform report``: the page of a run, or of several, has all that reports say, and none of it takes effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli import main
from gradconform.contract.frozen import frozen
from gradconform.report.page.pages import report_markdown, report_page, runs_markdown, runs_page, side_by_side
from gradconform.report.page.rows import ReportedResult, reported_result
from gradconform.report.page.topics import by_topic
from gradconform.report.sentences import command_again
from gradconform.results import Report, Result
from gradconform.text.findings import finding_line

TIED, MLP = "split.gradients.tied-apart", "full.gradients.mlp"

#: Markup of every sort, in text that somebody else writes: a target, a message, a waiver, an environment.
MARKUP = "</script><img src=x onerror=alert({0})>\"'&amp;`{{{{7*7}}}}`</pre><b>{0}"


class Page(HTMLParser):
    """The elements, ids and text of a page, read as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.shown = ""
        self.rows = dict(rows_in(text))
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.shown += "\n" if tag == "br" else ""
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.shown += data

    @property
    def ids(self) -> list[str]:
        return [str(value) for name, value in self.attributes if name == "id"]


#: A row of the list of checks: one with details, or one line.
ROW = re.compile(
    r"<details[^>]*><summary>(?P<details>.*?)</details>"
    r"|^<p(?: data-[^>]*)?>(?P<line>.*?)(?=^</?details|^<p)",
    re.DOTALL | re.MULTILINE,
)


def rows_in(page: str) -> Iterator[tuple[str, str]]:
    """Yield the id of each row, which the page's script makes of topic and name, and the text after it."""
    for topic in page.partition('<div id="rows">')[2].split('<details class="topic"')[1:]:
        of_topic = unescape(topic.partition("<span>")[2].partition("</span>")[0])
        for row in ROW.finditer(topic):
            name, _, rest = (row["details"] or row["line"]).partition(" <")
            case = unescape(name)
            yield of_topic + case if case.startswith(".") else case, unescape(re.sub(r"<[^>]*>", "", f"<{rest}"))


def spoiled(value: Any, seen: list[str]) -> Any:
    """Return JSON values with markup in place of every text, each with a number of its own."""
    if isinstance(value, str):
        seen.append(MARKUP.format(len(seen)))
        return seen[-1]
    if isinstance(value, dict):
        return {name: spoiled(inner, seen) for name, inner in value.items()}
    return [spoiled(inner, seen) for inner in value] if isinstance(value, (list, tuple)) else value


def spoiled_report(report: Report) -> tuple[Report, list[str]]:
    """Return a report with a waived failure whose free texts are all markup, and these texts."""
    seen: list[str] = []
    entry = {
        "check": "",
        "verdict": [""],
        "reason": "",
        "issue": "",
        "owner": "",
        "expires": "",
        "when": {"device": ""},
    }
    entry = spoiled(entry, seen)
    failed = next(result for result in report.failures if result.findings)
    texts = spoiled({"check": "", "device": "", "requirement": "", "message": "", "kind": ""}, seen)
    texts["findings"] = tuple(spoiled(dict(finding), seen) for finding in failed.findings[:1])
    results = [replace(failed, **texts), replace(failed, **texts | {"device": "x"}, status="waived", waiver=entry)]
    environment = {**report.environment, "variables": {MARKUP.format("key"): "value"}}
    found = replace(
        report,
        results=results,
        target=spoiled(dict(report.target), seen),
        environment=spoiled(environment, seen),
        extra=tuple(spoiled(["one"], seen)),
        kit=spoiled("", seen),
        devices=devices_of(lambda: spoiled("", seen)),
        waivers={"file": spoiled("", seen), "sha256": "0" * 64, "entries": [entry], "elsewhere": []},
    )
    return found, seen


def devices_of(text: Callable[[], str]) -> dict[str, Any]:
    """Return what a report has of devices, of one that is not all right and one that is left out."""
    preflight = [
        {"requirement": text(), "held": False, "message": text()},
        {"requirement": "a line that holds", "held": True, "message": ""},
    ]
    probe = {"device": text(), "reason": None, "unknown": False, "dtypes": {"float16": text()}, "preflight": preflight}
    unusable = {"device": text(), "reason": text(), "unknown": True, "dtypes": {}, "preflight": [], "facts": {}}
    skipped = {"device": text(), "dtype": text(), "reason": text()}
    return {"probes": [probe | {"facts": {}}, unusable], "skipped": [skipped], "indices": {}}


def words_of(text: str) -> set[str]:
    """Return the words of a sentence; names are told with what they mean elsewhere."""
    return set(re.findall(r"\w+", text))


def test_a_page_shows_the_verdict_counts_and_every_check(real: Report) -> None:
    page = Page(report_page(real))
    assert "does NOT conform" in page.shown
    assert f"{real.summary['ran']} of {real.manifest} checks of contract" in page.shown
    assert "gradconform replay CHECK torch" in page.shown
    for result in real.results:
        assert page.rows[result.check].startswith(("SHOULD " if result.level == "SHOULD" else "") + result.status)
        assert words_of(result.requirement) <= words_of(page.shown)
    for result in real.failures:
        assert all(str(finding["where"]) in page.rows[result.check] for finding in result.findings)
        assert all(_shown(str(finding["text"]), page.shown) for finding in result.findings)
        assert all(finding["cause"] is None or finding["cause"]["text"] in page.shown for finding in result.findings)
        assert str(command_again(real, result)).replace(f" {result.check} ", " CHECK ") in page.shown
    for area in {result.check.partition(".")[0] for result in real.results}:
        of_area = [result for result in real.results if result.check.startswith(f"{area}.")]
        passed = sum(result.status == "passed" for result in of_area)
        assert f"{passed} of {len(of_area)} passed" in page.shown
    assert str(real.environment["torch"]) in page.shown
    assert len(page.ids) == len(set(page.ids))


def _shown(text: str, shown: str) -> bool:
    """Return whether a finding is on a page: word for word, or its numbers in columns, with fewer digits."""
    numbers = re.sub(r", (?=\d+[],])", ",", text)
    found = re.search(r"at (\S+): expected (\S+), got (\S+); .*error/bound (\S+)", numbers)
    if text in shown or found is None:
        return text in shown
    place, expected, got, ratio = found.groups()
    short = [f"{float(expected):.4g}", f"{float(got):.4g}"]
    return any("\t".join([place, *values, ratio]) in shown for values in (short, [expected, got]))


def numbers(count: int, cause: str | None = None) -> Result:
    """Return a failed result with as many wrong tensors."""
    text = "worst at [3, 0]: expected -0.12, got -0.33; error 0.214, bound 9.54e-07, error/bound 3.12e+05"
    finding = {
        "kind": "mismatch", "action": "W0", "text": text, "error": 0.214, "bound": 9.54e-07, "headroom": 312000.0,
        "cause": cause and {"kind": "added", "text": cause}, "raised": None, "needs": None,
        "sort": "parameter gradient",
    }  # fmt: skip
    findings = tuple({**finding, "where": f"{number}.weight"} for number in range(count))
    return Result(
        check="split.gradients.mlp", level="MUST", device="cpu", dtype="float32", status="failed", requirement="MUST",
        message="\n".join(["program F0 I0 W0", *map(finding_line, findings)]), programs=("F0 I0 W0",),
        findings=findings, kind="mismatch",
    )  # fmt: skip


def test_wrong_values_are_lines_of_columns_and_a_shared_cause_is_told_once(real: Report) -> None:
    reported = reported_result(real, numbers(2, "micro-batch 0 added as well"))
    assert reported.numbers.splitlines()[0] == "0.weight\tW0\t[3,0]\t-0.12\t-0.33\t3.12e+05"
    assert reported.message == "all likely cause: micro-batch 0 added as well"


def test_a_single_wrong_value_is_a_sentence(real: Report) -> None:
    reported = reported_result(real, numbers(1))
    assert (reported.numbers, reported.message) == ("", finding_line(reported.result.findings[0]))


def test_of_many_wrong_values_the_later_ones_have_names_alone(real: Report) -> None:
    result = numbers(200)
    larger = {**result.findings[7], "text": str(result.findings[7]["text"]).replace("3.12e+05", "4.5e+06")}
    result = replace(result, findings=(*result.findings[:7], larger, *result.findings[8:]))
    lines = reported_result(real, result).numbers.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("and 195 more, error/bound 3.12e+05 to 4.5e+06: 5.weight W0, 6.weight, 7.weight")
    assert lines[-1].endswith("24.weight, and 175 more")


def test_a_later_wrong_value_repeats_neither_its_module_nor_its_action(real: Report) -> None:
    result = numbers(8)
    names, actions = ("layers.0", "layers.1", "layers.0"), ("W0", "W0", "W1")
    later = [
        {**one, "where": name, "action": action}
        for one, name, action in zip(result.findings[5:], names, actions, strict=True)
    ]
    last = reported_result(real, replace(result, findings=(*result.findings[:5], *later))).numbers.splitlines()[-1]
    assert last == "and 3 more, error/bound 3.12e+05: layers.0 W0, .1, layers.0 W1"


def digits(*, expected: str, got: str) -> list[str]:
    """Return the expected and the actual number as a page shows them."""
    result = numbers(2)
    text = str(result.findings[0]["text"]).replace("-0.12", expected).replace("-0.33", got)
    found = tuple({**one, "text": text} for one in result.findings)
    line = replace(result, findings=found)
    return ReportedResult(result=line, command=None, script=None, programs=()).numbers.splitlines()[0].split("\t")[3:5]


def test_a_wrong_value_has_as_many_digits_as_tell_it_from_the_right_one() -> None:
    assert digits(expected="-3.45747519", got="-0.83012253") == ["-3.457", "-0.8301"]
    assert digits(expected="3.45747519", got="3.4574749") == ["3.45747519", "3.4574749"]
    assert digits(expected="1+2j", got="1.5+2j") == ["1+2j", "1.5+2j"]


def test_the_columns_of_numbers_are_explained_where_there_are_any(real: Report) -> None:
    told = "The columns of a wrong tensor are its name"
    assert told in Page(report_page(replace(real, results=[*real.results, numbers(2)]))).shown
    assert told not in Page(report_page(replace(real, results=real.results[:1]))).shown


def test_a_page_shows_date_commit_and_duration(real: Report) -> None:
    results = [replace(real.results[0], duration_s=1.25), replace(real.results[1], duration_s=2.5)]
    target = {**real.target, "commit": "0123456789ab-dirty"}
    report = replace(real, results=results, target=target, made="2026-11-25T15:07:31+00:00")
    for told in (Page(report_page(report)).shown, report_markdown(report)):
        assert re.search(r"2026-11-25 15:07 UTC( ·|,) commit 0123456789ab-dirty( ·|,) checks took 3\.8 s", told)
    older = replace(report, made=None, target={name: one for name, one in target.items() if name != "commit"})
    assert "UTC" not in report_page(older)


def test_a_failure_has_its_command_after_the_terminal_s_word(real: Report) -> None:
    shown = " ".join(Page(report_page(real)).shown.split())
    assert f"reproduce {command_again(real, real.failures[0])}" in shown


def test_a_check_with_another_reproduce_command_shows_that_command(real: Report) -> None:
    quiet = [result for result in real.results if result.status == "passed"][:3]
    quoted = replace(quiet[0], check="full.gradients.a b")
    page = Page(report_page(replace(real, results=[quoted, *quiet[1:]])))
    assert page.shown.count("gradconform replay CHECK torch") == 1
    assert str(command_again(real, quoted)) in page.shown
    assert str(command_again(real, quiet[1])) not in page.shown


def test_a_page_of_a_run_of_profile_standard_is_small(real: Report) -> None:
    contract = frozen(real.contract)
    assert contract is not None
    every = [check for check in contract.checks.values() if check.profile != "full"]
    failed, passed = real.failures[0], next(result for result in real.results if result.status == "passed")
    results = [
        replace(
            failed if number % 10 == 0 else passed,
            check=check.id,
            requirement=check.requirement,
            programs=check.programs,
        )
        for number, check in enumerate(every)
    ]
    assert len(results) > 1000
    assert len(report_page(replace(real, results=results)).encode()) < 400_000


def test_rows_repeat_neither_their_topic_nor_a_likely_cause(real: Report) -> None:
    why = "only micro-batch 1: overwritten instead of accumulated"
    failed = [replace(numbers(3, why), check=f"split.loss.case-{number}") for number in range(40)]
    page = report_page(replace(real, results=failed))
    rows = page.partition('<div id="rows">')[2]
    assert (rows.count(why), rows.count("split.loss"), rows.count("all cause-1\n")) == (0, 1, 40)
    assert f"<dt>cause-1<dd>likely cause: {why}\n" in page
    assert {f"split.loss.case-{number}" for number in range(40)} == Page(page).rows.keys()


def test_check_ids_of_one_topic_have_its_name_once() -> None:
    ids = ["full.loss.mlp", "split.loss.chunks", "alone", "split.loss.tied"]
    assert by_topic(ids) == "full.loss.mlp split.loss.{chunks tied} alone"


def test_a_page_loads_no_external_resource(real: Report) -> None:
    page = Page(report_page(real))
    links = [str(value) for name, value in page.attributes if name in {"src", "href", "action", "xlink:href"}]
    assert links
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert {"img", "iframe", "object", "embed", "base"}.isdisjoint(page.tags)


def test_the_first_wrong_action_is_marked_in_the_program(real: Report) -> None:
    failed = next(result for result in real.failures if result.findings)
    action = str(failed.findings[0]["action"])
    page = report_page(replace(real, results=[failed]))
    # In the cause, and in the check.
    assert re.findall(r"<mark>([^<]+)</mark>", page) == [action, action]
    passed = next(result for result in real.results if result.status == "passed")
    assert "<mark>" not in report_page(replace(real, results=[passed]))


def test_a_cause_shows_its_count_reason_smallest_program_and_command(real: Report) -> None:
    failed = next(result for result in real.failures if result.findings and result.findings[0]["cause"])
    longer = replace(failed, check="a.longer.one", programs=(f"{failed.programs[0]} finish",))
    page = Page(report_page(replace(real, results=[longer, failed])))
    cause = page.shown.partition("failed MUST")[2].partition("all 2")[0]
    assert "2 checks" in cause
    assert f"likely cause: {failed.findings[0]['cause']['text']}" in cause
    assert failed.check in cause
    assert longer.check not in cause
    assert str(command_again(real, failed)) in cause


def test_failed_checks_of_an_area_get_their_share_of_the_bar(real: Report) -> None:
    passed, failed = real.results[0], real.failures[0]
    results = [replace(passed, check=f"big.a.{number}", status="passed", findings=()) for number in range(197)]
    results += [replace(failed, check=f"big.b.{number}") for number in range(9)]
    page = report_page(replace(real, results=results))
    bar = page.partition('<th scope="row">big</th>')[2].partition("</td>")[0]
    assert re.findall(r'class="s-(\w+)" style="flex-grow:(\d+)"', bar) == [("passed", "197"), ("failed", "9")]


def test_an_action_outside_the_program_is_shown_as_text(real: Report) -> None:
    failed = next(result for result in real.failures if result.findings)
    finding = {**failed.findings[0], "action": "close"}
    page = report_page(replace(real, results=[replace(failed, findings=(finding,))]))
    assert "<mark>" not in page
    assert "First wrong action: <code>close</code>" in page


def test_markup_in_a_report_is_shown_as_text(real: Report) -> None:
    report, texts = spoiled_report(real)
    for made in (report_page(report), runs_page(side_by_side([report, replace(report, seed=report.seed + 1)]))):
        page = Page(made)
        assert {"img", "b-"}.isdisjoint(page.tags)
        assert page.tags.count("script") == 1
        assert [name for name, _ in page.attributes if name.startswith("on")] == []
        assert "49" not in re.findall(r"`(\d+)`", page.shown)
    shown = Page(report_page(report)).shown
    # The rest of a finding is told by the message, which is made of it.
    of_finding = {str(report.results[0].findings[0][name]) for name in ("kind", "where", "text", "sort")}
    of_finding |= set(_texts(report.results[0].findings[0]["cause"]))
    assert {text for text in texts if text not in shown} <= of_finding


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif value is not None:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def test_text_of_a_report_has_no_effect_in_markdown(real: Report) -> None:
    report, _ = spoiled_report(real)
    for made in (report_markdown(report), runs_markdown(side_by_side([report, replace(report, seed=1)]))):
        outside = re.sub(r"^(`{3,})\w+\n.*?^\1$", "", made, flags=re.DOTALL | re.MULTILINE)
        assert "<img" not in outside
        assert "</script>" not in outside
        assert outside.count("<details>") == outside.count("</details>")


def test_a_lone_surrogate_can_be_written(real: Report, tmp_path: Path) -> None:
    report = replace(real, results=[replace(real.results[0], message="\ud800 and \x00", status="error", kind="kit")])
    written = tmp_path / "page.html"
    written.write_text(report_page(report), encoding="utf-8")
    assert "\\ud800 and \\x00" in Page(written.read_text(encoding="utf-8")).shown


def test_a_user_schedule_shows_its_program_and_no_command(real: Report) -> None:
    failed = next(result for result in real.failures if result.findings)
    own = replace(
        failed, check="schedule.file.mine", message="wrong", programs=("F0 I0 1F0 W0",), findings=failed.findings[:1]
    )
    page = report_page(replace(real, extra=("mine",), results=[own]))
    assert "gradconform replay" not in page
    assert "F0 I0 1F0 W0" in " ".join(Page(page).shown.split())
    cut = replace(own, programs=("F0 I0 … W9 (90 actions)",))
    assert 'class="program"' not in report_page(replace(real, extra=("mine",), results=[cut]))


def test_errors_are_counted_by_range_and_status_with_bars_to_scale(real: Report) -> None:
    compared = [result for result in real.results if result.error_ratio is not None]
    page = report_page(real)
    section = page.partition('id="headroom"')[2].partition("</section>")[0]
    assert "<svg" not in page
    assert "cpu float32: checks by largest error" in section
    exact = sum(result.error_ratio == 0.0 and result.status == "passed" for result in compared)
    assert f'style="width:70.0%"></i>{exact}</td>' in section


def test_missing_sections_have_no_heading_link_or_table(real: Report) -> None:
    bare = report_page(replace(real, results=[], waivers={"file": "w", "sha256": "", "entries": [], "elsewhere": []}))
    assert re.findall(r"<h2>(.*?)</h2>", bare) == ["What did not pass", "Waivers", "Environment"]
    assert bare.count("<table") == 1
    assert 'href="#waivers"' not in bare


def test_waivers_are_listed_with_the_number_of_waived_results(real: Report) -> None:
    failed = next(result for result in real.failures if result.findings)
    entry = {"check": "split.*", "verdict": ["missing"], "reason": "known", "issue": "#7", "owner": "ada"}
    entry |= {"expires": "2027-01-31", "when": {"torch": ">=2.13"}}
    idle = {**entry, "check": "full.*", "when": {}}
    waivers = {"file": "w.toml", "sha256": "0" * 64, "entries": [entry, idle], "elsewhere": []}
    page = Page(report_page(replace(real, waivers=waivers, results=[replace(failed, status="waived", waiver=entry)])))
    assert "2 of w.toml" in page.shown
    assert "split.*1 waivedmissingknown#7ada2027-01-31torch >=2.13" in page.shown
    assert "full.*nothingmissing" in page.shown


def test_device_faults_and_unjudged_checks_have_separate_sections(real: Report) -> None:
    one, two, *_ = real.results
    blank: dict[str, Any] = {"status": "error", "findings": (), "error_ratio": None}
    results = [
        replace(one, **blank, kind="device", message="plain autograd on dev is wrong in aten::mm"),
        replace(two, **blank, kind="adapter", message="the pre-flight failed: no gradient"),
    ]
    shown = Page(report_page(replace(real, results=results))).shown
    assert "device faults: 1 check" in shown
    assert "They say nothing about torch" in shown
    assert "could not be judged: 1 check" in shown
    assert "the pre-flight failed: no gradient" in shown


def test_the_probed_facts_of_devices_are_shown(real: Report) -> None:
    numbers = iter(range(100))
    devices = devices_of(lambda: f"said {next(numbers)}")
    for text in (
        Page(report_page(replace(real, devices=devices))).shown,
        report_markdown(replace(real, devices=devices)),
    ):
        assert "said 2: 1 of 2 lines of its pre-flight hold" in text
        assert "said 4: cannot be used: said 5" in text
        assert "said 6 said 7: said 8" in text
        assert "a line that holds" not in text


def without(report: Report, check: str) -> Report:
    return replace(report, results=[result for result in report.results if result.check != check])


def with_status(report: Report, check: str, **values: Any) -> Report:
    return replace(report, results=[replace(r, **values) if r.check == check else r for r in report.results])


Change = Callable[[Report], Report]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda report: with_status(report, MLP, status="failed", kind="missing"), "1 check new failures"),
        (lambda report: without(report, MLP), "1 check judged before, not run now"),
        (lambda report: with_status(report, TIED, status="passed", kind=None, findings=()), "1 check fixed"),
    ],
)
def test_several_runs_are_compared_side_by_side_with_the_changed_checks(
    real: Report, change: Change, told: str
) -> None:
    page = Page(runs_page(side_by_side([real, change(real), real])))
    assert "1 check of " in page.shown
    assert told in " ".join(page.shown.split())
    assert page.shown.count("No check changed.") == 1
    assert page.attributes.count(("data-differs", None)) == 1
    assert len(page.ids) == len(set(page.ids))
    markdown = runs_markdown(side_by_side([real, change(real)]))
    assert re.search(r"\| split\\?\.gradients\.tied-apart|\| full\.gradients\.mlp", markdown)


def test_intersection_compares_only_checks_of_all_runs(real: Report) -> None:
    runs = side_by_side([real, without(real, MLP)], intersection=True)
    assert MLP not in {row.place.check for row in runs.rows}
    assert len(runs.rows) == len(real.results) - 1


def test_the_command_writes_html_and_markdown(real: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, html, markdown = tmp_path / "run.json", tmp_path / "run.html", tmp_path / "run.md"
    run.write_text(real.to_json(), encoding="utf-8")
    assert main(["report", str(run), "--html", str(html), "--markdown", str(markdown)]) == 0
    assert html.read_text(encoding="utf-8") == report_page(real)
    assert markdown.read_text(encoding="utf-8") == report_markdown(real)
    assert capsys.readouterr().out == f"page: {html}\nreport as Markdown: {markdown}\n"
    assert main(["report", str(run), str(run), "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("## 0 checks of ")


def test_the_command_refuses_invalid_files_and_writes_nothing(
    real: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other, page = tmp_path / "run.json", tmp_path / "other.json", tmp_path / "page.html"
    run.write_text(real.to_json(), encoding="utf-8")
    other.write_text(run.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    assert main(["report", str(other), "--html", str(page)]) == 2
    assert "other.json" in capsys.readouterr().err
    assert main(["report", str(run), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "--html" in capsys.readouterr().err
    assert not page.exists()


def test_the_verdict_is_a_heading_of_markdown(real: Report) -> None:
    assert report_markdown(real).lstrip().startswith("## torch 2.")
