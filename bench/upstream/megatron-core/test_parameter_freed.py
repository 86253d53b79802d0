import torch
from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor


def test_a_parameter_that_is_an_output_is_not_deallocated():
    stage = torch.nn.Linear(5, 3)
    deallocate_output_tensor(stage.weight, deallocate_pipeline_outputs=True)
    assert stage.weight.shape == (3, 5)
