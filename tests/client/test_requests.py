import pytest

from layered_llm.client.requests import ApiRequest, ApiServer


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("h:8000", "http://h:8000/v1"),
        ("localhost", "http://localhost/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
        ("https://h/v1/completions?x=1#y", "https://h/v1"),
        ("https://h/v1/models", "https://h/v1"),
        ("https://h/proxy", "https://h/proxy/v1"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_server_urls_as_people_write_them(url: str, root: str) -> None:
    assert root == ApiServer.at(url).root


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://h",
        "http://",
        "unix:///run/x.sock",
        "http://h:port",
        "http://h:99999",
        "http:h",
        "http://h\0",
        "http://a..b",
        "h" * 64,
    ],
)
def test_no_http_url(url: str) -> None:
    with pytest.raises(ValueError, match="not an HTTP URL"):
        ApiServer.at(url)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "a key"])
def test_no_key_that_a_header_can_carry(key: str) -> None:
    with pytest.raises(ValueError, match="API key"):
        ApiServer.at("http://h", key)


def test_chat_request() -> None:
    messages = [{"role": "user", "content": "Hi"}]

    expected = ApiRequest(
        method="POST",
        url="http://h/v1/chat/completions",
        headers={"accept": "text/event-stream", "accept-encoding": "identity", "authorization": "Bearer k"},
        body={
            "model": "m",
            "messages": messages,
            "seed": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    assert expected == ApiServer.at("http://h", "k").chat(model="m", messages=messages, parameters={"seed": 7})


def test_caller_may_choose_the_stream_options() -> None:
    request = ApiServer.at("http://h").completion(model="m", prompt=[1, 2], parameters={"stream_options": None})

    assert {"model": "m", "prompt": [1, 2], "stream": True, "stream_options": None} == request.body


def test_api_key_stays_out_of_the_representation() -> None:
    assert "secret" not in repr(ApiServer.at("http://h", "secret"))
