import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from support.byte_checkpoint import write_byte_checkpoint
from support.server import Server, Settings, failing_server, hypercorn_server, python_server, scripted


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(directory / "certificate.pem"))
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    return {
        "certfile": directory / "certificate.pem",
        "keyfile": directory / "key.pem",
        "authority": directory / "authority.pem",
    }


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return scripted(write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=512))


@pytest.fixture(scope="module", params=["python", "hypercorn"])
def server(request: pytest.FixtureRequest, settings: Settings, files: dict[str, Path]) -> Iterator[Server]:
    certificate, key = files["certfile"], files["keyfile"]
    starts = {
        "python": lambda: python_server({**settings, "certfile": certificate, "keyfile": key}),
        "hypercorn": lambda: hypercorn_server(settings, f"--certfile={certificate}", f"--keyfile={key}", scheme="https"),
    }
    with starts[request.param]() as started:
        yield started


@pytest.mark.parametrize(("is_http2", "version"), [(True, "HTTP/2"), (False, "HTTP/1.1")])
def test_a_stream_over_tls(is_http2: bool, version: str, server: Server, files: dict[str, Path]) -> None:
    body = {"prompt": "one two three", "max_tokens": 13, "temperature": 0, "stream": True}
    trusting = ssl.create_default_context(cafile=files["authority"])
    with (
        httpx.Client(base_url=server.base_url, http2=is_http2, verify=trusting, timeout=30) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = [line for line in response.iter_lines() if line]

    assert (200, version) == (response.status_code, response.http_version)
    assert "data: [DONE]" == lines[-1]
    server.wait_quiescent()


@pytest.mark.parametrize(
    ("given", "message"),
    [(("certfile",), "--certfile and --keyfile belong together"), (("keyfile",), "--certfile and --keyfile belong together")],
)
def test_half_of_a_certificate_is_refused(
    given: tuple[str, ...], message: str, settings: Settings, files: dict[str, Path]
) -> None:
    with failing_server({**settings, **{name: files[name] for name in given}}) as server:
        assert 2 == server.process.wait(30)
        assert message in server.log


def test_a_file_that_is_not_there_is_named(settings: Settings, files: dict[str, Path]) -> None:
    with failing_server({**settings, "certfile": "/nowhere.pem", "keyfile": files["keyfile"]}) as server:
        assert 2 == server.process.wait(30)
        assert "/nowhere.pem: there is no such file" in server.log
