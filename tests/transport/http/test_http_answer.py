import itertools
import json
import random
from collections import defaultdict
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.stream import StreamEvent
from layered_llm.transport.http.generation.answer import AnswerPlan, StreamedAnswer, WholeAnswer
from layered_llm.transport.http.generation.sources import Batch
from layered_llm.transport.http.openai.schema.responses import CHAT, COMPLETIONS, ResponseHead, Shape
from support.http_engine import ended, text_delta

ENDS = (FinishReason.STOP, FinishReason.LENGTH)


def plan(shape: Shape, prompts: int, n: int) -> AnswerPlan:
    return AnswerPlan(
        shape=shape,
        head=ResponseHead(id="x-1", created_s=1, model="m", fingerprint="fp_1"),
        prompts=prompts,
        choices_per_prompt=n,
        prompt_tokens=3 * prompts,
        include_usage=True,
        continuous_usage=False,
        prompt_ids=tuple([place, place + 1] for place in range(prompts)),
    )


def batches(seed: int, prompts: int, n: int) -> list[Batch]:
    """Random texts for each choice, merged at random and cut into random batches, each request's end behind its choices."""
    rng = random.Random(seed)
    queues: list[tuple[int, list[list[StreamEvent]]]] = []
    for prompt in range(prompts):
        rows = []
        for choice in range(n):
            texts = [rng.choice(["", "a", "bé", "\n"]) for _ in range(rng.randrange(4))]
            row: list[StreamEvent] = [
                text_delta(text, choice=choice, token_ids=tuple(rng.choices(range(100), k=rng.randrange(3)))) for text in texts
            ]
            row.append(text_delta(rng.choice(["", "z"]), choice=choice, finish_reason=rng.choice(ENDS)))
            rows.append(row)
        queues.append((prompt, rows))
    events: list[tuple[int, StreamEvent]] = []
    while queues:
        place = rng.randrange(len(queues))
        prompt, rows = queues[place]
        events.append((prompt, rng.choice(rows).pop(0)))
        rows[:] = [row for row in rows if row]
        if not rows:
            events.append((prompt, ended()))
            del queues[place]
    cuts = sorted({0, len(events), *(rng.randrange(1, len(events)) for _ in range(rng.randrange(5)))})
    return [tuple(events[start:stop]) for start, stop in itertools.pairwise(cuts)]


@attrs.define
class Seen:
    """What a client of a stream was told."""

    texts: dict[int, str] = attrs.field(factory=lambda: defaultdict(str))
    reasons: dict[int, str] = attrs.field(factory=dict)
    token_ids: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    prompt_ids: dict[int, list[int]] = attrs.field(factory=dict)
    usage: Any = None


def streamed(shape: Shape, answer_plan: AnswerPlan, parts: list[Batch]) -> Seen:
    answer = StreamedAnswer(answer_plan)
    data = b"".join(piece for batch in parts for piece in answer.encode(batch))
    assert answer.tally.is_complete
    *items, done, nothing = data.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    seen = Seen()
    *chunks, last = [json.loads(item.removeprefix("data: ")) for item in items]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert index not in seen.reasons, "nothing follows a choice's reason"
        told = (chunk if shape is CHAT else choice).get("prompt_token_ids")
        assert (told is not None) == (index not in seen.prompt_ids), "the first chunk of a choice tells of its prompt"
        seen.prompt_ids.setdefault(index, told)
        seen.token_ids[index] += choice.get("token_ids", [])
        seen.texts[index] += choice["delta"].get("content", "") if shape is CHAT else choice["text"]
        if choice["finish_reason"] is not None:
            seen.reasons[index] = choice["finish_reason"]
    assert last["choices"] == []
    seen.usage = last["usage"]
    return seen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([CHAT, COMPLETIONS]))
def test_a_stream_says_the_same_as_a_whole_response_however_it_is_cut(seed: int, prompts: int, n: int, shape: Shape) -> None:
    prompts = 1 if shape is CHAT else prompts
    answer_plan, parts = plan(shape, prompts, n), batches(seed, prompts, n)
    whole = WholeAnswer(answer_plan)
    for batch in parts:
        whole.add(batch)
    body = json.loads(b"".join(whole.pieces()))
    assert whole.tally.is_complete

    seen = streamed(shape, answer_plan, parts)

    choices = body["choices"]
    assert seen.texts == {c["index"]: c["message"]["content"] if shape is CHAT else c["text"] for c in choices}
    assert seen.reasons == {c["index"]: c["finish_reason"] for c in choices}
    assert seen.token_ids == {c["index"]: c["token_ids"] for c in choices}
    assert seen.prompt_ids == {c["index"]: (body if shape is CHAT else c)["prompt_token_ids"] for c in choices}
    assert sorted(seen.reasons) == list(range(prompts * n))
    assert seen.usage == body["usage"]


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("shape", [CHAT, COMPLETIONS])
def test_a_chunk_with_more_text_differs_from_the_one_before_in_its_text_alone(shape: Shape, include_usage: bool) -> None:
    answer = StreamedAnswer(attrs.evolve(plan(shape, 1, 2), prompt_ids=None, include_usage=include_usage))
    texts = ["a", "0", '"', "\n\n", "é🙂", "\\"]
    data = b"".join(b"".join(answer.encode(((0, text_delta(text, choice=choice)),))) for text in texts for choice in (0, 1))

    chunks = [json.loads(item.removeprefix("data: ")) for item in data.decode().split("\n\n") if item]
    pieces = [chunk for chunk in chunks if "role" not in chunk["choices"][0].get("delta", {})]

    def expected(text: str, index: int) -> Any:
        choice = json.loads(json.dumps(pieces[index]))
        choice["choices"][0] |= {"delta": {"content": text}} if shape is CHAT else {"text": text}
        return choice

    assert [expected(text, index) for text in texts for index in (0, 1)] == pieces
    assert [0, 1] == [piece["choices"][0]["index"] for piece in pieces[:2]]


def test_a_running_count_of_tokens_is_in_each_chunk() -> None:
    answer = StreamedAnswer(attrs.evolve(plan(COMPLETIONS, 1, 1), prompt_ids=None, continuous_usage=True))
    data = b"".join(b"".join(answer.encode(((0, text_delta("a", token_ids=(1, 2))),))) for _ in range(3))

    chunks = [json.loads(item.removeprefix("data: ")) for item in data.decode().split("\n\n") if item]

    assert [2, 4, 6] == [chunk["usage"]["completion_tokens"] for chunk in chunks]
