"""A decoder's step in machine code that is generated at start.

Kernels with vectors of 8 or 16 fp32 numbers, or of bytes for blocks of weights. Weights are read in their own precision, KV
pages where they lie.
"""
