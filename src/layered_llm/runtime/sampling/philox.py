"""Counter-based random numbers: Philox4x32-10.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011.

Must not know: logits, slots, what the numbers are for.

A pure function of key and counter, with no state to save: what makes a seeded output independent of batch mates, preemption
and restarts.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""32-bit words, each held in 64 bits so that products do not overflow."""

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_WORD_LIMIT: Final = 1 << 64


def philox(counters: Words, keys: Words) -> Words:
    """Random words [4, n] for counters [4, n] and keys [2, n]."""
    c0, c1, c2, c3 = counters
    k0, k1 = keys
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3))


def uniforms(seeds: list[int], choices: list[int], positions: list[int]) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, choice index, output position); seeds count modulo 2**64."""
    seed_words = np.array([seed % _WORD_LIMIT for seed in seeds], np.uint64)
    zeros = np.zeros(len(seeds), np.uint64)
    counters = np.stack((np.array(positions, np.uint64), np.array(choices, np.uint64), zeros, zeros))
    words = philox(counters, np.stack((seed_words & _LOW, seed_words >> _HALF)))
    bits = (words[0] >> np.uint64(5)) << np.uint64(26) | words[1] >> np.uint64(6)
    return bits / np.float64(1 << 53)
