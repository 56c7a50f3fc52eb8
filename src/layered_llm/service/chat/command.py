"""`layered-llm chat`: opens a backend and a front, and lets them talk until the user leaves.

Must not know: what a flag is called, how a backend answers, what a line of input means.
"""

import contextlib
import os
from functools import partial
from typing import Final

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.chat.backend import CannotOpen
from layered_llm.service.chat.flags import ChatRequest
from layered_llm.service.chat.host import BackendStuck, OpenBackend, open_host
from layered_llm.service.chat.session import Conversation
from layered_llm.service.chat.shell import EXIT_FAILED, EXIT_INTERRUPTED, Shell
from layered_llm.service.chat.terminal import Front, Interrupts, line_editing, open_front
from layered_llm.service.processes.engine_process import set_up_logging
from layered_llm.service.settings.settings import chat_history, let_threads_sleep, wants_colours

_STDOUT: Final = 1


def run_chat(request: ChatRequest) -> int:
    """Chats until the user leaves; returns the exit code."""
    let_threads_sleep()
    set_up_logging(Role.API, request.settings)
    front = open_front(has_colours=wants_colours())
    try:
        return _chat(request, front)
    except CannotOpen as error:
        front.error(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _interrupted(front)
    except BackendStuck:
        os._exit(_interrupted(front))
    except BrokenPipeError:
        # Nobody reads the answers any more, which the interpreter must not find out once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        return EXIT_FAILED


def _interrupted(front: Front) -> int:
    if front.is_interactive:
        front.write("\n")
    return EXIT_INTERRUPTED


def _chat(request: ChatRequest, front: Front) -> int:
    front.note("starting …")
    interrupts = Interrupts()
    with open_host(_backend(request)) as host, contextlib.ExitStack() as stack:
        stack.enter_context(interrupts.installed())
        if front.is_interactive:
            stack.enter_context(line_editing(chat_history()))
        front.note(f"{host.title}. /help says what you can do, Ctrl-D leaves.")
        shell = Shell(
            front=front, host=host, interrupts=interrupts, conversation=Conversation(request.system), params=request.params
        )
        return shell.run()


def _backend(request: ChatRequest) -> OpenBackend:
    if request.server is None:
        from layered_llm.service.chat.embedded_backend import (  # noqa: PLC0415 - a chat with a server needs no engine
            open_embedded_backend,
        )

        return partial(open_embedded_backend, request.settings)
    from layered_llm.service.chat.remote_backend import open_remote_backend  # noqa: PLC0415 - as above, the other way round

    server = request.server
    return partial(open_remote_backend, server.url, api_key=server.api_key, model=server.model)
