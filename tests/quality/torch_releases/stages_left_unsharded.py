"""A lowered schedule ends with the last stages of a rank unsharded: their whole weights stay in memory after the step.

What is put in before an action evicts stages that come no more, and nothing is put in behind the last action.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

from torch.distributed.pipelining.schedules import _Action, _add_unshard_reshard

row = ["0F0", "1F0", "1B0", "0B0"]
lowered = [str(action) for action in _add_unshard_reshard([_Action.from_str(cell) for cell in row])]
print("expected: a RESHARD behind each UNSHARD")
print(f"got: {' '.join(lowered)}")
opened, closed = (sorted(cell[0] for cell in lowered if word in cell) for word in ("UNSHARD", "RESHARD"))
sys.exit(1 if opened != closed else 0)
