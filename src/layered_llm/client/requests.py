"""The requests that an OpenAI-compatible server understands, as values.

Must not know: httpx, streams, what an answer looks like.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

import attrs

ChatMessages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]

_API_KEY: Final = re.compile(r"[\x21-\x7e]*")
_VERSION_SEGMENT: Final = re.compile(r"v\d")
_ENDPOINTS: Final = ("/chat/completions", "/completions", "/models")


@attrs.frozen(kw_only=True)
class ApiRequest:
    """One call, ready to be sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any] | None


@attrs.frozen
class ApiServer:
    """Where a server is, and who we are to it."""

    root: str
    """What `/chat/completions` is appended to."""
    api_key: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "ApiServer":
        """The server meant by `url`, as people write it: with or without a scheme, `/v1`, an endpoint or a slash at the end.

        Raises ValueError for what is no HTTP URL, and for a key that no HTTP header can carry.
        """
        if api_key is not None and not _API_KEY.fullmatch(api_key):
            raise ValueError("an API key has visible ASCII characters only")
        return cls(root=_api_root(url), api_key=api_key)

    def models(self) -> ApiRequest:
        return ApiRequest(method="GET", url=f"{self.root}/models", headers=self._headers(), body=None)

    def chat(self, *, model: str, messages: ChatMessages, parameters: Mapping[str, Any]) -> ApiRequest:
        """A streamed chat completion; `parameters` are further fields of the body, sent as they are."""
        return self._stream("/chat/completions", {"model": model, "messages": list(messages), **parameters})

    def completion(self, *, model: str, prompt: Prompt, parameters: Mapping[str, Any]) -> ApiRequest:
        """A streamed text completion; `parameters` are further fields of the body, sent as they are."""
        return self._stream("/completions", {"model": model, "prompt": prompt, **parameters})

    def _stream(self, path: str, fields: Mapping[str, Any]) -> ApiRequest:
        body = {"stream_options": {"include_usage": True}, **fields, "stream": True}
        # A proxy that compresses a stream holds tokens back until its buffer is full.
        headers = {"accept": "text/event-stream", "accept-encoding": "identity", **self._headers()}
        return ApiRequest(method="POST", url=f"{self.root}{path}", headers=headers, body=body)

    def _headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


def _api_root(text: str) -> str:
    url = urlsplit(text if "://" in text else f"http://{text}")
    if (
        url.scheme not in {"http", "https"}
        or not _is_host(url.hostname)
        or not _has_port_or_none(url)
        or not text.isprintable()
    ):
        raise ValueError(f"not an HTTP URL: {text!r}")
    path = url.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    if not any(_VERSION_SEGMENT.match(segment) for segment in path.split("/")):
        path += "/v1"
    return urlunsplit((url.scheme, url.netloc, path, "", ""))


def _is_host(name: str | None) -> bool:
    """Whether a resolver can be asked for it: what has an empty part, or a long one, fails before that."""
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False


def _has_port_or_none(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:  # no number, or none of a port
        return False
