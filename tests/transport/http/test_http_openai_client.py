from collections.abc import Callable
from typing import TypeVar

import attrs
import openai
import pytest
import trio

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.verdicts import RejectReason
from support.http_client import SETTINGS, application
from support.http_engine import FakeEngine, FakeStream, answering, ended, text_delta
from support.http_server import RunningServer, running

T = TypeVar("T")
END = text_delta("!", finish_reason=FinishReason.STOP)
HELLO = answering(text_delta("Hel"), text_delta("lo"), END, ended())


async def ask(server: RunningServer, question: Callable[[openai.OpenAI], T]) -> T:
    """Runs `question` in a thread, with a client that repeats nothing."""

    def run() -> T:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=10) as client:
            return question(client)

    return await trio.to_thread.run_sync(run)


async def test_the_accumulating_stream_helper_understands_us() -> None:
    def question(client: openai.OpenAI) -> tuple[str | None, str, int | None]:
        with client.chat.completions.stream(
            model="small", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
        ) as stream:
            final = stream.get_final_completion()
        choice = final.choices[0]
        return choice.message.content, choice.finish_reason, final.usage.total_tokens if final.usage is not None else None

    async with running(application(FakeEngine(HELLO))) as server:
        assert await ask(server, question) == ("Hello!", "stop", 5)


async def test_a_completion_stream_is_understood() -> None:
    def question(client: openai.OpenAI) -> str:
        return "".join(part.choices[0].text for part in client.completions.create(model="small", prompt="x", stream=True))

    async with running(application(FakeEngine(HELLO))) as server:
        assert await ask(server, question) == "Hello!"


async def test_models_are_listed_and_retrieved() -> None:
    async with running(application(FakeEngine())) as server:
        assert await ask(server, lambda client: [model.id for model in client.models.list()]) == ["small", "little"]
        assert (await ask(server, lambda client: client.models.retrieve("little"))).id == "little"


async def test_a_model_whose_name_is_a_path_is_retrieved() -> None:
    names = ("a/b", "/a/b")
    app = application(FakeEngine(), settings=attrs.evolve(SETTINGS, served_model_names=names))
    async with running(app) as server:
        assert list(names) == await ask(server, lambda client: [client.models.retrieve(name).id for name in names])


async def test_b14_a_failure_in_the_middle_of_a_stream_is_raised_with_its_message() -> None:
    def script(stream: FakeStream) -> None:
        answering(text_delta("a"))(stream)
        stream.lose()

    def question(client: openai.OpenAI) -> openai.APIError:
        with pytest.raises(openai.APIError) as caught:
            list(client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hi"}], stream=True))
        return caught.value

    async with running(application(FakeEngine(script))) as server:
        error = await ask(server, question)

    assert error.code == "engine_lost"
    assert "gone" in error.message


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (RejectReason.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
        (RejectReason.QUEUE_FULL, openai.RateLimitError),
        (RejectReason.SHUTTING_DOWN, openai.InternalServerError),
    ],
)
async def test_a_rejection_is_raised_as_its_kind(reason: RejectReason, kind: type[openai.APIStatusError]) -> None:
    def question(client: openai.OpenAI) -> None:
        with pytest.raises(kind) as caught:
            client.completions.create(model="small", prompt="x", stream=True)
        assert caught.value.request_id == "feed"

    async with running(application(FakeEngine(lambda stream: stream.reject(reason)))) as server:
        await ask(server, question)


async def test_closing_a_stream_aborts_its_request() -> None:
    engine = FakeEngine(answering(text_delta("a")))

    def question(client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hi"}], stream=True)
        next(iter(stream))
        stream.close()

    async with running(application(engine)) as server:
        await ask(server, question)
        await engine.streams[0].closed.wait()

    assert engine.aborts == [AbortReason.CLIENT_GONE]
