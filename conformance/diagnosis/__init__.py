"""Diagnosis: what a wrong gradient is made of, found by computing, and said in one clause.

A wrong value is compared with what a mistake would make of the right ones: another combination of the micro-batches'
gradients, another slot's gradient, a transpose, a rounding, some of the uses of a tied parameter, a backward from other
output gradients. What is simplest is asked first. Where nothing fits within rounding, and by more than chance, nothing
is said; where two mistakes fit alike, both are.
"""
