"""An application module as `hypercorn` is given it on its command line: every stream goes on for ever."""

import os

from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.hypercorn_server.options import STANDARD_OPTIONS
from layered_llm.transport.http.hypercorn_server.worker import (
    install,
    installed_hypercorn,
    survive_sigterm_in_spawned_worker,
)
from support.http_client import application
from support.http_engine import FakeEngine, accepting

survive_sigterm_in_spawned_worker()
_drain = Drain(float(os.environ.get("TEST_DRAIN_S", "0.5")))
install(STANDARD_OPTIONS, _drain.begin, installed=installed_hypercorn(), until_drained=_drain.wait_drained)
app = application(FakeEngine(accepting), drain=_drain)
