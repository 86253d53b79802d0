"""The numeric rule in words, for explanations and for docs/contract.md."""

from __future__ import annotations

FORMULA = "max|g - g64| <= 2 * max|g_autograd - g64| + c * eps(dtype) * scale"
