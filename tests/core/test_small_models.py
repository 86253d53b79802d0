"""Models are made small by what their constructors are given, for as long as one is built."""

from __future__ import annotations

import pytest
from torch import nn

from gradconform.named_stages.small_models import SMALLER, for_images, smaller


class Model(nn.Module):
    """A model that keeps what it was given."""

    def __init__(
        self,
        depths: tuple[int, ...] = (2, 2, 18, 2),
        embed_dim: int | tuple[int, ...] = 96,
        num_heads: int | list[int] = 12,
        img_size: int | tuple[int, int] | None = 224,
        **rest: object,
    ) -> None:
        super().__init__()
        self.given = (depths, embed_dim, num_heads, img_size, rest)


class Special(Model):
    """One that hands on what it is given."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type] # as a library hands it on


@pytest.mark.parametrize("kind", [Model, Special])
def test_sizes_are_reduced_by_argument_name_including_defaults(kind: type[Model]) -> None:
    with smaller(kind, {**SMALLER[0], **for_images(64, 8)}):
        made = kind(embed_dim=(64, 512, 512), num_heads=[3, 6], depth=9, img_size=(224, 224))
        plain = kind()
    assert made.given == ((2, 1, 1, 1), (32, 64, 128), [2, 4], (64, 64), {"depth": 9})
    assert plain.given == ((2, 1, 1, 1), 32, 4, 64, {})


def test_only_depths_are_reduced_if_widths_cannot_be() -> None:
    with smaller(Model, SMALLER[1]):
        assert Model().given == ((2, 1, 1, 1), 96, 12, 224, {})


def test_small_nested_and_none_sizes_are_unchanged() -> None:
    with smaller(Model, {**SMALLER[0], **for_images(64, 8)}):
        made = Model(depths=(1, 1), embed_dim=8, num_heads=1, img_size=None)
        nested = Model(depths=((1, 4), (2, 5)))  # type: ignore[arg-type] # as a library hands it on
    assert made.given == ((1, 1), 8, 1, None, {})
    assert nested.given[0] == ((1, 4), (2, 5))


def test_the_class_is_restored_even_if_building_raises() -> None:
    before = Model.__init__

    def build() -> None:
        with smaller(Model, SMALLER[0]):
            Model(nowhere=3)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        build()
    assert Model.__init__ is before
    with smaller(nn.Linear, SMALLER[0]):  # asks for none of these
        assert nn.Linear(3, 2).weight.shape == (2, 3)
    with smaller(None, SMALLER[0]):
        assert Model().given[0] == (2, 2, 18, 2)
