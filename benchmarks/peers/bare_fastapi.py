"""The same as `bare_quart`, by FastAPI and uvicorn on asyncio.

python -m benchmarks.peers.bare_fastapi PORT
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse


async def events(event: bytes, count: int, interval_s: float) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    for _ in range(count):
        due_s += interval_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        yield event


async def answer(request: Request) -> StreamingResponse:
    asked = await request.json()
    body = events(asked["event"].encode(), asked["events"], asked["interval_ms"] / 1e3)
    return StreamingResponse(body, media_type="text/event-stream")


async def healthy() -> str:
    return "ready"


def main() -> None:
    app = FastAPI()
    app.add_api_route("/", answer, methods=["POST"], response_model=None)
    app.add_api_route("/health", healthy)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), loop="asyncio", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
