"""The contract as ``unittest`` classes: one test per check, and one class per device as in torch's tests."""

from .cases import conformance_case
from .devices import instantiate

__all__ = ["conformance_case", "instantiate"]
