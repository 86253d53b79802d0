"""A simulation of GitHub Actions that runs the workflow of ``gradconform init`` whole and offline.

Jobs, steps, matrices, ``if``, outputs, summaries, artifacts and caches with their scopes follow GitHub's documentation.
Anything unknown is an error. pip only prints what it would install.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DEFAULT_BRANCH = "main"
_OFFLINE = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@dataclass
class Job:
    """A finished job: the outcome of each step, by its name, or by its action."""

    outcomes: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def failed(self) -> list[str]:
        """The steps that fail the job."""
        return [name for name, outcome in self.outcomes.items() if outcome == "failure"]


@dataclass
class GitHub:
    """A repository, with the files kept between its runs."""

    repository: Path
    folder: Path
    runs: int = 0
    caches: list[tuple[str, str, Path]] = field(default_factory=list)

    def run(
        self, workflow: Mapping[str, Any], event: str, branch: str, inputs: Mapping[str, str] | None = None
    ) -> dict[str, Job]:
        """Run a workflow for an event on a branch; return its jobs by name, those of a matrix with its value.

        ``inputs`` are what the caller of a reusable workflow gives; the others have their defaults.
        """
        self.runs += 1
        jobs: dict[str, Job] = {}
        for name, job in workflow["jobs"].items():
            values = [value for values in job.get("strategy", {}).get("matrix", {}).values() for value in values]
            axis = next(iter(job.get("strategy", {}).get("matrix", {})), "")
            red = any(one.failed for done, one in jobs.items() if done.partition(" ")[0] == job.get("needs"))
            for value in values or [None]:
                named = name if value is None else f"{name} {value}"
                matrix = {} if value is None else {axis: value}
                runner = _Runner(self, workflow, event, branch, matrix, self.folder / f"{self.runs} {named}")
                runner.given["inputs"] = _inputs(workflow, inputs or {})
                if runner.holds(job.get("if"), failed=red):
                    jobs[named] = runner.run(job)
        return jobs

    @property
    def artifacts(self) -> Path:
        """The artifacts of the last run, a folder for each."""
        return self.folder / f"{self.runs} artifacts"


def _inputs(workflow: Mapping[Any, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of a workflow, as GitHub does; it refuses unknown ones and missing ones."""
    events = workflow[True]  # YAML 1.1 reads the word on as true
    known = (events.get("workflow_call") or {}).get("inputs", {})
    assert given.keys() <= known.keys(), f"unknown inputs: {given.keys() - known.keys()}"
    missing = [name for name, one in known.items() if one.get("required") and name not in given]
    assert missing == [], f"missing inputs: {missing}"
    return {name: given.get(name, one.get("default", "")) for name, one in known.items()}


class _Runner:
    """The machine of one job."""

    def __init__(  # noqa: PLR0913, PLR0917 (the settings of a machine)
        self, hub: GitHub, workflow: Mapping[str, Any], event: str, branch: str, matrix: Mapping[str, Any], folder: Path
    ) -> None:
        self.hub, self.workflow, self.folder = hub, workflow, folder
        self.branch = branch
        self.workspace = folder / "workspace"
        self.job = Job()
        self.steps: dict[str, Any] = {}
        self.github = {
            "event_name": event,
            "ref_name": branch if event == "push" else f"7/{branch}",
            "ref": f"refs/heads/{branch}" if event == "push" else "refs/pull/7/merge",
            "run_id": str(1000 + hub.runs),
            "run_attempt": "1",
            "event": {"repository": {"default_branch": DEFAULT_BRANCH}},
        }
        self.given = {"github": self.github, "matrix": matrix, "runner": {"os": "Linux"}, "steps": self.steps}

    def run(self, job: Mapping[str, Any]) -> Job:
        self.workspace.mkdir(parents=True)
        for step in job["steps"]:
            name = step.get("name") or step["uses"].partition("@")[0].removeprefix("actions/")
            outcome, outputs = "skipped", {}
            if self.holds(step.get("if"), failed=bool(self.job.failed)):
                outcome, outputs = self._step(step, name)
            self.job.outcomes[name] = outcome
            self.steps[step.get("id", name)] = {"outcome": outcome, "outputs": outputs}
        return self.job

    def _step(self, step: Mapping[str, Any], name: str) -> tuple[str, dict[str, str]]:
        if "uses" in step:
            action = step["uses"].partition("@")[0]
            done = _ACTIONS[action](self, {key: self.filled(str(value)) for key, value in step.get("with", {}).items()})
            return ("success" if done else "failure"), {}
        files = {
            kind: self.folder / f"{len(self.job.outcomes)} {kind}" for kind in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
        }
        for file in files.values():
            file.touch()
        script = self.folder / "step.sh"
        script.write_text(self.filled(step["run"]), encoding="utf-8")
        environment = {
            key: self.filled(str(value)) for key, value in {**self.workflow["env"], **step.get("env", {})}.items()
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", str(script)],  # noqa: S607 (the one that is on the path, as there)
            cwd=self.workspace,
            env={
                **os.environ,
                **_OFFLINE,
                **environment,
                **{k: str(v) for k, v in files.items()},
                "PATH": path,
                "CI": "true",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.job.logs[name] = done.stdout
        self.job.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines())
        return ("failure" if done.returncode else "success"), outputs

    def holds(self, condition: str | None, *, failed: bool) -> bool:
        """Return whether a step or a job runs: without a condition on earlier results, only if these are green."""
        text = str(condition or "success()").strip()
        text = text.removeprefix("${{").removesuffix("}}")
        if not re.search(r"\b(always|cancelled|failure|success)\(\)", text):
            text = f"success() && ({text})"
        return bool(self.value(text, failed=failed))

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(self.value(found[1], failed=False)), text)

    def value(self, expression: str, *, failed: bool) -> Any:
        """Compute an expression of GitHub's: strings, names with dots, functions, ``&& || ! == !=`` and parentheses."""
        words = re.findall(r"'[^']*'|[A-Za-z_][\w.-]*(?:\()?|&&|\|\||==|!=|[!(),]|\S", expression)
        known = {"cancelled(": "(False", "always(": "(True", "success(": f"({not failed}", "failure(": f"({failed}"}
        operators = {"&&": "and", "||": "or", "!": "not", "==": "==", "!=": "!=", "(": "(", ")": ")", ",": ","}
        parts = []
        for word in words:
            if word in known or word in operators:
                parts.append(known.get(word) or operators[word])
            elif word == "hashFiles(":
                parts.append("hash_files(")
            elif word.startswith("'"):
                parts.append(repr(word[1:-1]))
            else:
                parts.append(repr(self._named(word)))
        return eval(" ".join(parts), {"__builtins__": {}, "hash_files": self._hash_files})  # noqa: S307 (made of known words)

    def _named(self, name: str) -> Any:
        found: Any = self.given
        for part in name.split("."):
            found = found.get(part, "") if isinstance(found, Mapping) else ""
        return found

    def _hash_files(self, *patterns: str) -> str:
        contents = [path.read_bytes() for path in self.matching("\n".join(patterns))]
        return hashlib.sha256(b"".join(contents)).hexdigest() if contents else ""

    def matching(self, patterns: str) -> Iterator[Path]:
        for pattern in patterns.split():
            yield from sorted(self.workspace.glob(pattern))

    def checkout(self, _: Mapping[str, str]) -> bool:
        command = ["git", "clone", "-q", "--branch", self.branch, str(self.hub.repository), str(self.workspace)]
        subprocess.run(command, check=True)
        return True

    def setup_python(self, given: Mapping[str, str]) -> bool:
        return re.fullmatch(r"3\.\d+", given["python-version"]) is not None

    def cache_of_pip(self, given: Mapping[str, str]) -> bool:
        keeps = given["path"].split() == ["~/.cache/pip", "~/.cache/gradconform"]
        return keeps and re.search(r"-Linux-3\.\d+-20\d\d-\d\d$", given["key"]) is not None

    def restore(self, given: Mapping[str, str]) -> bool:
        """Copy the files of a key, or the newest with another key's beginning; a branch sees its own and the main
        branch's caches.
        """
        seen = [
            one for one in reversed(self.hub.caches) if one[0] in {self.github["ref"], f"refs/heads/{DEFAULT_BRANCH}"}
        ]
        for key in (given["key"], *given.get("restore-keys", "").split()):
            for _, name, kept in seen:
                if name.startswith(key):
                    target = self.workspace / given["path"]
                    target.parent.mkdir(exist_ok=True)
                    shutil.copy(kept, target)
                    return True
        return True

    def save(self, given: Mapping[str, str]) -> bool:
        kept = self.hub.folder / f"cache {given['key']}"
        shutil.copy(self.workspace / given["path"], kept)
        self.hub.caches.append((self.github["ref"], given["key"], kept))
        return True

    def upload(self, given: Mapping[str, str]) -> bool:
        folder = self.hub.artifacts / given["name"]
        folder.mkdir(parents=True, exist_ok=given["overwrite"] == "True")
        for path in self.matching(given["path"]):
            shutil.copy(path, folder)
        return True

    def download(self, given: Mapping[str, str]) -> bool:
        target = self.workspace / given["path"]
        target.mkdir()
        assert given["merge-multiple"] == "True"
        found = [path for path in self.hub.artifacts.glob("*/*") if fnmatchcase(path.parent.name, given["pattern"])]
        for path in found:
            shutil.copy(path, target)
        return True


_ACTIONS: dict[str, Callable[[_Runner, Mapping[str, str]], bool]] = {
    "actions/checkout": _Runner.checkout,
    "actions/setup-python": _Runner.setup_python,
    "actions/cache": _Runner.cache_of_pip,
    "actions/cache/restore": _Runner.restore,
    "actions/cache/save": _Runner.save,
    "actions/upload-artifact": _Runner.upload,
    "actions/download-artifact": _Runner.download,
}
