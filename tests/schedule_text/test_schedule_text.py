"""Schedules as text: torch's own work on them, and wrong ones that each check must find."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from gradconform.cli import main
from gradconform.fixtures.schedules import RECORDED, recorded
from gradconform.pipeline.extra_checks import run_extra
from gradconform.pipeline.schedule_text import Rows, ScheduleText
from gradconform.pipeline.schedule_text.checks import checks_of
from gradconform.plugins.adapters.torch_runtime import TorchScheduleText
from gradconform.torch_releases.pipelining import KIND, NEWER_ACTIONS

SCRIPTS = Path(__file__).with_name("torch_2_13")
ZBV = recorded("ZBVZeroBubble-2x2x3")


def failed(subject: ScheduleText, names: Iterable[str] = ("ZBVZeroBubble-2x2x3",)) -> set[str]:
    checks = checks_of([recorded(name) for name in names])
    return {result.check for result in run_extra(subject, checks, dtype="text") if result.status == "failed"}


def test_torch_passes_except_for_repeated_actions_and_text_after_an_action() -> None:
    found = failed(TorchScheduleText(), RECORDED)
    repeated = {check for check in found if check.startswith("schedule_text.refuses.duplicate-")}
    assert len(repeated) == len(RECORDED)
    assert found - repeated == {"schedule_text.refuses.cell-0f0-1", "schedule_text.refuses.cell-0f0-1f0"}


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_each_defect_is_confirmed_by_a_script_that_uses_only_torch(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "gradconform" not in script.read_text()
    assert (done.returncode, done.stdout.startswith("expected an error")) == (1, True), done.stderr


class Wrong(TorchScheduleText):
    """torch's work with one thing wrong."""

    def __init__(self, lower: Callable[[list[list[str]]], None] | None = None) -> None:
        self._lower = lower

    def lowered(self, rows: Rows, stages: int, microbatches: int) -> list[list[str]]:
        found = super().lowered(rows, stages, microbatches)
        if self._lower is not None:
            self._lower(found)
        return found


def removed(cell: str) -> Callable[[list[list[str]]], None]:
    def lower(rows: list[list[str]]) -> None:
        for row in rows:
            if cell in row:
                row.remove(cell)

    return lower


def moved_to_the_front(cell: str) -> Callable[[list[list[str]]], None]:
    def lower(rows: list[list[str]]) -> None:
        row = next(row for row in rows if cell in row)
        row.remove(cell)
        row.insert(0, cell)

    return lower


def added(rank: int, cell: str) -> Callable[[list[list[str]]], None]:
    return lambda rows: rows[rank].append(cell)


@pytest.mark.parametrize(
    ("lower", "problem"),
    [
        (removed("0SEND_F1"), "expected one 0SEND_F1 on rank 0, got 0"),
        (removed("1RECV_F1"), "expected one 1RECV_F1 on rank 1, got 0"),
        (removed("3UNSHARD"), "runs on a sharded stage"),
        (removed("3RESHARD"), "are left unsharded"),
        (removed("0W1"), "computes in another order than before"),
        (moved_to_the_front("0SEND_F1"), "0SEND_F1 is on the wrong side of its computing"),
        (added(1, "1RECV_F1"), "expected one 1RECV_F1 on rank 1, got 2"),
        (added(0, "0SEND_B0"), "where nothing has to be sent"),
        (added(0, "0UNSHARD"), "stages [0] are left unsharded"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_wrong_lowering_is_found_and_named(lower: Callable[[list[list[str]]], None], problem: str) -> None:
    results = run_extra(Wrong(lower), checks_of([ZBV]), dtype="text")
    (message,) = [result.message for result in results if result.check.startswith("schedule_text.lowers.")]
    assert problem in message


def test_receives_in_an_order_that_no_sender_uses_are_a_deadlock() -> None:
    class Crossed(TorchScheduleText):
        def lowered(self, rows: Rows, stages: int, microbatches: int) -> list[list[str]]:
            del rows, stages, microbatches
            zero = ["0UNSHARD", "0F0", "0RECV_B0", "0SEND_F0", "0B0", "0RESHARD"]
            return [zero, ["1UNSHARD", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RESHARD"]]

    from gradconform.fixtures.schedules import of_rows  # noqa: PLC0415 (this test alone makes a schedule)

    checks = checks_of([of_rows("tiny", [["0F0", "0B0"], ["1F0", "1B0"]])])
    messages = [result.message for result in run_extra(Crossed(), checks, dtype="text") if "lowers" in result.check]
    assert "deadlock of blocking transfers: rank 0 waits for" in messages[0]


class AcceptsAll(TorchScheduleText):
    def lowered(self, rows: Rows, stages: int, microbatches: int) -> list[list[str]]:
        try:
            return super().lowered(rows, stages, microbatches)
        except Exception:  # noqa: BLE001 (that is what is wrong with it)
            return [list(row) for row in rows]

    def rewritten(self, cell: str) -> str:
        return cell


class ForgetsTheMicrobatch(TorchScheduleText):
    def rewritten(self, cell: str) -> str:
        return super().rewritten(cell).rstrip("0123456789")


class PrintsNothing(TorchScheduleText):
    def rewritten(self, cell: str) -> str:
        return cell[:0]


class LoopsInPlaceOfV(TorchScheduleText):
    def mapping(self, ranks: int, stages: int, style: str) -> dict[int, int]:
        return dict(super().mapping(ranks, stages, "loop" if style == "v" else "v"))


class PutsAllOnTheFirstRank(TorchScheduleText):
    def placed(self, rows: Rows, stages: int, microbatches: int) -> dict[int, int]:
        return dict.fromkeys(super().placed(rows, stages, microbatches), 0)


class MergesNothing(TorchScheduleText):
    def merged(self, row: Sequence[str]) -> list[str]:
        return list(row)


def test_every_check_is_failed_by_a_wrong_implementation() -> None:
    wrong = [
        AcceptsAll(),
        ForgetsTheMicrobatch(),
        PrintsNothing(),
        LoopsInPlaceOfV(),
        PutsAllOnTheFirstRank(),
        MergesNothing(),
    ]
    wrong.append(Wrong(removed("0SEND_F1")))
    found = set().union(*(failed(subject) for subject in wrong))
    # One stage per rank makes no V; a loop of the whole is the same there.
    same = {"schedule_text.mapping.loop-4x1", "schedule_text.mapping.v-4x1"}
    assert {check.id for check in checks_of([ZBV])} - found == same


def test_a_newer_action_missing_in_torch_is_unavailable() -> None:
    results = run_extra(TorchScheduleText(), checks_of([]), dtype="text")
    told = {result.check: result for result in results if result.status == "unsupported"}
    lacking = {action for action in NEWER_ACTIONS if not hasattr(KIND.find(), action)}
    assert len(told) == len(lacking)
    for result in told.values():
        assert any(result.message.endswith(f"has no action {action} in a schedule") for action in lacking)


def test_the_command_gives_a_verdict_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    (tmp_path / "mine.csv").write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n")
    code = main(["schedule-text", "torch", "--schedule", str(tmp_path / "mine.csv"), "--json", str(path)])
    said = capsys.readouterr()
    told = said.out
    assert code == 0, said.err
    report = json.loads(path.read_text())
    assert code == 0
    assert "schedule_text.refuses.duplicate-mine" in told
    assert [one["check"] for one in report["results"] if "mine" in one["check"] and one["status"] == "passed"] == [
        "schedule_text.accepts.mine",
        "schedule_text.lowers.mine",
        "schedule_text.refuses.missing-forward-mine",
        "schedule_text.refuses.missing-rank-mine",
        "schedule_text.refuses.wrong-order-mine",
        "schedule_text.refuses.stage-on-two-ranks-mine",
    ]


MERGES = {
    clause: judge for clause, judge in checks_of([]).items() if clause.id == "schedule_text.merges.input-and-weight"
}


class Ends(TorchScheduleText):
    """torch's work, with something in place of a merge."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def merged(self, row: Sequence[str]) -> Sequence[str]:
        self._act()
        return row


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_that_would_end_the_run_fails_its_check(kind: type[BaseException]) -> None:
    def act() -> None:
        raise kind

    (result,) = run_extra(Ends(act), MERGES, dtype="text")
    assert (result.status, result.kind) == ("failed", "error")
    assert f"raised {kind.__name__}" in result.message


def test_ctrl_c_ends_the_run() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            [*run_extra(Ends(lambda: os.kill(os.getpid(), signal.SIGINT)), MERGES, dtype="text")]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("torch", "--schedule", "ZBV"), "nearest: ZBVZeroBubble"),
        (("torch", "--schedule", "none.csv"), "cannot read the schedule 'none.csv'"),
        (("gradconform.reference.split",), "has no rewritten; expected a name and rewritten, placed"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule-text", *arguments]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
