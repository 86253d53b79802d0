"""The contract as classes of ``unittest``: one test per check, and classes per device in the form of torch's tests."""

from .cases import conformance_case
from .devices import instantiate

__all__ = ["conformance_case", "instantiate"]
