"""The three functions that torch's own pipeline stages call: the registered target ``torch``."""

from gradconform.torch_releases.pipelining import functions

# When they go, look in torch/distributed/pipelining/stage.py for what perform_backward calls instead.
stage_backward, stage_backward_input, stage_backward_weight = functions().values()

#: I refuses a caller that records no gradients: it makes views of the inputs to find their nodes.
gradconform_capabilities = {"called_without_grad": False}

__all__ = ["gradconform_capabilities", "stage_backward", "stage_backward_input", "stage_backward_weight"]
