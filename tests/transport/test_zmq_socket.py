import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import zmq

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.addresses import AddressError
from layered_llm.transport.ports import LinkClosed, SendOutcome
from layered_llm.transport.zmq_socket import (
    BYTES_PER_RECEIVE,
    Frames,
    MessageContext,
    MessageSocket,
    RouterSocket,
    SocketOptions,
    open_context,
)

OPTIONS = SocketOptions()
NARROW = SocketOptions(high_water_mark=1)


def dealers(context: MessageContext, address: str, options: SocketOptions = OPTIONS) -> tuple[MessageSocket, MessageSocket]:
    bound = context.bind_dealer(address, options)
    return context.connect_dealer(address, b"near", options), bound


async def router_and_peer(
    context: MessageContext, address: str, options: SocketOptions = OPTIONS
) -> tuple[RouterSocket, MessageSocket]:
    """A router that has heard of its one peer."""
    router = context.bind_router(address, options)
    peer = context.connect_dealer(address, b"peer", options)
    await peer.send((b"hello",))
    await router.recv()
    return router, peer


async def fill(socket: MessageSocket) -> int:
    """Sends until the socket takes no more; how many it took."""
    taken = 0
    while True:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_blocked, scope)
                await socket.send((b"%d" % taken, bytes(100_000)))
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            return taken
        taken += 1


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked(0.02)
    scope.cancel()


async def test_messages_arrive_in_order(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    sent = [(b"%d" % number, b"body") for number in range(50)]
    for frames in sent:
        await near.send(frames)

    assert sent == [await far.recv() for _ in sent]


async def test_recv_many_takes_what_is_there_up_to_the_limit(context: MessageContext) -> None:
    near, far = dealers(context, "inproc://link")
    for number in range(5):
        await near.send((b"%d" % number,))

    assert ((b"0",), (b"1",), (b"2",)) == await far.recv_many(3)
    assert ((b"3",), (b"4",)) == await far.recv_many(3)


async def test_recv_many_takes_no_more_behind_so_many_bytes(context: MessageContext) -> None:
    near, far = dealers(context, "inproc://link")
    half = b"x" * (BYTES_PER_RECEIVE // 2)
    for _ in range(5):
        await near.send((half,))

    assert [2, 2, 1] == [len(await far.recv_many(100)) for _ in range(3)]


async def test_cancelled_recv_leaves_the_message(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    await near.send((b"kept",))
    with trio.CancelScope() as scope:
        scope.cancel()
        await far.recv()

    assert scope.cancelled_caught
    assert (b"kept",) == await far.recv()


async def test_recv_cancelled_while_parked_leaves_the_socket_usable(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.recv)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await near.send((b"later",))

    assert (b"later",) == await far.recv()


async def test_cancelled_send_sends_nothing(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    with trio.CancelScope() as scope:
        scope.cancel()
        await near.send((b"dropped",))
    await near.send((b"sent",))

    assert (b"sent",) == await far.recv()


async def test_operations_are_checkpoints(context: MessageContext) -> None:
    near, far = dealers(context, "inproc://link")
    with trio.testing.assert_checkpoints():
        await near.send((b"a",))
    with trio.testing.assert_checkpoints():
        await far.recv()


async def test_parked_receiver_wakes_for_a_message(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    received: list[Frames] = []

    async def receive() -> None:
        received.append(await far.recv())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await near.send((b"a",))

    assert [(b"a",)] == received


async def test_full_socket_parks_its_sender_until_the_peer_receives(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address, NARROW)
    taken = await fill(near)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send, (b"last",))
        numbers = [(await far.recv())[0] for _ in range(taken + 1)]

    assert [*(b"%d" % number for number in range(taken)), b"last"] == numbers


async def test_send_waits_for_the_peer_to_bind(context: MessageContext, socket_directory: Path) -> None:
    address = f"ipc://{socket_directory}/late"
    near = context.connect_dealer(address, b"near", OPTIONS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send, (b"early",))
        await trio.testing.wait_all_tasks_blocked()
        far = context.bind_dealer(address, OPTIONS)

        assert (b"early",) == await far.recv()


class EdgeEatingSocket(zmq.Socket[bytes]):
    """Lets something happen just before a receive, and then eats the edge that tells of it."""

    happening: Callable[[], None] | None = None

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        frame = super().recv(*args, **kwargs)
        if self.happening is not None:
            self.happening()
            select.select([int(self.getsockopt(zmq.FD))], [], [], 5)
            self.getsockopt(zmq.EVENTS)
        return frame


@contextmanager
def edge_eating_pair() -> Iterator[tuple[EdgeEatingSocket, "zmq.Socket[bytes]"]]:
    with zmq.Context() as context:
        near, far = EdgeEatingSocket(context, zmq.PAIR), context.socket(zmq.PAIR)
        for socket in (near, far):
            socket.linger = 0
            socket.set_hwm(1)
        far.bind("inproc://eating")
        near.connect("inproc://eating")
        with far:
            yield near, far


async def test_receive_that_eats_the_edge_of_a_parked_sender_wakes_it() -> None:
    with edge_eating_pair() as (raw, far), MessageSocket(raw, max_frames=1) as near:
        taken = await fill(near)
        far.send(b"to receive")
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send, (b"parked",))
                await trio.testing.wait_all_tasks_blocked()
                raw.happening = lambda: take_raw(far, taken)

                assert (b"to receive",) == await near.recv()

        assert [b"parked"] == far.recv_multipart(zmq.NOBLOCK)


def take_raw(socket: "zmq.Socket[bytes]", messages: int) -> None:
    for _ in range(messages):
        socket.recv_multipart(zmq.NOBLOCK)


async def test_second_receiver_is_refused(context: MessageContext) -> None:
    _, far = dealers(context, "inproc://link")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.recv)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await far.recv()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("direction", ["recv", "send"])
async def test_close_ends_a_parked_task(direction: str, context: MessageContext, socket_directory: Path) -> None:
    unbound = context.connect_dealer(f"ipc://{socket_directory}/nobody", b"near", OPTIONS)

    async def expect_closed() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await (unbound.recv() if direction == "recv" else unbound.send((b"a",)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed)
        await trio.testing.wait_all_tasks_blocked()
        unbound.close()


async def test_closed_socket_refuses_every_operation(context: MessageContext) -> None:
    router, peer = await router_and_peer(context, "inproc://link")
    router.close()
    peer.close()
    peer.close()

    with pytest.raises(trio.ClosedResourceError):
        await peer.recv()
    with pytest.raises(trio.ClosedResourceError):
        await peer.send((b"a",))
    with pytest.raises(trio.ClosedResourceError):
        router.send_nowait((b"peer", b"a"))


async def test_last_words_leave_a_closing_socket_that_lingers(context: MessageContext, socket_directory: Path) -> None:
    near, far = dealers(context, f"ipc://{socket_directory}/link")
    await near.send((b"abort",))
    near.close(linger_ms=1000)

    assert (b"abort",) == await far.recv()


async def test_router_tells_a_full_peer_from_one_that_caught_up(context: MessageContext, address: str) -> None:
    router, peer = await router_and_peer(context, address, NARROW)
    taken = 0
    while router.send_nowait((b"peer", bytes(100_000))) is SendOutcome.SENT:
        taken += 1

    for _ in range(taken):
        assert (bytes(100_000),) == await peer.recv()
    with trio.fail_after(5):
        while (outcome := router.send_nowait((b"peer", b"again"))) is SendOutcome.FULL:
            await trio.lowlevel.checkpoint()
    assert SendOutcome.SENT is outcome
    assert (b"again",) == await peer.recv()


async def test_full_peer_does_not_keep_others_waiting(context: MessageContext, address: str) -> None:
    router, _slow = await router_and_peer(context, address, NARROW)
    other = context.connect_dealer(address, b"other", NARROW)
    await other.send((b"hello",))
    await router.recv()
    while router.send_nowait((b"peer", bytes(100_000))) is SendOutcome.SENT:
        pass

    assert SendOutcome.SENT is router.send_nowait((b"other", b"a"))
    assert (b"a",) == await other.recv()


async def test_router_cannot_reach_an_unknown_peer(context: MessageContext, address: str) -> None:
    router = context.bind_router(address, OPTIONS)

    assert SendOutcome.UNREACHABLE is router.send_nowait((b"nobody", b"a"))


async def test_router_cannot_reach_a_peer_that_left(context: MessageContext, address: str) -> None:
    router, peer = await router_and_peer(context, address)
    peer.close()
    with trio.fail_after(5):
        while (outcome := router.send_nowait((b"peer", b"a"))) is not SendOutcome.UNREACHABLE:
            await trio.lowlevel.checkpoint()

    assert SendOutcome.UNREACHABLE is outcome


async def test_name_of_a_connected_peer_cannot_be_taken(context: MessageContext, socket_directory: Path) -> None:
    address = f"ipc://{socket_directory}/link"
    router, first = await router_and_peer(context, address)
    impostor = context.connect_dealer(address, b"peer", OPTIONS)
    await impostor.send((b"from the impostor",))
    await first.send((b"from the first",))

    assert (b"peer", b"from the first") == await router.recv()
    assert SendOutcome.SENT is router.send_nowait((b"peer", b"reply"))
    assert (b"reply",) == await first.recv()


async def test_big_message_arrives_whole(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    body = bytes(range(256)) * 80_000
    await near.send((b"tag", body))

    assert (b"tag", body) == await far.recv()


async def test_frame_above_the_limit_never_arrives(context: MessageContext, socket_directory: Path) -> None:
    near, far = dealers(context, f"ipc://{socket_directory}/link", SocketOptions(max_frame_bytes=1000))
    await near.send((bytes(1001),))

    async def keep_sending() -> None:
        # What is queued when the connection breaks is lost with it.
        while True:
            await near.send((b"after",))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_sending)
        with trio.fail_after(10):
            received = await far.recv()
        nursery.cancel_scope.cancel()

    assert (b"after",) == received


async def test_excess_frames_are_cut_so_that_the_receiver_can_tell(context: MessageContext) -> None:
    near, far = dealers(context, "inproc://link", SocketOptions(max_frames=2))
    await near.send([b"a"] * 1000)
    await near.send([b"b"])

    assert (b"a",) * 3 == await far.recv()
    assert (b"b",) == await far.recv()


async def test_address_in_use_is_not_stolen(context: MessageContext, address: str) -> None:
    near, far = dealers(context, address)
    with pytest.raises(AddressError, match=r"in use|already"):
        context.bind_router(address, OPTIONS)
    await near.send((b"a",))

    assert (b"a",) == await far.recv()


async def test_missing_directory_is_an_address_error(context: MessageContext) -> None:
    with pytest.raises(AddressError, match="/nowhere/at/all"):
        context.bind_dealer("ipc:///nowhere/at/all", OPTIONS)


async def test_context_closes_sockets_that_were_left_open(socket_directory: Path) -> None:
    with open_context() as context:
        socket = context.connect_dealer(f"ipc://{socket_directory}/nobody", b"near", OPTIONS)

    assert socket.closed


async def test_shutdown_ends_parked_trio_tasks(socket_directory: Path) -> None:
    with open_context() as context:
        socket = context.connect_dealer(f"ipc://{socket_directory}/nobody", b"near", OPTIONS)

        async def expect_closed() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await socket.recv()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_closed)
            await trio.testing.wait_all_tasks_blocked()
            context.shutdown()
            context.shutdown()


async def test_a_task_that_is_cancelled_when_it_finds_its_socket_closed_was_cancelled(
    socket_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends it cancels it and closes the socket, after an edge had made it look once more."""
    with open_context() as context, trio.CancelScope() as scope:
        socket = context.connect_dealer(f"ipc://{socket_directory}/nobody", b"near", OPTIONS)
        look = socket._readiness

        def look_when_it_is_ended() -> int:
            scope.cancel()
            socket.close()
            return look()

        monkeypatch.setattr(socket, "_readiness", look_when_it_is_ended)
        await socket.recv()
    assert scope.cancelled_caught


async def test_no_socket_after_shutdown() -> None:
    with open_context() as context:
        context.shutdown()
        with pytest.raises(LinkClosed):
            context.connect_dealer("inproc://link", b"near", OPTIONS)


def refuse_threads(_thread: threading.Thread) -> None:
    """What newer interpreters say once the main thread is over."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


@pytest.mark.parametrize("is_at_exit", [False, True])
def test_shutdown_ends_a_thread_that_blocks(is_at_exit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, ended = threading.Event(), threading.Event()

    def block(context: MessageContext) -> None:
        with context.connect_blocking("inproc://nobody", b"near", OPTIONS) as socket:
            blocked.set()
            with pytest.raises(LinkClosed):
                socket.recv()
        ended.set()

    with open_context() as context:
        thread = threading.Thread(target=block, args=(context,))
        thread.start()
        blocked.wait()
        if is_at_exit:
            monkeypatch.setattr(threading.Thread, "start", refuse_threads)
        context.shutdown()
        thread.join(timeout=5)

    assert ended.is_set()


async def test_a_blocking_socket_waits_for_a_message_or_a_descriptor() -> None:
    read_end, write_end = os.pipe()
    with open_context() as context, context.connect_blocking("inproc://near", b"near", OPTIONS) as socket:
        far = context.bind_dealer("inproc://near", OPTIONS)
        os.write(write_end, b"d")
        came_before = [socket.comes_before(read_end)]
        await far.send((b"a",))
        came_before.append(socket.comes_before(read_end))
        os.read(read_end, 1)
        came_before.append(socket.comes_before(read_end))
    os.close(read_end)
    os.close(write_end)
    assert [False, True, True] == came_before


def test_shutdown_ends_a_thread_that_waits_for_a_message_or_a_descriptor() -> None:
    read_end, write_end = os.pipe()
    blocked = threading.Event()

    def block(context: MessageContext) -> None:
        with context.connect_blocking("inproc://nobody", b"near", OPTIONS) as socket:
            blocked.set()
            with pytest.raises(LinkClosed):
                socket.comes_before(read_end)

    with open_context() as context:
        thread = threading.Thread(target=block, args=(context,))
        thread.start()
        blocked.wait()
        context.shutdown()
        thread.join(timeout=5)
    os.close(read_end)
    os.close(write_end)
    assert not thread.is_alive()


def test_context_with_an_open_blocking_socket_raises_instead_of_hanging() -> None:
    with pytest.raises(InvariantViolated, match="1 blocking socket"), open_context() as context:
        socket = context.connect_blocking("inproc://nobody", b"near", OPTIONS)
    socket.close()


def test_closed_blocking_socket_refuses_every_operation() -> None:
    with open_context() as context:
        socket = context.connect_blocking("inproc://nobody", b"near", OPTIONS)
        socket.close()
        socket.close()
        with pytest.raises(LinkClosed):
            socket.recv()
        with pytest.raises(LinkClosed):
            socket.send((b"a",))
