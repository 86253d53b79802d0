"""The environment of a run: what a reader needs to know to get the same numbers."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

#: Variables that change what torch computes or how fast.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "PYTHONHASHSEED")


def environment() -> dict[str, Any]:
    """Return versions, platform, the accelerator torch knows of, and what changes its numbers, as JSON values."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "accelerator": None if accelerator is None else str(accelerator),
        "threads": 1,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
