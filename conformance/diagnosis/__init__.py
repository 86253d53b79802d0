"""Diagnosis: finds the likely cause of a wrong gradient by computation, and describes it in one clause.

A wrong value is compared with the values that a mistake would make of the right ones: another combination of the
micro-batches' gradients, another slot's gradient, a transpose, a rounding, some of the uses of a tied parameter, a
backward from other output gradients. The simplest mistakes are tried first. If nothing fits within rounding, and better
than chance, no cause is reported. If two mistakes fit equally, both are reported.
"""
