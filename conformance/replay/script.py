"""Writes a trial as one Python file that needs only torch and the implementation."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradconform.contract.check import Check
from gradconform.contract.plan import Item
from gradconform.devices.dtypes import dtype_named
from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.judge import gradients, hooks, state, whole
from gradconform.judge.chain import chained
from gradconform.judge.refusal import refused, refused_or_without_effect, right_or_refused, right_where_claimed
from gradconform.judge.whole import fires_hooks
from gradconform.results import UsageError
from gradconform.run.run import Run
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import Target
from gradconform.tolerance import floor_factor
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

from . import standalone
from .comparison import ALLOWED, EXACT
from .source import Source, add_stage, arguments, literal, reached, values_of

_WIDTH = 112

#: What a script compares where gradients are judged, by what it calls them.
_GRADIENTS = (
    "output",
    "the gradient of input",
    "requires_grad of the gradient of input",
    "the gradient of",
    "requires_grad of what accumulates:",
)
#: What is judged of the state, by the field of an observation's state.
_STATE = {
    "args": "argument",
    "output_grads": "output gradient",
    "params": "parameter",
    "requires_grad": "requires_grad of",
    "rng": "the generator's state",
    "process": "what the process is set to:",
    "handed": "as handed over:",
}
#: What a script compares for each judge; ``{}`` stands for what the judge was told to look at.
_COMPARED: dict[Callable[..., object], tuple[str, ...]] = {
    gradients: _GRADIENTS,
    chained: _GRADIENTS,
    right_or_refused: _GRADIENTS,
    right_where_claimed: _GRADIENTS,
    refused: ("refusal", "the gradient of", "requires_grad of"),
    refused_or_without_effect: ("refusal or nothing", "the gradient of", "requires_grad of"),
    state.bit_equal: (*_GRADIENTS, "bits"),
    state.as_under_autograd: ("{}",),
    state.buffers_as_under_autograd: ("buffer",),
    state.buffers_in_the_end: ("buffer in the end",),
    state.params_untouched_by_input_pass: ("the gradient of",),
    state.input_grad_attributes: (".grad of input",),
    state.returned_stays: ("changed later:",),
    state.returned_contiguous: ("contiguous: the gradient of input",),
    state.stored_as_laid_out: ("strides of the gradient of",),
    state.stored_apart: ("shared with a stored gradient:",),
    state.returned_apart: ("shared with a returned gradient:",),
    state.accumulates_in_place: ("moved to other storage: the gradient of",),
    state.weight_result: ("what W returns for",),
    hooks.fire_as_often: ("calls of the {} hook of",),
    hooks.fire_at_all: ("whether called: the {} hook of",),
    hooks.given_the_gradient: ("the gradient given to the {} hook of",),
    whole: (
        *_GRADIENTS,
        *_STATE.values(),
        "buffer",
        "changed later:",
        "shared with a stored gradient:",
        "calls of the tensor hook of",
        "calls of the post_accumulate hook of",
    ),
}
#: What is seen when a program has ended.
_IN_THE_END = {"buffer in the end", "changed later:", "whether called: the module hook of"}
#: What a script can watch; lifetimes are seen by the kit's own machinery.
_WATCHED = {"state", "hooks", "module_hooks"}
#: Claims under which values are judged in another way than a script compares them.
_JUDGED_OTHERWISE = {"input_pass_touches_params": True, "none_as_zeros": True, "first_stage_input_grads": False}


class ScriptError(UsageError):
    """A check or a target of which no script can be written."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a script replays: a trial of a check on a target, as it was run."""

    check: Check
    target: Target
    dtype_name: str
    device_name: str
    seed: int
    contract: str = CONTRACT_VERSION

    def text(self) -> str:
        """Return the script.

        Raises :class:`ScriptError` for a target that is an adapter of its own and a check that no script can show.
        """
        self._refuse()
        (trial,) = self.check.trials[:1]
        source = Source()
        parts = reached(standalone, "main", self.known, self._entries(trial))
        data = self._data(trial, source, parts.names)
        lines = [
            self._docstring(trial),
            "",
            "from __future__ import annotations",
            "",
            *_merged(parts.imports | source.imports | {"import torch"}),
            "",
            *(f"\n{text}\n" for text in source.definitions.values()),
            *data,
            *(f"{name} = {value}" for name, value in self._constants(trial).items() if name in parts.names),
        ]
        if any(re.search(r"\b(nan|inf)\b", line) for line in data):
            lines.insert(lines.index("import torch") + 1, "\nnan, inf = float('nan'), float('inf')")
        run = 'if __name__ == "__main__":\n    sys.exit(main())\n'
        return "\n\n\n".join([_folded("\n".join(lines)), *_spaced(parts.definitions.values()), run])

    def _refuse(self) -> None:
        if not isinstance(self.target.adapter, FunctionsAdapter):
            msg = (
                f"target {self.target.text!r} is an adapter, which needs gradconform; a script can be written for "
                "torch's three functions. Replay it without --script"
            )
            raise ScriptError(msg)
        claims = {name: getattr(self.target.capabilities, name) for name in _JUDGED_OTHERWISE}
        beyond = [f"{name}={claim}" for name, claim in claims.items() if claim == _JUDGED_OTHERWISE[name]]
        for trial in self.check.trials[:1]:
            beyond += sorted({action.kind for action in trial.actions} - standalone.ACTS.keys())
            beyond += sorted(trial.watch - _WATCHED)
        beyond += ["the mean over many draws"] if self.check.pooled is not None else []
        judge, _ = self._judge
        beyond += [] if judge in _COMPARED else [judge.__name__]
        if not self.device_name.startswith("cpu") and "the generator's state" in self._compared():
            beyond.append("rng of a device")
        if beyond:
            msg = (
                f"{self.check.id} watches what no script of torch alone can show ({', '.join(beyond)}); replay it "
                "without --script, which prints the same numbers"
            )
            raise ScriptError(msg)

    @property
    def _judge(self) -> tuple[Callable[..., object], dict[str, Any]]:
        """The function that judges the check, and what it is told."""
        judge = self.check.judge
        return (judge.func, judge.keywords) if isinstance(judge, partial) else (judge, {})

    def _compared(self) -> set[str]:
        """Return what the script compares: what the check's judge reads, by what the script calls it."""
        judge, told = self._judge
        what = told.get("kind") or _STATE.get(told.get("what", ""))
        compared = {one.format(what) for one in _COMPARED.get(judge, ())}
        if judge is whole and not fires_hooks(self.check.trials[0], self.target.capabilities):
            compared = {one for one in compared if not one.startswith("calls of")}
        return compared

    def _docstring(self, trial: Trial) -> str:
        name = " ".join(filter(None, (self.target.name, self.target.version)))
        run = f"with torch {torch.__version__} on {name}: {self.device_name} {self.dtype_name}, seed {self.seed}"
        kit = f"contract {self.contract}, as gradconform {KIT_VERSION} ran it"
        letters = "F forward, B backward, I input gradients, W weight gradients"
        use = "An argument names another implementation: package.module[:object]"
        needs = "needs torch and the implementation alone"
        paragraphs = [
            self.check.requirement,
            f"This is {self.check.id} ({self.check.level}) of {kit} {run}. The program is {trial.program}: {letters}.",
            f"It exits with 1 where the implementation is wrong and with 0 where it is right, and {needs}. {use}.",
        ]
        return '"""' + "\n\n".join(textwrap.fill(one, _WIDTH) for one in paragraphs) + '\n"""'

    @property
    def known(self) -> dict[str, Any]:
        """What is known of the driver's expressions, by their text, before a script runs."""
        (trial,), compared = self.check.trials[:1], self._compared()
        kinds = {action.kind for action in trial.actions}
        judge, judge_told = self._judge
        unless = judge_told.get("unless")
        claimed = unless is not None and getattr(self.target.capabilities, unless)
        misuse = any(action.misuse for action in trial.actions)
        again = any(one.misuse and one.kind == "W" and one.mb not in trial.raising for one in trial.actions)
        sharing = {one for one in compared if one.startswith("shared")}
        told = {
            "CHAIN": trial.chain,
            "LOSS": trial.loss,
            "SAME_ARGS": trial.same_args,
            "RETAIN_GRAPH": trial.retain_graph,
            "ONE_MODULE": trial.one_module,
            "REPEATS_WEIGHT": again,
            "MAY_REFUSE": judge is right_or_refused and not claimed,
            "CALLS_KEPT": bool(trial.watch & {"hooks", "module_hooks"} or "hook" in kinds),
            "GIVEN_KEPT": bool(sharing or "output gradient" in compared or "receive" in kinds),
            "RETURNED_KEPT": bool(sharing or trial.chain or "overwrite" in kinds),
            "SEEN_LAST": not compared.isdisjoint(_IN_THE_END),
            "LOSS_SCALE": self._loss_scale(trial),
            "REPEATS": trial.repeats,
            "WATCHED": trial.watch,
            "COMPARED": compared,
            "self._spec.repeats_weight": again,
            "self._spec.retain_graph": trial.retain_graph,
            "name not in self._functions": False,  # what is called and not there is told as what it raises
        }
        never = {
            "IN_MODES": bool(trial.modes),
            "TIED": bool(trial.tied),
            "ALTERING": bool(trial.altering),
            "RAISING": bool(trial.raising),
            "self.last": trial.loss and trial.chain,
            "output_grads is None": trial.loss or misuse,
            "wanted.keys() != given.keys()": misuse,
            "got['misuse']": misuse,
            "step['misuse']": misuse,
            "token.endswith('!')": misuse,
            "token.endswith('finish!')": misuse,
            "got['lane'] not in LANES": len(self._lanes(trial)) < len(trial.stages),
            "any((isinstance(arg, nn.Parameter) for arg in self._forwards[mb][0]))": "parameter_input" in trial.needs,
            "recomputes(roots)": "recomputes" in trial.needs,
            "isinstance(tree, dict)": misuse or "nested_output" in trial.needs,
            "what in ALLOWED": not compared.isdisjoint(ALLOWED),
            "what in EXACT": not compared.isdisjoint(EXACT),
            "what == '.grad of input'": ".grad of input" in compared,
            "what == 'what W returns for'": "what W returns for" in compared,
            "'given to' in what": any("given to" in one for one in compared),
            "what.startswith('the gradient given to')": any("given to" in one for one in compared),
            "isinstance(name, tuple)": bool(sharing) or any("given to" in one for one in compared),
        }
        told |= {text: False for text, may_be in never.items() if not may_be}
        if not trial.loss:
            told |= {"self._spec.loss_fn": None, "self._spec.loss_fn is None": True}
        if not trial.loss and not misuse:
            told["output_grads is not None"] = True
            if not trial.chain:
                told["_mirrors(as_tuple(outputs), output_grads)"] = True
        elif trial.loss and not trial.chain:
            told["self.last"] = True
        return told

    def _entries(self, trial: Trial) -> dict[str, set[str]]:
        """Return what a program does and what a judge reads: the entries of the driver's tables that are written."""
        compared = self._compared()
        seen = {"the gradient of", *compared}
        if "whether called: the module hook of" in compared:
            seen.add("calls of the module hook of")
        return {"ACTS": {action.kind for action in trial.actions}, "SEEN": seen, "ALLOWED": compared, "EXACT": compared}

    def _loss_scale(self, trial: Trial) -> float:
        divided = self.target.capabilities.loss_divided_by_microbatches
        return 1.0 / trial.microbatches() if trial.loss and divided else 1.0

    def _lanes(self, trial: Trial) -> list[int]:
        _, told = self._judge
        return [told["lane"]] if told.get("lane") is not None else list(range(len(trial.stages)))

    def _constants(self, trial: Trial) -> dict[str, object]:
        """Return the names that what is run reads, besides the values."""
        dtype = dtype_named(self.dtype_name)
        return {
            "IMPLEMENTATION": repr(self._where()),
            "PROGRAM": repr(trial.program),
            "IN_MODES": f"frozenset({sorted(trial.modes)})",
            "DEVICE": repr(self.device_name),
            "TIED": repr(trial.tied),
            "ALTERING": repr(trial.altering),
            "RAISING": repr(trial.raising),
            "LANES": self._lanes(trial),
            "LOSS_SCALE": self._loss_scale(trial),
            "REPEATS": trial.repeats,
            "COMPARED": "{" + ", ".join(map(repr, sorted(self._compared()))) + "}",
            "TOLERANCE": f"{4 * floor_factor(dtype) * torch.finfo(dtype).eps}  # of the largest element",
        }

    def _data(self, trial: Trial, source: Source, names: set[str]) -> list[str]:
        dtype = dtype_named(self.dtype_name)
        materials = Materials(trial, dtype=dtype, device=torch.device(self.device_name), seed=self.seed)
        lines: list[str] = []
        forwards = list(dict.fromkeys(action for action in trial.actions if action.kind == "F"))
        for lane in range(len(trial.stages)):
            lines += self._stage(trial, lane, materials, source)
        lines += [
            "",
            f"STAGES = [{', '.join(f'stage_{lane}' for lane in range(len(trial.stages)))}]",
            f"SEEDS = { {action.mb: materials.rng_seed(action.mb) for action in forwards} }",
            *(f"{name} = {{}}" for name in ("ARGS", "OUTPUT_GRADS", "TARGETS", "HAND_GRADS") if name in names),
        ]
        for action in forwards:
            lines += self._microbatch(trial, action.stage, action.mb, materials, names)
        for action in (action for action in trial.actions if action.misuse and action.kind in {"B", "I"}):
            wrong = trial.output_grads in WRONG_PATTERNS
            grads = materials.output_grads(action.stage, action.mb, misuse=wrong)
            lines.append(f"OUTPUT_GRADS[{action.stage}, {action.mb}, 'misuse'] = lambda: {literal(grads)}")
        for action in (action for action in trial.actions if action.kind == "G"):
            grads = materials.hand_grads(action.stage, action.mb)
            lines.append(f"HAND_GRADS[{action.stage}, {action.mb}] = lambda: {literal(grads)}")
        return lines

    def _where(self) -> str:
        """Return how a script names the implementation: by the module of its functions, or by the user's file."""
        adapter = self.target.adapter
        assert isinstance(adapter, FunctionsAdapter)  # noqa: S101 (refused before)
        module = next(iter(adapter.functions.values())).__module__
        if (
            all(function.__module__ == module for function in adapter.functions.values())
            and "gradconform_" not in module
        ):
            return module
        file = Path(self.target.file or self.target.text.partition(":")[0])
        _, colon, attribute = self.target.text.rpartition(":")
        return f"{file.stem}:{attribute}" if colon else file.stem

    def _stage(self, trial: Trial, lane: int, materials: Materials, source: Source) -> list[str]:
        """Return the lines of a stage: how it is made, and the values of its parameters and buffers."""
        made = add_stage(source, trial.stages[lane])
        module = materials.stage(lane)
        values = [
            f"        stage.get_{'buffer' if name in dict(module.named_buffers()) else 'parameter'}({name!r}).data = "
            f"{literal(tensor)}"
            for name, tensor in values_of(module).items()
        ]
        grads = [
            f"        stage.get_parameter({name!r}).grad = {literal(parameter.grad)}"
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        ]
        return [
            "",
            f"def stage_{lane}():",
            f"    stage = {made}",
            f"    stage.train({module.training})",
            "    with torch.no_grad():",
            *(values or ["        pass"]),
            *grads,
            "    return stage",
            "",
        ]

    def _microbatch(self, trial: Trial, lane: int, mb: int, materials: Materials, names: set[str]) -> list[str]:
        stage = materials.stage(lane)
        lines: list[str] = []
        if not (trial.chain and lane):
            lines += arguments(materials.args(lane, mb, stage), stage, f"ARGS[{lane}, {mb}]")
        if trial.loss_at(lane):
            lines.append(f"TARGETS[{lane}, {mb}] = lambda: {literal(materials.target(lane, mb))}")
        elif "OUTPUT_GRADS" in names and (not trial.chain or lane == len(trial.stages) - 1):
            lines.append(f"OUTPUT_GRADS[{lane}, {mb}] = lambda: {literal(materials.output_grads(lane, mb))}")
        return lines


def _spaced(definitions: Iterable[str]) -> list[str]:
    """Return definitions, with constants that follow each other in one."""
    found: list[str] = []
    above = False
    for text in definitions:
        constant = not text.startswith(("class ", "def "))
        found[-1:] = [f"{found[-1]}\n{text}"] if constant and above else [*found[-1:], text]
        above = constant
    return found


def _merged(imports: set[str]) -> list[str]:
    """Return import lines, one per module, torch's last."""
    named: dict[str, list[str]] = {}
    for line in sorted(imports):
        module, _, name = line.partition(" import ")
        named.setdefault(module, []).append(name)
    lines = [" import ".join(filter(None, (module, ", ".join(names)))) for module, names in named.items()]
    return sorted(lines, key=lambda line: "torch" in line)


def _folded(text: str) -> str:
    """Fold the lines of numbers, which may be broken behind any comma inside their brackets."""
    return "\n".join(
        line
        if len(line) <= _WIDTH or "torch.tensor(" not in line
        else textwrap.fill(line, _WIDTH, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def failing_trial(run: Run, item: Item) -> Check:
    """Return the check of ``item`` with its first trial that fails alone, or its first one where none does.

    Trials that are judged together show by themselves what each of them is judged by.
    """
    alone = [replace(item.check, trials=(trial,), pooled=None) for trial in item.check.trials]
    if len(alone) > 1:
        for check in alone:
            if run.run_item(replace(item, check=check)).status == "failed":
                return check
    return alone[0] if item.check.pooled is None else replace(item.check, trials=item.check.trials[:1])
