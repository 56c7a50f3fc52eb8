import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.ids import API_ID_LIMIT, ApiId, api_of, compose_request_id

APIS = st.integers(1, API_ID_LIMIT - 1)
COUNTERS = st.integers(0, 2**32 - 1)


@settings(deadline=None, derandomize=True)
@given(APIS, COUNTERS)
def test_a_request_id_names_its_api_process_and_fits_a_column(api: int, counter: int) -> None:
    request = compose_request_id(ApiId(api), counter)

    assert api == api_of(request)
    assert 0 < request < 2**63


@settings(deadline=None, derandomize=True)
@given(st.tuples(APIS, COUNTERS), st.tuples(APIS, COUNTERS))
def test_request_ids_are_unique(one: tuple[int, int], other: tuple[int, int]) -> None:
    ids = {compose_request_id(ApiId(api), counter) for api, counter in (one, other)}

    assert len({one, other}) == len(ids)


@pytest.mark.parametrize(("api", "counter"), [(0, 0), (API_ID_LIMIT, 0), (1, -1), (1, 2**32)])
def test_parts_out_of_range_are_refused(api: int, counter: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        compose_request_id(ApiId(api), counter)
