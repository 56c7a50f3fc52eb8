import numpy as np
import pytest

from layered_llm.runtime.sampling.philox import philox, uniforms

KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
"""The authors' published test vectors of philox4x32-10."""


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert expected == words[:, 0].tolist()


def test_a_number_does_not_depend_on_its_neighbours() -> None:
    together = uniforms([1, 2, 3], [0, 1, 0], [5, 6, 7])
    assert together[1] == uniforms([2], [1], [6])[0]


def test_seed_choice_and_position_all_count() -> None:
    numbers = uniforms([1, 2, 1, 1, 1 << 32], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0])
    assert 5 == len(set(numbers.tolist()))


def test_negative_seeds_are_seeds_of_their_own() -> None:
    assert uniforms([-1], [0], [0]) == uniforms([(1 << 64) - 1], [0], [0])


def test_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = uniforms([42] * 20_000, [0] * 20_000, list(range(20_000)))
    counts = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert 43.8 > chi_square, "19 degrees of freedom: one in a thousand sequences lies above"
