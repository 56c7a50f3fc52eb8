"""How connections are kept, watched and ended.

Must not know: sockets, the application.
"""

from typing import Final

import attrs
from hypercorn.config import Config

from layered_llm.transport.http.hypercorn_server.listening import BACKLOG

NO_LIMIT: Final = 10**9
SLOW_READER: Final = "layered_llm.slow_reader"
"""In the `state` of an exchange's ASGI scope once its peer was dropped because it takes nothing of what it is sent."""


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Fixed for the life of the process."""

    write_timeout_s: float
    """A peer that takes nothing for this long is dropped."""
    fin_poll_interval_s: float
    """How often a connection whose reader is parked is asked whether its peer is gone."""
    tcp_keepalive_idle_s: int
    tcp_keepalive_interval_s: int
    tcp_keepalive_probes: int
    tcp_user_timeout_ms: int
    """A peer that acknowledges nothing for this long is gone."""
    idle_timeout_s: float
    """A connection without a request is closed after this; above the 15 s … 60 s of clients' pools."""
    graceful_timeout_s: float
    """From the shutdown signal until the exchanges that are still open are cancelled; above the drain's timeout."""
    backlog: int
    h2_max_concurrent_streams: int


STANDARD_OPTIONS: Final = ServerOptions(
    write_timeout_s=30.0,
    fin_poll_interval_s=0.1,
    tcp_keepalive_idle_s=30,
    tcp_keepalive_interval_s=10,
    tcp_keepalive_probes=3,
    tcp_user_timeout_ms=60_000,
    idle_timeout_s=90.0,
    graceful_timeout_s=3.0,
    backlog=BACKLOG,
    h2_max_concurrent_streams=1024,
)
"""For a server on any network; a drain that ends with these must take less than 3 s."""


def configure(config: Config | type[Config], options: ServerOptions) -> None:
    """Sets `options` on a configuration, or on the class and so on every configuration that does not say otherwise."""
    config.backlog = options.backlog
    config.graceful_timeout = options.graceful_timeout_s
    config.h2_max_concurrent_streams = options.h2_max_concurrent_streams
    config.keep_alive_timeout = options.idle_timeout_s
    # Over HTTP/2 the GOAWAY that follows the last request freezes all other streams of the connection.
    config.keep_alive_max_requests = NO_LIMIT
