"""Text after an action in a cell is dropped: ``0F0;1F0`` is read as ``0F0``."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

from torch.distributed.pipelining.schedules import _Action

action = _Action.from_str("0F0;1F0")
print("expected an error, got", action)
raise SystemExit(1)
