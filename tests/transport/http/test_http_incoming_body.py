"""What request bodies may hold of the process before they are parsed, and how slowly they may come."""

import json
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing

from layered_llm.domain.finish import FinishReason
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.byte_budget import ByteBudget, Over
from layered_llm.transport.http.exchange.connection import _network_of
from layered_llm.transport.http.exchange.incoming_body import PATIENCE_S, SLOWEST_BYTES_PER_S
from support.http_client import CHAT, COMPLETIONS, MESSAGES, SETTINGS, Call, application, post
from support.http_engine import FakeEngine, answering, ended, text_delta
from support.http_server import H2Client, RunningServer, http_request, read_to_end, running

TIGHT = attrs.evolve(SETTINGS, max_unfinished_body_bytes=5_000, max_unfinished_body_bytes_per_client=3_000)
ANSWERED = answering(text_delta("x", finish_reason=FinishReason.STOP), ended())


def test_an_account_and_all_together_have_a_limit() -> None:
    budget = ByteBudget(100, 60)
    alice, bob = budget.open("alice"), budget.open("bob")

    outcomes = [alice.take(60), alice.take(1), bob.take(41), bob.take(40), budget.held_bytes]

    assert [None, Over.ACCOUNT, Over.PROCESS, None, 100] == outcomes


def test_holds_of_one_account_share_its_limit_and_give_back_once() -> None:
    budget = ByteBudget(100, 60)
    one, other = budget.open("alice"), budget.open("alice")
    one.take(40)
    refused = other.take(30)
    one.release()
    one.release()

    assert (Over.ACCOUNT, None, 30) == (refused, other.take(30), budget.held_bytes)


@pytest.mark.parametrize(
    ("client", "account"),
    [
        (None, ""),
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5), "::ffff:10.0.0.1"),
        (("2001:db8:0:1::7", 5), "20010db800000001"),
        (("2001:db8:0:1:ffff::1%eth0", 5), "20010db800000001"),
    ],
)
def test_without_keys_an_address_is_an_account_and_of_ipv6_a_network(client: tuple[str, int] | None, account: str) -> None:
    assert account == _network_of(client)


def unfinished(size: int) -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 20}\r\n\r\n".encode() + b" " * size


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running(application(FakeEngine(ANSWERED), settings=TIGHT)) as server:
        yield server


async def test_unfinished_bodies_over_the_clients_limit_are_refused_and_their_connection_closed(server: RunningServer) -> None:
    first = await server.connect()
    await first.send_all(unfinished(2_900))
    await first.send_all(b" ")
    second = await server.connect()
    await second.send_all(unfinished(2_900))
    with trio.fail_after(3):
        answer = await read_to_end(second)

    assert (True, True, True) == (b" 429 " in answer, b"retry-after" in answer.lower(), b"too_many_bytes" in answer)
    await first.aclose()
    await second.aclose()


async def test_what_a_client_gave_up_holds_nothing(server: RunningServer) -> None:
    for _ in range(5):
        client = await server.connect()
        await client.send_all(unfinished(2_900))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.aclose()
        with trio.fail_after(3):
            while True:
                probe = await server.connect()
                body = {"messages": MESSAGES, "user": "x" * 2_000}
                await probe.send_all(http_request("POST", CHAT, body, headers="Connection: close\r\n"))
                answer = await read_to_end(probe)
                await probe.aclose()
                if b" 200 " in answer:
                    break


async def test_a_parsed_body_holds_nothing_while_its_answer_goes_on() -> None:
    engine = FakeEngine(lambda stream: stream.accept())
    app = application(engine, settings=TIGHT)
    body = {"messages": MESSAGES, "user": "x" * 2_000, "stream": True}
    async with trio.open_nursery() as nursery:
        for count in (1, 2, 3):
            nursery.start_soon(post, app, CHAT, body)
            await engine.wait_opened(count)
        nursery.cancel_scope.cancel()

    assert 3 == len(engine.streams)


async def test_all_clients_together_have_a_limit_that_is_a_503() -> None:
    keys = ApiKeys.of([("alice", "a" * 20), ("bob", "b" * 20)])
    async with running(application(FakeEngine(ANSWERED), settings=TIGHT, keys=keys)) as server:
        answers = list[bytes]()
        alice, bob = await server.connect(), await server.connect()
        await alice.send_all(unfinished(2_900).replace(b"Host", b"Authorization: Bearer " + b"a" * 20 + b"\r\nHost"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await bob.send_all(unfinished(2_900).replace(b"Host", b"Authorization: Bearer " + b"b" * 20 + b"\r\nHost"))
        with trio.fail_after(3):
            answers.append(await read_to_end(bob))
        await alice.aclose()
        await bob.aclose()

    assert (True, True) == (b" 503 " in answers[0], b"server_full" in answers[0])


async def test_the_body_of_a_request_without_a_key_is_not_kept() -> None:
    keys = ApiKeys.of([("alice", "a" * 20)])
    app = application(FakeEngine(ANSWERED), settings=TIGHT, keys=keys)
    exchange = await post(app, CHAT, {"messages": MESSAGES, "user": "x" * 4_000})

    assert (401, "invalid_api_key") == (exchange.status, exchange.error()["code"])


async def test_http2_bodies_share_the_same_limit(server: RunningServer) -> None:
    client = H2Client(await server.connect())
    await client.start()
    held = await client.begin_post(COMPLETIONS)
    client.connection.send_data(held, b" " * 2_900)
    await client.flush()
    refused = await client.begin_post(COMPLETIONS)
    client.connection.send_data(refused, b" " * 2_900)
    await client.flush()
    with trio.fail_after(3):
        while refused not in client.ended:
            await client.pump()
    code = json.loads(client.data[refused])["error"]["code"]
    after = await client.post(COMPLETIONS, {"prompt": "x"})
    with trio.fail_after(3):
        while after not in client.ended:
            await client.pump()

    assert ("too_many_bytes", "x") == (code, json.loads(client.data[after])["choices"][0]["text"])
    await client.tcp.aclose()


class SlowSender:
    """The receiving end of an exchange whose body comes piece by piece."""

    def __init__(self, *, piece: bytes, pieces: int, every_s: float) -> None:
        self._piece, self._left, self._every_s = piece, pieces, every_s

    async def __call__(self) -> dict[str, object]:
        await trio.sleep(self._every_s)
        if not self._left:
            await trio.sleep_forever()
        self._left -= 1
        return {"type": "http.request", "body": self._piece, "more_body": True}


async def status_of(sender: SlowSender) -> tuple[int, str]:
    exchange = await Call(application(FakeEngine(ANSWERED)), receive=sender).run("POST", CHAT)
    return exchange.status, exchange.error()["code"]


async def test_a_body_that_comes_too_slowly_is_ended_by_a_408(autojump_clock: trio.testing.MockClock) -> None:
    began_s = trio.current_time()
    outcome = await status_of(SlowSender(piece=b" ", pieces=100, every_s=1.0))

    assert ((408, "slow_body"), PATIENCE_S) == (outcome, trio.current_time() - began_s)


async def test_a_body_of_the_slowest_pace_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    sender = SlowSender(piece=b" " * SLOWEST_BYTES_PER_S, pieces=30, every_s=0.99)
    began_s = trio.current_time()
    await status_of(sender)

    assert trio.current_time() - began_s > 29
