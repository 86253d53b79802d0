"""The inputs of a program as lines of a script: its stages, arguments, targets and output gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

from .source import Source, add_stage, arguments, literal, values_of


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a trial; ``names`` are those that the script reads."""

    trial: Trial
    materials: Materials
    names: set[str]

    def lines(self, source: Source) -> list[str]:
        """Return the lines; the definitions that they need are added to ``source``."""
        trial = self.trial
        forwards = list(dict.fromkeys(action for action in trial.actions if action.kind == "F"))
        seeds = {action.mb: self.materials.rng_seed(action.mb) for action in forwards}
        tables = [name for name in ("ARGS", "OUTPUT_GRADS", "TARGETS", "HAND_GRADS") if name in self.names]
        return [
            *(line for lane in range(len(trial.stages)) for line in self._stage(lane, source)),
            "",
            f"STAGES = [{', '.join(f'stage_{lane}' for lane in range(len(trial.stages)))}]",
            f"SEEDS = {seeds}",
            *(f"{name} = {{}}" for name in tables),
            *(line for action in forwards for line in self._microbatch(action.stage, action.mb)),
            *self._lost(),
            *self._misused(),
            *self._by_hand(),
        ]

    def _lost(self) -> Iterator[str]:
        """Yield the arguments of forwards that have no backward."""
        for action in self.trial.actions:
            if action.kind == "lose":
                stage = self.materials.stage(action.stage)
                args = self.materials.lost_args(action.stage, action.mb, stage)
                yield from arguments(args, stage, f"ARGS[{action.stage}, 'lost {action.mb}']")

    def _misused(self) -> Iterator[str]:
        """Yield the output gradients of wrong calls."""
        wrong = self.trial.output_grads in WRONG_PATTERNS
        for action in self.trial.actions:
            if action.misuse and action.kind in {"B", "I"}:
                grads = self.materials.output_grads(action.stage, action.mb, misuse=wrong)
                yield f"OUTPUT_GRADS[{action.stage}, {action.mb}, 'misuse'] = lambda: {literal(grads)}"

    def _by_hand(self) -> Iterator[str]:
        """Yield the gradients that the caller accumulates itself."""
        for action in self.trial.actions:
            if action.kind == "G":
                grads = self.materials.hand_grads(action.stage, action.mb)
                yield f"HAND_GRADS[{action.stage}, {action.mb}] = lambda: {literal(grads)}"

    def _stage(self, lane: int, source: Source) -> list[str]:
        """Return the lines of a stage: its construction, and the values of its parameters and buffers."""
        made = add_stage(source, self.trial.stages[lane])
        if self.materials.device.type != "cpu":  # torch replaces no .data by that of another device
            made += f".to({str(self.materials.device)!r})"
        module = self.materials.stage(lane)
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

    def _microbatch(self, lane: int, mb: int) -> list[str]:
        trial, materials = self.trial, self.materials
        stage = materials.stage(lane)
        lines: list[str] = []
        if not (trial.chain and lane):
            lines += arguments(materials.args(lane, mb, stage), stage, f"ARGS[{lane}, {mb}]")
        if trial.loss_at(lane):
            lines.append(f"TARGETS[{lane}, {mb}] = lambda: {literal(materials.target(lane, mb))}")
        elif "OUTPUT_GRADS" in self.names and (not trial.chain or lane == len(trial.stages) - 1):
            lines.append(f"OUTPUT_GRADS[{lane}, {mb}] = lambda: {literal(materials.output_grads(lane, mb))}")
        return lines
