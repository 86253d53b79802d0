"""A rank that dies, hangs or raises: the run ends with a verdict that names it, and leaves nothing behind."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.pipeline.cases import cases_of
from gradconform.pipeline.exchange import Job
from gradconform.pipeline.ranks import Machines, Ranks
from gradconform.pipeline.start_folder import Start
from gradconform.pipeline.training_step.composition import step_cases
from gradconform.process.worker import Exit, Worker

CASE = cases_of(["GPipe"], ranks=2, stages_per_rank=None, microbatches=None)[0]
FORKED = "ForkedError: the implementation forked, and its call came back in the child as well; the child was ended"
ONE = ("--schedule", "1F1B", "--checks", "*.two-steps")

TARGET = """
import ctypes
import os
import signal
import time
from gradconform.reference import split
from gradconform.reference.split import stage_backward_input, stage_backward_weight

calls = 0

def stage_backward(*args):
    global calls
    calls += 1
    if os.environ["RANK"] == "1" and calls == 3:
        {does}
    return split.stage_backward(*args)
"""


def started(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gradconform", "pipeline", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def processes(folder: Path) -> dict[int, str]:
    """Return the processes of a run in ``folder``: fork server, launcher, ranks and their keeper, by what they are."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = [(entry / "comm").read_bytes().strip(), *(entry / "cmdline").read_bytes().split(b"\0")]
                variables = (entry / "environ").read_bytes().split(b"\0")
                begun_by = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if f"TMPDIR={folder / 'tmp'}".encode() in variables:
                parts = {b"gradconform.pipeline.rank_keeper": "keeper", b"launcher:launch": "launcher"}
                server = "server" if any(b"fork_serving" in word for word in words) else None
                part = next((part for word, part in parts.items() if word in words), server)
                found |= {} if part is None else {int(entry.name): (part, begun_by)}
    keepers = {one for one, (part, _) in found.items() if part == "keeper"}
    return {one: "rank" if begun_by in keepers else part for one, (part, begun_by) in found.items()}


def nothing_left(folder: Path) -> bool:
    deadline = time.monotonic() + 250
    while processes(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes(folder) and not list((folder / "tmp").glob("gradconform-*"))


def shared_memory() -> set[str]:
    """Return the files in shared memory that torch names."""
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith("torch_")}  # noqa: S108 (looked at)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "what"),
    [
        (
            "raise ValueError('not today')",
            "rank 1 raised ValueError: not today at 1B2, in the implementation under test",
        ),
        ("os.fork()", f"rank 1 raised {FORKED} at 1B2, in the implementation under test"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 died (SIGKILL) at 1B2, in the implementation under test"),
        ("time.sleep(1e6)", "rank 1 took longer than 20 s at 1B2, in the implementation under test"),
        # A sleep of C that ends early at a signal, with the interpreter's lock: what asks it for its stacks wakes it.
        pytest.param(
            "ctypes.PyDLL(None).sleep(1000)",
            "rank 1 took longer than 20 s at 1B2, in the implementation under test",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["raises", "forks", "dies", "hangs", "hangs with the lock"],
)
def test_the_verdict_names_rank_action_and_error(does: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(TARGET.format(does=does))
    run = started("target.py", *ONE, "--timeout", "20", "--json", "report.json", folder=tmp_path)
    told, _ = run.communicate()
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert (run.returncode, result["status"]) == (1, "failed"), told
    assert result["message"].splitlines()[0] == what
    again = "reproduce: gradconform pipeline target.py --schedule 1F1B --checks pipeline.1f1b.two-steps --timeout 20"
    assert again in " ".join(told.replace("\\\n", "").split())
    if "sleep" in does:
        assert re.search(r'target.py", line \d+ in stage_backward', result["message"])
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_a_hang_before_the_first_case_stops_the_run_after_one_time_limit(tmp_path: Path) -> None:
    hang = "import os, time\nif os.environ.get('RANK') == '1':\n    time.sleep(1e6)\n"
    (tmp_path / "target.py").write_text(hang + "from gradconform.reference.split import *\n", encoding="utf-8")
    words = ("--schedule", "1F1B,GPipe", "--timeout", "10", "--json", "report.json")
    run = started("target.py", *words, folder=tmp_path)
    told, _ = run.communicate()
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["results"]) == 1, told
    assert "rank 1 took longer than 10 s at importing the target" in report["results"][0]["message"]
    assert report["results"][0]["kind"] == "environment"
    assert "The run was stopped: ranks hang before their first case, at importing the target" in " ".join(told.split())
    assert nothing_left(tmp_path)


@pytest.mark.nightly
def test_ranks_killed_at_random_moments_lose_only_the_verdict_on_their_case(tmp_path: Path) -> None:
    shared = shared_memory()
    moments = random.Random(0)  # noqa: S311 (moments, no secrets)
    run = started("reference-split", "--schedule", "all", "--json", "report.json", folder=tmp_path)
    killed = 0
    while run.poll() is None and killed < 10:
        time.sleep(moments.uniform(0.5, 6))
        ranks = [process for process, what in processes(tmp_path).items() if what == "rank"]
        if ranks:
            os.kill(moments.choice(ranks), signal.SIGKILL)
            killed += 1
    told, _ = run.communicate()
    report = json.loads((tmp_path / "report.json").read_text())
    checks = [result["check"] for result in report["results"]]
    assert len(checks) == len(set(checks)), told
    assert killed == 10 or len(checks) == 56
    ended = [result for result in report["results"] if result["status"] in {"failed", "error"}]
    assert ended
    assert shared_memory() == shared
    assert all("SIGKILL" in result["message"] or "rank" in result["message"] for result in ended), told
    assert nothing_left(tmp_path)


def test_a_rank_without_its_launcher_ends_before_slow_imports(tmp_path: Path) -> None:
    words = ["-X", "importtime", "-m", "gradconform.pipeline.rank_keeper", "keep", str(tmp_path), "1", "2"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "gradconform.process.serving" in done.stderr
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


KEEPER = """
import os, signal, sys
from pathlib import Path
from gradconform.pipeline import rank_keeper
from gradconform.pipeline.start_folder import Start

rank_keeper.run = lambda start: exec(sys.argv[2 + int(os.environ["RANK"])])
rank_keeper._follow(Start(Path(sys.argv[1]), 0), 2)
"""


class Launcher:
    """A launcher that goes on for ever."""

    def expect(self, seconds: float) -> None:
        """Take a limit."""

    def listen(self) -> Iterator[Exit]:
        """Yield that it has ended, which it never has."""
        yield from ()


def test_a_stopped_rank_does_not_delay_the_verdict_on_a_rank_that_raised(tmp_path: Path) -> None:
    start = Start(tmp_path, 0)
    nothing_slow: dict[str, Any] = {"timeout": 600.0, "process": "os"}
    start.begin(Job(target="", cases=(CASE,), device="cpu", dtype="float32", seed=0, **nothing_slow).to_json())
    does = ["os._exit(1)", "os.kill(os.getpid(), signal.SIGSTOP)"]
    alone = {**os.environ, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, str(tmp_path), *does], env=alone)
    launcher = cast("Worker", Launcher())
    ended = Ranks(launcher, start, Machines(ranks=2), 600.0).ended(CASE)
    assert keeper.wait() == 0
    assert start.exits() == {0: 1, 1: None}
    assert ended.codes == {0: 1}


SHARED = """
import gc, os, sys
from pathlib import Path
from gradconform.pipeline import rank_keeper
from gradconform.pipeline.start_folder import Start

def judge(start):
    found = "torch._inductor.compile_fx" in sys.modules, gc.get_freeze_count() > 100_000, gc.isenabled()
    os._exit(int(found != (sys.argv[2] == "compiled", True, True)))

rank_keeper.run = judge
rank_keeper._follow(Start(Path(sys.argv[1]), 0), 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["eager", "compiled"])
def test_ranks_share_what_their_keeper_has_imported_and_collect_none_of_it(stages: str, tmp_path: Path) -> None:
    case = next(case for case in step_cases("standard") if stages in case.row)
    start = Start(tmp_path, 0)
    start.begin(Job(target="", cases=(case,), device="cpu", dtype="float32", seed=0, timeout=600.0).to_json())
    alone = {**os.environ, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    subprocess.run([sys.executable, "-c", SHARED, str(tmp_path), stages], env=alone, check=True)
    assert start.exits() == {0: 0, 1: 0}


@pytest.mark.slow
def test_ended_ranks_are_restarted_by_the_keeper_that_imported_torch(tmp_path: Path) -> None:
    told = "if 'RANK' in os.environ: print(os.environ['RANK'], os.getppid(), file=open('keeper', 'a'))"
    target = TARGET.format(does="os.kill(os.getpid(), signal.SIGKILL)")
    (tmp_path / "target.py").write_text(f"{target}\n{told}\n")
    run = started("target.py", "--schedule", "1F1B", "--checks", "*.two-steps,*.zero-grad", folder=tmp_path)
    printed, _ = run.communicate()
    starts = (tmp_path / "keeper").read_text().splitlines()
    assert run.returncode == 1, printed
    assert len(starts) > 2
    assert {start.split()[0] for start in starts} == {"0", "1"}
    assert len({start.split()[1] for start in starts}) == 1
    assert nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "later"),
    [
        ("launcher", 0.1),
        ("rank", 2),
        *(
            pytest.param(*moment, marks=pytest.mark.nightly)
            for moment in [("launcher", 1.5), ("keeper", 1), ("rank", 0)]
        ),
    ],
)
def test_no_process_or_file_remains_when_the_command_is_killed(begun: str, later: float, tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(TARGET.format(does="time.sleep(1e6)"))
    run = started("target.py", *ONE, folder=tmp_path)
    while begun not in processes(tmp_path).values():
        assert run.poll() is None
        time.sleep(0.05)
    time.sleep(later)
    run.kill()
    run.communicate()
    assert nothing_left(tmp_path)


def test_a_terminated_launcher_is_an_environment_error_with_a_report(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(TARGET.format(does="time.sleep(1e6)"))
    run = started("target.py", *ONE, "--timeout", "600", "--json", "report.json", folder=tmp_path)
    while "rank" not in (found := processes(tmp_path)).values():
        assert run.poll() is None
        time.sleep(0.05)
    (launcher,) = [process for process, what in found.items() if what == "launcher"]
    os.kill(launcher, signal.SIGTERM)
    told, _ = run.communicate()
    assert run.returncode == EXIT_ENVIRONMENT, told
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert (result["status"], result["kind"]) == ("error", "environment")
    assert "SIGTERM ended the launcher and its ranks" in result["message"]
    again = "reproduce: gradconform pipeline target.py --schedule 1F1B --checks pipeline.1f1b.two-steps --timeout 600"
    assert again in " ".join(told.replace("\\\n", "").split())
    assert nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            "reference-split --schedule GPipe --checks *.two-steps,*.tied --ranks 2", marks=pytest.mark.nightly
        ),
        "reference-runtime --profile standard --checks step.ddp,step.pairs.two-by-two-1",  # on two ranks and on four
        pytest.param(
            "reference-runtime --profile full --checks step.eight-experts,step.eight-context", marks=pytest.mark.nightly
        ),
    ],
    ids=["schedules", "training steps", "eight ranks"],
)
def test_two_machines_meet_at_an_endpoint_and_each_reports_the_whole_run(words: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    runs = [
        started(
            *words.split(), "--nnodes", "2", "--rdzv-endpoint", f"localhost:{port}", "--json", "r.json", folder=folder
        )
        for folder in folders
    ]
    told = [run.communicate()[0] for run in runs]
    reports = [json.loads((folder / "r.json").read_text()) for folder in folders]
    for report in reports:
        assert [result["status"] for result in report["results"]] == ["passed", "passed"], told
    assert [result["headroom"] for result in reports[0]["results"]] == [r["headroom"] for r in reports[1]["results"]]
    assert all(nothing_left(folder) for folder in folders)
