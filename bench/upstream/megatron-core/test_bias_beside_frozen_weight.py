import torch
from megatron.core.tensor_parallel import layers


def test_a_bias_beside_a_frozen_weight_gets_its_gradient():
    linear, x = torch.nn.Linear(5, 3), torch.randn(7, 5)
    linear.weight.requires_grad_(False)
    output = layers.linear_with_frozen_weight(x.requires_grad_(), linear.weight, linear.bias, False, False, False, None)
    output.sum().backward()
    assert linear.bias.grad is not None
    torch.testing.assert_close(linear.bias.grad, torch.full((3,), 7.0))
