"""A trial of an adapter as a short script: stages, program, and the gradients after each action, with random values.

As with :mod:`gradconform.replay.short_script`, the values differ from those of the check, so a script counts only if it
fails for the adapter and passes for plain autograd's. Other trials are written in full.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradconform.adapter import Capabilities
from gradconform.contract.check import Check
from gradconform.fixtures.grad_tuples import pattern_of
from gradconform.fixtures.inputs import (
    Constant,
    EqualTo,
    Input,
    Mask,
    Number,
    SameAs,
    SharesMemory,
    of_microbatch,
    turns,
)
from gradconform.fixtures.planned_stages import plan_of, planned_case
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge import all_requirements, gradients
from gradconform.judge.chain import chained
from gradconform.judge.refusal import right_or_refused
from gradconform.reference.autograd import AutogradAdapter
from gradconform.trees import as_tuple, flattened
from gradconform.trial.materials import Materials
from gradconform.trial.program import Action, flush_pending, write
from gradconform.trial.trial import Trial

from . import session_driver
from .folding import Folding
from .judges import beyond, judge_of
from .known_values import loss_scale
from .layout import broken, docstring, merged, spaced
from .short_script import drawn, fails, laid_out
from .smaller_trials import parts
from .source import Source, add_stage, literal, reached

#: The features of a trial that such a script supports; all others must have their default.
_SUPPORTED = {"stages", "program", "chain", "loss", "output_grads", "prior_grads", "same_args", "modes", "watch"}
#: The words of a program that :func:`gradconform.replay.session_driver.run` knows beside F, B, I and W.
_WORDS = {
    "finish", "close", "reopen", "drop", "overwrite", "receive", "zero_none", "zero_fill", "freeze", "unfreeze", "step",
    "replace", "rebind", "restride", "bucket", "collect",
}  # fmt: skip
_JUDGES = {gradients, chained, right_or_refused, all_requirements}
#: What a mode adds around an action, by the actions; ``eval`` changes the stages.
_AROUND = {
    "autocast": ("F", "lambda: torch.autocast('cpu', torch.bfloat16)"),
    "autocast_float16": ("F", "lambda: torch.autocast('cpu', torch.float16)"),
    "no_grad": ("BIW", "torch.no_grad"),
}
#: The loss of a stage with several outputs, without those that have no target.
_LOSS = "lambda outputs, target: sum(nn.functional.mse_loss(a, b) for a, b in zip(outputs, target) if b is not None)"
#: The arguments that are made from another one: what is done with it.
_REFERRING: dict[type, str] = {
    SameAs: "",
    SharesMemory: ".detach().requires_grad_()",
    EqualTo: ".detach().clone().requires_grad_()",
}
#: The allowed difference of values, as a part of the largest one; under autocast, roundings depend on kernels.
_TOLERANCE, _LOWER = 1e-4, 0.05
#: The most lines of a script of the whole trial; of a longer one, a part of the trial is tried.
_LONG = 120
#: The last lines of a script, and the line of an adapter that is right.
_ENDING = """
adapter = Adapter() if isinstance(Adapter, type) or not hasattr(Adapter, "open") else Adapter
for (token, expected), (_, got) in zip(list(run(Plain)), run(adapter.open)):
    for name in expected:
        if wrong := differs(expected[name], got.get(name)):
            print(f"WRONG: {name} after {token}: {wrong}")
            sys.exit(1)
print("right: all gradients are those of plain autograd")
"""
_RIGHT = f"from {AutogradAdapter.__module__} import {AutogradAdapter.__name__} as Adapter"


@dataclass(frozen=True, slots=True)
class SessionScript:
    """A check of one trial on an adapter: ``where`` is its module and the name in it, ``folder`` that of its file.

    ``folder`` is relative to the script. ``head`` are the paragraphs that the script begins with.
    """

    check: Check
    capabilities: Capabilities
    where: str
    folder: str
    place: Path
    head: tuple[str, ...]
    seed: int
    #: Which part of a check's trial this is; empty for the whole one.
    part: str = ""

    @property
    def trial(self) -> Trial:
        """Return the trial."""
        return self.check.trials[0]

    def text(self) -> str | None:
        """Return the script; None if the trial needs more features, or the script does not show its failure.

        If it is long or there is none, it is that of a part of the trial that fails too.
        """
        whole = self.alone()
        if whole is not None and whole.count("\n") <= _LONG:
            return whole
        smaller = (replace(self, check=part.check, part=part.sentence).alone() for part in parts(self.check))
        found = [text for text in (whole, *smaller) if text is not None]
        return min(found, key=lambda text: text.count("\n"), default=None)

    def alone(self) -> str | None:
        """Return the script of the trial as it is; None if it cannot be written, or does not show a failure."""
        module, _, name = self.where.partition(":")
        if not name or "." in name or not self._is_supported():
            return None
        given = f"from {module} import {name}" + ("" if name == "Adapter" else " as Adapter")
        try:
            written = self._written(given)
        except _UnsupportedTreeError:
            return None
        file = str(self.place / "script.py")
        with _forgotten((self.place / self.folder).resolve()):
            return written if fails(written, file) and not fails(self._written(_RIGHT), file) else None

    def _is_supported(self) -> bool:
        trial = self.trial
        usual = Trial(stages=trial.stages, program=trial.program)
        as_usual = all(
            getattr(trial, one.name) == getattr(usual, one.name) for one in fields(Trial) if one.name not in _SUPPORTED
        )
        return (
            judge_of(self.check)[0] in _JUDGES
            and as_usual
            and {action.kind for action in trial.actions} <= {*"FBIW", *_WORDS}
            and not any(action.misuse for action in trial.actions)
            and trial.modes <= {*_AROUND, "eval"}
            and not beyond(self.check, self.capabilities, "cpu")
            and (not trial.loss or self._has_loss())
            and all(_arguments(case.inputs, mb) for case in self._fed() for mb in range(turns(case.inputs)))
        )

    def _has_loss(self) -> bool:
        """Return whether a line can write the loss: the last stage returns real tensors, alone or side by side."""
        outputs = self._materials().example_outputs(len(self.trial.stages) - 1)
        several = outputs if type(outputs) in {tuple, list} else [outputs]
        return all(isinstance(one, Tensor) and one.is_floating_point() for one in several)

    def _fed(self) -> Iterator[Any]:
        """Yield the stages that the caller gives arguments."""
        yield from self.trial.stages[:1] if self.trial.chain else self.trial.stages

    def _written(self, imported: str) -> str:
        trial, source = self.trial, Source()
        made = [add_stage(source, _unmarked(case)) for case in trial.stages]
        with torch.random.fork_rng(devices=()):
            data = list(self._data())
        driver = reached(
            [(session_driver, name) for name in ("Plain", "run", "differs")],
            Folding(
                self._known(),
                {"CHANGES": {action.kind for action in trial.actions}},
                instead={} if self._around() else {"AROUND.get(kind, nullcontext)()": "nullcontext()"},
            ),
            frozenset({"gradconform.adapter", "gradconform.trees"}),
        )
        constants = {
            "PROGRAM": repr(write(self._actions())),
            "TOLERANCE": f"{_LOWER if self._around() else _TOLERANCE}  # of the largest element",
            "LOSS_SCALE": str(loss_scale(trial, self.capabilities)),
            "DUE": repr(set(self._due())),
            "AROUND": "{" + ", ".join(f"{kind!r}: {text}" for kind, text in self._around().items()) + "}",
        }
        lines = [
            docstring([*self.head, *filter(None, [self.part])]),
            "",
            *merged(
                driver.imports - {"from __future__ import annotations"}
                | source.imports
                | {
                    "import sys",
                    "from torch import nn",
                    "from pathlib import Path",
                    "from gradconform.adapter import StageSpec",
                    "import torch",
                }
            ),
            "",
            f"FOLDER = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent / {self.folder!r}",
            "sys.path.insert(0, str(FOLDER))",
            imported,
            "",
            *(f"{text}\n" for text in source.definitions.values()),
            *(f"{name} = {value}" for name, value in constants.items() if name in driver.names),
            f"torch.manual_seed({self.seed})",
            f"STAGES = [{', '.join(made)}]",
            "for parameter in nn.ModuleList(STAGES).parameters():",
            "    parameter.data.normal_()",
            *(
                ["    parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None"]
                if trial.prior_grads
                else []
            ),
            *(["nn.ModuleList(STAGES).eval()"] if "eval" in trial.modes else []),
            *(broken(line) for line in data),
        ]
        return "\n\n".join(["\n".join(lines), *spaced(driver.definitions.values()), _ENDING.lstrip()])

    def _data(self) -> Iterator[str]:
        """Yield the lines of arguments, examples, output gradients and targets."""
        trial = self.trial
        materials = self._materials()
        numbers = [range(trial.microbatches(lane)) for lane in range(len(trial.stages))]
        specs, args, grads, targets = [], [], [], []
        for lane, case in enumerate(trial.stages):
            outputs = materials.example_outputs(lane)
            example = materials.example_args(lane, materials.stage(lane))
            specs.append(self._spec(lane, example, outputs))
            fed = [_arguments(case.inputs, mb) for mb in numbers[lane]]
            args.append(_listed(["[]"] * len(fed) if trial.chain and lane else fed))
            if trial.loss_at(lane):
                targets.append(_listed([_target(outputs, trial.output_grads, mb) for mb in numbers[lane]]))
            given = [_grads(as_tuple(outputs), pattern_of(trial.output_grads, mb)) for mb in numbers[lane]]
            grads.append(_listed(given))
        yield f"ARGS = [{', '.join(args)}]"
        yield f"SPECS = [{', '.join(specs)}]"
        yield f"GRADS = [{', '.join(grads)}]"
        if trial.loss:
            yield f"TARGETS = [{', '.join(['[]'] * (len(args) - len(targets)) + targets)}]"

    def _spec(self, lane: int, args: tuple[Any, ...], outputs: Any) -> str:
        """Return the text of a stage's description, without what has the default."""
        trial, last = self.trial, self.trial.loss_at(lane)
        given = {
            "is_first": "True" if trial.chain and lane == 0 else "",
            "is_last": "True" if last else "",
            "loss_fn": ("nn.functional.mse_loss" if isinstance(outputs, Tensor) else _LOSS) if last else "",
            "n_microbatches": str(trial.microbatches(lane)),
            "args_require_grad": repr(tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args)),
            "example_args": _tree(args),
            "example_outputs": _tree(outputs),
            "example_target": _target(outputs, trial.output_grads, 0) if last else "",
        }
        return f"StageSpec({', '.join(f'{name}={text}' for name, text in given.items() if text)})"

    def _known(self) -> dict[str, Any]:
        """Return the driver's expressions whose values the trial decides."""
        trial, claims = self.trial, self.capabilities
        kinds = {action.kind for action in trial.actions} | {"finish"}
        known: dict[str, Any] = {f"kind == {word!r}": False for word in {*_WORDS, "W"} - kinds}
        known |= {"kind == 'finish' and opened is not Plain": False} if "finish" not in kinds else {}
        known |= {"kind in {'B', 'I'}": False} if not kinds & {"B", "I"} else {}
        known |= {"kind in {'close', 'reopen'}": False} if not kinds & {"close", "reopen"} else {}
        known |= {"kind in CHANGES": False} if not kinds & session_driver.CHANGES.keys() else {}
        known |= {"kind == 'B'": False} if "B" not in kinds else {"kind == 'B'": True} if "I" not in kinds else {}
        known |= {"last": trial.loss} if not (trial.loss and trial.chain) else {}
        outputs = [self._materials().example_outputs(lane) for lane in range(len(trial.stages))]
        flat = [leaf for tree in outputs for leaf in flattened(tree)]
        return known | {
            "SOME_ROOTS": trial.chain or (not trial.loss and (self._gives_none() or not all(map(_needs_grad, flat)))),
            "SOME_WEIGHTS": not all(
                one.requires_grad
                for lane in range(len(trial.stages))
                for one in self._materials().stage(lane).parameters()
            ),
            "SEVERAL": not all(isinstance(tree, Tensor) for tree in outputs),
            "SPLIT": bool(kinds & {"I", "W", "receive"})
            or trial.same_args
            or trial.chain
            or self._gives_none()
            or not all(map(_needs_grad, flat)),
            "SAME_ARGS": trial.same_args,
            "SOME_ARGS": not all(_needs_grad(one) for one in self._all_args()),
            "NESTED": len(flat) != sum(len(as_tuple(tree)) for tree in outputs)
            or any(isinstance(tree, dict) for tree in outputs),
            "RECEIVES": "receive" in kinds,
            "CHAIN": trial.chain,
            "LOSS": trial.loss,
            "FIRST_UNREAD": trial.chain and not claims.first_stage_input_grads,
            "NOT_ALWAYS_DUE": len(set(self._due())) < len(self._actions()),
        }

    def _gives_none(self) -> bool:
        return any(pattern.startswith(("none:", "only:")) for pattern in self.trial.output_grads.split("|"))

    def _all_args(self) -> Iterator[Any]:
        """Yield the arguments of each stage: those of all micro-batches, or the outputs of the stage before."""
        materials = self._materials()
        for lane in range(len(self.trial.stages)):
            for mb in range(self.trial.microbatches(lane)):
                yield from materials.args(lane, mb, materials.stage(lane))
            if self.trial.chain and lane:
                yield from flattened(materials.example_outputs(lane - 1))

    def _materials(self) -> Materials:
        return Materials(self.trial, dtype=torch.float32, device=torch.device("cpu"), seed=self.seed)

    def _around(self) -> dict[str, str]:
        """Return the context of each action, by its kind, as text."""
        return {
            kind: text
            for mode in sorted(self.trial.modes - {"eval"})
            for kind in _AROUND[mode][0]
            for text in (_AROUND[mode][1],)
        }

    def _actions(self) -> list[Action]:
        """Return the actions; every session gets a finish, which not every program names."""
        ended = {action.stage for action in self.trial.actions if action.kind in {"finish", "close"}}
        lanes = (lane for lane in range(len(self.trial.stages)) if lane not in ended)
        return [*self.trial.actions, *(Action("finish", stage=lane) for lane in lanes)]

    def _due(self) -> Iterator[int]:
        """Yield the positions of the actions after which the claims promise all parameter gradients."""
        actions, claims = self._actions(), self.capabilities
        for position, last in enumerate(actions):
            done = [action for action in actions[: position + 1] if action.stage == last.stage]
            inputs, weights = (Counter(one.mb for one in done if one.kind == kind) for kind in "IW")
            early = claims.input_pass_touches_params and inputs != weights
            if not early and not (claims.weight_when == "finish" and flush_pending(done, last.stage)):
                yield position


@contextlib.contextmanager
def _forgotten(folder: Path) -> Iterator[None]:
    """Forget the modules of a folder that are imported here: another folder may have others of these names."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == folder:
                del sys.modules[name]


def _unmarked(case: StageCase) -> StageCase:
    """Return a stage whose parameters all have one dtype: the values of such a script have no other."""
    plan = plan_of(case)
    return case if plan is None or plan.gain == "graded" else planned_case(replace(plan, gain=""))


class _UnsupportedTreeError(Exception):
    """A tree has a leaf or a type that a short script does not write."""


def _needs_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _listed(texts: list[str]) -> str:
    """Return the text of a list with one value per micro-batch."""
    if len(set(texts)) == 1:
        return f"[{texts[0]} for _ in range({len(texts)})]"
    return f"[{', '.join(texts)}]"


def _arguments(recipes: Sequence[Input], mb: int) -> str:
    """Return the text of a micro-batch's list of arguments; empty if one is not of the plain kinds.

    An argument that another one refers to gets a name.
    """
    own = of_microbatch(recipes, mb)
    texts = [_argument(one) for one in own]
    for index in {one.index for one in own if isinstance(one, (SameAs, SharesMemory, EqualTo))}:
        texts[index] = texts[index] and f"a{index} := {texts[index]}"
    return f"[{', '.join(texts)}]" if all(texts) else ""


def _argument(one: object) -> str:
    """Return the text of an argument; empty if it is not of the plain kinds."""
    if isinstance(one, Constant):
        return literal(one.value) if isinstance(one.value, (int, float, str, bool, type(None))) else ""
    if isinstance(one, Number):
        return f"torch.tensor({one.value})"
    if isinstance(one, Mask):
        return f"torch.rand({one.shape}) < 0.5"
    if isinstance(one, (SameAs, SharesMemory, EqualTo)):
        return f"a{one.index}{_REFERRING[type(one)]}"
    return drawn(one)


def _target(outputs: Any, patterns: str, mb: int) -> str:
    """Return the text of a loss's target; None for an output that the loss does not read."""
    if isinstance(outputs, Tensor):
        return _random(outputs)
    pattern = pattern_of(patterns, mb)
    return _grads(outputs, pattern if pattern.startswith(("none:", "only:")) else "normal")


def _tree(tree: Any, leaf: Callable[[Any], str] | None = None) -> str:
    """Return the text of a tree of outputs, by default with random leaves of the same shapes."""
    leaf = leaf or _leaf
    if type(tree) is dict:
        return "{" + ", ".join(f"{key!r}: {_tree(one, leaf)}" for key, one in tree.items()) + "}"
    if type(tree) is list:
        return "[" + ", ".join(_tree(one, leaf) for one in tree) + "]"
    if type(tree) is tuple:
        return "(" + "".join(f"{_tree(one, leaf)}, " for one in tree).rstrip() + ")"
    if isinstance(tree, (dict, tuple, list)):
        raise _UnsupportedTreeError
    return leaf(tree)


def _leaf(value: Any) -> str:
    if not isinstance(value, Tensor):
        if not isinstance(value, (int, float, str, bool, type(None))):
            raise _UnsupportedTreeError
        return repr(value)
    if not (value.is_floating_point() or value.is_complex()):
        return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
    return f"{_random(value)[:-1]}, requires_grad=True)" if value.requires_grad else _random(value)


def _random(value: Tensor) -> str:
    shape = ", ".join(map(str, value.shape))
    dtype = "" if value.dtype == torch.float32 else f", dtype={value.dtype}"
    return f"torch.randn({shape or '()'}{dtype})"


def _grads(outputs: Any, pattern: str) -> str:
    """Return the text of output gradients in a pattern."""
    name, _, argument = pattern.partition(":")
    numbers = range(len(flattened(outputs)))
    picked = set(numbers) if argument == "all" else {int(one) for one in argument.split(",") if one.isdecimal()}
    absent = picked if name == "none" else set(numbers) - picked if name == "only" else set()
    if name not in {"normal", "none", "only", "zeros", "layout"}:
        raise _UnsupportedTreeError
    count = iter(numbers)

    def leaf(value: Any) -> str:
        if next(count) in absent or not (isinstance(value, Tensor) and value.requires_grad):
            return "None"
        if name == "zeros":
            return f"torch.zeros({tuple(value.shape)})"
        return laid_out(tuple(value.shape), argument) if name == "layout" else _random(value)

    return _tree(outputs, leaf)
