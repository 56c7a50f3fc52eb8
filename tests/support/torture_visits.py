"""Random visits of clients that leave early, as values that can be drawn again from their seed."""

import enum
import json
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import attrs

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
LEAVING_TOKENS: Final = 1600
"""So many that no answer of a client that leaves ends by itself: an abort that is lost shows by what is computed afterwards."""
H2_SHARE: Final = 0.25
_PROMPTS: Final = (
    "x",
    "hello",
    "what comes next",
    "a shared beginning, and more",
    "a shared beginning, and something else " * 2,
)
_RESPONSE_BYTES_EXPONENTS: Final = (0.0, 5.5)
_MEAN_PATIENCE_S: Final = 0.4
_LONGEST_PATIENCE_S: Final = 3.0


class Leaving(enum.Enum):
    """How a client goes away."""

    HALF_CLOSE = "half close"
    """FIN while it still reads; it waits for the server to close."""
    CLOSE = "close"
    """FIN, or what the kernel makes of it when data is unread."""
    RESET = "reset"
    RST_STREAM = "RST_STREAM"
    GOAWAY = "GOAWAY"

    @property
    def is_h2(self) -> bool:
        return self in (Leaving.RST_STREAM, Leaving.GOAWAY)


class Stage(enum.Enum):
    """Where in its exchange a client goes away."""

    REQUEST = "in its request"
    RESPONSE = "in the response"
    STALLED = "reads nothing"
    """It takes no byte of a stream for a while, with little room in its socket, and then goes."""


@attrs.frozen(kw_only=True)
class Asked:
    """A request for tokens."""

    path: str
    body: Mapping[str, Any]

    @property
    def data(self) -> bytes:
        return json.dumps(self.body).encode()

    @property
    def h1_message(self) -> bytes:
        return f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(self.data)}\r\n\r\n".encode() + self.data


@attrs.frozen(kw_only=True)
class Visit:
    """One client that will leave, and when."""

    asked: Asked
    leaving: Leaving
    stage: Stage
    sent_bytes: int
    """Of the message and `extra`, where it leaves in its request."""
    extra: bytes
    """Sent behind the message: a stray line end, or a request that nobody will wait for."""
    response_bytes: int
    """It leaves when so many bytes have come, headers included; over HTTP/2 bytes of the body."""
    patience_s: float
    """It leaves after so long, whatever has come."""


def draw_asked(random: Random, *, fewest_tokens: int, most_tokens: int) -> Asked:
    text = random.choice(_PROMPTS) * random.randint(1, 5) + str(random.randrange(8))
    path = random.choice((CHAT, COMPLETIONS))
    prompt: dict[str, Any] = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    limits = {"max_tokens": random.randint(fewest_tokens, most_tokens), "n": random.choice((1, 1, 3))}
    return Asked(path=path, body={**prompt, **limits, "temperature": 0, "stream": random.random() < 0.6})


def draw_visit(random: Random) -> Visit:
    asked = draw_asked(random, fewest_tokens=LEAVING_TOKENS, most_tokens=LEAVING_TOKENS)
    is_h2 = random.random() < H2_SHARE
    leaving = random.choice([way for way in Leaving if way.is_h2 == is_h2])
    stage = Stage.RESPONSE if is_h2 else random.choices(tuple(Stage), (3, 6, 1))[0]
    extra = b"" if is_h2 else random.choices((b"", b"\r\n", asked.h1_message), (6, 2, 1))[0]
    return Visit(
        asked=asked,
        leaving=Leaving.RESET if stage is Stage.STALLED else leaving,
        stage=stage,
        sent_bytes=random.randrange(len(asked.h1_message + extra) + 1),
        extra=extra,
        response_bytes=int(10 ** random.uniform(*_RESPONSE_BYTES_EXPONENTS)),
        patience_s=min(random.expovariate(1 / _MEAN_PATIENCE_S), _LONGEST_PATIENCE_S),
    )
