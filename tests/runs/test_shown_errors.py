"""What a target's author reads of an exception, a wrong return value, an import that fails and a hang."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform import check_stage_backward
from gradconform.cli import main

Judged = Callable[..., Any]

#: An adapter of plain autograd, with ``changes`` in its session's class.
ADAPTER = """
import torch

class Session:
    def __init__(self, stage, spec):
        self.stage, self.loss_fn, self.flying = stage, spec.loss_fn, {{}}

    def forward(self, mb, args, target=None):
        outputs = self.stage(*args)
        self.flying[mb] = args, outputs, self.loss_fn and self.loss_fn(outputs, target)
        return outputs

    def backward(self, mb, output_grads):
        args, outputs, loss = self.flying.pop(mb)
        roots = [loss] if output_grads is None else [outputs] if torch.is_tensor(outputs) else list(outputs)
        torch.autograd.backward(roots, output_grads)
        return tuple(x.grad if torch.is_tensor(x) else None for x in args)

    def finish(self):
        pass

    def param_grads(self):
        return {{name: p.grad for name, p in self.stage.named_parameters()}}

    def close(self):
        pass

class Own(Session):
{changes}

class Adapter:
    name = "own"
    capabilities = {{"split": False, "mixed": False}}

    def open(self, stage, spec):
        return Own(stage, spec)
"""

RAISES = """
    def backward(self, mb, output_grads):
        return self.inner(mb) if mb == 1 else super().backward(mb, output_grads)

    def inner(self, mb):
        raise RuntimeError(f"cannot do {mb}")
"""

SCALES = """
    def backward(self, mb, output_grads):
        return super().backward(mb, tuple(g * (1 + mb) for g in output_grads))
"""

#: Of a stage with several layers, so that the pre-flight's Linear passes.
DOUBLES = """
    def param_grads(self):
        doubled = len(list(self.stage.children())) > 2
        return {n: p.grad * 2 if doubled and p.grad is not None else p.grad for n, p in self.stage.named_parameters()}
"""

HANGS = """
    def backward(self, mb, output_grads):
        import time
        if mb == 1:
            time.sleep(1e6)
        return super().backward(mb, output_grads)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write an adapter with changes of its session into the current folder; return its name."""
    monkeypatch.chdir(tmp_path)

    def write(changes: str) -> str:
        Path("own.py").write_text(ADAPTER.format(changes=changes), encoding="utf-8")
        return "own.py:Adapter"

    return write


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_an_exception_is_shown_with_the_frames_of_the_target_alone(
    tmp_path: Path, judged: Judged, written: Callable[[str], str]
) -> None:
    run = judged(written(RAISES), "--checks", "full.gradients.mlp", "-v", "--html", "page.html")
    (result,) = run.report["results"]
    frames = result["findings"][0]["frames"]
    assert [frame.rpartition(": ")[2] for frame in frames] == [
        "return self.inner(mb) if mb == 1 else super().backward(mb, output_grads)",
        'raise RuntimeError(f"cannot do {mb}")',
    ]
    assert [f'"{tmp_path}/own.py", line ' in frame for frame in frames] == [True, True]
    assert all(frame in one_line(run.out) for frame in frames)
    assert "in inner" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "in inner" not in judged(written(RAISES), "--checks", "full.gradients.mlp").out, "only with -v"


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("mb == 1", ("replay", "full.gradients.mlp", "own.py:Adapter")),
        ("True", ("run", "own.py:Adapter", "--checks", "full.gradients.mlp", "--no-isolation")),
        ("True", ("replay", "full.gradients.mlp", "own.py:Adapter")),
    ],
    ids=["replay", "pre-flight", "pre-flight-replay"],
)
def test_the_frames_are_shown_by_replay_and_by_the_pre_flight(
    capsys: pytest.CaptureFixture[str],
    written: Callable[[str], str],
    when: str,
    words: tuple[str, ...],
) -> None:
    written(RAISES.replace("mb == 1", when))
    main([*words])
    out = one_line(capsys.readouterr().out)
    assert ("failed its pre-flight" in out) is (when == "True")
    line = line_of(Path("own.py"), "raise RuntimeError")
    assert f'own.py", line {line}, in inner: raise RuntimeError(f"cannot do {{mb}}")' in out
    assert "gradconform/drive" not in out
    assert "conformance/drive" not in out


def line_of(source: Path, text: str) -> int:
    """Return the last line of a file that starts with a text, from 1."""
    lines = source.read_text(encoding="utf-8").splitlines()
    return max(number for number, line in enumerate(lines, start=1) if line.strip().startswith(text))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (RAISES, "raise RuntimeError"),  # where it was raised, in a helper of the session
        (SCALES, "def backward("),  # a wrong value has no frame: the action's definition, in the subclass
        (DOUBLES, "def backward("),  # or in the class that it comes from
    ],
    ids=["raised", "overridden", "inherited"],
)
def test_an_annotation_is_at_the_line_of_the_targets_code(
    tmp_path: Path, judged: Judged, written: Callable[[str], str], changes: str, line: str
) -> None:
    target = written(changes)
    run = judged(target, "--checks", "full.gradients.mlp", "--output-format", "github")
    first = run.out.splitlines()[0]
    expected = line_of(tmp_path / "own.py", line)
    assert first.startswith(f"::error file=own.py,line={expected},title=gradconform full.gradients.mlp"), first


@pytest.mark.parametrize(
    ("method", "body", "text"),
    [
        ("param_grads(self)", "[p.grad for p in self.stage.parameters()]",
         "param_grads() returned a value of type list, expected a mapping of names to gradients or None"),
        ("param_grads(self)", "{name: 0.0 for name, _ in self.stage.named_parameters()}",
         "param_grads() has a value of type float for 'weight', expected a tensor or None"),
        ("param_grads(self)", "{name: p.main_grad for name, p in self.stage.named_parameters()}",
         "param_grads(), after F0: raised AttributeError: 'Parameter' object has no attribute 'main_grad'"),
        ("backward(self, mb, output_grads)", "None and super().backward(mb, output_grads)",
         "backward() returned None, expected a tuple of one gradient or None per argument"),
        ("backward(self, mb, output_grads)", "super().backward(mb, output_grads)[0]",
         "backward() returned a value of type Tensor, expected a tuple of one gradient or None per argument"),
    ],
)  # fmt: skip
def test_a_wrong_return_value_names_the_method_and_the_expected_form(
    judged: Judged, written: Callable[[str], str], method: str, body: str, text: str
) -> None:
    run = judged(written(f"    def {method}:\n        return {body}\n"), "--checks", "full.gradients.mlp")
    assert run.code == 7
    assert text in one_line(run.out)


def test_an_import_that_raises_is_told_with_a_name_that_is_missing(tmp_path: Path, judged: Judged) -> None:
    (tmp_path / "own.py").write_text("one = 1 / 0\nclass Adaptr: pass\n", encoding="utf-8")
    run = judged("own.py:Adapter")
    assert run.code == 2
    assert "own.py has no 'Adapter'; nearest names: Adaptr; importing it raised ZeroDivisionError" in run.err
    (tmp_path / "own.py").write_text("class Adaptr: pass\n", encoding="utf-8")
    run = judged("own.py:Adapter")
    assert run.code == 2
    assert "raised" not in run.err


@pytest.mark.slow
def test_a_hang_costs_its_time_limit_once_and_shows_the_line_of_the_target(
    tmp_path: Path, judged: Judged, written: Callable[[str], str]
) -> None:
    run = judged(written(HANGS), "--checks", "full.gradients.mlp", "--check-timeout", "25")
    (result,) = run.report["results"]
    assert (result["status"], result["kind"]) == ("failed", "hang")
    assert result["duration_s"] < 2 * 25, "the second try takes less than the whole limit"
    lines = result["message"].splitlines()
    assert lines[0] == (
        "the check did not end within 25 s, and alone not within 10 s; this does not happen with plain autograd"
    )
    assert [line for line in lines if "File" in line][-1].startswith(f'  File "{tmp_path}/own.py"')
    assert not any("/conformance/" in line for line in lines)
    assert result["time_limit"] == 25
    again = "reproduce: gradconform replay full.gradients.mlp own.py:Adapter --check-timeout 25"
    assert again in one_line(run.out).replace("\\ ", "")


@pytest.mark.parametrize("of_report", [False, True])
def test_replay_of_a_hang_ends_with_the_stack(
    tmp_path: Path, command: list[str], written: Callable[[str], str], *, of_report: bool
) -> None:
    words = ["full.gradients.mlp", "own.py:Adapter", "--check-timeout", "5"]
    if of_report:  # it has the limit of its run
        report = check_stage_backward(written("    pass"), checks=["full.gradients.mlp"])
        report.results = [
            replace(one, status="failed", kind="hang", ended="hang", time_limit=5.0) for one in report.results
        ]
        (tmp_path / "report.json").write_text(report.to_json(), encoding="utf-8")
        words = ["report.json#1"]
    words = [*command, "replay", *words]
    written(HANGS)
    started = time.monotonic()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert time.monotonic() - started >= 5
    assert done.returncode == 1
    assert "full.gradients.mlp did not end within 5 s; --check-timeout allows more" in done.stderr
    assert f'File "{tmp_path}/own.py", line' in done.stderr
    assert "the target ended the process" not in done.stderr
