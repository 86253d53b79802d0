"""The versions of the kit and of the contract: separate, because a contract is frozen and the kit is not."""

KIT_VERSION = "1.0.0"
#: The first contract version, used if a run names none.
CONTRACT_VERSION = "1.0"
FIRST_VERSION = "1.0"
