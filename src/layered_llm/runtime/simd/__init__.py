"""A decoder's step in machine code that is generated at start.

fp32 kernels with vectors of 8 or 16 numbers; weights are read in their own precision, KV pages where they lie.
"""
