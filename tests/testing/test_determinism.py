import attrs
import trio

from layered_llm.testing import InlineEngineOptions, hash_script, open_inline_engine, run_deterministic
from layered_llm.testing.scenario_parts import read

OPTIONS = InlineEngineOptions(script=hash_script(97, 26))


@attrs.define
class Recorder:
    """Implements `LinkObserver`."""

    seen: list[tuple[float, str, object]] = attrs.field(factory=list)

    def sent(self, message: object) -> None:
        self.seen.append((trio.current_time(), "sent", message))

    def taken(self, message: object) -> None:
        self.seen.append((trio.current_time(), "taken", message))


def record(seed: int) -> list[tuple[float, str, object]]:
    recorder = Recorder()

    async def main() -> None:
        async with open_inline_engine(attrs.evolve(OPTIONS, seed=seed), recorder) as engine, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read, engine.client)

    run_deterministic(main, seed=seed)
    return recorder.seen


def test_a_seed_gives_every_message_at_the_same_time() -> None:
    first = record(1)

    assert first == record(1)
    assert len(first) > 100


def test_seeds_differ() -> None:
    assert record(1) != record(2)
