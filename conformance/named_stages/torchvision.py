"""Models of torchvision as stages: built with random weights, without downloads.

``torchvision:resnet50`` is made small; ``torchvision:resnet50?size=full`` keeps its sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from gradconform.user_input.values import nearest

from .error import StageError
from .images import model_of_images
from .libraries import Part, imported, name_and_size

#: What begins the name of such a stage.
PREFIX = "torchvision:"

#: The arguments of a builder that ask for weights, which are downloaded unless they are None.
_WEIGHTS = ("weights", "weights_backbone")


def models_of(text: str, description: str) -> Iterator[Part]:
    """Yield the model as one stage.

    Raises :class:`StageError` for an unknown model or one without image input, or if torchvision is not installed.
    """
    name, small = name_and_size(text, PREFIX, description)
    models = imported("torchvision", description).models
    if name not in models.list_models():
        msg = f"{description}: torchvision has no model {name!r}; nearest: {nearest(name, models.list_models())[:200]}"
        raise StageError(msg)
    builder = models.get_model_builder(name)
    none = {one: None for one in _WEIGHTS if one in inspect.signature(builder).parameters}
    yield model_of_images(lambda: builder(**none), builder, description, small=small)
