"""The driver's expressions with values known before a script runs, so that unused code is not written."""

from __future__ import annotations

from typing import Any

from gradconform.adapter import Capabilities
from gradconform.contract.check import Check
from gradconform.judge.refusal import right_or_refused
from gradconform.trial.trial import Trial

from .comparison import ALLOWED, EXACT
from .judges import IN_THE_END, compared, judge_of


def lanes(check: Check) -> list[int]:
    """Return the stages of a chain that are judged."""
    _, arguments = judge_of(check)
    return [arguments["lane"]] if arguments.get("lane") is not None else list(range(len(check.trials[0].stages)))


def loss_scale(trial: Trial, capabilities: Capabilities) -> float:
    """Return the factor of a micro-batch's loss."""
    divided = capabilities.loss_divided_by_microbatches
    return 1.0 / trial.microbatches() if trial.loss and divided else 1.0


def entries(check: Check, capabilities: Capabilities) -> dict[str, set[str]]:
    """Return the entries of the driver's tables to write: the program's actions and the judge's observations."""
    read = compared(check, capabilities)
    seen = {"the gradient of", *read}
    if "whether called: the module hook of" in read:
        seen.add("calls of the module hook of")
    acts = {action.kind for action in check.trials[0].actions}
    return {"ACTS": acts, "SEEN": seen, "ALLOWED": read, "EXACT": read}


def known(check: Check, capabilities: Capabilities) -> dict[str, Any]:
    """Return the values of the driver's expressions, by their text, that do not change while the script runs."""
    trial, read = check.trials[0], compared(check, capabilities)
    never = _misuse(trial) | _trial(check) | _comparison(read)
    values = _constants(check, capabilities, read) | {text: False for text, may_be in never.items() if not may_be}
    return values | _loss(trial)


def _constants(check: Check, capabilities: Capabilities, read: set[str]) -> dict[str, Any]:
    """Return the constant names that have no line of their own in a script."""
    trial = check.trials[0]
    kinds = {action.kind for action in trial.actions}
    judge, arguments = judge_of(check)
    unless = arguments.get("unless")
    claimed = unless is not None and getattr(capabilities, unless)
    again = any(one.misuse and one.kind == "W" and one.mb not in trial.raising for one in trial.actions)
    sharing = any(one.startswith("shared") for one in read)
    return {
        "CHAIN": trial.chain,
        "LOSS": trial.loss,
        "SAME_ARGS": trial.same_args,
        "RETAIN_GRAPH": trial.retain_graph,
        "ONE_MODULE": trial.one_module,
        "REPEATS_WEIGHT": again,
        "MAY_REFUSE": judge is right_or_refused and not claimed,
        "CALLS_KEPT": bool(trial.watch & {"hooks", "module_hooks"} or "hook" in kinds),
        "GIVEN_KEPT": bool(sharing or "output gradient" in read or "receive" in kinds),
        "RETURNED_KEPT": bool(sharing or trial.chain or "overwrite" in kinds),
        "NOT_ALWAYS_DUE": capabilities.input_pass_touches_params or capabilities.weight_when == "finish",
        "FIRST_UNREAD": trial.chain and not capabilities.first_stage_input_grads,
        "SEEN_LAST": not read.isdisjoint(IN_THE_END),
        "LOSS_SCALE": loss_scale(trial, capabilities),
        "REPEATS": trial.repeats,
        "WATCHED": trial.watch,
        "COMPARED": read,
        "TRACKED_GRADS": trial.tracked_grads,
        "UPSTREAM": trial.upstream,
        "RECEIVED": trial.received,
        "self._spec.kept_lists": trial.kept_lists,
        "self._spec.weights": trial.weights,
        "self._spec.repeats_weight": again,
        "self._spec.retain_graph": trial.retain_graph,
        "self._spec.releases_outputs": "send" in kinds,
        "name not in self._functions": False,  # a missing function is reported through the exception of its call
    }


def _misuse(trial: Trial) -> dict[str, bool]:
    """Return the conditions that only a misuse makes true, and whether this is one."""
    misuse = any(action.misuse for action in trial.actions)
    only_misuse: tuple[str, ...] = ("wanted.keys() != given.keys()", "got['misuse']", "step['misuse']")
    only_misuse += ("token.endswith('!')", "token.endswith('finish!')")
    return dict.fromkeys(only_misuse, misuse) | {
        "output_grads is None": trial.loss or misuse,
        "isinstance(tree, dict)": misuse or "nested_output" in trial.needs,
    }


def _trial(check: Check) -> dict[str, bool]:
    """Return the conditions that the form of a trial decides, and whether they may be true."""
    trial = check.trials[0]
    return {
        "IN_MODES": bool(trial.modes),
        "TIED": bool(trial.tied),
        "RETAINED": bool(trial.retained),
        "mb in self._spec.retained": bool(trial.retained),
        "ALTERING": bool(trial.altering),
        "RAISING": bool(trial.raising),
        "self.last": trial.loss and trial.chain,
        "got['lane'] not in LANES": len(lanes(check)) < len(trial.stages),
        "any((isinstance(arg, nn.Parameter) for arg in self._forwards[mb][0]))": "parameter_input" in trial.needs,
        "recomputes(roots)": "recomputes" in trial.needs,
        "isinstance(tree, GradientEdge)": "edge_roots" in trial.needs,
    }


def _comparison(read: set[str]) -> dict[str, bool]:
    """Return the conditions on the comparisons, and whether they may be true."""
    handed = any("given to" in one for one in read)
    return {
        "what in ALLOWED": not read.isdisjoint(ALLOWED),
        "what in EXACT": not read.isdisjoint(EXACT),
        "what == '.grad of input'": ".grad of input" in read,
        "what == 'what W returns for'": "what W returns for" in read,
        "'given to' in what": handed,
        "what.startswith('the gradient given to')": handed,
        "isinstance(name, tuple)": handed or any(one.startswith("shared") for one in read),
    }


def _loss(trial: Trial) -> dict[str, Any]:
    """Return the facts on the source of gradients: the last stage's loss, or the caller."""
    if trial.loss:
        return {} if trial.chain else {"self.last": True}
    found: dict[str, Any] = {"self._spec.loss_fn": None, "self._spec.loss_fn is None": True}
    if not any(action.misuse for action in trial.actions):
        found["output_grads is not None"] = True
        if not trial.chain:
            found["held.keys() == given.keys()"] = True
    return found
