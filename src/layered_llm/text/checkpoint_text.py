"""The text side of a checkpoint: its tokenizer, its chat template, the tokens that end an output.

Must not know: weights, requests. Which format the checkpoint has only `CheckpointFiles` knows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import NO_DEFAULTS, SamplingDefaults
from layered_llm.formats.gguf import GgufError, GgufFile
from layered_llm.formats.untrusted_files import MOST_JSON_BYTES, UnreadableFile, parse_json, read_text
from layered_llm.text.chat_template import ChatTemplate, Clock
from layered_llm.text.declared_tokens import TokenFiles, UnsupportedDeclaration
from layered_llm.text.decode_tables import UnsupportedTokenizer
from layered_llm.text.gguf_conventions import UnsupportedGguf
from layered_llm.text.gguf_tokenizer import tokenizer_files
from layered_llm.text.tokenizer import Tokenizer

_TEXT_KEYS: Final = ("tokenizer.", "general.sampling.")
_MOST_BYTES: Final = MappingProxyType({"tokenizer.json": 100 << 20})
"""Of files that may be larger than others: the largest vocabularies need 40 MB."""


class UnreadableCheckpoint(Exception):  # noqa: N818 - states what was found
    """A text file of the checkpoint is missing or broken; the message names the file and how to mend it."""


@attrs.frozen
class CheckpointFiles:
    """Where the files are read from."""

    _model: Path
    _made: Mapping[str, str] | None
    """The files that a GGUF file's metadata make; None for a directory, which has them."""

    @classmethod
    def of(cls, model: Path) -> "CheckpointFiles":
        """Of a GGUF file or a Hugging Face directory. Raises UnreadableCheckpoint."""
        if model.is_dir():
            return cls(model, None)
        try:
            file = GgufFile.open(model)
            metadata = {key: file.get(key) for key in file.keys if key.startswith(_TEXT_KEYS)}
            return cls(model, tokenizer_files(metadata))
        except GgufError as error:
            raise UnreadableCheckpoint(str(error)) from error
        except UnsupportedGguf as error:
            raise UnreadableCheckpoint(f"{model}: {error}") from error

    def read(self, name: str) -> str | None:
        """None where there is no such file. Raises UnreadableCheckpoint."""
        return read_file(self._model / name) if self._made is None else self._made.get(name)

    def place(self, name: str) -> str:
        """The file in words, for messages."""
        return str(self._model / name) if self._made is None else f"{name} of {self._model}"


def read_file(path: Path) -> str | None:
    """None where there is no such file. Raises UnreadableCheckpoint."""
    try:
        return read_text(path, most_bytes=_MOST_BYTES.get(path.name, MOST_JSON_BYTES))
    except UnreadableFile as error:
        raise UnreadableCheckpoint(str(error)) from error


_DEFAULTS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Names in generation_config.json, and ours. The others are of Hugging Face's own loop."""
_NO_TOP_K: Final = -1
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_GENERATION_CONFIG: Final = "generation_config.json"


@attrs.frozen(kw_only=True)
class TextFiles:
    """What the text side of an engine knows of its checkpoint."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model takes no conversations."""
    eos_ids: frozenset[int]
    """Every id that the checkpoint's files name as an end of output."""
    config: str = "{}"
    """What tokenizer_config.json says, the chat template included, as one JSON object."""
    defaults: SamplingDefaults = NO_DEFAULTS
    """What a request that does not say is sampled with."""


def read_text_files(model: Path, *, clock: Clock, template_file: Path | None = None, has_defaults: bool = True) -> TextFiles:
    """Reads tokenizer.json, tokenizer_config.json, the template, and eos from config.json and generation_config.json.

    `model` is a Hugging Face directory, in which only tokenizer.json must exist, or a GGUF file. `clock` is what templates call
    for today's date, `template_file` stands for the model's own template. Without `has_defaults` the model has no word in how
    it is sampled. Raises UnreadableCheckpoint.
    """
    files = CheckpointFiles.of(model)
    config = _read_json(files, _TOKENIZER_CONFIG)
    tokenizer = _read_tokenizer(files, config)
    named = tokenizer.named_tokens
    source = _template_source(files, config) if template_file is None else _needed(template_file)
    eos_ids = _eos_ids(files, tokenizer)
    return TextFiles(
        tokenizer=tokenizer,
        template=None if source is None else ChatTemplate(source, variables=named, clock=clock),
        eos_ids=eos_ids,
        config=_as_json(_told_config(config, source, tokenizer, eos_ids)),
        defaults=_defaults(files) if has_defaults else NO_DEFAULTS,
    )


def _read_tokenizer(files: CheckpointFiles, config: Mapping[str, Any]) -> Tokenizer:
    text = files.read(_TOKENIZER)
    if text is None:
        raise UnreadableCheckpoint(f"{files.place(_TOKENIZER)} does not exist; save the model's fast tokenizer there")
    try:
        return Tokenizer.from_json(
            text,
            TokenFiles(
                config=config,
                special_tokens_map=_read_json(files, "special_tokens_map.json"),
                added_tokens=_read_json(files, "added_tokens.json"),
            ),
        )
    except UnsupportedDeclaration as error:
        raise UnreadableCheckpoint(f"{files.place(_TOKENIZER_CONFIG)} or a file beside it: {error}") from error
    except UnsupportedTokenizer as error:
        raise UnreadableCheckpoint(f"{files.place(_TOKENIZER)}: {error}") from error


def _template_source(files: CheckpointFiles, config: Mapping[str, Any]) -> str | None:
    """The first of chat_template.jinja, tokenizer_config.json's chat_template, and chat_template.json."""
    source = files.read("chat_template.jinja")
    if source is not None:
        return source
    if config.get("chat_template") is not None:
        return _named_default(files.place(_TOKENIZER_CONFIG), config["chat_template"])
    older = _read_json(files, "chat_template.json")
    return _named_default(files.place("chat_template.json"), older.get("chat_template"))


def _named_default(place: str, entry: object) -> str | None:
    """A template, or of several named ones the one called "default"."""
    match entry:
        case None | str():
            return entry
        case list() if all(isinstance(named, dict) and isinstance(named.get("name"), str) for named in entry):
            templates = {named["name"]: named.get("template") for named in entry}
        case dict():
            templates = entry
        case _:
            raise UnreadableCheckpoint(f"{place}: chat_template must be a template or a list of named ones, got {entry!r:.80}")
    if not all(isinstance(template, str) for template in templates.values()):
        raise UnreadableCheckpoint(f"{place}: chat_template must be texts by name, got {entry!r:.80}")
    return templates.get("default")


def _eos_ids(files: CheckpointFiles, tokenizer: Tokenizer) -> frozenset[int]:
    """The union over all files: instruct models often list their end-of-turn token in one of them only."""
    config = _read_json(files, "config.json")
    generation = _read_json(files, _GENERATION_CONFIG)
    inner = config.get("text_config")
    entries = [
        *_named_ids(files.place("config.json"), config),
        *_named_ids(files.place("config.json"), inner if isinstance(inner, dict) else {}),
        *_named_ids(files.place(_GENERATION_CONFIG), generation),
    ]
    name = tokenizer.named_tokens.get("eos_token")
    named = None if name is None else tokenizer.id_of(name)
    return frozenset(entries if named is None else [*entries, named])


def _named_ids(place: str, config: Mapping[str, Any]) -> list[int]:
    entry = config.get("eos_token_id")
    ids = entry if isinstance(entry, list) else [] if entry is None else [entry]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise UnreadableCheckpoint(f"{place}: eos_token_id must be a token id or a list of them, got {entry!r:.80}")
    return ids


def _told_config(
    config: Mapping[str, Any], template: str | None, tokenizer: Tokenizer, eos_ids: frozenset[int]
) -> dict[str, Any]:
    """Clients want the named tokens as strings, and an end token even where only config.json names one."""
    named = tokenizer.named_tokens
    ends = sorted(filter(tokenizer.has, eos_ids))
    if "eos_token" not in named and ends:
        named = named | {"eos_token": tokenizer.spelling(ends[0])}
    return {**config, **named, "chat_template": template}


def _as_json(config: Mapping[str, Any]) -> str:
    """Without what Python's reader takes beyond JSON: NaN and the infinities become null."""
    text = json.dumps(config, separators=(",", ":"))
    if not any(word in text for word in ("NaN", "Infinity")):
        return text
    return json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":"))


def _defaults(files: CheckpointFiles) -> SamplingDefaults:
    """`max_new_tokens` is the most that any request gets, as in vLLM."""
    config = _read_json(files, _GENERATION_CONFIG)
    entries = {_DEFAULTS[name]: value for name, value in config.items() if name in _DEFAULTS and value is not None}
    if entries.get("top_k") == _NO_TOP_K:
        del entries["top_k"]
    try:
        return SamplingDefaults(**entries)
    except ParameterError as error:
        place = files.place(_GENERATION_CONFIG)
        raise UnreadableCheckpoint(f"{place}: {error.message}; --generation-config none leaves it aside") from error


def _needed(path: Path) -> str:
    text = read_file(path)
    if text is None:
        raise UnreadableCheckpoint(f"--chat-template {path}: there is no such file")
    return text


def _read_json(files: CheckpointFiles, name: str) -> dict[str, Any]:
    text = files.read(name)
    if text is None:
        return {}
    try:
        return parse_json(text, files.place(name))
    except UnreadableFile as error:
        raise UnreadableCheckpoint(str(error)) from error
