"""An LLM inference server, and the same engine as a library.

    async with layered_llm.open_engine() as engine:            # under trio
        async with engine.open_stream("Once upon a time") as stream:
            async for delta in stream:
                print(delta.text, end="")

    with layered_llm.LLM() as llm:                              # without an event loop
        print(llm.generate("Once upon a time")[0].text)

In a program that runs asyncio, whole answers come from `await asyncio.to_thread(llm.generate, …)`; for a stream, run trio with
`open_engine` in a thread, or start the server and use an HTTP client. docs/library.md has all of it as programs.

Importing this package costs nothing: the names below are imported when they are first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layered_llm.service.library import *  # noqa: F403 - the names below

__all__ = [
    "LLM", "ChatMessage", "Choice", "Completion", "CompletionStream", "Delta", "Engine", "EngineClosed", "EngineLimits",
    "EngineLost", "EngineReport", "EngineStartFailed", "ParameterError", "Progress", "RejectReason", "RequestFailed",
    "RequestRejected", "SampledLogprob", "SamplingParams", "SettingsError", "TokenLogprob", "Usage", "open_engine",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker would take it as a licence for any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from layered_llm.service import library  # noqa: PLC0415 - whoever imports the package may want nothing of the engine

        return getattr(library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
