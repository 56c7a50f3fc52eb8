"""A quart-trio application that does nothing but stream: what the frameworks under ours cost by themselves.

    python -m benchmarks.peers.bare_quart PORT

POST / {"event": …, "events": N, "interval_ms": X} streams the same event N times, one each X ms or as fast as it can.
"""

import sys
from collections.abc import AsyncIterator

import hypercorn.trio
import trio
from hypercorn.config import Config
from quart import Response, request
from quart_trio import QuartTrio


async def events(event: bytes, count: int, interval_s: float) -> AsyncIterator[bytes]:
    due_s = trio.current_time()
    for _ in range(count):
        due_s += interval_s
        await trio.sleep_until(due_s)
        yield event


async def answer() -> Response:
    asked = await request.get_json()
    body = events(asked["event"].encode(), asked["events"], asked["interval_ms"] / 1e3)
    response = Response(body, headers={"Content-Type": "text/event-stream"})
    response.timeout = None
    return response


def main() -> None:
    app = QuartTrio(__name__)
    app.add_url_rule("/", view_func=answer, methods=["POST"])
    app.add_url_rule("/health", view_func=healthy)
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    trio.run(hypercorn.trio.serve, app, config)


async def healthy() -> str:
    return "ready"


if __name__ == "__main__":
    main()
