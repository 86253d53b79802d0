"""Writes a trial as one Python file that needs only torch and the implementation."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch

from gradconform.check import Check
from gradconform.devices import dtype_named
from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.functions import FunctionsAdapter
from gradconform.materials import Materials
from gradconform.replay.literals import arguments, literal, state
from gradconform.replay.stage_source import Source, add_stage
from gradconform.targets import Target
from gradconform.tolerance import floor_factor
from gradconform.trial import Trial
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

_STANDALONE = Path(__file__).with_name("standalone.py")

_WIDTH = 112

#: What a script watches beside values, by the start of the check's id.
_WATCHED = {
    "hooks.": "hooks",
    "hooks.last_module": "module hooks",
    "state.requires_grad": "flags",
    "state.output_grads": "output gradients",
    "state.stored_storage": "sharing",
    "state.returned_storage": "sharing",
    "state.returned_same_args": "later",
    "state.returned_layout": "layout",
    "state.weight_result": "result",
}
#: Areas and topics of which a script can show nothing: what it would have to watch is the kit's own machinery.
_BEYOND = ("lifetime.", "state.args", "state.params", "state.buffers", "state.rng", "state.input", "misuse.")


class ScriptError(ValueError):
    """A check or a target of which no script can be written."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a script replays: a trial of a check on a target, as it was run."""

    check: Check
    target: Target
    dtype_name: str
    device_name: str
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype."""
        return dtype_named(self.dtype_name)

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device(self.device_name)

    def text(self) -> str:
        """Return the script.

        Raises :class:`ScriptError` for a target that is an adapter of its own and a check that no script can show.
        """
        self._refuse()
        (trial,) = self.check.trials[:1]
        source = Source()
        data = self._data(trial, source)
        imports, standalone = _standalone()
        head = "\n".join(sorted({*imports, *source.imports} - {"from torch import nn"}, key=_import_order))
        lines = "\n".join(
            [
                self._docstring(trial),
                "",
                "from __future__ import annotations",
                "",
                head,
                "",
                "nan, inf = float('nan'), float('inf')",
                "",
                *(f"\n{text}\n" for text in source.definitions.values()),
                *data,
                "",
            ]
        )
        return f"{_folded(lines)}\n{standalone}"

    def _refuse(self) -> None:
        if not isinstance(self.target.adapter, FunctionsAdapter):
            msg = (
                f"target {self.target.text!r} is an adapter, which needs gradconform; a script can be written for "
                "torch's three functions. Replay it without --script"
            )
            raise ScriptError(msg)
        beyond = next((start for start in _BEYOND if self.check.id.startswith(start)), None)
        hand = any(action.kind == "G" for trial in self.check.trials for action in trial.actions)
        if beyond is not None or hand:
            msg = (
                f"{self.check.id} watches what no script of torch alone can show; replay it without --script, which "
                "prints the same numbers"
            )
            raise ScriptError(msg)

    def _docstring(self, trial: Trial) -> str:
        name = " ".join(filter(None, (self.target.name, self.target.version)))
        run = f"with torch {torch.__version__} on {name}: {self.device_name} {self.dtype_name}, seed {self.seed}"
        kit = f"contract {CONTRACT_VERSION}, as gradconform {KIT_VERSION} ran it"
        letters = "F forward, B backward, I input gradients, W weight gradients"
        use = "An argument names another implementation: package.module[:object]"
        needs = "needs torch and the implementation alone"
        paragraphs = [
            self.check.requirement,
            f"This is {self.check.id} ({self.check.level}) of {kit} {run}. The program is {trial.program}: {letters}.",
            f"It exits with 1 where the implementation is wrong and with 0 where it is right, and {needs}. {use}.",
        ]
        return '"""' + "\n\n".join(textwrap.fill(one, _WIDTH) for one in paragraphs) + '\n"""'

    def _data(self, trial: Trial, source: Source) -> list[str]:
        materials = Materials(trial, dtype=self.dtype, device=self.device, seed=self.seed)
        divided = self.target.capabilities.loss_divided_by_microbatches
        watched = [what for start, what in _WATCHED.items() if self.check.id.startswith(start)][-1:]
        lines = [
            f"IMPLEMENTATION = {self._where()!r}",
            f"PROGRAM = {trial.program!r}",
            f"WATCHED = {set(watched) or '{*()}'}",
            f"CHAIN, LOSS, SAME_ARGS, REPEATS = {trial.chain}, {trial.loss}, {trial.same_args}, {trial.repeats}",
            f"LOSS_SCALE = {1.0 / trial.microbatches() if trial.loss and divided else 1.0}",
            f"TOLERANCE = {4 * floor_factor(self.dtype) * torch.finfo(self.dtype).eps}  # of the largest element",
            "STAGES, ARGS, OUTPUT_GRADS, TARGETS, SEEDS = [], {}, {}, {}, {}",
        ]
        for lane in range(len(trial.stages)):
            lines += self._stage(trial, lane, materials, source)
        for action in (action for action in trial.actions if action.kind == "F"):
            lines += self._microbatch(trial, action.stage, action.mb, materials)
        for action in (action for action in trial.actions if action.misuse and action.kind in {"B", "I"}):
            wrong = trial.output_grads in WRONG_PATTERNS
            grads = materials.output_grads(action.stage, action.mb, misuse=wrong)
            lines.append(f"OUTPUT_GRADS[{action.stage}, {action.mb}, 'misuse'] = lambda: {literal(grads)}")
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
            for name, tensor in state(module).items()
        ]
        grads = [
            f"        stage.get_parameter({name!r}).grad = {literal(parameter.grad)}"
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        ]
        return [
            "",
            "",
            f"def stage_{lane}():",
            f"    stage = {made}",
            f"    stage.train({module.training})",
            "    with torch.no_grad():",
            *(values or ["        pass"]),
            *grads,
            "    return stage",
            "",
            "",
            f"STAGES.append(stage_{lane})",
        ]

    def _microbatch(self, trial: Trial, lane: int, mb: int, materials: Materials) -> list[str]:
        stage = materials.stage(lane)
        lines = [f"SEEDS[{mb}] = {materials.rng_seed(mb)}"]
        if not (trial.chain and lane):
            text = arguments(materials.args(lane, mb, stage), stage)
            lines += ["", "", f"def args_{lane}_{mb}(stage):", text, "", "", f"ARGS[{lane}, {mb}] = args_{lane}_{mb}"]
        if trial.loss_at(lane):
            lines.append(f"TARGETS[{lane}, {mb}] = lambda: {literal(materials.target(lane, mb))}")
        elif not trial.chain or lane == len(trial.stages) - 1:
            lines.append(f"OUTPUT_GRADS[{lane}, {mb}] = lambda: {literal(materials.output_grads(lane, mb))}")
        return lines


def _standalone() -> tuple[list[str], str]:
    """Return the imports of the standalone part and the rest of it, as they stand."""
    text = _STANDALONE.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = [
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
    ]
    start = next(node for node in tree.body if isinstance(node, ast.If))
    body = text.splitlines()[start.end_lineno :]
    return imports, "\n".join(line for line in body) + "\n"


def _import_order(line: str) -> tuple[bool, str]:
    return ("torch" in line, line)


def _folded(text: str) -> str:
    """Fold the lines of numbers, which may be broken behind any comma inside their brackets."""
    return "\n".join(
        line
        if len(line) <= _WIDTH or "torch.tensor(" not in line
        else textwrap.fill(line, _WIDTH, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
