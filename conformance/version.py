"""The versions of the kit and of the contract: separate, because a contract is frozen and the kit is not."""

KIT_VERSION = "1.0.0"
#: The newest contract version, used if a run names none, and the first.
CONTRACT_VERSION = "1.3"
FIRST_VERSION = "1.0"
