"""On a backend made in Python, an error in a backward ends the process; the caller gets no exception.

While the exception leaves the engine, the guard of the stream asks Python for the type of the device, which fails while
an error is set. A backend in C++ does not ask Python.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import subprocess
import sys

BACKWARD = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

setup("mine")
made = torch._C._acc.create_empty_tensor
library = torch.library.Library("aten", "IMPL")
library.impl("neg", lambda x: made(tuple(x.shape), x.dtype), "PrivateUse1")


def refuse(grad):
    raise ValueError("from a hook")


result = made((2,), torch.float32).requires_grad_().neg()
result.register_hook(refuse)
try:
    result.backward(made((2,), torch.float32))
except ValueError as error:
    print(repr(error))
"""

done = subprocess.run([sys.executable, "-c", BACKWARD], capture_output=True, text=True, check=False)
print("expected: ValueError('from a hook')")
print(f"got: exit code {done.returncode}, {(done.stdout + done.stderr).strip()}")
sys.exit(int(done.returncode != 0))
