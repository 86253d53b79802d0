"""``torch.backends``: the precision of float32, which releases before 2.9 set under other names."""

from __future__ import annotations

from typing import Any

from .names import Name

#: Keyed by the report's name. Releases before 2.9 have none of them, and set TF32 by ``allow_tf32``.
PRECISIONS = {
    path: Name(owner, ("fp32_precision",), "sets the precision of float32")
    for path, owner in (
        ("fp32_precision", "torch.backends"),
        ("cuda.matmul.fp32_precision", "torch.backends.cuda:matmul"),
        ("cudnn.conv.fp32_precision", "torch.backends.cudnn:conv"),
        ("cudnn.rnn.fp32_precision", "torch.backends.cudnn:rnn"),
        ("mkldnn.matmul.fp32_precision", "torch.backends.mkldnn:matmul"),
    )
}


def precision(path: str) -> Any:
    """Return the precision of ``path``; None if this torch has no such name."""
    name = PRECISIONS[path]
    return name.find() if name.there() else None


def owners() -> list[Any]:
    """Return the operations' objects that have a precision of their own, without those that this torch lacks."""
    names = [name for path, name in PRECISIONS.items() if path != "fp32_precision" and name.there()]
    return [name.home() for name in names]
