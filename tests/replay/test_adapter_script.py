"""Scripts of adapters: they need torch, the adapter's file and gradconform.adapter, and say what the kit says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.replay.script import Replayed, failing_trial
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

from .conftest import RunScript

#: Plain autograd in an engine of its own, which reads named tuples by name and divides nothing; ``WRONG`` is put in.
ADAPTER = """
import torch
from gradconform.adapter import Capabilities, StageSpec, UnsupportedError

FACTOR = 1.0

class Adapter:
    name = "mine"
    capabilities = Capabilities(CLAIMS)

    def open(self, stage, spec):
        assert isinstance(spec, StageSpec) and len(spec.args_require_grad) == len(spec.example_args)
        return Session(stage, spec)

def flat(tree):
    if isinstance(tree, (tuple, list)):
        return [leaf for branch in tree for leaf in flat(branch)]
    return [leaf for key in tree for leaf in flat(tree[key])] if isinstance(tree, dict) else [tree]

class Session:
    def __init__(self, stage, spec):
        self.stage, self.spec, self.flying, self.waiting, self.done = stage, spec, {}, {}, False

    def forward(self, mb, args, target=None):
        if any(isinstance(arg, torch.Tensor) and arg.numel() == 0 for arg in args):
            raise UnsupportedError("no batch without rows")
        outputs = self.stage(*args)
        if type(outputs) is not type(self.spec.example_outputs):
            raise TypeError(f"{type(self.spec.example_outputs)} for {type(outputs)}")
        loss = self.spec.loss_fn(outputs, target) if self.spec.loss_fn else None
        self.flying[mb] = args, outputs, loss
        return outputs

    def roots(self, mb, grads):
        args, outputs, loss = self.flying.pop(mb)
        if loss is not None:
            return args, [loss], [None]
        if hasattr(outputs, "hidden") and grads.hidden is not grads[0]:
            raise TypeError("no named tuple")
        pairs = [(o, g) for o, g in zip(flat(outputs), flat(grads)) if isinstance(o, torch.Tensor) and o.requires_grad]
        return args, [o for o, _ in pairs], [g for _, g in pairs]

    def backward(self, mb, output_grads):
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def backward_input(self, mb, output_grads):
        args, roots, grads = self.roots(mb, output_grads)
        sought = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        found = torch.autograd.grad(roots, sought, grads, retain_graph=True, allow_unused=True) if sought else ()
        self.waiting[mb] = roots, grads
        given = iter(found)
        return tuple(next(given) if isinstance(a, torch.Tensor) and a.requires_grad else None for a in args)

    def backward_weight(self, mb):
        roots, grads = self.waiting.pop(mb)
        sought = [p for p in self.stage.parameters() if p.requires_grad]
        grads = [None if g is None else g * FACTOR for g in grads]
        torch.autograd.backward(roots, grads, inputs=sought)

    def finish(self):
        if self.waiting or self.done:
            raise RuntimeError("W is missing, or the step has ended")

    def param_grads(self):
        return {name: p.grad for name, p in self.stage.named_parameters()}

    def close(self):
        self.done = True
"""

#: One check of each kind of program, judge and stage that a script has a line of its own for.
CHECKS = (
    "full.gradients.mlp",
    "split.gradients.dict-output",
    "full.gradients.nontensor-inputs",
    "space.full.frozen-later-1",
    "full.loss.mlp",
    "schedule.chain.two-tensors-last",
    "hooks.post_accumulate.mlp-split",
    "hooks.altered.scale-mlp-split",
    "mode.gradients.autocast-mlp-split",
    "state.params.batch-norm-split",
    "accumulate.order.split-reversed",
)


def scripts_of(folder: Path, checks: tuple[str, ...], adapter: str, target: str = "mine.py:Adapter") -> list[str]:
    """Return the scripts of checks on an adapter in a folder; they are to lie there too."""
    (folder / "mine.py").write_text(adapter, encoding="utf-8")
    run = Run(RunOptions.of(str(folder / target), profile="full", checks=checks))
    items = [item for item in run.plan.items if item.check.id in checks]
    assert sorted(item.check.id for item in items) == sorted(checks)
    seed = run.options.seed
    trials = [failing_trial(run, item) for item in items]
    return [
        Replayed(check, run.target, item.dtype, item.device, seed, place=folder).shortest()
        for check, item in zip(trials, items, strict=True)
    ]


def ran(folder: Path, text: str, tail: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text + tail, encoding="utf-8")
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("check", CHECKS)
def test_the_script_of_a_right_adapter_prints_right(check: str, tmp_path: Path, run_script: RunScript) -> None:
    (text,) = scripts_of(tmp_path, (check,), ADAPTER.replace("CLAIMS", ""))
    done = run_script(text, folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("right: ")


def test_the_script_of_a_wrong_adapter_names_the_wrong_gradient(tmp_path: Path) -> None:
    wrong = ADAPTER.replace("CLAIMS", "").replace("FACTOR = 1.0", "FACTOR = 1.0  # wrong past the pre-flight's width")
    wrong = wrong.replace("g * FACTOR", "g * (2.0 if len(sought) > 2 else 1.0)")
    (text,) = scripts_of(tmp_path, ("split.gradients.mlp",), wrong)
    done = ran(tmp_path, text)
    assert (done.returncode, done.stderr) == (1, "")
    assert "the gradient of 0.weight after W" in done.stdout
    assert "WRONG: " in done.stdout


def test_a_script_prints_shared_memory_as_true_or_false(tmp_path: Path) -> None:
    stored = ADAPTER.replace("CLAIMS", "").replace(
        "inputs=sought)",
        "inputs=sought)\n        for p in sought:\n"
        "            p.grad = next((g for g in grads if g is not None and torch.equal(p.grad, g)), p.grad)",
    )
    (text,) = scripts_of(tmp_path, ("state.stored_storage.bare-bias-full",), stored.replace("g * FACTOR", "g"))
    done = ran(tmp_path, text)
    assert (done.returncode, done.stderr) == (1, "")
    first, expected, got = done.stdout.splitlines()[:3]
    assert first.endswith("gradient of bare and output gradient 0 of micro-batch 0 after B0:")
    assert (expected.split(), got.split()) == (["expected", "False"], ["got", "True"])
    assert done.stdout.splitlines()[-1] == "WRONG: 3 things differ from plain autograd"


def test_a_script_imports_only_the_adapter_interface_of_the_kit(tmp_path: Path) -> None:
    (text,) = scripts_of(tmp_path, ("split.gradients.mlp",), ADAPTER.replace("CLAIMS", ""))
    tell = text.replace(
        "sys.exit(main())", "main(); print(sorted(n for n in sys.modules if n.startswith('gradconform')))"
    )
    done = ran(tmp_path, tell)
    assert done.stdout.splitlines()[-1] == "['gradconform', 'gradconform.adapter', 'gradconform.version']"
    assert "from gradconform.adapter import StageSpec" in text


def test_early_and_late_gradients_are_compared_when_they_are_due(tmp_path: Path) -> None:
    late = ADAPTER.replace("CLAIMS", 'weight_when="finish", input_pass_touches_params=True')
    late = late.replace(
        "    def backward_weight(self, mb):",
        "    def backward_weight(self, mb):\n        self.queue = getattr(self, 'queue', []) + [mb]\n\n"
        "    def flush(self, mb):",
    )
    late = late.replace(
        "        self.backward_weight(mb)\n        return found", "        self.flush(mb)\n        return found"
    )
    late = late.replace(
        "    def finish(self):",
        "    def finish(self):\n        for mb in self.__dict__.pop('queue', []):\n            self.flush(mb)",
    )
    (text,) = scripts_of(tmp_path, ("split.gradients.mlp",), late)
    assert ran(tmp_path, text).stdout.startswith("right: ")
    (tmp_path / "mine.py").write_text(
        late.replace("self.flush(mb)\n\n", "self.flush(mb)\n\n").replace("1.0", "3.0"), encoding="utf-8"
    )
    assert ran(tmp_path, text).returncode == 1


def test_the_command_writes_the_script_of_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ADAPTER.replace("CLAIMS", ""), encoding="utf-8")
    words = ("replay", "full.gradients.mlp", "mine.py:Adapter", "--script", "x.py")
    command = [sys.executable, "-m", "gradconform", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert " ".join(done.stdout.split()) == (
        "wrote x.py: it runs full.gradients.mlp with torch, gradconform.adapter and mine.py run: python x.py"
    )
    (tmp_path / "away").mkdir()
    assert "from gradconform.adapter import StageSpec" in (tmp_path / "x.py").read_text(encoding="utf-8")


#: The engine takes the gradients of several weights twice; one Linear, as in the pre-flight, is right.
DOUBLED = ADAPTER.replace("g * FACTOR", "g * (2.0 if len(sought) > 2 else 1.0)")

#: A failing check of each form of program, judge and stage that a short script has lines of its own for.
SHORT = (
    "full.gradients.mlp",
    "split.gradients.three-outputs",
    "accumulate.steps.split-zero-none",
    "accumulate.reused_input.split",
    "mode.gradients.autocast-mlp-split",
    "grad_tuple.layout.strided-outputs-split",
    "steps.params.step-layer-norm-full",
    "lifetime.reopened.layer-norm-full",
    "state.returned_owned.mlp-full",
    "schedule.alone.zbv-zero-bubble-3x2x5",
    "full.gradients.duplicate-input",
    "state.receive_buffer.mlp",
)

#: A failing check whose own trial has features that only the kit's driver has: a part of it fails too.
IN_PART = (
    "misuse.next_session.shape-full",
    "errors.retry.shape-split",
    "mode.gradients.thread-mlp-split",
    "mode.gradients.default-dtype-mlp-full",
    "hooks.altered.move-mlp-full",
    "hooks.tensor_grad.mlp-full",
    "grad_tuple.tracked.mlp-split",
    "grad_tuple.nonfinite.inf-split",
    "caller.buffer.full",
    "schedule.gradients.gpipe-2x1x3",
)


@pytest.mark.parametrize("check", SHORT)
def test_the_script_of_a_failing_check_of_an_adapter_is_short(
    check: str, tmp_path: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = scripts_of(tmp_path, (check,), DOUBLED.replace("CLAIMS", ""))
    lines = text.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
    wrong = run_script(text, folder=tmp_path)
    assert (wrong.code, wrong.err) == (1, "")
    assert wrong.out.startswith("WRONG: the gradient of ")
    (tmp_path / "mine.py").write_text(ADAPTER.replace("CLAIMS", ""), encoding="utf-8")
    right = run_script(text, folder=tmp_path)
    assert (right.code, right.out, right.err) == (0, "right: all gradients are those of plain autograd\n", "")


@pytest.mark.parametrize("check", IN_PART)
def test_the_script_of_a_part_that_fails_too_is_short(
    check: str, tmp_path: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = scripts_of(tmp_path, (check,), DOUBLED.replace("CLAIMS", ""))
    assert len(text.splitlines()) <= 120
    assert "A part of this fails too and runs here: " in " ".join(text.split())
    assert run_script(text, folder=tmp_path).out.startswith("WRONG: the gradient of ")
    (tmp_path / "mine.py").write_text(ADAPTER.replace("CLAIMS", ""), encoding="utf-8")
    assert run_script(text, folder=tmp_path).code == 0


def test_a_loss_of_several_outputs_has_a_short_script(
    tmp_path: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    doubled = "return args, [loss * (2.0 if len(flat(outputs)) > 1 else 1.0)], [None]"
    wrong = ADAPTER.replace("CLAIMS", "").replace("return args, [loss], [None]", doubled)
    (text,) = scripts_of(tmp_path, ("differing.loss.split",), wrong)
    assert len(text.splitlines()) <= 120
    assert run_script(text, folder=tmp_path).out.startswith("WRONG: the gradient of ")
    (tmp_path / "mine.py").write_text(ADAPTER.replace("CLAIMS", ""), encoding="utf-8")
    assert run_script(text, folder=tmp_path).code == 0


def test_a_failure_that_needs_a_feature_keeps_it(
    tmp_path: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = ADAPTER.replace("CLAIMS", "").replace("import torch", "import threading\n\nimport torch", 1)
    wrong = "3.0 if threading.current_thread() is not threading.main_thread() else 1.0"
    (text,) = scripts_of(
        tmp_path, ("mode.gradients.thread-mlp-split",), threads.replace("g * FACTOR", f"g * ({wrong})")
    )
    assert "A part of this" not in text
    done = run_script(text, folder=tmp_path)
    assert (done.code, done.err) == (1, "")
    assert "the gradient of 0.weight after W0" in done.out


def test_a_script_finds_the_adapter_from_its_own_place_or_an_argument(tmp_path: Path) -> None:
    for folder in ("engine", "scripts", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "engine" / "mine.py").write_text(DOUBLED.replace("CLAIMS", ""), encoding="utf-8")
    (tmp_path / "elsewhere" / "mine.py").write_text(ADAPTER.replace("CLAIMS", ""), encoding="utf-8")
    for check in ("full.gradients.mlp", "hooks.post_accumulate.mlp-split"):  # a short script and a long one
        words = ("-m", "gradconform", "replay", check, "engine/mine.py:Adapter", "--script", "scripts/x.py")
        subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, capture_output=True)
        for start in (tmp_path, tmp_path / "scripts", Path("/")):
            command = [sys.executable, str(tmp_path / "scripts" / "x.py")]
            done = subprocess.run(command, cwd=start, capture_output=True, text=True, check=False)
            assert "ModuleNotFoundError" not in done.stderr
            assert done.returncode == (check == "full.gradients.mlp")
        if check == "full.gradients.mlp":
            command += [str(tmp_path / "elsewhere")]
            assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_input_gradients_of_the_first_stage_that_are_not_claimed_are_not_compared(
    tmp_path: Path, run_script: RunScript
) -> None:
    unread = ADAPTER.replace("CLAIMS", "first_stage_input_grads=False").replace(
        "return tuple(next(given) if isinstance(a, torch.Tensor) and a.requires_grad else None for a in args)",
        "return tuple(None if self.spec.is_first or not getattr(a, 'requires_grad', 0) else next(given) for a in args)",
    )
    for check in ("schedule.chain.two-tensors-last", "full.gradients.mlp"):
        (text,) = scripts_of(tmp_path, (check,), unread)
        done = run_script(text, folder=tmp_path)
        assert (done.code, done.out[:7], done.err) == (0, "right: ", "")
