"""langchain-openai: content parts, streams with usage, batches, log probabilities, and an async stream that is left early."""

import asyncio
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

BASE_URL, MODEL = sys.argv[1:]
SAID = "system\nRepeat me."
MESSAGES = [SystemMessage("Repeat me."), HumanMessage([{"type": "text", "text": "hello"}])]

chat = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="none", stream_usage=True, max_retries=0)

whole = chat.invoke(MESSAGES)
assert SAID == whole.content, whole
assert "stop" == whole.response_metadata["finish_reason"]

chunks = list(chat.stream(MESSAGES))
assert SAID == "".join(chunk.content for chunk in chunks), chunks
used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
assert [whole.usage_metadata["total_tokens"]] == [usage["total_tokens"] for usage in used], used

assert [SAID] * 4 == [answer.content for answer in chat.batch([MESSAGES] * 4)]

told = chat.bind(logprobs=True, top_logprobs=2, max_tokens=2).invoke(MESSAGES)
assert 2 == len(told.response_metadata["logprobs"]["content"]), told

text = OpenAI(model=MODEL, base_url=BASE_URL, api_key="none", max_tokens=3, max_retries=0)
assert "one two three" == text.invoke("one two three")


async def leave_early() -> None:
    async for chunk in chat.astream(MESSAGES):
        if chunk.content:
            break


asyncio.run(leave_early())
