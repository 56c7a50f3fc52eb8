import itertools
import json
import math
import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.stream import SampledLogprob, TokenLogprob
from layered_llm.transport.http.generation.answer import AnswerPlan, StreamedAnswer, WholeAnswer
from layered_llm.transport.http.generation.sources import Batch
from layered_llm.transport.http.openai.schema import responses
from layered_llm.transport.http.openai.schema.logprobs import ChatLogprobs, CompletionLogprobs, by_id, by_text
from layered_llm.transport.http.openai.schema.responses import ResponseHead, Shape
from support.http_client import CHAT, COMPLETIONS, MESSAGES, application, post
from support.http_engine import FakeEngine, answering, ended, text_delta


def sampled(token: bytes, logprob: float = -0.5, *top: tuple[bytes, float], token_id: int = 7, at: int = 0) -> SampledLogprob:
    likeliest = tuple(TokenLogprob(token_id=place, token=one, logprob=value) for place, (one, value) in enumerate(top))
    return SampledLogprob(token_id=token_id, token=token, logprob=logprob, top=likeliest, text_offset=at)


HI = (sampled(b"H", -0.25, (b"H", -0.25), (b"Y", -1.5)), sampled(b"i", -2.0, (b"o", -0.125), (b"i", -2.0), at=1))
ANSWER = answering(
    text_delta("Hi", token_ids=(1, 2), logprobs=HI),
    text_delta("", token_ids=(3,), finish_reason=FinishReason.STOP, logprobs=(sampled(b"<|end|>", -0.0, at=2),)),
    ended(),
)


async def test_a_chat_tells_each_token_with_its_bytes_and_the_likeliest_ones() -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}

    exchange = await post(application(FakeEngine(ANSWER)), CHAT, body)

    (choice,) = ChatCompletion.model_validate(exchange.json()).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [one.token for one in choice.logprobs.content] == ["H", "i", "<|end|>"]
    assert exchange.json()["choices"][0]["logprobs"]["content"][1] == {
        "token": "i",
        "logprob": -2.0,
        "bytes": [105],
        "top_logprobs": [
            {"token": "o", "logprob": -0.125, "bytes": [111]},
            {"token": "i", "logprob": -2.0, "bytes": [105]},
        ],
    }


async def test_a_completion_tells_tokens_their_places_and_the_likeliest_by_spelling() -> None:
    exchange = await post(application(FakeEngine(ANSWER)), COMPLETIONS, {"prompt": "x", "logprobs": 2})

    Completion.model_validate(exchange.json())
    assert exchange.json()["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.25, -2.0, 0.0],
        "tokens": ["H", "i", "<|end|>"],
        "top_logprobs": [{"H": -0.25, "Y": -1.5}, {"o": -0.125, "i": -2.0}, {"<|end|>": 0.0}],
    }


async def test_a_streamed_token_without_text_is_told_too() -> None:
    exchange = await post(application(FakeEngine(ANSWER)), CHAT, {"messages": MESSAGES, "logprobs": True, "stream": True})

    items = exchange.body.decode().split("\n\n")[:-2]
    chunks = [ChatCompletionChunk.model_validate(json.loads(item.removeprefix("data: "))) for item in items]
    told = [chunk.choices[0].logprobs for chunk in chunks]
    tokens = [one.token for logprobs in told if logprobs is not None for one in logprobs.content or ()]
    assert tokens == ["H", "i", "<|end|>"]
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_what_is_asked_for_reaches_the_engine() -> None:
    engine = FakeEngine(ANSWER)
    await post(application(engine), CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3})
    await post(application(engine), COMPLETIONS, {"prompt": "x", "logprobs": 4})
    await post(application(engine), COMPLETIONS, {"prompt": "x"})

    assert [stream.params.logprobs for stream in engine.streams] == [3, 4, None]


def test_a_part_of_a_character_is_spelled_with_a_replacement_and_keeps_its_bytes() -> None:
    first, second = ChatLogprobs(by_text).write([sampled(b"\xc3"), sampled(b"\xa9")])["content"]

    assert (first["token"], first["bytes"]) == ("\ufffd", [0xC3])
    assert (second["token"], second["bytes"]) == ("\ufffd", [0xA9])


def test_offsets_are_those_that_the_engine_tells() -> None:
    assert CompletionLogprobs(by_text).write([sampled(b"a"), sampled(b"b", at=9)])["text_offset"] == [0, 9]


@pytest.mark.parametrize("logprob", [-math.inf, -1e30])
def test_no_logprob_is_below_the_floor(logprob: float) -> None:
    (told,) = ChatLogprobs(by_text).write([sampled(b"a", logprob, (b"b", logprob))])["content"]

    assert (told["logprob"], told["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


def test_of_tokens_that_are_spelled_alike_the_likeliest_is_told() -> None:
    words = CompletionLogprobs(by_text).write([sampled(b"\xc3", -3.0, (b"\xff", -1.0), (b"x", -2.0))])

    assert words["top_logprobs"] == [{"\ufffd": -1.0, "x": -2.0}]
    assert words["token_logprobs"] == [-3.0]


def random_tokens(rng: random.Random) -> list[SampledLogprob]:
    text = "".join(rng.choice(["a", "é", "語", "🙂", " "]) for _ in range(rng.randrange(1, 8))).encode()
    cuts = sorted({0, len(text), *(rng.randrange(1, len(text) + 1) for _ in range(4))})
    parts = [text[start:stop] for start, stop in itertools.pairwise(cuts)]
    return [sampled(part, -rng.random(), (b"x", -rng.random())) for part in parts]


def whole_and_streamed(shape: Shape, deltas: list[tuple[SampledLogprob, ...]]) -> tuple[Any, list[Any]]:
    head = ResponseHead(id="x-1", created_s=1, model="m", fingerprint="fp_1")
    plan = AnswerPlan(
        shape=shape, head=head, prompts=1, choices_per_prompt=1, prompt_tokens=1, include_usage=False, continuous_usage=False
    )
    events = [text_delta("", logprobs=part) for part in deltas[:-1]]
    events.append(text_delta("", logprobs=deltas[-1], finish_reason=FinishReason.LENGTH))
    batches: list[Batch] = [*(((0, event),) for event in events), ((0, ended()),)]
    whole, streamed = WholeAnswer(plan), StreamedAnswer(plan)
    for batch in batches:
        whole.add(batch)
    data = b"".join(piece for batch in batches for piece in streamed.encode(batch)).decode()
    body = json.loads(b"".join(whole.pieces()))
    chunks = [json.loads(item.removeprefix("data: ")) for item in data.split("\n\n")[:-2]]
    pieces = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"] is not None]
    return body["choices"][0]["logprobs"], pieces


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(), st.sampled_from([responses.CHAT, responses.COMPLETIONS]))
def test_pieces_of_a_stream_add_up_to_the_whole(seed: int, shape: Shape) -> None:
    rng = random.Random(seed)
    tokens = random_tokens(rng)
    cuts = sorted({0, len(tokens), *(rng.randrange(0, len(tokens) + 1) for _ in range(3))})
    deltas = [tuple(tokens[start:stop]) for start, stop in itertools.pairwise(cuts)]

    whole, pieces = whole_and_streamed(shape, deltas)

    lists = [name for name, value in whole.items() if isinstance(value, list)]
    assert {name: whole[name] for name in lists} == {name: [one for piece in pieces for one in piece[name]] for name in lists}
    assert len(tokens) == len(whole[lists[0]])


PROMPT = (sampled(b"On", 0.0, token_id=8), sampled(b"ce", -1.25, (b"e", -0.5), (b"ce", -1.25), at=2))
ECHO = answering(
    text_delta("OnceH", token_ids=(1,), logprobs=(attrs.evolve(HI[0], text_offset=4),), prompt_logprobs=PROMPT),
    text_delta("i", token_ids=(2,), finish_reason=FinishReason.LENGTH, logprobs=(attrs.evolve(HI[1], text_offset=5),)),
    ended(),
)
ECHOED = {
    "text_offset": [0, 2, 4, 5],
    "token_logprobs": [None, -1.25, -0.25, -2.0],
    "tokens": ["On", "ce", "H", "i"],
    "top_logprobs": [None, {"e": -0.5, "ce": -1.25}, {"H": -0.25, "Y": -1.5}, {"o": -0.125, "i": -2.0}],
}


async def test_logprobs_of_an_echo_begin_with_the_prompts() -> None:
    exchange = await post(application(FakeEngine(ECHO)), COMPLETIONS, {"prompt": "Once", "echo": True, "logprobs": 2})

    # The first token's nulls are what OpenAI sends, though its own types know none.
    (choice,) = exchange.json()["choices"]
    assert (choice["text"], choice["logprobs"]) == ("OnceHi", ECHOED)
    assert "prompt_logprobs" not in choice


async def test_a_streamed_echo_adds_up_to_the_same() -> None:
    body = {"prompt": "Once", "echo": True, "logprobs": 2, "stream": True}

    exchange = await post(application(FakeEngine(ECHO)), COMPLETIONS, body)

    items = exchange.body.decode().split("\n\n")[:-2]
    choices = [json.loads(item.removeprefix("data: "))["choices"][0] for item in items]
    pieces = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    assert "".join(choice["text"] for choice in choices) == "OnceHi"
    assert {name: [one for piece in pieces for one in piece[name]] for name in ECHOED} == ECHOED


async def test_an_echo_without_any_output_is_the_prompt() -> None:
    end = text_delta("Once", token_ids=(), finish_reason=FinishReason.LENGTH, prompt_logprobs=PROMPT)
    engine = FakeEngine(answering(end, ended(completion_tokens=0)))

    exchange = await post(application(engine), COMPLETIONS, {"prompt": "Once", "echo": True, "logprobs": 2, "max_tokens": 0})

    (choice,) = exchange.json()["choices"]
    assert (choice["text"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]) == ("Once", [None, -1.25], "length")
    assert exchange.json()["usage"]["completion_tokens"] == 0


TOLD = [
    None,
    {
        "7": {"logprob": -1.25, "rank": None, "decoded_token": "ce"},
        "0": {"logprob": -0.5, "rank": 1, "decoded_token": "e"},
        "1": {"logprob": -1.25, "rank": 2, "decoded_token": "ce"},
    },
]


async def test_a_prompt_token_that_is_not_among_the_likeliest_has_its_own_rank() -> None:
    first = SampledLogprob(token_id=1, token=b"a", logprob=0.0, top=())
    second = SampledLogprob(token_id=7, token=b"b", logprob=-9.5, top=(), rank=4711)
    script = answering(text_delta("x", finish_reason=FinishReason.STOP, prompt_logprobs=(first, second)), ended())

    completion = await post(application(FakeEngine(script)), COMPLETIONS, {"prompt": "Once", "prompt_logprobs": 0})

    told = completion.json()["choices"][0]["prompt_logprobs"]
    assert [None, {"7": {"logprob": -9.5, "rank": 4711, "decoded_token": "b"}}] == told


async def test_prompt_logprobs_stand_in_the_choice_of_a_completion_and_beside_the_choices_of_a_chat() -> None:
    completion = await post(application(FakeEngine(ECHO)), COMPLETIONS, {"prompt": "Once", "prompt_logprobs": 2})
    chat = await post(application(FakeEngine(ECHO)), CHAT, {"messages": MESSAGES, "prompt_logprobs": 2})

    assert completion.json()["choices"][0]["prompt_logprobs"] == TOLD
    assert chat.json()["prompt_logprobs"] == TOLD
    assert [chat.json()["choices"][0].keys() & {"prompt_logprobs"}] == [set()]


def test_tokens_may_be_named_by_their_ids() -> None:
    told = sampled(b"a", -1.0, (b"b", -0.5))
    ids = [told.token_id, told.top[0].token_id]

    (entry,) = ChatLogprobs(by_id).write([told])["content"]
    words = CompletionLogprobs(by_id).write([told])

    assert (f"token_id:{ids[0]}", [97]) == (entry["token"], entry["bytes"])
    assert [f"token_id:{ids[0]}"] == words["tokens"]
    assert [{f"token_id:{ids[1]}": -0.5, f"token_id:{ids[0]}": -1.0}] == words["top_logprobs"]
