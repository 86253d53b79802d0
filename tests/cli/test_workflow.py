"""The workflow that ``gradconform init`` writes, run whole: on pushes, pull requests and in shards, step by step."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform import read_report
from gradconform.cli import init

from .github import GitHub, Job
from .test_init import RIGHT, WORKFLOW, WRONG

if not os.environ.get("CI"):  # there the group `dev` is installed, and a skip would be a test that is lost
    pytest.importorskip("yaml", reason="PyYAML is not installed; `pip install --group dev` brings it")

import yaml

Command = Callable[..., Any]

ROOT = Path(__file__).parents[2]
REUSABLE = ROOT / ".github" / "workflows" / "stage-backward.yml"
MY_CI = ROOT / "docs" / "my-ci.md"

#: As right as before, but it no longer claims what it did.
LESS = f"{RIGHT}\ngradconform_capabilities = {{'split': False}}\n"
NOTHING = "Compared with nothing: there is no report of the main branch"
FILES = {"gradconform.json", "gradconform.html", "gradconform.xml", "gradconform.svg"}


class Repository:
    """A repository of git with a package, what init has written in it, and GitHub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        (folder / "github").mkdir()
        self.hub = GitHub(self.folder, folder / "github")
        self.git("init", "-q", "-b", "main")
        self.write("mypackage/__init__.py", "")
        self.write("gradconform.toml", 'profile = "quick"\n')
        self.write("requirements.txt", "packaging\n")

    def git(self, *words: str) -> None:
        ours = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *ours, *words], cwd=self.folder, check=True, capture_output=True)  # noqa: S607 (as there)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def happens(self, event: str, branch: str, source: str) -> dict[str, Job]:
        """Commit a package of this source to a branch, and run the workflow for what happened to it."""
        self.commit(branch, source)
        workflow = yaml.safe_load((self.folder / WORKFLOW).read_text(encoding="utf-8"))
        return self.hub.run(workflow, event, branch)

    def commit(self, branch: str, source: str) -> None:
        self.git("checkout", "-q", "-B", branch)
        self.write("mypackage/backward.py", source)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "changed")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Callable[..., Repository]:
    def make(*options: str) -> Repository:
        made = Repository(tmp_path)
        monkeypatch.chdir(made.folder)
        made.write("mypackage/backward.py", RIGHT)
        assert command("init", *options).code == 0
        return made

    return make


@pytest.mark.slow
def test_the_workflow_runs_on_the_main_branch_and_pull_requests(repository: Callable[..., Repository]) -> None:
    made = repository()
    job = made.happens("push", "main", RIGHT)["stage-backward"]
    assert job.failed == [], job.logs
    assert set(job.outcomes.values()) == {"success"}
    assert re.search("mypackage.backward .*conforms to contract 1.3 in profile quick", job.summary)
    assert NOTHING in job.summary
    assert {path.name for path in (made.hub.artifacts / "gradconform").iterdir()} == FILES
    assert len(made.hub.caches) == 1

    job = made.happens("pull_request", "wrong", WRONG)["stage-backward"]
    assert job.failed == ["Judge", "Compare"]
    assert job.summary.startswith("## mypackage.backward")
    assert "does NOT conform" in job.summary
    assert "| mypackage/backward.py:" in job.summary
    assert re.search(r"^::error file=mypackage/backward\.py,line=\d+,title=", job.logs["Summary"], re.MULTILINE)
    own = job.summary.partition("is worse than before")[0].splitlines()[:-1]
    assert len(own) <= 40
    assert "is worse than before" in job.summary
    assert "### New failures: " in job.summary
    assert {path.name for path in (made.hub.artifacts / "gradconform").iterdir()} == FILES


@pytest.mark.nightly
def test_the_workflow_compares_with_the_report_of_the_main_branch(repository: Callable[..., Repository]) -> None:
    made = repository()
    made.happens("push", "main", RIGHT)

    job = made.happens("pull_request", "less", LESS)["stage-backward"]
    assert job.failed == ["Compare"]
    assert "conforms in part to contract 1.3" in job.summary
    assert "### Judged before, unsupported now: " in job.summary

    job = made.happens("push", "as-good", RIGHT)["stage-backward"]
    assert job.failed == [], job.logs
    assert "is no worse than before" in job.summary
    assert len(made.hub.caches) == 1, "only the main branch keeps a report"

    made.hub.caches[0][2].write_text("{}", encoding="utf-8")
    job = made.happens("pull_request", "as-good", RIGHT)["stage-backward"]
    assert job.failed == [], job.logs
    assert "Not compared with the main branch" in job.summary
    assert "gradconform: " in job.logs["Compare"]


@pytest.mark.slow
def test_the_workflow_merges_and_compares_shards(repository: Callable[..., Repository]) -> None:
    made = repository("--shards", "2")
    jobs = made.happens("push", "main", RIGHT)
    assert list(jobs) == ["shard 1", "shard 2", "stage-backward"]
    assert [job.failed for job in jobs.values()] == [[], [], []], jobs
    assert read_report(made.hub.artifacts / "gradconform" / "gradconform.json").conforms
    assert NOTHING in jobs["stage-backward"].summary

    jobs = made.happens("pull_request", "wrong", WRONG)
    assert [job.failed for job in jobs.values()] == [["Judge"], ["Judge"], ["Judge", "Compare"]]
    assert "is worse than before" in jobs["stage-backward"].summary
    assert read_report(made.hub.artifacts / "gradconform" / "gradconform.json").verdict == "does not conform"


#: The page's example of a workflow that calls the kit's own; with what it gives, and the branch that it is for.
CALLER = re.search(r"```yaml\n(name: stage backward\n.*?)```", MY_CI.read_text(encoding="utf-8"), re.DOTALL)


def test_the_reusable_workflow_is_current() -> None:
    again = "python -c 'from gradconform.cli.init import *; print(reusable_workflow(), end=\"\")'"
    assert REUSABLE.read_text(encoding="utf-8") == init.reusable_workflow(), f"write it again: {again} > {REUSABLE}"


@pytest.mark.slow
def test_another_repository_calls_the_workflow_by_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CALLER is not None
    made = Repository(tmp_path)
    monkeypatch.chdir(made.folder)
    (job,) = yaml.safe_load(CALLER[1])["jobs"].values()
    assert job["uses"].split("@")[0].endswith(f"/gradconform/{REUSABLE.relative_to(ROOT).as_posix()}")
    workflow = yaml.safe_load(REUSABLE.read_text(encoding="utf-8"))
    for source, failed in ((RIGHT, []), (WRONG, ["Judge", "Compare"])):
        made.commit("main", source)
        done = made.hub.run(workflow, "push", "main", {**job["with"], "profile": "quick"})["stage-backward"]
        assert done.failed == failed, done.logs
    assert "mypackage.backward does NOT conform" in done.summary.replace(" 1.0.0", "")


def test_an_unimportable_target_fails_the_job_and_is_in_the_log(repository: Callable[..., Repository]) -> None:
    made = repository()
    job = made.happens("push", "main", "import no_such_module\n")["stage-backward"]
    assert job.failed == ["Judge"], job.logs
    assert "no_such_module" in job.logs["Judge"]
    assert (job.summary, made.hub.caches) == ("", [])
    assert not made.hub.artifacts.exists()


@pytest.mark.parametrize("options", [(), ("--shards", "4")])
def test_actionlint_reports_nothing(repository: Callable[..., Repository], options: tuple[str, ...]) -> None:
    beside = Path(sys.executable).with_name("actionlint")
    found = str(beside) if beside.exists() else shutil.which("actionlint")
    if found is None:
        reason = "actionlint is not installed; `pip install --group dev` brings it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    made = repository(*options)
    for file in (WORKFLOW, *sorted(str(file) for file in REUSABLE.parent.glob("*.yml"))):
        words = [found, "-no-color", file]
        done = subprocess.run(words, cwd=made.folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_every_action_is_pinned_to_a_commit_and_the_token_is_read_only(repository: Callable[..., Repository]) -> None:
    made = repository("--shards", "2")
    text = (made.folder / WORKFLOW).read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert len(uses) > 10
    assert [one for one in uses if not re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    assert {one.split("@")[0].removeprefix("actions/") for one in uses} == set(init.ACTIONS)
    read = yaml.safe_load(text)
    assert read["permissions"] == {"contents": "read"}
    # What somebody else may name, a branch or a title, never gets into a shell.
    assert [run for run in re.findall(r"run: (?:\|\n(?: {10}.*\n)+|.*\n)", text) if "${{" in run] == []
