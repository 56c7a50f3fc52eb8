from layered_llm.domain.columns import pack_i32
from layered_llm.domain.ids import PageId
from layered_llm.domain.placement import CacheRoot
from layered_llm.scheduling.prefix_tree import Node, PrefixTree

ROOT = CacheRoot()


def tree_with(*branches: tuple[list[int], list[int]], page_size: int = 1) -> tuple[PrefixTree, list[Node]]:
    """Adds each branch (tokens, pages) from the root, in order; whoever added it still holds it."""
    tree = PrefixTree(page_size)
    return tree, [add(tree, tokens, pages) for tokens, pages in branches]


def add(tree: PrefixTree, tokens: list[int], pages: list[int], salt: str | None = None) -> Node:
    root = tree.lock(CacheRoot(cache_salt=salt), b"", 0).place
    return tree.extend(root, pack_i32(tokens), [PageId(page) for page in pages]).place


def found(tree: PrefixTree, tokens: list[int], *, most: int = 99, salt: str | None = None) -> list[int]:
    prefix = tree.lock(CacheRoot(cache_salt=salt), pack_i32(tokens), most)
    tree.unlock(prefix.place)
    return list(prefix.pages)


def pages_in(tree: PrefixTree) -> int:
    return sum(len(node.pages) for node in tree.nodes())


def test_nothing_is_found_in_an_empty_tree() -> None:
    assert [] == found(PrefixTree(4), [1, 2, 3, 4])


def test_the_longest_known_prefix_is_found() -> None:
    tree, _ = tree_with(([1, 2, 3], [10, 11, 12]))

    assert [10, 11, 12] == found(tree, [1, 2, 3, 4])
    assert [10, 11] == found(tree, [1, 2, 9])
    assert [] == found(tree, [9, 2, 3])


def test_only_whole_pages_are_found() -> None:
    tree, _ = tree_with(([1, 2, 3, 4], [10, 11]), page_size=2)

    assert [10] == found(tree, [1, 2, 3])
    assert [10] == found(tree, [1, 2, 3, 9])
    assert [] == found(tree, [1])


def test_no_more_is_found_than_asked_for() -> None:
    tree, _ = tree_with(([1, 2, 3], [10, 11, 12]))

    assert [10, 11] == found(tree, [1, 2, 3], most=2)
    assert 2 == tree.peek(ROOT, pack_i32([1, 2, 3]), 2)


def test_peeking_changes_nothing() -> None:
    tree, _ = tree_with(([1, 2, 3], [10, 11, 12]))
    nodes = len(list(tree.nodes()))

    assert 2 == tree.peek(ROOT, pack_i32([1, 2, 9]), 99)
    assert 0 == tree.peek(CacheRoot(cache_salt="x"), pack_i32([1, 2, 9]), 99)
    assert nodes == len(list(tree.nodes()))


def test_branches_share_their_beginning_once() -> None:
    tree, _ = tree_with(([1, 2, 3], [10, 11, 12]))
    root = tree.lock(ROOT, b"", 0).place

    prefix = tree.extend(root, pack_i32([1, 2, 4, 5]), [PageId(page) for page in (20, 21, 22, 23)])

    assert [10, 11, 22, 23] == prefix.pages
    assert 5 == pages_in(tree)


def test_an_output_that_one_choice_grows_stays_one_edge() -> None:
    tree, (place,) = tree_with(([1], [10]))
    for token in range(2, 9):
        place = tree.extend(place, pack_i32([token]), [PageId(10 + token)]).place

    assert 2 == len(list(tree.nodes()))
    assert 8 == len(found(tree, list(range(1, 9))))


def test_a_leaf_that_somebody_else_holds_does_not_grow() -> None:
    tree, (place,) = tree_with(([1], [10]))
    other = tree.lock(ROOT, pack_i32([1]), 9).place
    tree.extend(place, pack_i32([2]), [PageId(11)])

    tree.unlock(other)

    assert [PageId(10)] == other.pages
    assert [] == tree.evict(9)


def test_salts_never_meet() -> None:
    tree, _ = tree_with(([1, 2], [10, 11]))
    add(tree, [1, 2], [20, 21], salt="x")

    assert [10, 11] == found(tree, [1, 2])
    assert [20, 21] == found(tree, [1, 2], salt="x")
    assert [] == found(tree, [1, 2], salt="y")
    assert 2 == sum(node.parent is None for node in tree.nodes())


def test_the_leaf_used_longest_ago_goes_first() -> None:
    tree, places = tree_with(([1], [10]), ([2], [11]), ([3], [12]))
    for index in (1, 2, 0):
        tree.unlock(places[index])
    found(tree, [2])

    assert [[12], [10], [11]] == [tree.evict(1) for _ in range(3)]


def test_a_beginning_outlives_its_branches() -> None:
    tree, places = tree_with(([1, 2], [10, 11]), ([1, 3], [20, 21]))
    for place in places:
        tree.unlock(place)

    assert [[11], [21], [10], []] == [tree.evict(1) for _ in range(4)]
    assert [] == list(tree.nodes())


def test_an_edge_is_evicted_from_its_end() -> None:
    tree, (place,) = tree_with(([1, 2, 3], [10, 11, 12]))
    tree.unlock(place)

    assert [11, 12] == tree.evict(2)
    assert [10] == found(tree, [1, 2, 3])


def test_d2_what_is_found_survives_a_full_pool() -> None:
    tree, (place,) = tree_with(([1, 2, 3], [10, 11, 12]))
    tree.unlock(place)
    tree.lock(ROOT, pack_i32([1, 2, 3]), 9)

    assert [] == tree.evict(99)
    assert [10, 11, 12] == found(tree, [1, 2, 3])


def test_d10_a_key_shorter_than_a_page_is_no_key() -> None:
    tree = PrefixTree(4)
    root = tree.lock(ROOT, pack_i32([1, 2, 3]), 9)

    assert [] == root.pages
    assert 1 == len(list(tree.nodes()))


def test_d18_no_more_is_evicted_than_asked_for() -> None:
    tree, (place,) = tree_with((list(range(10)), list(range(10))))
    tree.unlock(place)

    assert 3 == len(tree.evict(3))
    assert (7, 7) == (pages_in(tree), tree.evictable_pages)


def test_d19_a_split_keeps_count_of_what_can_be_evicted() -> None:
    tree, (held, _) = tree_with(([1, 2, 3], [10, 11, 12]), ([4], [13]))

    part = tree.lock(ROOT, pack_i32([1, 9]), 9).place
    assert 0 == tree.evictable_pages
    tree.unlock(held)
    assert 2 == tree.evictable_pages
    tree.unlock(part)

    assert 3 == tree.evictable_pages


def test_d20_a_match_in_part_locks_that_part_alone() -> None:
    tree, (place,) = tree_with(([1, 2, 3], [10, 11, 12]))
    tree.unlock(place)

    tree.lock(ROOT, pack_i32([1, 9]), 9)

    assert [11, 12] == tree.evict(99)


def test_entries_out_of_date_do_not_pile_up() -> None:
    tree, (place,) = tree_with(([1, 2], [10, 11]))
    tree.unlock(place)

    for _ in range(10_000):
        found(tree, [1, 2])

    assert len(tree._leaves) < 100
    assert [10, 11] == tree.evict(2)


def test_what_is_forgotten_is_not_found_and_its_pages_come_back_when_nobody_holds_them() -> None:
    tree, (held, left) = tree_with(([1, 2, 3], [10, 11, 12]), ([1, 2, 9, 9], [10, 11, 13, 14]))
    tree.unlock(left)

    freed = tree.forget(ROOT, pack_i32([1, 2, 3]))

    assert ([13, 14], [], 3) == (sorted(freed), found(tree, [1, 2, 3, 4]), pages_in(tree))
    tree.unlock(held)
    assert [10, 11, 12] == sorted(tree.evict(99))
    assert [] == list(tree.nodes())


def test_what_begins_otherwise_or_has_another_salt_is_not_forgotten() -> None:
    tree, _ = tree_with(([1, 2], [10, 11]), ([5, 6], [12, 13]))
    add(tree, [1, 2], [14, 15], salt="x")

    tree.forget(ROOT, pack_i32([1]))

    assert ([], [12, 13], [14, 15]) == (found(tree, [1, 2]), found(tree, [5, 6]), found(tree, [1, 2], salt="x"))


def test_who_holds_what_is_forgotten_goes_on_beside_who_computes_it_again() -> None:
    tree, (held,) = tree_with(([1, 2], [10, 11]))
    tree.forget(ROOT, pack_i32([1]))

    again = add(tree, [1, 2], [20, 21])
    grown = tree.extend(held, pack_i32([3]), [PageId(12)])

    assert ([12], [20, 21]) == (grown.pages, found(tree, [1, 2, 3]))
    for place in (again, grown.place):
        tree.unlock(place)
    assert [10, 11, 12, 20, 21] == sorted(tree.evict(99))
