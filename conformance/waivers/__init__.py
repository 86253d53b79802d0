"""Waivers: expected failures, each with a reason, an owner and a last day."""
