"""The tables of fields against the lists of other servers: what changes an answer is had or refused, never ignored."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema import endpoint_fields
from layered_llm.transport.http.openai.schema.body_fields import STREAM_OPTIONS
from layered_llm.transport.http.openai.schema.requests import parse_chat, parse_completion
from layered_llm.transport.http.openai.schema.unsupported import WITHOUT_EFFECT, Neutral
from layered_llm.transport.http.sglang import generate_body
from layered_llm.transport.http.vllm import tokenizer_bodies
from support import peer_fields

ODD: dict[str, Any] = {"x": [1, "y"]}
"""A value that says of no field what a server does anyway."""


def parse_sampling(fields: bytes) -> object:
    return generate_body.parse_generate(b'{"text": "x", "sampling_params": %b}' % fields)


def parse_stream_options(fields: bytes) -> object:
    return parse_chat(b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": %b}' % fields)


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where fields are given."""

    parse: Callable[[bytes], object]
    base: dict[str, Any]
    supported: Iterable[str]
    refused: Neutral
    peers: frozenset[str]
    place: str = ""
    has_no_other_effect: bool = False
    """Whatever it does not know changes nothing of what it answers."""

    def parsed(self, **fields: object) -> object:
        return self.parse(json.dumps({**self.base, **fields}).encode())


ENDPOINTS = {
    "chat": Endpoint(
        parse=parse_chat,
        base={"messages": [{"role": "user", "content": "x"}]},
        supported=tuple(endpoint_fields.CHAT),
        refused=endpoint_fields.REFUSED_IN_CHAT,
        peers=peer_fields.CHAT_NAMES,
    ),
    "completions": Endpoint(
        parse=parse_completion,
        base={"prompt": "x"},
        supported=tuple(endpoint_fields.COMPLETIONS),
        refused=endpoint_fields.REFUSED_IN_COMPLETIONS,
        peers=peer_fields.COMPLETION_NAMES,
    ),
    "generate": Endpoint(
        parse=generate_body.parse_generate,
        base={"text": "x"},
        supported=tuple(generate_body.GENERATE),
        refused=generate_body.REFUSED_IN_GENERATE,
        peers=peer_fields.GENERATE_NAMES | peer_fields.SAMPLING_NAMES,
    ),
    "sampling_params": Endpoint(
        parse=parse_sampling,
        base={},
        supported=tuple(generate_body.SAMPLING_PARAMS),
        refused=generate_body.REFUSED_IN_SAMPLING_PARAMS,
        peers=peer_fields.SAMPLING_NAMES,
        place="sampling_params.",
    ),
    "tokenize": Endpoint(
        parse=tokenizer_bodies.parse_tokenize,
        base={"prompt": "x"},
        supported=tuple(tokenizer_bodies.TOKENIZE),
        refused=tokenizer_bodies.REFUSED_IN_TOKENIZE,
        peers=peer_fields.TOKENIZE_NAMES,
        has_no_other_effect=True,
    ),
    "detokenize": Endpoint(
        parse=tokenizer_bodies.parse_detokenize,
        base={"tokens": [1]},
        supported=tuple(tokenizer_bodies.DETOKENIZE),
        refused={},
        peers=peer_fields.DETOKENIZE_NAMES,
        has_no_other_effect=True,
    ),
    "stream_options": Endpoint(
        parse=parse_stream_options,
        base={},
        supported=tuple(STREAM_OPTIONS),
        refused={},
        peers=peer_fields.STREAM_OPTION_NAMES,
    ),
}
NOT_OF_THE_ENDPOINT = {
    "chat": {"image_data"},
    "generate": {"prompt"},
    "sampling_params": {"prompt", "image_data", "stream", "stream_options"},
    "tokenize": {"content"},
}
"""Names of the peers' lists that an endpoint has by another rule: as a required field's absence, or as a member's own."""


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_field_of_the_peers_is_had_refused_or_known_to_be_without_effect(name: str) -> None:
    endpoint = ENDPOINTS[name]
    known = {*endpoint.supported} | endpoint.refused.keys() | WITHOUT_EFFECT.keys()

    assert set() == endpoint.peers - known - NOT_OF_THE_ENDPOINT.get(name, set())


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_field_is_in_one_table_of_an_endpoint_alone(name: str) -> None:
    endpoint = ENDPOINTS[name]

    assert set() == {*endpoint.supported} & endpoint.refused.keys()
    assert set() == endpoint.refused.keys() & WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_field_that_changes_the_answer_is_refused_by_its_name(name: str) -> None:
    endpoint = ENDPOINTS[name]
    told = {field: endpoint.parsed(**{field: ODD}) for field in endpoint.refused}

    assert {field: endpoint.place + field for field in told} == {
        field: error.param for field, error in told.items() if isinstance(error, ApiError) and error.status == 400
    }


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_value_that_says_what_the_server_does_anyway_changes_nothing(name: str) -> None:
    endpoint = ENDPOINTS[name]
    bare = endpoint.parsed()
    values = [(field, value) for field, neutral in endpoint.refused.items() for value in (None, *neutral)]

    assert [] == [(field, value) for field, value in values if endpoint.parsed(**{field: value}) != bare]


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_field_without_effect_changes_nothing_whatever_its_value(name: str) -> None:
    endpoint = ENDPOINTS[name]
    others = {*WITHOUT_EFFECT} | (peer_fields.ALL_NAMES if endpoint.has_no_other_effect else set())
    names = others - {*endpoint.supported} - endpoint.refused.keys()
    bare = endpoint.parsed()

    assert [] == [field for field in sorted(names) if endpoint.parsed(**{field: ODD}) != bare]


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_field_that_an_endpoint_has_is_read(name: str) -> None:
    """No reader takes the odd value, so that none can have skipped it."""
    endpoint = ENDPOINTS[name]
    takes_any_object = {"chat_template_kwargs", "stream_options", "sampling_params"}

    skipped = {
        field for field in endpoint.supported if not isinstance(endpoint.parsed(**{**endpoint.base, field: ODD}), ApiError)
    }

    assert set() == skipped - takes_any_object


def test_the_recorded_list_of_the_openai_library_is_that_of_the_installed_one() -> None:
    from openai.types import chat, completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    base = chat_create_params.CompletionCreateParamsBase.__annotations__
    completion_base = completion_create_params.CompletionCreateParamsBase.__annotations__

    assert {*peer_fields.OPENAI_CHAT} == {*base, "stream"}
    assert {*peer_fields.OPENAI_COMPLETION} == {*completion_base, "stream"}
    assert {*peer_fields.OPENAI_STREAM_OPTIONS} == {*chat.ChatCompletionStreamOptionsParam.__annotations__}


@pytest.mark.parametrize(
    ("name", "field", "hint"),
    [
        ("chat", "max_new_tokens", "give max_tokens"),
        ("sampling_params", "max_tokens", "give max_new_tokens"),
        ("generate", "temperature", "give sampling_params.temperature"),
        ("generate", "n_predict", "give sampling_params.max_new_tokens"),
        ("completions", "rid", "give request_id"),
    ],
)
def test_a_refusal_names_the_field_to_give_instead(name: str, field: str, hint: str) -> None:
    refused = ENDPOINTS[name].parsed(**{field: 7})

    assert isinstance(refused, ApiError)
    assert hint in refused.message
