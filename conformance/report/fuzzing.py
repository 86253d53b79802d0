"""The lines on the findings of a fuzz campaign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradconform.fixtures.random_stages import recipe_of
from gradconform.fuzz.hunt import to_blob
from gradconform.text.counts import count

from .lines import Line, command_lines, wrapped, wrapped_each

if TYPE_CHECKING:
    from gradconform.fuzz.campaign import Campaign
    from gradconform.fuzz.hunt import Defect
    from gradconform.trial.trial import Trial

#: Findings shown per defect.
_SHOWN = 3


def defect_lines(number: int, defect: Defect, width: int, command: str) -> list[Line]:
    """Return the lines on one defect: its kind, stage, program, findings and how to reproduce it.

    The blob is appended to ``command``.
    """
    trial = defect.trial
    lines = wrapped(f"[{number}] {defect.level}: {defect.key}", width, hanging=4, role="heading")
    recipe = recipe_of(trial.stages[0])
    if recipe is not None:
        lines += wrapped(recipe.signature, width, indent=4, hanging=2, role="faint")
        lines += [Line(f"        {line}") for line in recipe.text.splitlines()]
    lines += wrapped(f"program {trial.program}{_options(trial)}", width, indent=4, hanging=2, role="faint")
    lines += wrapped_each((f"- {seen}" for seen in defect.findings[:_SHOWN]), width, indent=4, hanging=2)
    if len(defect.findings) > _SHOWN:
        lines += [Line(f"    - and {count(len(defect.findings) - _SHOWN, 'finding')} more")]
    return [*lines, *command_lines("reproduce", f"{command} --reproduce {to_blob(trial)}", width, indent=4), Line("")]


def _options(trial: Trial) -> str:
    settings = ["from a loss"] if trial.loss else []
    settings += [f"output gradients {trial.output_grads}"] if trial.output_grads != "normal" else []
    settings += ["prior gradients"] if trial.prior_grads else []
    settings += ["every micro-batch gets the same tensors"] if trial.same_args else []
    return "".join(f"; {words}" for words in (*settings, *trial.passed))


def summary_line(campaign: Campaign, max_examples: int) -> Line:
    """Return the last line: the numbers of trials, failures and defects."""
    must = sum(defect.level == "MUST" for defect in campaign.defects)
    should = len(campaign.defects) - must
    text = f"{count(campaign.trials, 'trial')}, {count(campaign.failing, 'failure')}"
    if campaign.defects:
        text += f" of {count(len(campaign.defects), 'distinct defect')}: {must} MUST and {should} SHOULD"
    if campaign.out_of_time:
        text += f"; out of time after {campaign.examples} of {max_examples} examples"
    return Line(f"{text}; {campaign.seconds:.1f} s", "bad" if must else "good")
