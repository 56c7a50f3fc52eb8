from typing import Any

import pytest

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.placement import MAX_CACHE_SALT_CHARS, Placement


@pytest.mark.parametrize(
    ("field", "value"),
    [("cache_salt", ""), ("cache_salt", "x" * (MAX_CACHE_SALT_CHARS + 1)), ("priority", 2**63), ("priority", -(2**63) - 1)],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        Placement(**{field: value})

    assert field == caught.value.param
