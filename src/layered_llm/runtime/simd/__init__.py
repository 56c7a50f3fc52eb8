"""A decoder's step in machine code that is generated at start: 8-lane fp32 kernels, weights and KV pages read in place."""
