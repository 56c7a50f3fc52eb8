"""Attention of neighbouring tokens of one row, for one kv head: keys and values are read in their pages.

Must not know: models, threads, where a page comes from.

Online softmax (Milakov, Gimelshein, 2018; Dao et al., FlashAttention, 2022): keys are taken in blocks of 64 positions, from
position 0 on, and what came before is rescaled when a larger score shows up. All queries of the tokens that share the kv head
are one matrix, so that a key and a value are loaded once for several of them. Blocks lie at the same positions whatever a step
computes and every query has sums of its own, so a result depends neither on the tokens beside it nor on how a prompt is cut.

Where each position's key lies is looked up once for a block: pages may have any size. It is looked up a block ahead, and asked
for while the block before is scored, the values while those of the block before are added: pages lie anywhere, and the hardware
does not know which comes next.
"""

from collections.abc import Callable
from typing import Final

import attrs

from layered_llm.runtime.cpu.simd.kernels.emitter import Function, Int
from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Vector, VectorModule, Vectors

BLOCK_POSITIONS: Final = 64
_QUERY_TILE: Final = 3
_KEY_TILE: Final = 4
_VALUE_VECTORS: Final = 4
"""Vectors of a value that are summed at once, for 3 queries."""
_ADDRESS_BYTES: Final = 8
_HIDDEN: Final = -1e30
"""The score of a position behind the query's own: its weight is 0."""
_BLOCK_BYTES: Final = BLOCK_POSITIONS * F32_BYTES
_ADDRESSES_BYTES: Final = BLOCK_POSITIONS * _ADDRESS_BYTES

EmitTile = Callable[[int, Int], None]
"""Emits the work of a tile: its number of queries, and the first of them."""


def scratch_bytes(queries: int, head_dim: int) -> int:
    """What a thread needs for so many queries."""
    return 2 * _ADDRESSES_BYTES + queries * (_BLOCK_BYTES + 2 * F32_BYTES + head_dim * F32_BYTES)


@attrs.frozen(kw_only=True, eq=False)
class Scratch:
    """A thread's own memory."""

    addresses: Int
    """int64 [2, 64]: of the keys of a block and of the next one, in turns."""
    scores: Int
    """fp32 [queries, 64]: scores, then weights."""
    largest: Int
    """fp32 [queries]: the largest score so far."""
    totals: Int
    """fp32 [queries]: the sum of all weights so far."""
    sums: Int
    """fp32 [queries, head_dim]: values times weights so far."""

    @classmethod
    def at(cls, address: Int, queries: Int) -> "Scratch":
        scores = address + 2 * _ADDRESSES_BYTES
        largest = scores + queries * _BLOCK_BYTES
        totals = largest + queries * F32_BYTES
        return cls(addresses=address, scores=scores, largest=largest, totals=totals, sums=totals + queries * F32_BYTES)


@attrs.frozen(eq=False)
class Item:
    """What one call attends: the arguments of the generated function."""

    queries: Int
    """fp32 [tokens, group, head_dim]: address."""
    tokens: Int
    group: Int
    """Queries of a token."""
    head_dim: Int
    start: Int
    """The first token's position."""
    page_table: Int
    """Address of the row's page ids, int32."""
    keys: Int
    """Address of the head's keys in page 0; its values lie behind them."""
    page_bytes: Int
    """From a page to the next."""
    page_size: Int
    """Positions of a page."""
    target: Int
    """Address of the first token's result, fp32 [group, head_dim]."""
    target_stride: Int
    """From a token's result to the next token's."""
    scratch: Int


ITEM_PARAMETERS: Final = len(attrs.fields(Item))


@attrs.frozen(kw_only=True, eq=False)
class Block:
    """The positions that are attended to at once."""

    item: Item
    scratch: Scratch
    queries: Int
    """Of all the item's tokens."""
    first: Int
    """The first position."""
    count: Int
    addresses: Int
    """Of its keys."""
    next_count: Int
    """Of the block behind it; none behind the last, where it is 0 or less."""
    next_addresses: Int


def attend_name(*, is_half: bool) -> str:
    """Of the function that `AttentionKernels.define` generates."""
    return f"attend_{'f16' if is_half else 'f32'}"


@attrs.define(kw_only=True)
class AttentionKernels:
    """Generates attention over a KV cache of fp32 or fp16 numbers."""

    module: VectorModule
    is_half: bool

    @property
    def number_bytes(self) -> int:
        return 2 if self.is_half else F32_BYTES

    def define(self) -> Function:
        """The function that computes an `Item`."""
        score_tiles = {count: self._define_scores(count) for count in range(1, _QUERY_TILE + 1)}
        value_tiles = {
            (count, vectors): self._define_values(count, vectors)
            for count in range(1, _QUERY_TILE + 1)
            for vectors in (_VALUE_VECTORS, 1)
        }

        def emit(v: Vectors, *arguments: Int) -> None:
            item = Item(*arguments)
            queries, end = item.tokens * item.group, item.start + item.tokens
            scratch = Scratch.at(item.scratch, queries)
            _begin(v, item, scratch, queries)
            count = end.minimum(BLOCK_POSITIONS)
            self._look_up(v, item, v.emitter.integer(0), count, scratch.addresses)
            self._ask_for(v, item, scratch.addresses, count)
            self._ask_for(v, item, scratch.addresses, count, self._to_value(item))
            with v.emitter.loop(0, end, BLOCK_POSITIONS) as first:
                block = _block(item, scratch, queries, first, end)
                with v.emitter.when(block.next_count > 0):
                    self._look_up(v, item, first + BLOCK_POSITIONS, block.next_count, block.next_addresses)
                self._score(v, block, score_tiles)
                with v.emitter.loop(0, queries) as query:
                    _weigh(v, block, query)
                self._add_values(v, block, value_tiles)
            _finish(v, item, scratch, queries)

        return self.module.define(attend_name(is_half=self.is_half), emit, ITEM_PARAMETERS)

    @property
    def _suffix(self) -> str:
        return "f16" if self.is_half else "f32"

    def _to_value(self, item: Item) -> Int:
        """From a key to its value."""
        return item.page_size * item.head_dim * self.number_bytes

    def _load(self, v: Vectors, address: Int) -> Vector:
        return v.load_halfs(address) if self.is_half else v.load(address)

    def _look_up(self, v: Vectors, item: Item, *rest: Int) -> None:
        """Writes the addresses of a block's keys; those that fill up the last tile are the last key's."""
        first, count, addresses = rest
        k, key_bytes = v.emitter, item.head_dim * self.number_bytes
        page, offset = k.variable(first // item.page_size), k.variable(first % item.page_size)
        key = k.variable(0)
        page_at = k.variable(item.keys + k.load_int32(item.page_table + page.get() * 4) * item.page_bytes)
        with k.loop(0, count) as position:
            with k.when(offset.get().equals(item.page_size)):
                page.set(page.get() + 1)
                offset.set(0)
                page_at.set(item.keys + k.load_int32(item.page_table + page.get() * 4) * item.page_bytes)
            key.set(page_at.get() + offset.get() * key_bytes)
            k.store_int(addresses + position * _ADDRESS_BYTES, key.get())
            offset.set(offset.get() + 1)
        with k.loop(count, _rounded_up(count, _KEY_TILE)) as position:
            k.store_int(addresses + position * _ADDRESS_BYTES, key.get())

    def _ask_for(self, v: Vectors, item: Item, addresses: Int, count: Int, distance: Int | int = 0) -> None:
        """Prefetches what lies `distance` behind the first `count` keys at `addresses`.

        Into the second cache: the first one is full of the block before.
        """
        k, key_bytes = v.emitter, item.head_dim * self.number_bytes
        with k.loop(0, count) as position:
            key = k.load_int(addresses + position * _ADDRESS_BYTES)
            with k.loop(0, key_bytes, LINE_BYTES) as line:
                v.prefetch(key + distance + line, cache=2)

    def _score(self, v: Vectors, block: Block, tiles: dict[int, Function]) -> None:
        k, item, scratch = v.emitter, block.item, block.scratch

        def emit(tile: Function, first: Int) -> None:
            with k.loop(0, block.count, _KEY_TILE) as key:
                with k.when(first.equals(0)):
                    asked = (block.next_count - key).minimum(_KEY_TILE)
                    self._ask_for(v, item, block.next_addresses + key * _ADDRESS_BYTES, asked)
                tile(
                    item.queries + first * item.head_dim * F32_BYTES,
                    block.addresses + key * _ADDRESS_BYTES,
                    item.head_dim,
                    scratch.scores + first * _BLOCK_BYTES + key * F32_BYTES,
                )

        _in_tiles(v, block.queries, lambda count, first: emit(tiles[count], first))

    def _add_values(self, v: Vectors, block: Block, tiles: dict[tuple[int, int], Function]) -> None:
        k, item, scratch = v.emitter, block.item, block.scratch
        values = self._to_value(item)
        whole = item.head_dim - item.head_dim % (_VALUE_VECTORS * v.lanes)

        def emit(tile: Function, first: Int, column: Int) -> None:
            tile(
                scratch.scores + first * _BLOCK_BYTES,
                block.addresses,
                values + column * self.number_bytes,
                block.count,
                scratch.sums + (first * item.head_dim + column) * F32_BYTES,
                item.head_dim * F32_BYTES,
                block.next_addresses,
                first.equals(0).choose(block.next_count, 0),
            )

        def emit_columns(rows: int, first: Int) -> None:
            with k.loop(0, whole, _VALUE_VECTORS * v.lanes) as column:
                emit(tiles[rows, _VALUE_VECTORS], first, column)
            with k.loop(whole, item.head_dim, v.lanes) as column:
                emit(tiles[rows, 1], first, column)

        _in_tiles(v, block.queries, emit_columns)

    def _define_scores(self, rows: int) -> Function:
        """Scores of some queries and 4 keys. Arguments: first query, key addresses, head_dim, first score."""

        def emit(v: Vectors, *arguments: Int) -> None:
            query, addresses, head_dim, scores = arguments
            k = v.emitter
            keys = [k.load_int(addresses + _ADDRESS_BYTES * key) for key in range(_KEY_TILE)]
            sums = [[v.accumulator() for _ in keys] for _ in range(rows)]
            with k.loop(0, head_dim, v.lanes) as lane:
                numbers = [self._load(v, key + lane * self.number_bytes) for key in keys]
                for row, accumulators in enumerate(sums):
                    values = v.load(query + head_dim * (F32_BYTES * row) + lane * F32_BYTES)
                    for accumulator, number in zip(accumulators, numbers, strict=True):
                        accumulator.set(v.fma(values, number, accumulator.get()))
            for row, accumulators in enumerate(sums):
                four = v.sums([accumulator.get() for accumulator in accumulators])
                v.store_quad(scores + _BLOCK_BYTES * row, four)

        return self.module.define(f"scores_{self._suffix}_{rows}", emit, 4)

    def _define_values(self, rows: int, vectors: int) -> Function:
        """Adds values times weights.

        Arguments: weights, key addresses, distance from a key to its value, count, sums, stride of the sums; addresses of the
        next keys, and of how many of them the values are asked for meanwhile.
        """

        def emit(v: Vectors, *arguments: Int) -> None:
            weights, addresses, distance, count, sums, stride, next_addresses, next_count = arguments
            k = v.emitter
            places = [[sums + stride * row + v.vector_bytes * part for part in range(vectors)] for row in range(rows)]
            totals = [[v.accumulator(v.load(place)) for place in row] for row in places]
            with k.loop(0, count) as position:
                value = k.load_int(addresses + position * _ADDRESS_BYTES) + distance
                numbers = [self._load(v, value + v.lanes * self.number_bytes * part) for part in range(vectors)]
                with k.when(position < next_count):
                    asked = k.load_int(next_addresses + position * _ADDRESS_BYTES) + distance
                    for line in range(0, vectors * v.lanes * self.number_bytes, LINE_BYTES):
                        v.prefetch(asked + line, cache=2)
                for row, accumulators in enumerate(totals):
                    weight = v.splat(weights + _BLOCK_BYTES * row + position * F32_BYTES)
                    for accumulator, number in zip(accumulators, numbers, strict=True):
                        accumulator.set(v.fma(weight, number, accumulator.get()))
            for targets, accumulators in zip(places, totals, strict=True):
                for target, accumulator in zip(targets, accumulators, strict=True):
                    v.store(target, accumulator.get())

        return self.module.define(f"values_{self._suffix}_{rows}x{vectors}", emit, 8)


def _block(item: Item, scratch: Scratch, queries: Int, first: Int, end: Int) -> Block:
    """The block that begins at `first`, of positions below `end`."""
    turn = first // BLOCK_POSITIONS % 2 * _ADDRESSES_BYTES
    return Block(
        item=item,
        scratch=scratch,
        queries=queries,
        first=first,
        count=(end - first).minimum(BLOCK_POSITIONS),
        addresses=scratch.addresses + turn,
        next_count=(end - first - BLOCK_POSITIONS).minimum(BLOCK_POSITIONS),
        next_addresses=scratch.addresses + _ADDRESSES_BYTES - turn,
    )


def _in_tiles(v: Vectors, queries: Int, emit: EmitTile) -> None:
    """Emits tiles of 3 queries, then of those that are left."""
    k = v.emitter
    left = queries % _QUERY_TILE
    with k.loop(0, queries - left, _QUERY_TILE) as first:
        emit(_QUERY_TILE, first)
    for count in range(1, _QUERY_TILE):
        with k.when(left.equals(count)):
            emit(count, queries - left)


def _begin(v: Vectors, item: Item, scratch: Scratch, queries: Int) -> None:
    k = v.emitter
    with k.loop(0, queries * F32_BYTES, F32_BYTES) as offset:
        v.store_lane(scratch.largest + offset, v.constant(_HIDDEN))
        v.store_lane(scratch.totals + offset, v.constant(0.0))
    with k.loop(0, queries * item.head_dim * F32_BYTES, v.vector_bytes) as offset:
        v.store(scratch.sums + offset, v.constant(0.0))


def _weigh(v: Vectors, block: Block, query: Int) -> None:
    """Turns a query's scores of the block into weights, and rescales what it has summed so far."""
    k, item, scratch = v.emitter, block.item, block.scratch
    position = item.start + query // item.group
    visible = (position + 1 - block.first).maximum(0)
    scores = scratch.scores + query * _BLOCK_BYTES
    before = v.splat(scratch.largest + query * F32_BYTES)
    largest = v.accumulator(before)
    with k.loop(0, block.count, v.lanes) as lane:
        shown = v.first_lanes(visible - lane, v.load(scores + lane * F32_BYTES), v.constant(_HIDDEN))
        v.store(scores + lane * F32_BYTES, shown)
        largest.set(v.maximum(largest.get(), shown))
    now = v.spread_maximum(largest.get())
    total = v.accumulator()
    with k.loop(0, block.count, v.lanes) as lane:
        weights = v.exp(v.load(scores + lane * F32_BYTES) - now)
        v.store(scores + lane * F32_BYTES, weights)
        total.set(total.get() + weights)
    faded = v.exp(before - now)
    totals = scratch.totals + query * F32_BYTES
    v.store_lane(scratch.largest + query * F32_BYTES, now)
    v.store_lane(totals, v.fma(v.splat(totals), faded, v.spread_sum(total.get())))
    sums = scratch.sums + query * item.head_dim * F32_BYTES
    with k.when(block.first > 0), k.loop(0, item.head_dim * F32_BYTES, v.vector_bytes) as offset:
        v.store(sums + offset, v.load(sums + offset) * faded)


def _finish(v: Vectors, item: Item, scratch: Scratch, queries: Int) -> None:
    k = v.emitter
    head_bytes = item.head_dim * F32_BYTES
    with k.loop(0, queries) as query:
        share = v.constant(1.0) / v.splat(scratch.totals + query * F32_BYTES)
        target = item.target + query // item.group * item.target_stride + query % item.group * head_bytes
        with k.loop(0, head_bytes, v.vector_bytes) as offset:
            v.store(target + offset, v.load(scratch.sums + query * head_bytes + offset) * share)


def _rounded_up(count: Int, step: int) -> Int:
    return (count + (step - 1)) // step * step
