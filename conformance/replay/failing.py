"""Which trial of a check fails: a check may run several, and a script shows one."""

from __future__ import annotations

from dataclasses import replace

from gradconform.check import Check
from gradconform.plan import Item
from gradconform.session import Session


def failing_trial(session: Session, item: Item) -> Check:
    """Return the check of ``item`` with its first trial that fails alone, or its first one where none does."""
    alone = [replace(item.check, trials=(trial,)) for trial in item.check.trials]
    if len(alone) > 1:
        for check in alone:
            if session.run_item(replace(item, check=check)).status == "failed":
                return check
    return alone[0]
