"""Profiles and the seed, for what imports torch and for the command, which reads its options before it does."""

from __future__ import annotations

from typing import Literal

Profile = Literal["quick", "standard", "full"]

#: From the smallest profile to the largest; each holds all checks of those before it.
PROFILES: tuple[Profile, ...] = ("quick", "standard", "full")

#: What all values are drawn from where no seed is named.
DEFAULT_SEED = 20
