"""What a test runs in a spawned process."""

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

from layered_llm.transport.http.hypercorn_server.worker import survive_sigterm_in_spawned_worker


def outlive_sigterm(link: "Connection[str, str]") -> None:
    """Sends itself SIGTERM, and reports how a child of its own would take one."""
    survive_sigterm_in_spawned_worker()
    os.kill(os.getpid(), signal.SIGTERM)
    script = "import signal; print(signal.getsignal(signal.SIGTERM).name)"
    link.send(subprocess.check_output([sys.executable, "-S", "-c", script], text=True).strip())
