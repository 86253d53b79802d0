"""Models of timm as stages: built with random weights, without downloads.

``timm:vit_tiny_patch16_224`` is made small; ``timm:vit_tiny_patch16_224?size=full`` keeps its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.user_input.values import nearest

from .error import StageError
from .images import model_of_images
from .libraries import Part, imported, name_and_size

#: What begins the name of such a stage.
PREFIX = "timm:"


def models_of(text: str, description: str) -> Iterator[Part]:
    """Yield the model as one stage.

    Raises :class:`StageError` for an unknown model or one without image input, or if timm is not installed.
    """
    name, small = name_and_size(text, PREFIX, description)
    library = imported("timm", description)
    if not library.is_model(name):
        msg = f"{description}: timm has no model {name!r}; nearest: {nearest(name, library.list_models())[:200]}"
        raise StageError(msg)
    known = library.models.get_pretrained_cfg(name)
    side = (224 if known is None else known.input_size[-1],)
    builder = library.models.model_entrypoint(name)
    yield model_of_images(
        lambda: library.create_model(name, pretrained=False), builder, description, small=small, sides=side
    )
