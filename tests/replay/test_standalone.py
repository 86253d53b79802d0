"""What every script runs is held against the driver and its adapters: the same is seen, whatever the program."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform.adapter import Adapter
from gradconform.contract import checks_of
from gradconform.contract.check import Judge
from gradconform.drive.driver import KINDS, drive
from gradconform.drive.observation import Observation, State, Step
from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.fixtures.stages import ZOO
from gradconform.judge import gradients
from gradconform.judge.finding import Finding
from gradconform.reference.autograd import AutogradAdapter
from gradconform.replay import standalone
from gradconform.replay.judges import COMPARED
from gradconform.replay.script import Replayed, ScriptError
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import resolve
from gradconform.trial.materials import Materials
from gradconform.trial.modes import MODES
from gradconform.trial.trial import WEIGHTS, Trial

CHECKS = checks_of()
_SEED = 20
_WATCHED = {"state": frozenset({"state"}), "hooks": frozenset({"hooks"}), "modules": frozenset({"module_hooks"})}


def of(*names: str, program: str, **options: Any) -> Trial:
    return Trial(stages=tuple(ZOO[name] for name in names), program=program, **options)


PLAIN = of("mlp", program="F0 B0")
#: One trial per kind of program and way of feeding it; together they have every kind of action.
TRIALS = {
    "full": of("mlp", program="F0 F1 B1 B0 finish", watch=_WATCHED["state"]),
    "split": of("two-inputs", program="F0 F1 I0 I1 W1 W0", watch=_WATCHED["state"]),
    "mixed": of("two-outputs", program="F0 I0 F1 B1 W0"),
    "hooks": of("tied-parallel", program="F0 I0 F1 I1 W0 W1 F2 B2", watch=_WATCHED["hooks"]),
    "module-hooks": of("mlp", program="F0 B0 F1 I1 W1", watch=_WATCHED["modules"]),
    "own-hooks": of("multi-grad-hook", program="F0 B0 F1 I1 W1", watch=_WATCHED["hooks"]),
    "hooks-later": of("mlp", program="F0 B0 hook F1 B1 F2 I2 W2 unhook F3 B3"),
    "zero": of("mlp", program="F0 B0 zero_fill F1 B1 zero_none F2 I2 W2"),
    "drop": of("residual", program="F0 F1 I0 drop0 I1 drop1 W0 W1"),
    "send": of("mask-output", program="F0 F1 send0 B0 F2 send2 I1 I2 drop2 W2 W1"),
    "sent-in-part": of("output-chunks", program="F0 send0 F1 send1 B0 I1 W1", unsent=(1,)),
    "overwrite": of("added-parameter", program="F0 F1 I0 overwrite0 I1 overwrite1 W0 W1", watch=_WATCHED["state"]),
    "freeze": of("mlp", program="F0 B0 freeze1 F1 I1 W1 unfreeze1 F2 B2", watch=_WATCHED["state"]),
    "close": of("mlp", "two-outputs", program="F0 F1 I0 finish! close 1F0 1I0 1W0 1F1 1B1"),
    "reopen": of("mlp", program="F0 F1 I0 W0 reopen F2 I2 W2"),
    "steps": of("mlp", program="F0 B0 F1 I1 W1 finish step restride F0 B0 replace zero_none bucket F1 I1 collect W1"),
    "rebound": of("tied-parallel", program="F0 B0 rebind F0 I0 W0 step F1 B1", watch=_WATCHED["state"]),
    **{
        f"mode-{mode}": of("layer-norm", program="F0 F1 I0 W0 B1", modes=frozenset({mode}), watch=_WATCHED["state"])
        for mode in MODES
    },
    "one-module": of(*["mlp"] * 2, program="F0 1F0 I0 1B0 W0 step F1 B1", one_module=True, watch=_WATCHED["state"]),
    "tied": of("mlp", "mlp-no-bias", program="F0 1F0 I0 1B0 W0 F1 1F1 1I1 B1 1W1", tied=("0.weight",)),
    **{f"altering-{how}": of("tied-parallel", program="F0 B0 F1 I1 W1", altering=how) for how in ("scale", "move")},
    **{
        f"raising-{what}": of(f"raising-{what}", program="F0 B0 F1 F2 B1! B2 F3 F4 I3! W3! I4 W4", raising=(1, 3))
        for what in ("hook", "function", "saved-tensor")
    },
    "modes": of("two-outputs", program="F0 F1 I0 W0 B1", modes=frozenset({"autocast", "no_grad", "thread"})),
    "by-hand": of("output-unbound", program="F0 G0 W0 F1 G1 W1", hand_grads=(True, False, True), prior_grads=True),
    "weight-twice": of("mlp", program="F0 I0 W0 W0! F1 I1 W1 finish!"),
    "weight-of-none": of("mlp", program="F0 F1 I0 W0 finish! F2 B2"),
    "two-stages": of("mlp", "two-outputs", program="F0 1F0 I0 1I0 W0 1W0 F1 1F1 1B1 B1 1finish"),
    "chain": of("mlp", "mlp", program="F0 1F0 1I0 F1 I0 1W0 1F1 1B1 B1 W0", chain=True, loss=True),
    "chain-without-loss": of("mlp", "mlp", program="F0 1F0 1B0 B0", chain=True),
    "loss": of("five-outputs", program="F0 F1 I0 I1 W0 W1", loss=True),
    "loss-kept": of("mlp", program="F0 I0 W0 F1 B1", loss=True, retain_graph=True),
    "kept-once": of("tied-apart", program="F0 I0 W0 F1 I1 W1 W1!", retained=(0,)),
    "kept": of("tied-apart", program="F0 F1 I0 I1 W0 W1", retain_graph=True),
    "same-args": of("mlp", program="F0 F1 I0 B1 W0", same_args=True, watch=_WATCHED["state"]),
    "prior": of("frozen-layer", program="F0 B0 F1 I1 W1", prior_grads=True),
    "dict": of("dict-output", program="F0 B0 F1 I1 W1", output_grads="reordered"),
    "repeats": of("mlp", program="F0 I0 W0", repeats=2),
    "parameter": of("parameter-input", program="F0 B0 F1 I1 W1"),
    "random": of("checkpoint-dropout", program="F0 F1 B0 I1 W1", watch=_WATCHED["state"]),
    "buffers": of("batch-norm", program="F0 B0 F1 B1", watch=_WATCHED["state"]),
    "recomputed": of("checkpoint-batch-norm", program="F0 B0 F1 I1 W1", watch=_WATCHED["state"], prior_grads=True),
    "reentrant": of("checkpoint-reentrant", program="F0 B0 F1 I1 W1", watch=_WATCHED["state"]),
    "receive": of("bare-bias", program="F0 F1 I0 receive0 I1 receive1 W0 W1", watch=_WATCHED["state"]),
    "received-inputs": of("two-inputs", program="F0 B0 F1 I1 W1 finish F2 B2 F3 I3 W3", received="inputs"),
    "received-grads": of("mlp", program="F0 F1 B0 I1 W1", received="grads", watch=_WATCHED["state"]),
    "one-gradient-twice": of("dict-output", program="F0 B0 F1 I1 W1", received="twice"),
    "one-gradient-once": of("two-outputs", program="F0 F1 B0 I1 W1", received="once"),
    "tracked-grads": of("mlp", program="F0 B0 F1 I1 W1", tracked_grads=True),
    "kept-lists": of("two-outputs", program="F0 B0 F1 I1 W1", kept_lists=True),
    **{f"weights-{which}": of("mlp", program="F0 F1 I0 I1 W0 W1", weights=which) for which in WEIGHTS},
    "upstream": of("two-inputs", program="F0 B0 F1 I1 drop1 W1 finish", upstream=True),
    "lost": of("mlp", program="lose0 F0 F1 B0 I1 lose0 W1"),
    "evaluated": of("batch-norm", program="F0 evaluate0 B0 F1 I1 W1"),
    "sparse": of("embedding-sparse", program="F0 B0 F1 I1 W1"),
    **{
        f"grads-{pattern}": of("three-outputs", program="F0 B0 F1 I1 W1", output_grads=pattern)
        for pattern in ("none:1", "only:2", "none:all", "layout:transposed", "layout:strided", "zeros", "nan", "inf")
    },
    "grads-expanded": of("mlp", program="F0 B0 F1 I1 W1", output_grads="layout:expanded", watch=_WATCHED["state"]),
    **{
        f"wrong-{pattern}-{letter}": of(
            "two-outputs", program=f"F0 B0 F1 {letter}1! F2 {letter}2", output_grads=pattern, watch=_WATCHED["state"]
        )
        for pattern in WRONG_PATTERNS
        for letter in "BI"
    },
}
#: Two trials that differ in one field, for every field that a trial has.
DIFFERING = {
    "stages": (PLAIN, replace(PLAIN, stages=(ZOO["residual"],))),
    "program": (PLAIN, replace(PLAIN, program="F0 I0 W0")),
    "chain": (TRIALS["chain"], replace(TRIALS["chain"], chain=False)),
    "loss": (PLAIN, replace(PLAIN, loss=True)),
    "output_grads": (PLAIN, replace(PLAIN, output_grads="zeros")),
    "prior_grads": (PLAIN, replace(PLAIN, prior_grads=True)),
    "same_args": (PLAIN, replace(PLAIN, same_args=True)),
    "watch": (PLAIN, replace(PLAIN, watch=_WATCHED["hooks"])),
    "repeats": (PLAIN, replace(PLAIN, repeats=2)),
    "hand_grads": (TRIALS["by-hand"], replace(TRIALS["by-hand"], hand_grads=(True, True, True))),
    "retain_graph": (TRIALS["kept"], replace(TRIALS["kept"], retain_graph=False)),
    "retained": (TRIALS["kept-once"], replace(TRIALS["kept-once"], retained=(1,))),
    "modes": (PLAIN, replace(PLAIN, modes=frozenset({"thread"}))),
    "one_module": (replace(TRIALS["one-module"], one_module=False), TRIALS["one-module"]),
    "tied": (replace(TRIALS["tied"], tied=()), TRIALS["tied"]),
    "altering": (PLAIN, replace(PLAIN, altering="move")),
    "raising": (replace(TRIALS["raising-hook"], raising=(1,)), TRIALS["raising-hook"]),
    "unsent": (TRIALS["sent-in-part"], replace(TRIALS["sent-in-part"], unsent=())),
    "ragged": (replace(PLAIN, program="F1 B1"), replace(PLAIN, program="F1 B1", ragged=True)),
    "draw": (PLAIN, replace(PLAIN, draw=1)),
    "received": (PLAIN, replace(PLAIN, received="grads")),
    "tracked_grads": (PLAIN, replace(PLAIN, tracked_grads=True)),
    "kept_lists": (PLAIN, replace(PLAIN, kept_lists=True)),
    "weights": (replace(PLAIN, program="F0 I0 W0"), replace(PLAIN, program="F0 I0 W0", weights="twice")),
    "upstream": (PLAIN, replace(PLAIN, upstream=True)),
}


def everything(_: object) -> Iterator[Finding]:
    """A judge that reads all that a script can show."""
    yield from ()


#: What can be shown only where a trial watches the state, or has hooks on parameters or on modules.
_OF_STATE = (
    "argument",
    "output gradient",
    "parameter",
    "buffer",
    "generator",
    "requires_grad of",
    "moved",
    "shared",
    "changed",
    "what the process",
    "as handed",
)
_OF_HOOKS = {
    "tensor hook": "hooks",
    "post_accumulate hook": "hooks",
    "module hook": "module_hooks",
    "own hook": "hooks",
}


def showable(trial: Trial) -> tuple[str, ...]:
    """Return all that a script of ``trial`` can compare, by what it calls it."""
    kinds = {action.kind for action in trial.actions}
    shown = {*standalone.SEEN, *(name for names in COMPARED.values() for name in names if "{" not in name)}
    watched = trial.watch | ({"hooks"} if "hook" in kinds else set())
    return tuple(
        name
        for name in sorted(shown - {"bits", "refusal", "refusal or nothing"})
        # What it would return is taken away, or has the order of the weights that it was passed.
        if not ((trial.altering == "move" or trial.weights) and name == "what W returns for")
        if ("state" in watched or not name.removeprefix("the ").startswith(_OF_STATE) or name.endswith("of input"))
        and all(needed in watched for hook, needed in _OF_HOOKS.items() if hook in name)
    )


def replayed(trial: Trial, target: str = "reference-split", judge: Judge = gradients, **claims: Any) -> Replayed:
    check = replace(CHECKS["full.gradients.mlp"], trials=(trial,), judge=judge)
    found = resolve(target)
    found = replace(found, capabilities=replace(found.capabilities, **claims))
    return Replayed(check, found, "float32", "cpu", _SEED)


def by_slot(values: Any) -> dict[int, Any]:
    return dict(enumerate(values or ()))


def hooks_of(step: Step) -> dict[str, dict[Any, Any]]:
    found: dict[str, dict[Any, Any]] = {}
    found["calls of the own hook of"] = Counter(call.name for call in step.hook_calls if call.kind == "own")
    for kind in ("tensor", "post_accumulate", "module"):
        calls = [call for call in step.hook_calls if call.kind == kind]
        found[f"calls of the {kind} hook of"] = Counter(call.name for call in calls)
        counted: Counter[str] = Counter()
        given = found[f"the gradient given to the {kind} hook of"] = {}
        for call in calls:
            given[call.name, counted[call.name]] = call.grad
            counted[call.name] += 1
    return found


def weights(step: Step) -> dict[str, dict[Any, Any]]:
    if step.weight_result is None:
        return {}
    named = dict(zip(step.param_grads, step.weight_result, strict=True))
    return {"what W returns for": {**named, "all parameters, in number": len(named)}}


def shared(step: Step) -> dict[str, dict[Any, Any]]:
    def of_stored(pair: tuple[str, str]) -> bool:
        return any(name.startswith("gradient of ") for name in pair)

    return {
        "shared with a stored gradient:": {pair: True for pair in step.shared if of_stored(pair)},
        "shared with a returned gradient:": {pair: True for pair in step.shared if not of_stored(pair)},
    }


Shown = Callable[[Any], Mapping[str, Mapping[Any, Any]]]
#: How a script shows each field of a step, or why it does not.
STEP: dict[str, Shown | str] = {
    "action": "the script's token",
    "position": "the place in the script's list",
    "raised": "compared by itself",
    "outputs": lambda step: {"output": by_slot(step.outputs)},
    "loss": "the script's own function computes it, and its gradients show it",
    "input_grads": lambda step: {"the gradient of input": by_slot(step.input_grads)},
    "arg_grads": lambda step: {".grad of input": by_slot(step.arg_grads)} if step.action.kind in {"B", "I"} else {},
    "param_grads": lambda step: {"the gradient of": step.param_grads},
    "weight_result": weights,
    "tracked": lambda step: {"requires_grad of the gradient of input": dict.fromkeys(step.tracked, True)},
    "recorded": lambda step: {"requires_grad of what accumulates:": dict.fromkeys(step.recorded, True)},
    "hook_calls": hooks_of,
    "state": lambda step: {} if step.state is None else shown(STATE, step.state),
    "shared": shared,
    "grad_addresses": "each run has addresses of its own; what moved is compared by itself",
    "alive": "lifetimes are refused",
    "held": "lifetimes are refused",
    "live_tensors": "growth is refused",
    "late": "a script waits for the device",
    "misplaced": "a script runs on one device, and reads tensors wherever they are",
    "detached": "asked of an adapter by its pre-flight alone",
    "upstream": lambda step: {"is wrong:": step.upstream},
    "beside_buffer": "it only explains what is wrong in the caller's buffer",
}
STATE: dict[str, Shown | str] = {
    "args": lambda state: {"argument": state.args},
    "output_grads": lambda state: {"output gradient": state.output_grads},
    "params": lambda state: {"parameter": state.params},
    "buffers": lambda state: {"buffer": state.buffers},
    "requires_grad": lambda state: {"requires_grad of": state.requires_grad},
    "rng": lambda state: {"the generator's state": {"": state.rng}},
    "process": lambda state: {"what the process is set to:": state.process},
    "handed": lambda state: {"as handed over:": state.handed},
}
OBSERVATION: dict[str, Shown | str] = {
    "steps": "compared one by one",
    "changed_later": lambda seen: {"changed later:": dict.fromkeys(seen.changed_later, True)},
    "close_raised": "torch's three functions have nothing to close",
    "executed": "operations are counted by the kit alone",
    "peak": "memory is measured by the kit alone",
    "held_stage": "the kit alone looks at what still holds a closed stage",
}


def shown(how: dict[str, Shown | str], thing: Any) -> dict[str, dict[Any, Any]]:
    found: dict[str, dict[Any, Any]] = {}
    for name in [field.name for field in fields(thing)]:
        show = how[name]
        if not isinstance(show, str):
            found |= {what: dict(values) for what, values in show(thing).items()}
    return found


def plain_values(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what can be compared by ``==``, without what is False or not there."""
    there = {name: value for name, value in values.items() if isinstance(value, Tensor) or value or value is None}
    return {name: _comparable(value) for name, value in there.items()}


def _comparable(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    dense = value.detach().to_dense()
    return (
        str(dense.dtype),
        tuple(dense.shape),
        repr(torch.view_as_real(dense).tolist() if dense.is_complex() else dense.tolist()),
    )


def assert_same(script: list[dict[str, Any]], kit: Observation) -> None:
    """Assert that a script's run saw what the driver saw, action by action."""
    steps = [
        step for step in script if "changed later:" not in step and "whether called: the module hook of" not in step
    ]
    end = script[-1] if len(steps) < len(script) else {}
    seen = {step.position: step for step in kit.steps if step.position < len(steps)}
    for position, own in enumerate(steps):
        if position not in seen:  # its stage had ended
            assert own.keys() == {"token", "lane", "misuse", "raised"}
            continue
        step = seen[position]
        assert own["token"] == str(step.action)
        assert (own["token"], own["raised"] is None) == (own["token"], step.raised is None)
        for what, values in shown(STEP, step).items():
            assert (what, own["token"], plain_values(own.get(what, {}))) == (what, own["token"], plain_values(values))
    assert plain_values(end.get("changed later:", {})) == plain_values(shown(OBSERVATION, kit)["changed later:"])


def run_script(text: str, adapter: Adapter | None) -> list[dict[str, Any]]:
    sys.modules["script"] = ModuleType("script")  # where a dataclass looks for what its fields are
    names = vars(sys.modules["script"])
    exec(compile(text, "script.py", "exec"), names)  # noqa: S102 (it is what a user would run)
    functions = SimpleNamespace(**adapter.functions) if isinstance(adapter, FunctionsAdapter) else None
    with torch.random.fork_rng(devices=[]):
        found: list[dict[str, Any]] = names["run"](functions)
    return found


@pytest.mark.filterwarnings("ignore:grad and param do not obey")  # a program hands gradients over with other strides
@pytest.mark.parametrize(
    ("name", "target"),
    [
        # In CI each trial is run on one of the two, nightly on both.
        pytest.param(name, target, marks=() if (number + place) % 2 else pytest.mark.nightly)
        for number, name in enumerate(TRIALS)
        for place, target in enumerate(("reference-split", "torch"))
    ],
)
def test_a_script_observes_the_same_as_the_driver(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = TRIALS[name]
    monkeypatch.setitem(COMPARED, everything, showable(trial))
    one = replayed(trial, target, everything, loss_divided_by_microbatches=name == "loss")
    materials = Materials(trial, dtype=torch.float32, device=torch.device("cpu"), seed=_SEED)
    scale = 1 / trial.microbatches() if name == "loss" else 1.0
    text = one.text()
    for adapter in (AutogradAdapter(), one.target.adapter):
        assert_same(run_script(text, adapter), with_results(trial, drive(adapter, materials, loss_scale=scale)))


def with_results(trial: Trial, observation: Observation) -> Observation:
    """Return an observation in which W returns what stands after it where it returned nothing, as in a script.

    Where hooks move gradients away, or W is passed the weights in another form, it returns nothing that is compared.
    """
    moved = trial.altering == "move" or bool(trial.weights)
    steps = tuple(
        replace(step, weight_result=None if moved else tuple(step.param_grads.values()))
        if step.action.kind == "W" and (moved or (step.weight_result is None and step.raised is None))
        else step
        for step in observation.steps
    )
    return replace(observation, steps=steps)


def test_a_changed_tensor_is_reported_even_if_a_later_step_repeats_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "COMPARED", {"changed later:"}, raising=False)
    monkeypatch.setattr(standalone, "LANES", [0], raising=False)
    one, other = torch.ones(2), torch.zeros(2)
    kept = [("first", one, other), ("second", one, one), ("first", one, one), ("second", one, other)]
    lane: Any = SimpleNamespace(kept=kept)
    assert standalone.the_end([lane], [])["changed later:"] == {"first": True, "second": True}


def test_every_kind_of_action_is_in_a_compared_program() -> None:
    compared = {action.kind for trial in TRIALS.values() for action in trial.actions}
    assert compared == KINDS & standalone.ACTS.keys(), "a script refuses the others"


@pytest.mark.parametrize(("how", "kind"), [(STEP, Step), (STATE, State), (OBSERVATION, Observation)])
def test_every_observed_field_is_compared_or_has_a_reason(how: dict[str, Any], kind: type[Any]) -> None:
    assert set(how) == {field.name for field in fields(kind)}


@pytest.mark.parametrize("name", [field.name for field in fields(Trial)])
def test_every_field_of_a_trial_changes_its_script_or_is_refused(name: str) -> None:
    if name == "at_once":
        with pytest.raises(ScriptError, match="two stages in two threads"):
            replayed(replace(PLAIN, at_once=True)).text()
        return
    one, other = DIFFERING[name]
    assert [field.name for field in fields(Trial) if getattr(one, field.name) != getattr(other, field.name)] == [name]
    assert body(one) != body(other)


def body(trial: Trial) -> str:
    """Return a script without its docstring, which may say what the lines do not do."""
    return replayed(trial).text().split('"""', 2)[2]


#: What a script does where something is watched.
WRITTEN = {
    "state": "torch.get_rng_state()",
    "hooks": ".register_hook(",
    "module_hooks": ".register_full_backward_hook(",
}


#: The words for what a script cannot watch.
NOT_SHOWN = {
    "growth": "memory that grows from micro-batch to micro-batch",
    "lifetime": "when tensors are freed",
    "outputs": "outputs that the caller still reads after their backward",
    "stage": "what still holds the stage after close",
}


def test_a_watch_of_a_trial_is_written_to_the_script_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = frozenset().union(*(trial.watch for check in CHECKS.values() for trial in check.trials))
    for what in sorted(watched):
        trial = replace(PLAIN, watch=frozenset({what}))
        if words := NOT_SHOWN.get(what):
            with pytest.raises(ScriptError, match=f"has no script, since a script cannot show {words}; omit"):
                replayed(trial).text()
        else:
            monkeypatch.setitem(COMPARED, everything, showable(trial))
            assert WRITTEN[what] in replayed(trial, judge=everything).text()
            assert WRITTEN[what] not in replayed(PLAIN).text()


def test_values_read_by_a_judge_are_in_a_script_or_refused() -> None:
    refused = set()
    for check in CHECKS.values():
        judge = getattr(check.judge, "func", check.judge)
        if judge not in COMPARED:
            refused.add(judge.__name__)
    # Held to no one value: what autograd reached is its own, and an action may raise.
    of_errors = {"surfaces", "left_whole", "right_afterwards", "right_or_raised"}
    of_lifetimes = {
        "released", "released_once_sent", "outputs_released_by_input_pass", "no_growth", "outputs_stay", "stage_freed",
    }  # fmt: skip
    assert refused == of_lifetimes | of_errors
