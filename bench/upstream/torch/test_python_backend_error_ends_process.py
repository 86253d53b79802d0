# Owner(s): ["module: PrivateUse1"]
import os

import torch
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


def error_of_a_backward():
    _setup_privateuseone_for_python_backend("mine")
    made, library = torch._C._acc.create_empty_tensor, torch.library.Library("aten", "IMPL")
    library.impl("neg", lambda x: made(tuple(x.shape), x.dtype), "PrivateUse1")
    result = made((2,), torch.float32).requires_grad_().neg()
    result.register_hook(lambda grad: grad.none)
    result.backward(made((2,), torch.float32))


class PythonBackendTest(TestCase):
    def test_an_error_in_a_backward_reaches_the_caller(self):
        child = os.fork()
        if not child:
            try:
                error_of_a_backward()
            except AttributeError:
                os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


if __name__ == "__main__":
    run_tests()
