"""The environment of a run: the facts that a reader needs to get the same numbers."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import backends

from gradconform.files.kit_files import kit_sha256
from gradconform.torch_releases.accelerator import accelerator
from gradconform.torch_releases.precision import precision
from gradconform.torch_releases.tested import untested

#: Variables that change torch's results or speed.
_VARIABLES = (
    "ASCEND_LAUNCH_BLOCKING", "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "DNNL_DEFAULT_FPMATH_MODE", "HIP_VISIBLE_DEVICES", "KMP_AFFINITY",
    "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_JIT", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip

#: The beginnings of further variables that such a device reads, by its type.
_ALSO_READ = {"npu": ("ASCEND_",), "xla": ("PJRT_",), "xpu": ("SYCL_", "ZE_"), "mps": ("PYTORCH_MPS_",)}


def environment(
    devices: Iterable[str] = ("cpu",),
    flags: Mapping[str, str] | None = None,
    described: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return versions, platform, the named devices and the settings that change torch's numbers, as JSON values.

    ``flags`` are those that an option set for the run. ``described`` holds known descriptions of devices in the form of
    :func:`description`: these devices are not queried again.
    """
    found = accelerator(available=True)
    named = tuple(dict.fromkeys(devices))
    return {
        "kit_sha256": kit_sha256(),
        "torch": str(torch.__version__),
        "torch_tested": not untested(str(torch.__version__)),
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": sys.version.split()[0],
        "os": platform.system(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "accelerator": None if found is None else str(found),
        "devices": [{"name": name, **((described or {}).get(name) or description(name))} for name in named],
        "threads": 1,
        "torch_threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": _matmul_precision(),
        "flags": dict(flags or {}),
        "backends": {**_backends(), "autocast": _autocast({name.partition(":")[0] for name in named})},
        "variables": {name: os.environ[name] for name in _variables(named)},
    }


def _variables(devices: Iterable[str]) -> list[str]:
    """Return the variables that change results: those of torch, and those that begin with a type of device."""
    types = {name.partition(":")[0] for name in devices} - {"cpu", "cuda"}  # the names of cuda's are known
    begin = tuple(text for one in types for text in (f"{one.upper()}_", *_ALSO_READ.get(one, ())))
    return sorted(name for name in os.environ if name in _VARIABLES or (begin and name.startswith(begin)))


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch raises if a backend's own fp32_precision was set
        return None


def _autocast(device_types: Iterable[str]) -> str | None:
    """Return the device types for which autocast is on, and its dtype there, or None."""
    dtypes = []
    for device_type in sorted(device_types):
        with contextlib.suppress(RuntimeError):  # lazy, for one, has no autocast
            if torch.is_autocast_enabled(device_type):
                dtypes.append(f"{device_type} {str(torch.get_autocast_dtype(device_type)).removeprefix('torch.')}")
    return ", ".join(dtypes) or None


def description(name: str) -> dict[str, Any]:
    """Return torch's description of a device: its model and its driver, each None if torch has none."""
    device = torch.device(name)
    if device.type == "cpu":
        return {"model": backends.cpu.get_cpu_capability(), "driver": None}
    try:
        properties = torch.get_device_module(device).get_device_properties(device)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):  # a device's own module is optional in torch
        properties = None
    model, driver = (getattr(properties, field, None) for field in ("name", "driver_version"))
    return {"model": _text(model), "driver": _text(driver)}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _backends() -> dict[str, Any]:
    """Return the flags of ``torch.backends`` that change results."""
    return {
        "fp32_precision": precision("fp32_precision"),
        "cuda.matmul.fp32_precision": precision("cuda.matmul.fp32_precision"),
        "cuda.matmul.allow_bf16_reduced_precision_reduction": (
            backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "cuda.matmul.allow_fp16_reduced_precision_reduction": (
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "cudnn.version": backends.cudnn.version(),
        "cudnn.enabled": backends.cudnn.enabled,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "cudnn.conv.fp32_precision": precision("cudnn.conv.fp32_precision"),
        "mkldnn.enabled": backends.mkldnn.enabled,
    }
