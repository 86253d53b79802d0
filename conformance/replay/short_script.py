"""A trial as a short script, action by action, with random values, for trials without special features.

The values differ from those of the check, so a script counts only if it was run and fails too. Trials without such a
script are written in full (:mod:`gradconform.replay.script`).
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from gradconform.contract.check import Check
from gradconform.fixtures.inputs import Integers, Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge import all_requirements, gradients
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.reference import split
from gradconform.target.functions import FULL, SPLIT
from gradconform.trial.program import Action
from gradconform.trial.trial import Trial

from .judges import judge_of
from .layout import docstring, merged
from .smaller_trials import parts
from .source import Source, add_stage

#: The implementation that is known to be correct.
RIGHT = split.__name__

#: The features of a trial that a short script supports; all others must have their default.
_SUPPORTED = {"stages", "program", "watch", "loss"}

#: Inputs that a line can draw.
_PLAIN = (Normal, Integers)

#: The allowed difference of values, as a part of the largest one.
_TOLERANCE = 1e-4

_COMPARING = '''
def compare(name, expected, got):
    """Print where two gradients differ most, and return whether they do."""
    if expected is None or got is None:
        wrong = expected is not got
        place = ""
    else:
        apart = (expected - got).abs()
        wrong = bool(apart.max() > {apart} * expected.abs().max())
        index = tuple(int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
        place, expected, got = f" at {{list(index)}}", float(expected[index]), float(got[index])
    if wrong:
        shown = ["a gradient" if isinstance(one, torch.Tensor) else one for one in (expected, got)]
        print(f"{{name}}{{place}}: expected {{shown[0]}}, got {{shown[1]}}")
    return wrong
'''


@dataclass(frozen=True, slots=True)
class ShortScript:
    """A check of one trial, and the place of the functions (``where``): a module, or one with an object in it.

    ``head`` are the paragraphs that the script begins with.
    """

    check: Check
    where: str
    head: tuple[str, ...]
    seed: int

    @property
    def trial(self) -> Trial:
        """Return the trial."""
        return self.check.trials[0]

    def text(self) -> str | None:
        """Return the script, or that of a part of the trial that fails too; None if neither shows a failure."""
        smaller = (replace(self, check=part.check, head=(*self.head, part.sentence)) for part in parts(self.check))
        return next((text for one in (self, *smaller) if (text := one.alone()) is not None), None)

    def alone(self) -> str | None:
        """Return the script of the trial as it is; None if it needs more features, or does not show a failure."""
        if not _plain(self.check):
            return None
        outputs = _outputs(self.trial.stages[0])
        if outputs is None or (self.trial.loss and outputs):  # the loss is of one tensor
            return None
        written = self._written(outputs, self.where)
        # An error in the script itself would also fail the correct implementation.
        return written if fails(written) and not fails(self._written(outputs, RIGHT)) else None

    @property
    def _of_a_loss(self) -> set[str]:
        return {"from torch import nn"} if self.trial.loss else set()

    def _written(self, outputs: int, where: str) -> str:
        """Return the text; ``outputs`` is the number of the stage's outputs, 0 if it returns no tuple."""
        source, trial = Source(), self.trial
        made = add_stage(source, trial.stages[0])
        microbatches = 1 + max(action.mb for action in trial.actions)
        shapes = ", ".join(map(drawn, trial.stages[0].inputs))
        module, _, inside = where.partition(":")
        functions = [SPLIT[0], SPLIT[1]] if any(action.kind == "I" for action in trial.actions) else []
        functions = [FULL, *functions] if any(action.kind == "B" for action in trial.actions) else functions
        taken = [f"{name} = {inside}.{name}" for name in functions] if inside else []
        imported = f"from {module} import {inside.partition('.')[0] if inside else ', '.join(functions)}"
        lines = [
            docstring(self.head),
            "",
            *merged(source.imports | {"import copy", "import sys", "import torch"} | self._of_a_loss),
            imported,
            *taken,
            "",
            *(f"\n{text}\n" for text in source.definitions.values()),
            _COMPARING.format(apart=_TOLERANCE),
            "",
            f"torch.manual_seed({self.seed})",
            f"stage = {made}",
            "for parameter in stage.parameters():",
            "    parameter.data.normal_()",
            f"args = [[{shapes}] for _ in range({microbatches})]",
            "plain, plain_args = copy.deepcopy((stage, args))",
            "",
            *(self._plain_from_a_loss(microbatches) if trial.loss else self._plain(microbatches, outputs)),
            "",
            f"# The implementation, in {trial.program}.",
            "returned = {}",
            *(line for action in trial.actions for line in _acted(action, outputs, loss=trial.loss)),
            "",
            "wrong = [",
            '    compare(f"the gradient of {name}", dict(plain.named_parameters())[name].grad, parameter.grad)',
            "    for name, parameter in stage.named_parameters()",
            "]",
            "wrong += [",
            '    compare(f"the gradient of input {slot} of micro-batch {mb}", plain_args[mb][slot].grad, grad)',
            "    for mb, grads in returned.items()",
            "    for slot, grad in enumerate(grads)",
            "]",
            "verdict = 'WRONG' if any(wrong) else 'right'",
            'print(f"{verdict}: {sum(wrong)} of {len(wrong)} gradients differ from plain autograd")',
            "sys.exit(any(wrong))",
        ]
        return "\n".join(lines) + "\n"

    def _plain(self, microbatches: int, outputs: int) -> list[str]:
        return [
            "# Plain autograd.",
            "starts = []",
            f"for mb in range({microbatches}):",
            f"    outputs = {'plain(*plain_args[mb])' if outputs else '(plain(*plain_args[mb]),)'}",
            "    starts.append([torch.randn_like(output) for output in outputs])",
            *([] if self._all_done(microbatches) else [f"    if mb in {sorted(self._done())}:"]),
            f"    {'' if self._all_done(microbatches) else '    '}torch.autograd.backward(outputs, starts[mb])",
        ]

    def _plain_from_a_loss(self, microbatches: int) -> list[str]:
        """Return the lines of plain autograd for a last stage, whose output is compared with a target."""
        return [
            "# Plain autograd, from a loss.",
            "targets = []",
            f"for mb in range({microbatches}):",
            "    output = plain(*plain_args[mb])",
            "    targets.append(torch.randn_like(output))",
            "    loss = nn.functional.mse_loss(output, targets[mb])",
            *([] if self._all_done(microbatches) else [f"    if mb in {sorted(self._done())}:"]),
            f"    {'' if self._all_done(microbatches) else '    '}loss.backward()",
        ]

    def _done(self) -> set[int]:
        """Return the micro-batches whose backward is complete."""
        return {action.mb for action in self.trial.actions if action.kind in {"B", "W"}}

    def _all_done(self, microbatches: int) -> bool:
        return len(self._done()) == microbatches


def _plain(check: Check) -> bool:
    """Return whether a check judges gradients, in a trial of one stage without special features."""
    trial = check.trials[0]
    usual = Trial(stages=trial.stages, program=trial.program)
    as_usual = all(
        getattr(trial, one.name) == getattr(usual, one.name) for one in fields(Trial) if one.name not in _SUPPORTED
    )
    inputs = trial.stages[0].inputs
    once = [str(action) for action in trial.actions]
    kinds = {action.kind for action in trial.actions}
    halves = {action.mb for action in trial.actions if action.kind == "I"}
    return (
        judge_of(check)[0] in {gradients, all_requirements}
        and as_usual
        and len(trial.stages) == 1
        and kinds <= set("FBIW")
        and not any(action.misuse for action in trial.actions)
        and len(set(once)) == len(once)
        and halves <= {action.mb for action in trial.actions if action.kind == "W"}
        and all(map(drawn, inputs))
    )


def drawn(one: object) -> str:
    """Return the text that draws an input; empty if it is not of the plain kinds.

    Values of any size are written as usual ones.
    """
    if isinstance(one, Normal):
        dtype = ", dtype=torch.complex64" if one.is_complex else ", dtype=torch.float16" if one.half else ""
        if one.layout == "contiguous":
            needs_grad = ", requires_grad=True" if one.requires_grad else ""
            return f"torch.randn({', '.join(map(str, one.shape)) or '()'}{dtype}{needs_grad})"
        made = "" if dtype else laid_out(one.shape, one.layout)
        return f"{made}{'.requires_grad_()' if one.requires_grad else ''}" if made else ""
    if isinstance(one, Integers) and one == Integers(one.shape, one.high):
        return f"torch.randint({one.high}, {one.shape})"
    return ""


def laid_out(shape: tuple[int, ...], layout: str) -> str:
    """Return the text that draws a tensor of a shape in another memory layout; empty for a layout without one."""
    if layout == "expanded":
        return f"torch.randn(()).expand({shape})"
    if layout == "strided" and shape:
        return f"torch.randn({(*shape[:-1], 2 * shape[-1])})[..., ::2]"
    if layout == "transposed" and len(shape) > 1:
        return f"torch.randn({(*shape[:-2], shape[-1], shape[-2])}).mT"
    if layout == "offset":
        return f"torch.randn({math.prod(shape) + 1})[1:].view({shape})"
    return ""


def _outputs(case: StageCase) -> int | None:
    """Return a stage's number of outputs, 0 if no tuple; None if one is no tensor with a gradient."""
    stage = case.build()
    assert isinstance(stage, nn.Module)  # noqa: S101 (builders return it)
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    args = [one.place(one.draw(generator, torch.float32), cpu) for one in case.inputs if isinstance(one, _PLAIN)]
    outputs = stage(*args)
    several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    if not all(isinstance(one, Tensor) and one.requires_grad for one in several):
        return None
    return len(several) if isinstance(outputs, (tuple, list)) else 0


def _acted(action: Action, outputs: int, *, loss: bool) -> Iterator[str]:
    """Yield the lines of an action."""
    mb = action.mb
    roots = f"tuple(outputs_{mb})" if outputs else f"(loss_{mb},)" if loss else f"(outputs_{mb},)"
    starts = "None" if loss else f"tuple(starts[{mb}])"
    if action.kind == "F" and loss:
        yield f"loss_{mb} = nn.functional.mse_loss(stage(*args[{mb}]), targets[{mb}])"
    elif action.kind == "F":
        yield f"outputs_{mb} = stage(*args[{mb}])"
    elif action.kind == "B":
        yield f"returned[{mb}] = {FULL}({f'loss_{mb}' if loss else roots}, {starts}, [*args[{mb}]])"
    elif action.kind == "I":
        given = f"{roots}, {starts}, [*args[{mb}]], stage.parameters()"
        yield f"returned[{mb}], context_{mb} = {SPLIT[0]}({given})"
    else:
        yield f"{SPLIT[1]}(stage.parameters(), context_{mb})"


def fails(text: str, file: str = "<script>") -> bool:
    """Run a script here as if it were ``file``; return whether it shows an error, which may be an exception."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv = [file]
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=()):
            exec(compile(text, file, "exec"), {"__name__": "__main__", "__file__": file})  # noqa: S102 (it was written here)
    except SystemExit as stop:
        return bool(stop.code)
    except BaseException as error:  # noqa: BLE001 (an exception is its failure)
        pass_on_an_interrupt(error)
        return True
    finally:
        sys.argv, sys.path[:] = arguments, path
    return False
