"""Waivers: failures that are expected, each with a reason, an owner and a day on which it ends."""
