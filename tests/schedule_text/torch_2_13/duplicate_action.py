"""A schedule that has an action twice passes the validation, which counts sets of micro-batches.

The runtime raises when it comes to the second one (there is nothing in its cache any more), in the middle of a step.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

from torch.distributed.pipelining.schedules import _Action, _validate_schedule

rows = {0: ["0F0", "0F0", "0B0", "0B0"]}
stages = _validate_schedule({rank: [_Action.from_str(cell) for cell in row] for rank, row in rows.items()}, 1, 1, 1)
print("expected an error, got", stages)
raise SystemExit(1)
