"""What a command asks of targets in another process: one that ends it costs no other target its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradconform.run.target_queries import query_targets
from gradconform.version import KIT_VERSION

TELL = "gradconform.target.resolve:describe_targets"


def test_a_target_that_ends_its_process_does_not_lose_other_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends.py").write_text("import os\nos._exit(3)\n", encoding="utf-8")
    (tmp_path / "aborts.py").write_text(
        "import os, sys\nsys.stderr.write('no driver\\n')\nos.abort()\n", encoding="utf-8"
    )
    (tmp_path / "raises.py").write_text("raise LookupError('no such thing')\n", encoding="utf-8")
    targets = ["ends.py", "autograd", "raises.py", "aborts.py", "reference-split", "ends.py"]
    told = list(query_targets(TELL, targets))
    assert [target for target, _ in told] == targets
    ended, plain, raised, aborted, split, again = (said for _, said in told)
    assert ended == again == {"problem": "target 'ends.py' ended its process with exit code 3"}
    assert aborted == {"problem": "target 'aborts.py' ended its process with SIGABRT: no driver"}
    assert "could not be loaded: LookupError: no such thing" in raised["problem"]
    assert plain["version"] == split["version"] == KIT_VERSION


def test_an_empty_target_list_starts_no_process() -> None:
    assert list(query_targets("gradconform.nowhere:nothing", [])) == []
