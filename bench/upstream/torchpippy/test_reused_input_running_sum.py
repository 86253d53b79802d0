import torch
from pippy.backward import stage_backward


def test_an_input_of_two_microbatches_gets_the_gradient_of_each():
    torch.manual_seed(0)
    linear = torch.nn.Linear(5, 3)
    x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 3)
    (expected,) = torch.autograd.grad(linear(x), x, grad)
    for _ in range(2):
        (found,), _ = stage_backward((linear(x),), (grad,), [x], "", [0])
        torch.testing.assert_close(found, expected)
