import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId, StepId
from layered_llm.domain.messages.api_text import Abort, Accepted, ApiToText, TextToApi
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.transport.codec import Codec, WireError
from layered_llm.transport.link_specs import API_TEXT, SCHEDULER_RUNTIME
from layered_llm.transport.links import DealerLink, RouterLink, ZmqLinks, identity_of
from layered_llm.transport.ports import Garbled, LinkClosed, MessageLink, PeerLink, SendOutcome
from layered_llm.transport.zmq_socket import MessageContext, SocketOptions

API_END: Codec[ApiToText, TextToApi] = Codec(outbound=API_TEXT.from_connected, inbound=API_TEXT.from_bound)
RANKS = ("runtime-0",)


def links(context: MessageContext) -> ZmqLinks:
    return ZmqLinks(context, context)


def abort(number: int) -> Abort:
    return Abort(request=RequestId(number), reason=AbortReason.TIMEOUT)


def accepted(number: int) -> Accepted:
    return Accepted(request=RequestId(number), prompt_tokens=1)


def empty_step(number: int) -> ExecuteStep:
    columns = ("retired", "page_slots", "page_counts", "page_offsets", "page_ids", "slots", "starts", "counts", "samples")
    return ExecuteStep(step=StepId(number), opened=(), **dict.fromkeys(columns, b""))


def completed(step: ExecuteStep) -> StepCompleted:
    return StepCompleted(step=step.step, token_ids=b"", device_us=1, open_slots=0)


def api_and_text(
    context: MessageContext, address: str
) -> tuple[MessageLink[ApiToText, TextToApi], PeerLink[TextToApi, ApiToText]]:
    text: RouterLink[TextToApi, ApiToText] = links(context).bind(API_TEXT, address)
    api: DealerLink[ApiToText, TextToApi] = links(context).connect(API_TEXT, address, "api-3f2a")
    return api, text


async def test_server_knows_each_message_with_its_peer(context: MessageContext, address: str) -> None:
    api, text = api_and_text(context, address)
    await api.send(abort(1))

    assert (("api-3f2a", abort(1)),) == await text.receive()


async def test_server_answers_by_name(context: MessageContext, address: str) -> None:
    api, text = api_and_text(context, address)
    await api.send(abort(1))
    await text.receive()

    assert SendOutcome.SENT is text.send_nowait("api-3f2a", accepted(1))
    assert (accepted(1),) == await api.receive()
    assert SendOutcome.UNREACHABLE is text.send_nowait("api-0", accepted(1))


async def test_receive_returns_all_that_is_there_in_order(context: MessageContext) -> None:
    api, text = api_and_text(context, "inproc://link")
    for number in range(10):
        await api.send(abort(number))

    assert tuple(("api-3f2a", abort(number)) for number in range(10)) == await text.receive()


async def test_cancelled_receive_loses_nothing(context: MessageContext, address: str) -> None:
    api, text = api_and_text(context, address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(text.receive)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        nursery.start_soon(text.receive)
    await api.send(abort(1))

    assert (("api-3f2a", abort(1)),) == await text.receive()


async def test_garbling_peer_is_named_and_others_are_served(context: MessageContext, address: str) -> None:
    api, text = api_and_text(context, address)
    broken = context.connect_dealer(address, b"api-bad", SocketOptions())
    await broken.send((b"?", b"junk"))
    ((peer, garbled),) = await text.receive()
    assert ("api-bad", Garbled(reason="unknown tag b'?'")) == (peer, garbled)

    await api.send(abort(1))

    assert (("api-3f2a", abort(1)),) == await text.receive()


async def test_peer_with_too_many_frames_garbles(context: MessageContext) -> None:
    _, text = api_and_text(context, "inproc://link")
    broken = context.connect_dealer("inproc://link", b"api-bad", SocketOptions())
    await broken.send([b"A"] * 1000)

    assert (("api-bad", Garbled(reason="4 frames instead of 2")),) == await text.receive()


async def test_peer_without_a_proper_name_garbles_under_its_identity(context: MessageContext) -> None:
    _, text = api_and_text(context, "inproc://link")
    nameless = context.connect_dealer("inproc://link", b"\xff\x01", SocketOptions())
    await nameless.send(API_END.encode(abort(1)))

    assert (("ff01", Garbled(reason="the peer has no proper name")),) == await text.receive()


async def test_garbling_server_is_a_wire_error(context: MessageContext, address: str) -> None:
    text = context.bind_router(address, SocketOptions())
    api: DealerLink[ApiToText, TextToApi] = links(context).connect(API_TEXT, address, "api-1")
    await api.send(abort(1))
    await text.recv()
    text.send_nowait((b"api-1", b"?", b""))

    with pytest.raises(WireError, match="unknown tag"):
        await api.receive()


@pytest.mark.parametrize("name", ["api-3f2a", "text-0", "a", "a" * 63])
def test_name_is_the_identity(name: str) -> None:
    assert name.encode() == identity_of(name)


@pytest.mark.parametrize("name", ["", "0", "Api", "a b", "é", "a" * 64, "a\n"])
def test_improper_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a peer"):
        identity_of(name)


async def test_link_is_closed_by_its_block(context: MessageContext) -> None:
    with links(context).connect(API_TEXT, "inproc://link", "api-1") as api:
        pass

    with pytest.raises(trio.ClosedResourceError):
        await api.send(abort(1))


async def test_last_words_of_a_closing_client_arrive(context: MessageContext, socket_directory: Path) -> None:
    address = f"ipc://{socket_directory}/link"
    text = links(context).bind(API_TEXT, address)
    api = links(context).connect(API_TEXT, address, "api-1")
    await api.send(abort(1))
    api.close(linger_ms=1000)

    assert (("api-1", abort(1)),) == await text.receive()


def answer_steps(context: MessageContext, address: str) -> None:
    """A runtime: answers each step until its context is shut down."""
    with links(context).connect_blocking(SCHEDULER_RUNTIME, address, "runtime-0") as link:
        try:
            while True:
                link.send(completed(link.receive()))
        except LinkClosed:
            return


async def test_blocking_link_in_a_thread(context: MessageContext, address: str) -> None:
    scheduler = links(context).bind_group(SCHEDULER_RUNTIME, address, RANKS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, answer_steps, context, address)
        for number in range(20):
            await scheduler.send(empty_step(number))
            assert (("runtime-0", completed(empty_step(number))),) == await scheduler.receive()
        context.shutdown()


async def test_every_peer_of_a_group_gets_each_message_and_is_heard_by_name(context: MessageContext, address: str) -> None:
    group = links(context).bind_group(SCHEDULER_RUNTIME, address, ("runtime-0", "runtime-1"))
    peers = [links(context).connect(SCHEDULER_RUNTIME, address, name) for name in ("runtime-1", "runtime-0")]
    await group.send(empty_step(1))

    for name, peer in zip(("runtime-1", "runtime-0"), peers, strict=True):
        assert (empty_step(1),) == await peer.receive()
        await peer.send(completed(empty_step(1)))
        assert ((name, completed(empty_step(1))),) == await group.receive()


async def test_a_message_to_a_group_is_encoded_once(
    context: MessageContext, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = list[object](), Codec.encode

    def count(self: Codec[Any, Any], message: object) -> tuple[bytes, bytes]:
        encoded.append(message)
        return encode(self, message)

    monkeypatch.setattr(Codec, "encode", count)
    group = links(context).bind_group(SCHEDULER_RUNTIME, address, ("runtime-0", "runtime-1"))
    peers = [links(context).connect(SCHEDULER_RUNTIME, address, name) for name in ("runtime-0", "runtime-1")]
    await group.send(empty_step(1))

    assert [(empty_step(1),)] * 2 == [await peer.receive() for peer in peers]
    assert [empty_step(1)] == encoded


async def test_strangers_on_a_link_with_one_peer_are_not_heard_and_get_nothing(
    context: MessageContext, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = links(context).bind_group(SCHEDULER_RUNTIME, address, RANKS)
    for identity in (b"stranger", b"runtime-1", b"\xff"):
        stranger = context.connect_dealer(address, identity, SocketOptions())
        for frames in ([b"garbage"], [b"c", b"garbage"], [b"", b"", b"", b""]):
            await stranger.send(frames)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, answer_steps, context, address)
        with trio.fail_after(20):
            for number in range(20):
                await scheduler.send(empty_step(number))
                assert (("runtime-0", completed(empty_step(number))),) == await scheduler.receive()
        context.shutdown()
    assert caplog.messages


async def test_however_often_a_stranger_speaks_it_is_logged_now_and_then(
    context: MessageContext, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    scheduler = links(context).bind_group(SCHEDULER_RUNTIME, "inproc://link", RANKS)
    stranger = context.connect_dealer("inproc://link", b"stranger", SocketOptions())
    runtime = links(context).connect(SCHEDULER_RUNTIME, "inproc://link", "runtime-0")
    lines = []
    for jump_s in (0.0, 1.0, 8.0, 2.0, 1.0):
        mock_clock.jump(jump_s)
        await stranger.send((b"noise",))
        await runtime.send(completed(empty_step(1)))
        await scheduler.receive()
        lines.append(len(caplog.messages))

    assert [1, 1, 1, 2, 2] == lines


RUNTIME_PROCESS = """
import sys
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.transport.link_specs import SCHEDULER_RUNTIME
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.zmq_socket import open_context

with (
    open_context() as context,
    ZmqLinks(context, context).connect_blocking(SCHEDULER_RUNTIME, sys.argv[1], "runtime-0") as link,
):
    for _ in range(20):
        step = link.receive()
        link.send(StepCompleted(step=step.step, token_ids=b"", device_us=1, open_slots=0))
    link.close(linger_ms=1000)
"""


async def test_blocking_link_in_a_process(context: MessageContext, socket_directory: Path) -> None:
    address = f"ipc://{socket_directory}/link"
    scheduler = links(context).bind_group(SCHEDULER_RUNTIME, address, RANKS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.run_process, [sys.executable, "-c", RUNTIME_PROCESS, address])
        with trio.fail_after(20):
            for number in range(20):
                await scheduler.send(empty_step(number))
                assert (("runtime-0", completed(empty_step(number))),) == await scheduler.receive()


async def test_garbling_scheduler_is_a_wire_error_for_the_runtime(context: MessageContext) -> None:
    scheduler = context.bind_dealer("inproc://link", SocketOptions())

    def receive() -> None:
        with (
            links(context).connect_blocking(SCHEDULER_RUNTIME, "inproc://link", "runtime-0") as link,
            pytest.raises(WireError, match="1 frames instead of 2"),
        ):
            link.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, receive)
        await scheduler.send((b"only one frame",))


def test_importing_the_ports_imports_no_zmq() -> None:
    code = "import sys, layered_llm.transport.ports, layered_llm.transport.outbox; sys.exit('zmq' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
