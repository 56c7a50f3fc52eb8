"""pydantic-ai: it checks every response against OpenAI's types, so that a wrong field is an error here and nowhere else."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL, MODEL = sys.argv[1:]
SAID = "system\nRepeat me."

provider = OpenAIProvider(base_url=BASE_URL, api_key="none")
agent = Agent(OpenAIChatModel(MODEL, provider=provider), system_prompt="Repeat me.")

answer = agent.run_sync("hello")
assert SAID == answer.output, answer
assert "stop" == answer.response.finish_reason
longer = agent.run_sync("and again", message_history=answer.all_messages())
assert SAID == longer.output, longer


async def stream() -> str:
    async with agent.run_stream("hello") as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


assert SAID == asyncio.run(stream())

try:
    Agent(OpenAIChatModel("nothing", provider=provider)).run_sync("hello")
except ModelHTTPError as error:
    assert 404 == error.status_code
else:
    raise AssertionError("a model that is not served was taken")
