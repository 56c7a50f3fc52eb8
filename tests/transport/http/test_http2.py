import json
import ssl
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization

from layered_llm.domain.finish import FinishReason
from layered_llm.transport.http.hypercorn_server.tls import BadCertificate, TlsFiles
from support.http_client import COMPLETIONS, SETTINGS, application
from support.http_engine import FakeEngine, accepting, answering, ended, text_delta
from support.http_server import QUICK, H2Client, http_request, read_until, running

STREAMS = 200
END = text_delta("!", finish_reason=FinishReason.STOP)
ASKED = {"prompt": "hi", "stream": True}
PATIENT = attrs.evolve(QUICK, write_timeout_s=60.0)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    directory = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    found = TlsFiles(certificate=directory / "certificate.pem", key=directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(str(found.certificate))
    issued.private_key_pem.write_to_path(str(found.key))
    return found


async def connect_tls(port: int, authority: trustme.CA, *protocols: str) -> "trio.SSLStream[trio.SocketStream]":
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(protocols)
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
    await stream.do_handshake()
    return stream


async def finish_all(client: H2Client, engine: FakeEngine, count: int) -> list[int]:
    """Opens that many streams, lets their tokens come in turns, and reads to the end of all."""
    opened = [await client.post(COMPLETIONS, ASKED) for _ in range(count)]
    await engine.wait_opened(count)
    for word in ("a", "b", "c"):
        for number, stream in enumerate(engine.streams):
            stream.emit(text_delta(f"{word}{number} "))
    for stream in engine.streams:
        stream.emit(END, ended())
    while not client.ended >= set(opened):
        await client.pump()
    return opened


def said(data: bytes) -> str:
    events = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert "[DONE]" == events.pop()
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


async def test_two_hundred_streams_share_a_connection_each_with_its_own_words() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine), options=PATIENT) as server:
        client = H2Client(await server.connect())
        await client.start()

        opened = await finish_all(client, engine, STREAMS)

        assert [f"a{number} b{number} c{number} !" for number in range(STREAMS)] == [said(client.data[each]) for each in opened]
        assert set() == client.reset_streams
        await client.tcp.aclose()
    assert [] == engine.aborts


async def test_a_body_far_beyond_the_windows_arrives_whole() -> None:
    engine = FakeEngine(answering(END, ended()))
    async with running(application(engine), options=PATIENT) as server:
        client = H2Client(await server.connect())
        await client.start()
        prompt = "".join(f"{number:07} " for number in range(100_000))
        assert len(prompt) < SETTINGS.max_body_bytes

        stream_id = await client.post_large(COMPLETIONS, json.dumps({"prompt": prompt}).encode())
        while stream_id not in client.ended:
            await client.pump()

        assert prompt == engine.streams[0].prompt.text
        assert "!" == json.loads(client.data[stream_id])["choices"][0]["text"]
        await client.tcp.aclose()


async def test_a_body_over_the_limit_is_a_413_of_its_stream_alone() -> None:
    engine = FakeEngine(answering(END, ended()))
    async with running(application(engine), options=PATIENT) as server:
        client = H2Client(await server.connect())
        await client.start()
        refused = await client.post_large(COMPLETIONS, b" " * (SETTINGS.max_body_bytes + 1))
        taken = await client.post(COMPLETIONS, ASKED)
        while not client.ended >= {refused, taken}:
            await client.pump()

        assert "request_entity_too_large" == json.loads(client.data[refused])["error"]["code"]
        assert "!" == said(client.data[taken])
        await client.tcp.aclose()


async def test_clients_choose_http2_in_the_tls_handshake(authority: trustme.CA, files: TlsFiles) -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine), options=PATIENT, tls=files) as server:
        stream = await connect_tls(server.port, authority, "h2", "http/1.1")
        assert "h2" == stream.selected_alpn_protocol()
        client = H2Client(stream)
        await client.start()

        opened = await finish_all(client, engine, 20)

        assert [f"a{number} b{number} c{number} !" for number in range(20)] == [said(client.data[each]) for each in opened]
        await stream.aclose()


async def test_a_client_of_http1_is_served_over_tls_too(authority: trustme.CA, files: TlsFiles) -> None:
    async with running(application(FakeEngine(answering(END, ended()))), tls=files) as server:
        stream = await connect_tls(server.port, authority, "http/1.1")
        for _ in range(2):
            await stream.send_all(http_request("POST", COMPLETIONS, ASKED))
            assert b"HTTP/1.1 200" in await read_until(stream, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await stream.aclose()


async def test_plain_text_on_a_tls_port_harms_nobody(authority: trustme.CA, files: TlsFiles) -> None:
    async with running(application(FakeEngine()), tls=files) as server:
        plain = await server.connect()
        await plain.send_all(http_request("GET", "/health"))
        stream = await connect_tls(server.port, authority, "http/1.1")
        await stream.send_all(http_request("GET", "/health"))

        assert b"200" in await read_until(stream, b'"ok"')
        await stream.aclose()
        await plain.aclose()


def test_files_that_are_no_certificate_and_its_key_are_refused_by_name(files: TlsFiles, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other_key = trustme.CA().private_key_pem
    other_key.write_to_path(str(other))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")

    for wrong, named in (
        (attrs.evolve(files, key=tmp_path / "missing.pem"), "missing.pem: there is no such file"),
        (attrs.evolve(files, key=tmp_path / ("n" * 300)), "nnn: there is no such file"),
        (attrs.evolve(files, key=other), "other.pem are no certificate and its key"),
        (attrs.evolve(files, certificate=nonsense), "nonsense.pem and .*: one of them holds none in PEM"),
    ):
        with pytest.raises(BadCertificate, match=named):
            wrong.check()
    files.check()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(files: TlsFiles, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))

    with pytest.raises(BadCertificate, match=r"locked.pem: the key has a password"):
        attrs.evolve(files, key=locked).check()
