"""The runner: every way a check can end, and that none of them turns into a pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, UnsupportedError
from gradconform.contract.check import Check
from gradconform.coverage import coverage_of
from gradconform.drive import driver
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.planned_stages import Plan, planned_case
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.results import Result
from gradconform.run.preflight import PLAIN
from gradconform.run.runner import Runner, one_thread
from gradconform.target.resolve import resolve
from gradconform.trees import map_leaves
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
#: How many sessions the pre-flight of an adapter that claims all opens.
FLOWN = 1 + sum(len(programs) for _, programs in PLAIN.values())
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))
THIRD = StageCase("third", "a third Linear", lambda: nn.Linear(6, 3), (Normal((7, 6)),))
WIDE = StageCase("wide", "another Linear", lambda: nn.Linear(11, 2), (Normal((7, 11)),))
Act = Callable[[nn.Module, str], Any]


class Acting(AutogradSession):
    """Plain autograd that calls ``act`` with the stage and the method before each backward."""

    def __init__(self, stage: nn.Module, spec: StageSpec, act: Act) -> None:
        super().__init__(stage, spec)
        self._act = act

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Act, then run; scale what is returned where the act says by how much."""
        scale = self._act(self._stage, "backward")
        found = super().backward(mb, output_grads)
        return found if scale is None else tuple(None if grad is None else grad * scale for grad in found)

    def backward_input(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Act, then run."""
        self._act(self._stage, "backward_input")
        return super().backward_input(mb, output_grads)


class ActingAdapter:
    """Opens :class:`Acting` sessions and counts them."""

    name = "acting"

    def __init__(self, act: Act = lambda *_: None, **claims: Any) -> None:
        self.capabilities = Capabilities(**claims)
        self.opened = 0
        self._act = act

    def open(self, stage: nn.Module, spec: StageSpec) -> Acting:
        """Return a session on ``stage``."""
        self.opened += 1
        return Acting(stage, spec, self._act)


def check(program: str = "F0 B0", *cases: StageCase, judge: Any = gradients, **options: Any) -> Check:
    trials = tuple(Trial(stages=(case,), program=program) for case in cases or (LINEAR,))
    values: dict[str, Any] = {
        "id": "full.topic.case",
        "level": "MUST",
        "profile": "standard",
        "requirement": "B MUST be right.",
        "why": "why",
        "catches": "what",
        "trials": trials,
        "judge": judge,
        "needs": frozenset().union(*(trial.needs for trial in trials)),
        "source": "here",
    }
    return Check(**{**values, **options})


def runner(adapter: object, *, probe: bool = False, dtype: torch.dtype = torch.float32) -> Runner:
    return Runner(resolve(adapter), device=CPU, dtype=dtype, probe=probe)


def ran(adapter: object, given: Check | None = None, **options: Any) -> Result:
    return runner(adapter, **options).run(given or check())


def on(stage_width: int, act: Callable[[], Any]) -> Act:
    """Act on stages of that many inputs only: the pre-flight's stage has 5, the others 11."""

    def acting(stage: nn.Module, method: str) -> Any:
        del method
        return act() if next(stage.parameters()).shape[-1] == stage_width else None

    return acting


def refuse() -> None:
    msg = "not today"
    raise UnsupportedError(msg)


def fail() -> None:
    msg = "broken"
    raise RuntimeError(msg)


@pytest.mark.parametrize(("watch", "trial"), [("flattened", {}), ("_loss_of", {"loss": True})])
def test_an_error_in_a_watch_under_plain_autograd_is_a_kit_error(
    watch: str, trial: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, watch, int)  # raises for what it is given
    result = ran(ActingAdapter(), check(trials=(Trial(stages=(LINEAR,), program="F0 B0", **trial),)))
    assert (result.status, result.kind) == ("error", "kit")
    assert result.message.startswith("the kit's own code raised ")
    assert re.search(r" under plain autograd on cpu \(\S+driver\.py:\d+\); ", result.message)
    assert result.message.endswith("; neither acting nor cpu is charged with it")


def test_a_right_target_passes_and_its_numbers_are_reported() -> None:
    result = ran(ActingAdapter())
    assert result.status == "passed"
    assert result.error_ratio == 0.0
    assert result.bit_equal
    assert (result.device, result.dtype, result.level) == ("cpu", "float32", "MUST")
    assert result.requirement == "B MUST be right."
    assert result.duration_s > 0


def test_a_wrong_target_fails_with_program_message_and_findings() -> None:
    result = ran(ActingAdapter(on(11, lambda: 2.0)), check("F0 B0", WIDE))
    assert result.status == "failed"
    assert result.kind == "mismatch"
    assert result.message.splitlines()[0].startswith("program F0 B0")
    assert "input 0, after B0: worst at [" in result.message
    assert [finding["where"] for finding in result.findings] == ["input 0"]
    assert result.error_ratio is not None
    assert result.error_ratio > 1
    assert not result.bit_equal


def test_an_unclaimed_feature_is_unsupported_and_does_not_run() -> None:
    adapter = ActingAdapter(split=False)
    result = ran(adapter, check("F0 I0 W0"))
    assert (result.status, result.message) == ("unsupported", "not claimed: split")
    assert adapter.opened == 0


@pytest.mark.parametrize(
    ("claims", "message"),
    [({"dtypes": ("float64",)}, "not claimed: dtype float32"), ({"devices": ("cuda",)}, "not claimed: device cpu")],
    ids=["dtype", "device"],
)
def test_an_unclaimed_device_or_dtype_is_unsupported(claims: dict[str, Any], message: str) -> None:
    result = ran(ActingAdapter(**claims))
    assert (result.status, result.message) == ("unsupported", message)


def test_a_session_refusal_is_unsupported_with_its_reason() -> None:
    result = ran(ActingAdapter(on(11, refuse)), check("F0 B0", WIDE))
    assert (result.status, result.kind, result.unclaimed) == ("unsupported", "refused", ())
    assert result.message == "refused by acting: not today"


@pytest.mark.parametrize(
    "explaining",
    ["AlikeFailures.explained", "NeededValues.annotate", "SmallestModules.annotate", "FirstWrongModules.annotate"],
)
def test_an_error_while_explaining_keeps_the_verdict_and_says_so(
    explaining: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        msg = "not found"
        raise LookupError(msg)

    monkeypatch.setattr(f"gradconform.run.runner.{explaining}", broken)
    result = ran(ActingAdapter(on(11, lambda: 2.0)), check("F0 B0", WIDE))
    assert (result.status, result.kind, result.undone) == ("failed", "mismatch", ())
    assert result.findings
    assert result.preamble == [
        "program F0 B0",
        "no explanation: the search for one raised LookupError: not found; report a defect of the kit",
    ]


@pytest.mark.parametrize("first", ["wrong", "refused"])
def test_a_refusal_in_one_trial_does_not_hide_a_wrong_number_in_another(first: str) -> None:
    cases = (WIDE, THIRD) if first == "refused" else (THIRD, WIDE)

    def act(stage: nn.Module, method: str) -> Any:
        del method
        width = next(stage.parameters()).shape[-1]
        return refuse() if width == 11 else 2.0 if width == 6 else None

    result = ran(ActingAdapter(act), check("F0 B0", *cases))
    assert (result.status, result.kind) == ("failed", "mismatch")


def test_the_verdict_line_counts_refusals_of_sessions() -> None:
    results = [ran(ActingAdapter(act), check("F0 B0", WIDE)) for act in (lambda *_: None, on(11, refuse))]
    found = coverage_of(results)
    assert (found.asked, found.refused, found.whole) == (2, 1, False)
    assert found.left_out == "; 1 refused by UnsupportedError"


@pytest.mark.parametrize("act", [fail, lambda: 2.0], ids=["raises", "wrong"])
def test_an_adapter_that_fails_its_pre_flight_is_an_adapter_error_in_every_check(act: Any) -> None:
    made = runner(ActingAdapter(on(5, act)))
    for result in (made.run(check("F0 B0", WIDE)), made.run(check("F0 B0", LINEAR))):
        assert (result.status, result.kind) == ("error", "adapter")
        assert result.message.startswith(
            "adapter 'acting' failed its pre-flight (one Linear, one micro-batch, F0 B0): "
        )


def test_an_adapter_that_refuses_its_pre_flight_is_an_adapter_error_in_every_check() -> None:
    made = runner(ActingAdapter(on(5, refuse)))
    for _ in range(2):
        result = made.run(check("F0 B0", WIDE))
        assert (result.status, result.kind) == ("error", "adapter")
        assert "it claims full and refuses it: not today" in result.message


def test_an_adapter_that_claims_neither_full_nor_split_is_an_error() -> None:
    result = ran(ActingAdapter(full=False, split=False), check(needs=frozenset()))
    assert (result.status, result.kind) == ("error", "adapter")
    assert "claims neither full nor split: there is nothing to judge" in result.message


def test_the_pre_flight_of_a_split_adapter_runs_input_and_weight_passes() -> None:
    seen: list[str] = []
    adapter = ActingAdapter(lambda _, method: seen.append(method), full=False, mixed=False)
    assert ran(adapter, check("F0 I0 W0")).status == "passed"
    assert set(seen) == {"backward_input"}


def test_the_pre_flight_runs_once_and_not_for_plain_functions() -> None:
    adapter = ActingAdapter()
    made = runner(adapter)
    made.run(check("F0 B0", WIDE))
    made.run(check("F0 B0", WIDE))
    assert adapter.opened == FLOWN + 1
    assert not resolve("reference-split").own_adapter


def broken_judge(evidence: Evidence) -> Iterator[Finding]:
    del evidence
    msg = "a bug of ours"
    raise ZeroDivisionError(msg)


def test_a_crash_of_the_kit_is_a_kit_error_with_its_traceback() -> None:
    result = ran(ActingAdapter(), check(judge=broken_judge))
    assert (result.status, result.kind) == ("error", "kit")
    assert "broken_judge" in result.message
    assert "ZeroDivisionError: a bug of ours" in result.message


def test_a_target_that_ends_the_process_does_not_choose_its_exit_code() -> None:
    def leave() -> None:
        raise SystemExit(0)

    result = ran(ActingAdapter(on(11, leave)), check("F0 B0", WIDE))
    assert (result.status, result.kind) == ("failed", "error")
    assert "raised SystemExit: 0" in result.message


class Refuses(nn.Module):
    """A stage that this device cannot run."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.linear = nn.Linear(11, 2)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        """Run, and refuse the backward."""
        y: Tensor = self.linear(x)
        if y.requires_grad:
            y.register_hook(self._refuse)
        return y

    def _refuse(self, grad: Tensor) -> None:
        del grad
        msg = "no kernel"
        raise self.error(msg)


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_an_error_of_plain_autograd_makes_the_check_unsupported(error: type[Exception]) -> None:
    case = StageCase("refuses", "a stage without a kernel", lambda: Refuses(error), (Normal((7, 11)),))
    result = ran(AutogradAdapter(), check("F0 B0", case))
    assert result.status == "unsupported"
    assert result.message.startswith("plain autograd on this device raised ")
    assert "no kernel" in result.message


@pytest.mark.parametrize(
    ("act", "status", "message"),
    [
        (lambda: None, "unsupported", "not claimed: view_output; tried, and right"),
        (fail, "unsupported", "not claimed: view_output; tried, and refused"),
        (refuse, "unsupported", "not claimed: view_output; tried, and refused"),
        (lambda: 2.0, "failed", "not claimed: view_output; tried, and wrong without an error"),
    ],
    ids=["right", "raises", "unsupported", "wrong"],
)
def test_a_probe_tries_an_unclaimed_feature(act: Any, status: str, message: str) -> None:
    adapter = ActingAdapter(on(11, act), view_output=False)
    asked = check("F0 B0", WIDE, needs=frozenset({"full", "view_output"}))
    assert ran(adapter, asked).status == "unsupported"
    result = ran(adapter, asked, probe=True)
    assert (result.status, result.message.splitlines()[0]) == (status, message)
    assert (result.level, result.unclaimed) == ("MUST", ("view_output",))


def test_an_unclaimed_option_that_is_silently_wrong_is_a_failed_should() -> None:
    asked = check("F0 B0", WIDE, needs=frozenset({"full", "weight_result"}))
    result = ran(ActingAdapter(on(11, lambda: 2.0)), asked, probe=True)
    assert (result.status, result.level, result.unclaimed) == ("failed", "SHOULD", ("weight_result",))


@pytest.mark.parametrize("first", ["wrong", "refused"])
def test_a_probe_refusal_in_one_trial_does_not_hide_a_wrong_number_in_another(first: str) -> None:
    def act(stage: nn.Module, method: str) -> Any:
        del method
        width = next(stage.parameters()).shape
        if width[-1] == 11:
            return fail()
        return 2.0 if width[0] == 3 and width[-1] == 6 else None

    asked = check("F0 B0", *((THIRD, WIDE) if first == "wrong" else (WIDE, THIRD)), needs=frozenset({"view_output"}))
    result = ran(ActingAdapter(act, view_output=False), asked, probe=True)
    assert (result.status, result.level) == ("failed", "MUST")
    assert "raised" not in result.message


def test_a_probed_dtype_refused_at_the_pre_flight_is_unsupported() -> None:
    adapter = ActingAdapter(lambda *_: fail(), dtypes=("float64",))
    result = ran(adapter, probe=True)
    assert (result.status, result.message) == ("unsupported", "not claimed: dtype float32; tried, and refused")


def test_a_trial_runs_once_for_all_checks_that_read_it() -> None:
    adapter = ActingAdapter()
    made = runner(adapter)
    first, second = check("F0 B0", WIDE), check("F0 B0", WIDE, id="full.other.case")
    assert [made.run(given).status for given in (first, second)] == ["passed", "passed"]
    assert adapter.opened == FLOWN + 1


def test_evidence_is_freed_after_the_last_check_that_reads_it() -> None:
    adapter = ActingAdapter()
    read_twice, read_once = (check("F0 B0", stage) for stage in (WIDE, LINEAR))
    readers = {read_twice.trials[0]: 2, read_once.trials[0]: 1}
    made = Runner(resolve(adapter), device=CPU, dtype=torch.float32, readers=readers)
    opened = []
    for given in (read_twice, read_once, read_twice, read_once, read_twice):
        assert made.run(given).status == "passed"
        opened.append(adapter.opened)
    assert [after - opened[0] for after in opened] == [0, 1, 1, 2, 3]


def test_a_trial_is_repeated_on_new_stages_as_often_as_it_requires() -> None:
    stages: list[int] = []
    adapter = ActingAdapter(lambda stage, _: stages.append(id(stage)))
    trial = Trial(stages=(WIDE,), program="F0 B0", repeats=5)
    assert ran(adapter, check(trials=(trial,))).status == "passed"
    backwards = sum(len(re.findall(r"[BI]\d", program)) for _, programs in PLAIN.values() for program in programs)
    assert len(stages) == 1 + backwards + 5


def test_if_the_implementation_divides_the_loss_the_oracle_divides_it_too() -> None:
    class Divides(AutogradAdapter):
        name = "divides"
        capabilities = {"loss_divided_by_microbatches": True}  # noqa: RUF012 (as an adapter would be written)

        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            class Session(AutogradSession):
                def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
                    found = super().forward(mb, args, target)
                    if self._spec.loss_fn is not None:
                        args, loss = self._forwards[mb]
                        self._forwards[mb] = args, loss / self._spec.n_microbatches
                    return found

            return Session(stage, spec)

    trial = Trial(stages=(WIDE,), program="F0 F1 F2 B0 B1 B2", loss=True)
    assert ran(Divides(), check(trials=(trial,))).status == "passed"
    assert ran(AutogradAdapter(), check(trials=(trial,))).status == "passed"


def test_one_thread_is_used_and_the_setting_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Reordering(AutogradSession):
    """Plain autograd that returns a dict with its keys in the reverse order."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        """Run the stage and turn the dict round."""
        outputs = super().forward(mb, args, target)
        return dict(reversed(outputs.items())) if isinstance(outputs, dict) else outputs


class Named(AutogradSession):
    """Plain autograd that reads output gradients by name, as an engine does that keeps the type of its outputs."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.seen: list[type] = [type(spec.example_outputs)]

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Read the gradients by name."""
        if isinstance(output_grads, tuple) and len(output_grads) > 1:
            self.seen.append(type(output_grads))
            assert output_grads.hidden is output_grads[0]  # type: ignore[attr-defined] # of a named tuple
        return super().backward(mb, output_grads)


def test_a_dict_with_its_keys_in_another_order_passes() -> None:
    case = planned_case(Plan(exit="dict"))
    adapter = SimpleNamespace(name="reordering", capabilities=Capabilities(), open=Reordering)
    result = ran(adapter, check("F0 B0", case))
    assert (result.status, result.message) == ("passed", "")


def test_named_tuple_outputs_give_named_tuple_gradients_and_examples() -> None:
    opened: list[Named] = []

    def open_(stage: nn.Module, spec: StageSpec) -> Named:
        opened.append(Named(stage, spec))
        return opened[-1]

    adapter = SimpleNamespace(name="named", capabilities=Capabilities(), open=open_)
    result = ran(adapter, check("F0 B0", planned_case(Plan(exit="named"))))
    assert (result.status, result.message) == ("passed", "")
    assert [kind.__name__ for kind in opened[-1].seen] == ["Named", "Named"]


class Detaching(AutogradSession):
    """Plain autograd whose F hands out what requires no gradient."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        """Detach the outputs, as an engine does that sends them."""
        return map_leaves(torch.Tensor.detach, super().forward(mb, args, target))


def test_outputs_that_require_no_gradient_fail_the_pre_flight() -> None:
    adapter = SimpleNamespace(name="detaching", capabilities=Capabilities(), open=Detaching)
    result = ran(adapter, check("F0 B0", WIDE))
    assert (result.status, result.kind) == ("error", "adapter")
    assert result.message.startswith(
        "adapter 'detaching' failed its pre-flight (one Linear, one micro-batch, F0 B0): F0 returned output 0 without "
        "requires_grad; return the outputs as the stage gave them"
    )


def test_outputs_of_a_last_stage_may_require_no_gradient() -> None:
    adapter = SimpleNamespace(name="detaching", capabilities=Capabilities(mid_stage=False), open=Detaching)
    trial = Trial(stages=(LINEAR,), program="F0 B0", loss=True)
    assert ran(adapter, check(trials=(trial,), needs=trial.needs)).status == "passed"
