"""The starts of a pipeline's ranks: each has a folder, which the command, the keeper and the ranks share.

Nothing here imports torch: the keeper runs this code while its launcher may already be gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

#: The names of files in the folder of a start; the last is outside these folders and says that no start follows.
JOB, _OVER, _END = "job.json", "over", "end"


@dataclass(frozen=True, slots=True)
class Start:
    """The ``number``-th start of the ranks that share a folder ``within`` which each start has its own."""

    within: Path
    number: int

    @property
    def folder(self) -> Path:
        """Return the folder into which the ranks write."""
        return self.within / f"start-{self.number}"

    def begin(self, job: str) -> None:
        """Let the ranks start on a job, given as text."""
        self.folder.mkdir(parents=True)
        _write_whole(self.folder / JOB, job)

    @property
    def begun(self) -> bool:
        """Whether there is a job."""
        return (self.folder / JOB).exists()

    @property
    def on_cpu(self) -> bool:
        """Whether the job is for the CPU."""
        return bool(json.loads((self.folder / JOB).read_text(encoding="utf-8"))["device"] == "cpu")

    @property
    def process(self) -> str:
        """The module whose ``run_rank`` a rank runs; its import takes seconds."""
        return str(json.loads((self.folder / JOB).read_text(encoding="utf-8"))["process"])

    @property
    def compiles(self) -> bool:
        """Whether a case of the job is a training step with compiled stages."""
        cases = json.loads((self.folder / JOB).read_text(encoding="utf-8"))["cases"]
        return any({"compiled", "inductor"} & set(case.get("row", ())) for case in cases)

    def end(self) -> None:
        """Let the remaining ranks be killed."""
        (self.folder / _OVER).touch()

    @property
    def over(self) -> bool:
        """Whether the remaining ranks must be killed."""
        return (self.folder / _OVER).exists()

    def words_of(self, rank: int) -> Path:
        """Return the file with a rank's standard error."""
        return self.folder / f"rank-{rank}.log"

    def write_exit(self, rank: int, code: int | None) -> None:
        """Record the exit code of a rank, None if it was killed because the others had ended."""
        _write_whole(self.folder / f"rank-{rank}.exit", json.dumps(code))

    def exits(self) -> dict[int, int | None]:
        """Return the recorded exit codes of this machine's ranks that have ended."""
        files = self.folder.glob("rank-*.exit")
        return {int(file.stem.removeprefix("rank-")): json.loads(file.read_text(encoding="ascii")) for file in files}


def end_all(within: Path) -> None:
    """Let the keeper of a folder end once its ranks have."""
    (within / _END).touch()


def ended_all(within: Path) -> bool:
    """Return whether no start follows."""
    return (within / _END).exists()


def _write_whole(file: Path, text: str) -> None:
    """Write a file atomically, so that nobody reads half of it."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
