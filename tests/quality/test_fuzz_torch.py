"""What fuzzing finds in torch by itself, in 2.13.0 and in 2.15.0, is what scripts that know torch alone confirm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gradconform.fixtures.random_stages import Recipe, recipe_of
from gradconform.fuzz.campaign import run_campaign
from gradconform.fuzz.hunt import Defect
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve

#: The scripts show on all of these releases what they confirm.
SCRIPTS = Path(__file__).with_name("torch_2_13")
RELEASES = ("2.13.0", "2.15.0")

LOST = "a gradient is lost: a parameter gradient, after W"
WRONG = "a value is wrong: a parameter gradient, after W"


@dataclass(frozen=True)
class Shown:
    """What a defect is known by: its key, and what is special about the smallest trial that shows it."""

    key: str
    trait: str | None = None
    action: str | None = None
    recipe: Callable[[Recipe], bool] = lambda _: True

    def by(self, defect: Defect) -> bool:
        (case,) = defect.trial.stages
        recipe = recipe_of(case)
        actions = {action.kind for action in defect.trial.actions}
        return (
            re.match(self.key, defect.key) is not None
            and (self.trait is None or self.trait in case.traits)
            and (self.action is None or self.action in actions)
            and recipe is not None
            and self.recipe(recipe)
        )


def _outputs_hold_a_leaf(recipe: Recipe) -> bool:
    """Tell whether an output is a parameter or an argument as it came."""
    return any(name[0] in "px" for name in recipe.outputs)


def _reach_the_input(recipe: Recipe) -> set[str]:
    """Return the names of the values that were computed from an argument."""
    found = {f"x{number}" for number in range(len(recipe.inputs))}
    for line in recipe.lines:
        found |= set(line.targets) if found & set(line.sources) else set()
    return found


def _behind(recipe: Recipe, names: set[str]) -> set[str]:
    """Return the names that the values ``names`` were computed from, and these."""
    for line in reversed(recipe.lines):
        names = names | set(line.sources) if names & set(line.targets) else names
    return names


def _parameters_apart(recipe: Recipe) -> set[str]:
    """Return the parameters behind the outputs that no argument reaches."""
    return {name for name in _behind(recipe, set(recipe.outputs) - _reach_the_input(recipe)) if name[0] == "p"}


def _also_on_the_way(recipe: Recipe) -> bool:
    """Tell whether a parameter behind such an output meets an argument elsewhere."""
    on_the_way = _behind(recipe, set(recipe.outputs) & _reach_the_input(recipe))
    return bool(_parameters_apart(recipe) & on_the_way)


#: Which script shows what a defect shows; the first that fits, as what comes later is told by less.
CONFIRMED: list[tuple[str, Shown]] = [
    ("view_output.py", Shown("error: .*Can't detach views")),
    ("hooks_never_fire_in_w.py", Shown("hooks: a parameter gradient, after W")),
    ("expanded_weight_grad.py", Shown("error: the action, after W, .*more than one element")),
    ("duplicate_input_doubled.py", Shown("a value is wrong: an input gradient, after I", trait="duplicate_input")),
    ("parameter_input_loses_grad.py", Shown("a gradient is lost: .* after B", trait="parameter_input")),
    ("output_parameter_frozen.py", Shown("changed: a requires_grad flag, after I", recipe=_outputs_hold_a_leaf)),
    ("output_parameter_frozen.py", Shown("a gradient is lost: .* after [BW]", recipe=_outputs_hold_a_leaf)),
    ("output_parameter_frozen.py", Shown("error: .*KeyError: <AccumulateGrad", recipe=_outputs_hold_a_leaf)),
    ("no_input_grads_drop_params.py", Shown(LOST, trait="no_input_grads")),
    ("returned_grad_is_parameter_grad.py", Shown(WRONG, action="overwrite")),
    ("summed_parameters_share_grad.py", Shown(f"{WRONG}, counted twice")),
    ("penalty_output_lost.py", Shown(LOST, recipe=_also_on_the_way)),
    ("output_reaches_no_input.py", Shown(f"{LOST}|{WRONG}", recipe=lambda recipe: bool(_parameters_apart(recipe)))),
]


def scripts_of(defect: Defect) -> list[str]:
    return [script for script, shown in CONFIRMED if shown.by(defect)][:1]


@pytest.mark.nightly
@pytest.mark.skipif(
    torch.__version__.partition("+")[0] not in RELEASES, reason=f"tells of torch {' and '.join(RELEASES)}"
)
def test_every_fuzz_defect_of_torch_is_confirmed_by_a_script_and_shrunk_to_few_lines() -> None:
    runner = Runner(resolve("torch"), device=torch.device("cpu"), dtype=torch.float32)
    found = run_campaign(runner, max_examples=400, time_budget=3600, seed=20)  # of time it never runs out
    confirmed = {id(defect): scripts_of(defect) for defect in found.defects}
    assert [defect.key for defect in found.defects if not confirmed[id(defect)]] == []
    small = [defect for defect in found.defects if len(_text(defect).splitlines()) <= 5]
    assert len({script for defect in small for script in confirmed[id(defect)]}) >= 3
    assert len(small) >= len(found.defects) - 1


def _text(defect: Defect) -> str:
    recipe = recipe_of(defect.trial.stages[0])
    assert recipe is not None
    return recipe.text


def test_every_script_named_here_exists() -> None:
    assert [script for script, _ in CONFIRMED if not (SCRIPTS / script).is_file()] == []
