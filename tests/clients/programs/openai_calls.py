"""openai-python: whole, streamed, its strict stream helper, 64 streams at once, and the right exception for each error."""

import asyncio
import json
import sys
import urllib.request

import openai

BASE_URL, MODEL = sys.argv[1:]
SAID = "system\nRepeat me."
MESSAGES = [{"role": "system", "content": "Repeat me."}, {"role": "user", "content": "hello"}]
STREAMS = 64

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)

assert [MODEL] == [found.id for found in client.models.list()]
whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
assert (SAID, "stop") == (whole.choices[0].message.content, whole.choices[0].finish_reason), whole
assert SAID == "".join(
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
)
with client.chat.completions.stream(model=MODEL, messages=MESSAGES, stream_options={"include_usage": True}) as stream:
    assert {"chunk", "content.delta", "content.done"} <= {event.type for event in stream}
    final = stream.get_final_completion()
assert (SAID, "stop") == (final.choices[0].message.content, final.choices[0].finish_reason), final
assert whole.usage.total_tokens == final.usage.total_tokens


async def many() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as many_client:

        async def one(number: int) -> str:
            prompt = f"number {number} of many"
            stream = await many_client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*(one(number) for number in range(STREAMS)))
        for number, text in enumerate(texts):
            assert f"number {number} of many".startswith(text[:8]), (number, text)


asyncio.run(many())

for fault, fields in (
    (openai.BadRequestError, {"temperature": -1}),
    (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 9000}]}),
    (openai.NotFoundError, {"model": "nothing"}),
):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
    except fault as error:
        assert error.request_id, error
        continue
    raise AssertionError(fault)

# A stream that breaks in the middle is an exception, and not a short answer.
stream = client.completions.create(model=MODEL, prompt="one two three", max_tokens=8000, stream=True)
order = json.dumps({"rid": next(stream).id}).encode()
urllib.request.urlopen(urllib.request.Request(f"{BASE_URL.removesuffix('/v1')}/abort_request", order)).read()
try:
    for _ in stream:
        pass
except openai.APIError as error:
    assert "aborted" == error.code, error
else:
    raise AssertionError("the stream ended as if it were whole")
