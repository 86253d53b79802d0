import torch
from megatron.core import ModelParallelConfig
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import backward_step


def test_backward_step_of_two_outputs():
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(5, 4), torch.randn(7, 5, requires_grad=True)
    grads = [torch.ones(7, 2), torch.ones(7, 2)]
    (expected,) = torch.autograd.grad(linear(x).chunk(2, dim=1), x, grads)
    outputs = list(linear(x).chunk(2, dim=1))
    (found,) = backward_step([x], outputs, grads, ModelType.encoder_or_decoder, ModelParallelConfig())
    torch.testing.assert_close(found, expected)
