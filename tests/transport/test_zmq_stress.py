"""Exact sequences both ways over every kind of socket, while half of the operations are cancelled at random places."""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import zmq

from layered_llm.transport.ports import SendOutcome
from layered_llm.transport.zmq_socket import Frames, MessageSocket, RouterSocket

MESSAGES = 1500
PEER = b"peer"


@attrs.define(kw_only=True)
class Disturber:
    """Runs operations, half of them in a scope that is cancelled before, at a checkpoint of, or shortly after its start."""

    random: random.Random
    nursery: trio.Nursery
    cancelled: int = 0

    async def run(self, operation: Callable[[], Awaitable[object]]) -> bool:
        """Whether the operation came to its end."""
        if self.random.random() < 0.5:
            await operation()
            return True
        done = False
        with trio.CancelScope() as scope:
            chance = self.random.random()
            if chance < 0.3:
                scope.cancel()
            elif chance < 0.6:
                scope.deadline = trio.current_time() + self.random.random() * 0.0005
            else:
                self.nursery.start_soon(self._cancel_later, scope, self.random.randrange(4))
            await operation()
            done = True
        self.cancelled += not done
        return done

    async def _cancel_later(self, scope: trio.CancelScope, checkpoints: int) -> None:
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        scope.cancel()


def frames_of(number: int, rng: random.Random) -> Frames:
    return (b"%d" % number, *[rng.randbytes(rng.choice([0, 5, 300]))] * rng.choice([0, 1, 3]))


async def send_all(socket: MessageSocket, disturber: Disturber) -> None:
    sent = 0
    while sent < MESSAGES:
        frames = frames_of(sent, disturber.random)
        sent += await disturber.run(partial(socket.send, frames))


async def route_all(socket: RouterSocket, disturber: Disturber) -> None:
    sent = 0
    while sent < MESSAGES:
        outcome = socket.send_nowait((PEER, *frames_of(sent, disturber.random)))
        assert outcome is not SendOutcome.UNREACHABLE
        sent += outcome is SendOutcome.SENT
        await trio.lowlevel.checkpoint()


async def receive_all(socket: MessageSocket | RouterSocket, disturber: Disturber, numbers: list[int]) -> None:
    skipped = 1 if isinstance(socket, RouterSocket) else 0

    async def receive() -> None:
        if disturber.random.random() < 0.3:
            received = await socket.recv_many(disturber.random.randrange(1, 5))
        else:
            received = (await socket.recv(),)
        numbers.extend(int(frames[skipped]) for frames in received)

    while len(numbers) < MESSAGES:
        await disturber.run(receive)


KINDS = {
    "pair": (zmq.PAIR, zmq.PAIR),
    "dealer-router": (zmq.DEALER, zmq.ROUTER),
    "dealer-dealer": (zmq.DEALER, zmq.DEALER),
}


@contextmanager
def connected_sockets(
    kind: str, address: str, high_water_mark: int
) -> Iterator[tuple[MessageSocket, MessageSocket | RouterSocket]]:
    with zmq.Context() as context:
        near_kind, far_kind = KINDS[kind]
        near, far = context.socket(near_kind), context.socket(far_kind)
        for socket in (near, far):
            socket.linger = 0
            socket.set_hwm(high_water_mark)
        near.setsockopt(zmq.IDENTITY, PEER)
        if far_kind == zmq.ROUTER:
            far.setsockopt(zmq.ROUTER_MANDATORY, 1)
        far.bind(address)
        near.connect(address)
        wrap = RouterSocket if far_kind == zmq.ROUTER else MessageSocket
        with MessageSocket(near, max_frames=8) as wrapped, wrap(far, max_frames=8) as other:
            yield wrapped, other


@pytest.mark.parametrize("high_water_mark", [1, 10, 1000])
@pytest.mark.parametrize("scheme", ["ipc", "inproc"])
@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_operations_lose_and_repeat_nothing(
    kind: str, scheme: str, high_water_mark: int, socket_directory: Path
) -> None:
    rng = random.Random(f"{kind} {scheme} {high_water_mark}")
    received_near: list[int] = []
    received_far: list[int] = []
    with connected_sockets(kind, f"{scheme}://{socket_directory}/link", high_water_mark) as (near, far):
        if isinstance(far, RouterSocket):
            await near.send((b"hello",))
            await far.recv()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                disturber = Disturber(random=rng, nursery=nursery)
                nursery.start_soon(send_all, near, disturber)
                if isinstance(far, RouterSocket):
                    nursery.start_soon(route_all, far, disturber)
                else:
                    nursery.start_soon(send_all, far, disturber)
                nursery.start_soon(receive_all, near, disturber, received_near)
                nursery.start_soon(receive_all, far, disturber, received_far)

    assert list(range(MESSAGES)) == received_near
    assert list(range(MESSAGES)) == received_far
    assert disturber.cancelled > MESSAGES / 10
