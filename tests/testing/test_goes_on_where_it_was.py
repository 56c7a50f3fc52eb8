"""A request that is submitted with the tokens that it has so far, through all parts of an engine."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded, Usage
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import RequestStream
from layered_llm.testing import InlineEngineOptions, hash_script
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.inline_engine import open_inline_engine
from layered_llm.testing.wire_audit import WireAudit

OPTIONS = InlineEngineOptions(script=hash_script(97, 26))
PARAMS = SamplingParams(max_tokens=12, seed=5, n=2, ignore_eos=True)

Output = tuple[list[str], list[list[int]], Usage]
"""The choices' texts and tokens."""


async def read(client: EngineClient) -> Output:
    texts, tokens = [""] * PARAMS.n, [list[int]() for _ in range(PARAMS.n)]
    with contextlib.ExitStack() as owner:
        stream = client.open(owner, Prompt.of_text("hello"), PARAMS)
        assert isinstance(stream, RequestStream)
        await stream.verdict()
        while True:
            for event in await stream.receive():
                if isinstance(event, RequestEnded):
                    assert event.error is None
                    return texts, tokens, event.usage
                texts[event.choice] += event.text
                tokens[event.choice] += event.token_ids


def output_of_a_run() -> Output:
    audit = WireAudit(trio.current_time)

    async def run() -> Output:
        async with open_inline_engine(OPTIONS, audit) as engine:
            return await read(engine.client)

    output = run_deterministic(run, seed=0)
    assert [] == audit.broken
    return output


@pytest.mark.parametrize("known", [(1, 4), (0, 11)])
def test_what_is_left_is_what_would_have_come(monkeypatch: pytest.MonkeyPatch, known: tuple[int, int]) -> None:
    texts, tokens, usage = output_of_a_run()
    opened: Callable[..., RequestStream] = OpenRequests.open

    def open_with_output(self: OpenRequests, *asked: Any, **more: Any) -> RequestStream:
        stream = opened(self, *asked, **more)
        stream.incarnation, stream.output_ids = (
            1,
            tuple(pack_i32(tokens[choice][: known[choice]]) for choice in range(PARAMS.n)),
        )
        return stream

    monkeypatch.setattr(OpenRequests, "open", open_with_output)

    rest_texts, rest_tokens, rest_usage = output_of_a_run()

    assert [tokens[choice][known[choice] :] for choice in range(PARAMS.n)] == rest_tokens
    assert all(text.endswith(rest) for text, rest in zip(texts, rest_texts, strict=True))
    assert (usage.prompt_tokens, usage.completion_tokens) == (rest_usage.prompt_tokens, rest_usage.completion_tokens)
