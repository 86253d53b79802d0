"""What differs from torch to torch: names that no release promises, by subject, and which releases were tested.

A name is looked for, never told by a version: what is not there makes what needs it unavailable, with the reason.
"""
