"""A pass means something: what is withheld is never cheaper than what fails, and a hollow run conforms nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform import contract
from gradconform.adapter import Capabilities, is_option
from gradconform.contract.areas import CORE
from gradconform.contract.check import Check
from gradconform.reference.autograd import AutogradAdapter
from gradconform.results import Result
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve

CHECKS = contract.checks_of()
#: What a claim that is withheld says; every other one is False then.
WITHHELD = {"weight_order": "none", "backward_order": "fifo", "hooks": "never", "global_state": True,
            "weight_when": "finish", "input_pass_touches_params": True, "bias_hooks": "never"}  # fmt: skip

NEARLY_ALL = """
import torch

class Session:
    def __init__(self, stage):
        self.stage, self.kept = stage, {{}}
    def forward(self, mb, args, target=None):
        out = self.stage(*args)
        self.kept[mb] = args, out
        return out
    def backward(self, mb, output_grads):
        args, out = self.kept.pop(mb)
        params = list(self.stage.parameters())
        outs = [out] if torch.is_tensor(out) else list(out)
        grads = torch.autograd.grad(outs, [*args, *params], output_grads, allow_unused=True)
        for param, grad in zip(params, grads[len(args):]):
            param.grad = grad if len(params) == 2 else grad * 2
        return grads[:len(args)]
    backward_input = backward_weight = None
    def finish(self): pass
    def param_grads(self):
        return {{name: param.grad for name, param in self.stage.named_parameters()}}
    def close(self): pass

class adapter:
    name, capabilities = "hollow", {claims}
    open = staticmethod(lambda stage, spec: Session(stage))
"""
FEW: dict[str, Any] = dict.fromkeys(
    (
        "split", "mixed", "weight_before_input", "loss", "multi_input", "multi_output", "nested_output",
        "nongrad_output", "scalar_output", "view_output", "frozen_params", "unused_params", "shared_params",
        "nontensor_input", "rng", "duplicate_input", "parameter_input", "sparse_grads", "complex", "buffers",
        "grad_mode", "recomputes", "module_hooks", "no_input_grads",
    ),
    False,
) | {"backward_order": "fifo", "hooks": "never", "global_state": True}  # fmt: skip


def command(*words: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("claims", "profile", "code"),
    [({**FEW, "mid_stage": False}, "standard", 5), (FEW, "standard", 1), ({**FEW, "mid_stage": False}, "full", 7)],
    ids=["all-withheld", "nearly-all-withheld", "all-withheld-and-tried"],
)
def test_a_hollow_adapter_never_conforms_in_any_output(
    claims: dict[str, Any], profile: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "hollow.py").write_text(NEARLY_ALL.format(claims=claims), encoding="utf-8")
    found, told = command("run", "hollow.py:adapter", "--profile", profile, "--json", "r.json", folder=tmp_path)
    assert command("report", "r.json", "--html", "r.html", "--markdown", "r.md", folder=tmp_path)[0] == 0
    assert (found, told.splitlines()[-1].startswith("hollow conforms")) == (code, False), told
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (report["verdict"], report["conforms"]) == ("does not conform" if code == 1 else "incomplete", False)
    for page in ("r.html", "r.md"):
        assert "hollow conforms" not in (tmp_path / page).read_text(encoding="utf-8")
    assert command("bundle", "r.json", "-o", "r.zip", folder=tmp_path)[0] == 1
    assert not (tmp_path / "r.zip").exists()


def test_pytest_fails_for_a_hollow_adapter_whose_checks_are_all_skipped(tmp_path: Path) -> None:
    (tmp_path / "hollow.py").write_text(NEARLY_ALL.format(claims={**FEW, "mid_stage": False}), encoding="utf-8")
    options = ["-p", "no:cacheprovider", "--gradconform", "hollow.py:adapter", "--gradconform-profile", "quick"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "hollow: incomplete, no verdict: 0 of " in done.stdout


class DoublingSession:
    """Plain autograd, and every gradient is doubled."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def backward(self, mb: int, output_grads: Any) -> Any:
        found = self._session.backward(mb, doubled(output_grads))
        return doubled(found) if output_grads is None else found

    def backward_input(self, mb: int, output_grads: Any) -> Any:
        found = self._session.backward_input(mb, doubled(output_grads))
        return doubled(found) if output_grads is None else found


def doubled(tree: Any) -> Any:
    if tree is None or isinstance(tree, torch.Tensor):
        return None if tree is None else tree * 2
    values = tree.values() if isinstance(tree, dict) else tree
    several = [doubled(one) for one in values]
    return dict(zip(tree, several, strict=True)) if isinstance(tree, dict) else type(tree)(several)


class Doubling:
    """Wrong everywhere, with claims of its own."""

    name = "doubling"

    def __init__(self, **claims: Any) -> None:
        self.capabilities = Capabilities.from_mapping({**AutogradAdapter().capabilities, **claims})

    def open(self, stage: torch.nn.Module, spec: Any) -> Any:
        return DoublingSession(AutogradAdapter().open(stage, spec))


def judged(check: Check, **claims: Any) -> Result:
    wrong = Doubling(**claims)
    target = replace(resolve(AutogradAdapter()), adapter=wrong, capabilities=wrong.capabilities, own_adapter=False)
    return Runner(target, device=torch.device("cpu"), dtype=torch.float32, probe=True, diagnose=False).run(check)


#: The claims that checks need; README's command tries each fourth.
CLAIMS = sorted(
    {need.partition("=")[0].removesuffix("!") for one in CHECKS.values() for need in one.needs if not is_option(need)}
)


def judge_false_claim(claim: str) -> None:
    """Assert that the verdicts on a wrong target are the same with a false claim, on the checks that ask for it."""
    lie = {claim: WITHHELD.get(claim, False)}
    asking = [one for one in CHECKS.values() if Capabilities(**lie).unclaimed(one.needs) and one.trials]
    wrong = 0
    for check in sorted(asking, key=lambda one: (one.level, "loss" in one.id, len(one.programs[0])))[:4]:
        truth, lied = judged(check), judged(check, **lie)
        found, told = ((one.decisive, one.status == "failed") for one in (truth, lied))
        assert found == told, (claim, check.id, truth.message, lied.message)
        wrong += truth.status == "failed"
    assert wrong, claim


@pytest.mark.parametrize("claim", CLAIMS[::4])
def test_a_false_claim_cannot_hide_a_failure(claim: str) -> None:
    judge_false_claim(claim)


@pytest.mark.slow
def test_no_other_false_claim_can_hide_a_failure() -> None:
    for claim in sorted(set(CLAIMS) - set(CLAIMS[::4])):
        judge_false_claim(claim)


def test_the_core_needs_only_basic_claims_and_is_in_every_profile() -> None:
    core = {check.id for check in CHECKS.values() if check.core}
    assert core == set(CORE)
    assert {CHECKS[name].profile for name in core} == {"quick"}
    plain = {"full", "split", "mid_stage", "loss", "weight_order!=none", "frozen_params"}
    assert set().union(*(CHECKS[name].needs for name in core)) == plain
