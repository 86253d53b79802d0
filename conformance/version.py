"""The kit's version and the contract's: separate, because a contract is frozen and the kit is not."""

KIT_VERSION = "1.0.0"
#: The contract that a run is of where none is named, and the first there was.
CONTRACT_VERSION = "1.0"
FIRST_VERSION = "1.0"
