"""The driver: what a step records, what ends a lane, and that the process is left as it was."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec, UnsupportedError
from gradconform.drive.driver import drive
from gradconform.drive.observation import Observation
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.trial.materials import Materials
from gradconform.trial.program import write
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))
DROPOUT = StageCase("dropout", "dropout", lambda: nn.Dropout(0.5), (Normal((7, 5)),))

Act = Callable[[str], Any]


class Watched(AutogradSession):
    """Plain autograd that tells ``act`` of every call, by the letter and micro-batch."""

    def __init__(self, stage: nn.Module, spec: StageSpec, act: Act) -> None:
        super().__init__(stage, spec)
        self.spec, self._act = spec, act

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        """Tell, then run."""
        self._act(f"F{mb}")
        return super().forward(mb, args, target)

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Tell, then run."""
        self._act(f"B{mb}")
        return super().backward(mb, output_grads)

    def backward_weight(self, mb: int) -> None:
        """Tell, then run."""
        self._act(f"W{mb}")
        super().backward_weight(mb)

    def finish(self) -> None:
        """Tell."""
        self._act("finish")

    def close(self) -> None:
        """Tell, then let go."""
        self._act("close")
        super().close()


class WatchedAdapter(AutogradAdapter):
    """Opens :class:`Watched` sessions and keeps the specs it was given."""

    def __init__(self, act: Act = lambda _: None) -> None:
        self._act = act
        self.specs: list[StageSpec] = []

    def open(self, stage: nn.Module, spec: StageSpec) -> Watched:
        """Return a session on ``stage``."""
        self._act("open")
        self.specs.append(spec)
        return Watched(stage, spec, self._act)


def driven(program: str, act: Act = lambda _: None, **options: Any) -> Observation:
    options = {"stages": (LINEAR,), **options}
    materials = Materials(Trial(program=program, **options), dtype=torch.float32, device=CPU, seed=20)
    return drive(WatchedAdapter(act), materials)


def fails_at(*places: str, error: type[BaseException] = RuntimeError) -> Act:
    def act(place: str) -> None:
        if place in places:
            msg = f"at {place}"
            raise error(msg)

    return act


def shown(observation: Observation) -> str:
    return write(step.action for step in observation.steps)


def test_a_session_is_opened_driven_finished_and_closed_in_order() -> None:
    calls: list[str] = []
    observation = driven("F0 B0 zero_none F1 I1 W1", calls.append)
    assert calls == ["open", "F0", "B0", "F1", "W1", "finish", "close"]
    assert shown(observation) == "F0 B0 zero_none F1 I1 W1 finish"
    assert [step.position for step in observation.steps] == list(range(7))


def test_a_session_is_reopened_on_the_same_module() -> None:
    calls: list[str] = []
    observation = driven("F0 B0 finish reopen F1 B1 finish", calls.append)
    assert calls == ["open", "F0", "B0", "finish", "close", "open", "F1", "B1", "finish", "close"]
    first, second = observation.steps[1], observation.steps[5]
    kept, added = (step.param_grads["weight"] for step in (first, second))
    assert kept is not None
    assert added is not None
    assert observation.steps[3].param_grads["weight"] is kept
    assert not torch.equal(added, kept)


def test_a_session_closed_by_the_program_is_closed_once_and_not_used_again() -> None:
    calls: list[str] = []
    observation = driven("F0 B0 close", calls.append)
    assert calls == ["open", "F0", "B0", "close"]
    assert shown(observation) == "F0 B0 close"
    assert observation.steps[2].param_grads["weight"] is observation.steps[1].param_grads["weight"]


def test_a_module_that_cannot_be_reopened_is_reported_at_reopen() -> None:
    opened: list[str] = []

    def once(place: str) -> None:
        opened.extend([place] if place == "open" else [])
        if len(opened) > 1:
            msg = "it was open before"
            raise RuntimeError(msg)

    observation = driven("F0 B0 reopen F1", once)
    assert shown(observation) == "F0 B0 reopen"
    assert str(observation.steps[-1].raised) == "RuntimeError: it was open before"


def test_a_step_records_the_results_of_its_action() -> None:
    forward, backward, finish = driven("F0 B0").steps
    assert [tuple(t.shape) for t in forward.outputs or ()] == [(7, 3)]
    assert forward.input_grads is None
    assert forward.param_grads == {"weight": None, "bias": None}
    assert backward.outputs is None
    assert [tuple(g.shape) for g in backward.input_grads or () if g is not None] == [(7, 5)]
    assert isinstance(backward.param_grads["weight"], Tensor)
    assert backward.arg_grads == (None,)
    assert finish.param_grads["weight"] is not None
    assert not any(step.raised for step in (forward, backward, finish))


def test_recorded_gradients_are_copies_that_later_actions_do_not_change() -> None:
    steps = driven("F0 B0 F1 B1").steps
    first, second = steps[1].param_grads["weight"], steps[3].param_grads["weight"]
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_a_returned_gradient_is_recorded_unchanged() -> None:
    class Overwrites(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            handed_out: list[Tensor] = []

            class Session(AutogradSession):
                def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
                    for grad in handed_out:
                        grad.fill_(7.0)
                    found = super().backward(mb, output_grads)
                    handed_out.extend(grad for grad in found if grad is not None)
                    return found

            return Session(stage, spec)

    trial = Trial(stages=(LINEAR,), program="F0 B0 F1 B1", watch=frozenset({"state"}))
    materials = Materials(trial, dtype=torch.float32, device=CPU, seed=20)
    overwritten, calm = drive(Overwrites(), materials), drive(AutogradAdapter(), materials)
    for place in (1, 3):
        one, other = overwritten.steps[place].input_grads, calm.steps[place].input_grads
        assert torch.equal((one or ())[0], (other or ())[0])  # type: ignore[arg-type] # None would fail the test
    assert overwritten.changed_later == ("input gradient 0 returned by B0",)
    assert calm.changed_later == ()


def test_an_action_that_raises_ends_the_lane_and_is_recorded() -> None:
    observation = driven("F0 B0 F1 B1", fails_at("B0"))
    assert shown(observation) == "F0 B0"
    assert observation.raised is observation.steps[-1]
    assert str(observation.steps[-1].raised) == "RuntimeError: at B0"


def test_a_misuse_that_raises_is_recorded_and_the_lane_continues() -> None:
    observation = driven("F0 I0 W0 W0! F1 B1")
    assert shown(observation) == "F0 I0 W0 W0! F1 B1 finish"
    assert observation.raised is None
    assert [str(step.action) for step in observation.steps if step.raised] == ["W0!"]


def test_a_failed_lane_does_not_stop_the_other_lane() -> None:
    materials = Materials(
        Trial(stages=(LINEAR, LINEAR), program="F0 1F0 B0 1B0"), dtype=torch.float32, device=CPU, seed=20
    )
    opened: list[str] = []

    class FirstFails(AutogradAdapter):
        def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
            opened.append("open")
            return Watched(stage, spec, fails_at("F0") if len(opened) == 1 else lambda _: None)

    assert shown(drive(FirstFails(), materials)) == "F0 1F0 1B0 1finish"


def test_two_lanes_have_separate_stages_and_sessions() -> None:
    observation = driven("F0 1F0 1B0 B0", stages=(LINEAR, LINEAR))
    one, two = observation.steps[2], observation.steps[3]
    assert one.action.stage == 1
    assert two.param_grads["weight"] is not None
    assert observation.steps[1].param_grads["weight"] is None


def test_an_open_that_raises_is_reported_once_at_the_first_action() -> None:
    observation = driven("F0 B0 F1", fails_at("open"))
    assert [str(step.raised) for step in observation.steps] == ["RuntimeError: at open"]


@pytest.mark.parametrize("place", ["open", "F0", "B0", "W1", "finish"])
def test_an_unsupported_error_is_raised_again_and_the_session_is_closed(place: str) -> None:
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        fails_at(place, error=UnsupportedError)(name)

    with pytest.raises(UnsupportedError, match=f"at {place}"):
        driven("F0 B0 F1 I1 W1", act)
    assert calls[-1] == ("open" if place == "open" else "close")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_every_session_is_closed_after_any_exception(error: type[BaseException]) -> None:
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        fails_at("B0", error=error)(name)

    observation = driven("F0 1F0 B0", act, stages=(LINEAR, LINEAR))
    assert observation.raised is not None
    assert str(observation.raised.raised) == f"{error.__name__}: at B0"
    assert calls.count("close") == 2


def test_a_close_that_raises_is_recorded_and_the_next_session_closed() -> None:
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        fails_at("close")(name)

    observation = driven("F0 1F0", act, stages=(LINEAR, LINEAR))
    assert calls.count("close") == 2
    assert str(observation.close_raised) == "RuntimeError: at close"


def test_a_strict_warning_filter_does_not_turn_warnings_into_errors() -> None:
    def act(name: str) -> None:
        warnings.warn(f"deprecated {name}", FutureWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert driven("F0 B0", act).raised is None
        with pytest.raises(FutureWarning):
            warnings.warn("the filter is as it was", FutureWarning, stacklevel=1)


@pytest.fixture(params=[True, False], ids=["collector on", "collector off"])
def collector(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("error", [None, UnsupportedError])
def test_the_garbage_collector_is_off_while_lifetimes_are_watched_and_then_restored(
    error: type[Exception] | None, *, collector: bool
) -> None:
    seen: list[bool] = []

    def act(name: str) -> None:
        seen.append(gc.isenabled())
        if error and name == "B0":
            raise error(name)

    for watch in (frozenset(), frozenset({"lifetime"})):
        try:
            driven("F0 B0", act, watch=watch)
        except UnsupportedError:
            assert error is UnsupportedError
        assert gc.isenabled() == collector
        assert seen[-1] == (collector and not watch)


@pytest.mark.parametrize("error", [None, RuntimeError, UnsupportedError])
def test_the_driver_restores_generators_and_grad_mode(error: type[Exception] | None) -> None:
    torch.manual_seed(7)
    random.seed(7)
    before, python = torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        try:
            observation = driven("F0 B0", fails_at("B0", error=error) if error else lambda _: None, stages=(DROPOUT,))
            assert (observation.raised is None) == (error is None)
        except UnsupportedError:
            assert error is UnsupportedError
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


def test_every_forward_starts_with_the_generator_state_of_its_micro_batch() -> None:
    def disturbs(name: str) -> None:
        if name.startswith("B"):
            torch.rand(11)

    calm, disturbed = driven("F0 B0 F1 B1", stages=(DROPOUT,)), driven("F0 B0 F1 B1", disturbs, stages=(DROPOUT,))
    for place in (0, 2):
        one, other = calm.steps[place].outputs, disturbed.steps[place].outputs
        assert torch.equal((one or ())[0], (other or ())[0])
    first, second = (calm.steps[place].outputs or () for place in (0, 2))
    assert not torch.equal(first[0] == 0, second[0] == 0)


class EditsGrads(AutogradAdapter):
    """Plain autograd whose input gradients, or parameter gradients after B, are put through ``edit``."""

    def __init__(self, edit: Callable[[Tensor], Any], *, of: str) -> None:
        self.edit, self.of = edit, of

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session that edits."""
        edit, of = self.edit, self.of

        class Session(AutogradSession):
            def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
                found = super().backward(mb, output_grads)
                for parameter in stage.parameters() if of == "parameters" else ():
                    assert parameter.grad is not None
                    edit(parameter.grad)
                return tuple(None if g is None else edit(g) for g in found) if of == "inputs" else found

        return Session(stage, spec)


def test_equal_observed_tensors_share_one_copy_and_different_ones_do_not() -> None:
    trial = Trial(stages=(LINEAR,), program="F0 B0 F1 B1", watch=frozenset({"state"}))
    materials = Materials(trial, dtype=torch.float32, device=CPU, seed=20)
    plain = drive(AutogradAdapter(), materials)
    again = drive(AutogradAdapter(), materials, known=plain)
    for one, other in zip(plain.steps, again.steps, strict=True):
        assert one.outputs is other.outputs is None or one.outputs[0] is other.outputs[0]  # type: ignore[index] # None would fail the test
        assert one.input_grads is other.input_grads is None or one.input_grads[0] is other.input_grads[0]  # type: ignore[index] # None would fail the test
        assert all(one.param_grads[name] is grad for name, grad in other.param_grads.items())
        assert all(one.state.params[name] is kept for name, kept in other.state.params.items())  # type: ignore[union-attr] # None would fail the test
    wrong = drive(EditsGrads(lambda grad: grad.data.add_(1e-3), of="parameters"), materials, known=plain)
    for name in ("weight", "bias"):
        expected, got = plain.at(1).param_grads[name], wrong.at(1).param_grads[name]
        assert expected is not None
        assert got is not None
        assert torch.equal(got, expected + 1e-3)
        assert wrong.at(0).param_grads[name] is plain.at(0).param_grads[name] is None


@pytest.mark.parametrize(
    "edit",
    [
        lambda grad: grad.t().contiguous().t(),
        lambda grad: grad.double(),
        lambda grad: grad.to_sparse(),
        torch.zeros_like,
    ],
    ids=["strides", "dtype", "layout", "values"],
)
def test_a_tensor_of_another_layout_or_dtype_never_shares_a_known_copy(edit: Callable[[Tensor], Tensor]) -> None:
    materials = Materials(Trial(stages=(LINEAR,), program="F0 B0"), dtype=torch.float32, device=CPU, seed=20)
    plain = drive(AutogradAdapter(), materials)
    got = drive(EditsGrads(edit, of="inputs"), materials, known=plain).at(1).input_grads
    expected = plain.at(1).input_grads
    assert got is not None
    assert expected is not None
    wanted = edit(expected[0])  # type: ignore[arg-type] # None would fail the test
    assert (got[0].dtype, got[0].layout) == (wanted.dtype, wanted.layout)  # type: ignore[union-attr] # None would fail the test
    assert wanted.layout != torch.strided or got[0].stride() == wanted.stride()  # type: ignore[union-attr] # None would fail the test
    assert torch.equal(got[0].to_dense(), wanted.to_dense())  # type: ignore[union-attr] # None would fail the test
