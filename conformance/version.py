"""The kit's version and the contract's: separate, because a contract is frozen and the kit is not."""

KIT_VERSION = "0.1.0"
CONTRACT_VERSION = "1.0"
