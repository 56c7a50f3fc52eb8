"""What requests with the same beginning have of each other."""

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep
from layered_llm.scheduling.policy import AdmissionOrder
from support.scheduling_rig import Rig, admit, limits, policy


def table_changes(step: ExecuteStep | None) -> list[tuple[int, int, list[int]]]:
    """(slot, offset, page ids) of every page table delta."""
    assert step is not None
    ids = list(unpack_i32(step.page_ids))
    changes = []
    columns = (unpack_i32(step.page_slots), unpack_i32(step.page_counts), unpack_i32(step.page_offsets))
    for slot, count, offset in zip(*columns, strict=True):
        changes.append((slot, offset, ids[:count]))
        del ids[:count]
    return changes


def test_a_later_request_computes_only_what_is_new() -> None:
    rig = Rig()
    rig.admit(admit(1, prompt_ids=range(12), tokens=1))
    rig.run()
    rig.admit(admit(2, prompt_ids=[*range(10), 50, 51, 52], tokens=1))

    step = rig.step()

    assert step is not None
    assert ([8], [5]) == (list(unpack_i32(step.starts)), list(unpack_i32(step.counts)))
    assert {(1, 0): 0, (2, 0): 8} == rig.cached
    rig.run()


def test_at_least_one_token_is_computed() -> None:
    rig = Rig()
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(8), tokens=1))
        rig.run()

    assert 4 == rig.cached[2, 0]


def test_an_output_is_found_as_part_of_a_longer_prompt() -> None:
    rig = Rig(script=lambda _seed, _choice, position: 100 + position)
    rig.admit(admit(1, prompt_ids=range(4), tokens=9))
    rig.run()

    rig.admit(admit(2, prompt_ids=[*range(4), *range(100, 120)], tokens=1))
    rig.run()

    assert 4 + 8 == rig.cached[2, 0]


def test_a_request_that_comes_meanwhile_has_what_is_computed_by_then() -> None:
    rig = Rig(policy=policy(budget=8))
    rig.admit(admit(1, prompt_ids=range(32), tokens=1))
    rig.step()
    rig.step()
    rig.admit(admit(2, prompt_ids=range(32), tokens=1))

    rig.run()

    assert 16 == rig.cached[2, 0]


def test_a_page_of_a_chunk_in_flight_is_not_found() -> None:
    rig = Rig(policy=policy(budget=8, in_flight=2))
    rig.admit(admit(1, prompt_ids=range(32), tokens=1))
    rig.launch()
    rig.admit(admit(2, prompt_ids=range(32), tokens=1))
    rig.launch()

    rig.run()

    assert 0 == rig.cached[2, 0]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_two_prompts_computed_in_one_batch_end_with_one_copy(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight))
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(10), tokens=20))
    first = rig.launch()
    rig.finish()

    step = rig.launch()

    tables = {slot: pages for slot, _, pages in table_changes(first)}
    assert (1, 0, tables[0][:2]) in table_changes(step)
    figures = rig.scheduler.statistics()
    assert 3 + 1 == figures.pages_total - figures.pages_free - figures.pages_quarantined
    rig.run()


def test_a_duplicate_that_a_step_in_flight_names_is_quarantined() -> None:
    rig = Rig(policy=policy(in_flight=2))
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(10), tokens=20))
    rig.launch()
    rig.launch()

    rig.finish()

    assert 2 == rig.scheduler.statistics().pages_quarantined
    rig.launch()
    rig.finish()
    assert 0 == rig.scheduler.statistics().pages_quarantined
    rig.run()


def test_a_choice_that_ends_before_it_learns_of_its_replaced_pages_leaves_nothing() -> None:
    rig = Rig()
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(10), tokens=20))
    rig.step()

    rig.abort(2)

    step = rig.launch()
    assert [] == table_changes(step)
    rig.run()


def test_the_choices_of_a_request_compute_its_prompt_once() -> None:
    rig = Rig(policy=policy(budget=16))
    rig.admit(admit(1, prompt=41, tokens=1, choices=4))

    rig.run()

    assert 41 + 3 * 1 == rig.computed_tokens()
    assert {(1, 0): 0, (1, 1): 40, (1, 2): 40, (1, 3): 40} == rig.cached


def test_choices_that_wait_for_their_prompt_hold_up_nobody() -> None:
    rig = Rig(policy=policy(budget=16))
    rig.admit(admit(1, prompt=64, tokens=1, choices=4))
    rig.admit(admit(2, prompt=4, tokens=1))

    rig.step()

    assert (2, 0) in rig.ended
    rig.run()


def test_the_next_choice_goes_on_where_an_aborted_one_left_off() -> None:
    rig = Rig(policy=policy(budget=8))
    rig.admit(admit(1, prompt_ids=range(32), tokens=4))
    rig.step()
    rig.step()
    rig.abort(1)

    rig.admit(admit(2, prompt_ids=range(32), tokens=1))
    rig.run()

    assert 16 == rig.cached[2, 0]


def test_salts_keep_requests_apart() -> None:
    rig = Rig()
    for request, salt in enumerate([None, "a", "b", "a"]):
        rig.admit(admit(request, prompt_ids=range(20), tokens=1, salt=salt))
        rig.run()

    assert [0, 0, 0, 16] == [rig.cached[request, 0] for request in range(4)]


def test_tenants_find_nothing_of_each_other_with_any_salt() -> None:
    rig = Rig()
    for request, (tenant, salt) in enumerate([("alice", None), ("bob", None), ("bob", "s"), ("alice", "s"), ("alice", None)]):
        rig.admit(admit(request, prompt_ids=range(20), tokens=1, tenant=tenant, salt=salt))
        rig.run()

    assert [0, 0, 0, 0, 16] == [rig.cached[request, 0] for request in range(5)]


@pytest.mark.parametrize(
    ("own", "forged"),
    [
        (("a", "b:c"), ("a:b", "c")),
        (("a", "b"), ("", "a:b")),
        (("a", "b"), ("", "('a', 'b')")),
        (("a", None), ("a", "None")),
        (("a", None), ("", "a")),
        (("", "a"), ("a", None)),
    ],
)
def test_no_tenant_and_salt_spell_the_root_of_another_pair(own: tuple[str, str | None], forged: tuple[str, str | None]) -> None:
    rig = Rig()
    for request, (tenant, salt) in enumerate([own, forged]):
        rig.admit(admit(request, prompt_ids=range(20), tokens=1, tenant=tenant, salt=salt))
        rig.run()

    assert 0 == rig.cached[1, 0]


def test_tenants_share_where_the_operator_says_so_and_salts_still_keep_apart() -> None:
    rig = Rig(policy=policy(shares_prefixes=True))
    for request, (tenant, salt) in enumerate([("alice", None), ("bob", None), ("bob", "s"), ("alice", "s")]):
        rig.admit(admit(request, prompt_ids=range(20), tokens=1, tenant=tenant, salt=salt))
        rig.run()

    assert [0, 16, 0, 16] == [rig.cached[request, 0] for request in range(4)]


def test_the_longest_prefix_is_looked_for_among_the_tenants_own() -> None:
    rig = Rig(policy=policy(running=1, order=AdmissionOrder.LONGEST_PREFIX))
    rig.admit(admit(1, prompt_ids=range(40), tokens=1, tenant="alice"))
    rig.run()
    rig.admit(admit(2, prompt_ids=range(100, 110), tokens=30, tenant="bob"))
    rig.step()
    rig.admit(admit(3, prompt_ids=range(200, 210), tokens=1, tenant="bob"))
    rig.admit(admit(4, prompt_ids=range(40), tokens=1, tenant="bob"))
    rig.run()

    assert [3, 4] == [request for request, _ in rig.ended if request > 2]


def test_without_the_cache_nothing_is_shared_or_kept() -> None:
    rig = Rig(policy=policy(cache=False))
    for request in range(3):
        rig.admit(admit(request, prompt_ids=range(20), tokens=2, choices=2))
    rig.step()
    assert 6 == rig.scheduler.statistics().running_choices

    rig.run()

    figures = rig.scheduler.statistics()
    assert {0} == set(rig.cached.values())
    assert (64, 0, 0) == (figures.pages_free, figures.pages_cached, figures.counters.prefix_lookup_tokens)


def test_flushing_frees_all_but_what_runs() -> None:
    rig = Rig()
    rig.admit(admit(1, prompt=20, tokens=1))
    rig.run()
    rig.admit(admit(2, prompt=20, tokens=9))
    rig.step()

    assert 5 == rig.scheduler.flush_cache()

    figures = rig.scheduler.statistics()
    assert (0, 5, 0) == (figures.pages_cached, figures.pages_used, figures.pages_evicted)
    rig.run()


def test_the_pool_evicts_only_what_is_missing() -> None:
    rig = Rig(limits=limits(pages=8, page_size=4))
    rig.admit(admit(1, prompt=24, tokens=1))
    rig.run()
    rig.admit(admit(2, prompt=12, tokens=1))

    rig.run()

    assert 1 == rig.scheduler.statistics().pages_evicted


def test_figures_tell_how_much_was_found() -> None:
    rig = Rig()
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(10), tokens=1))
        rig.run()

    figures = rig.scheduler.statistics()

    assert (20, 8, 2) == (figures.counters.prefix_lookup_tokens, figures.counters.prefix_hit_tokens, figures.pages_cached)
