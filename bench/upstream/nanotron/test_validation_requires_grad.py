import sys
from types import ModuleType

# nanotron.logging imports its configuration for a type hint, and that imports nanotron.logging (#191).
stand_in = ModuleType("nanotron.config.config")
stand_in.LoggingArgs = object
sys.modules.update({"nanotron.config": stand_in, "nanotron.config.config": stand_in})
import nanotron.logging

del sys.modules["nanotron.config"], sys.modules["nanotron.config.config"]
import nanotron.config  # noqa: F401 (the engine cannot be imported before it)
import torch
import torch.distributed as dist
from nanotron.parallel.pipeline_parallel.engine import OneForwardOneBackwardPipelineEngine


def test_validation_returns_the_loss(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, batch = torch.nn.Linear(4, 1), torch.ones(2, 4)
        model.forward = lambda x: {"loss": torch.nn.Linear.forward(model, x).square().mean()}
        found = OneForwardOneBackwardPipelineEngine().validate_batch_iter(model, [{"x": batch}], nb_microbatches=1)
        torch.testing.assert_close(found[0]["loss"], model(batch)["loss"].detach())
    finally:
        dist.destroy_process_group()
