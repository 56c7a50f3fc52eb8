"""The tokens that files beside a tokenizer.json declare, and how they come into its vocabulary.

Must not know: where the files are, templates, requests.

Three files have had this task in turn, under changing names. What each of them is worth, and in which order tokens are added
(and with it which ids they get), is as in transformers 5 (`PreTrainedTokenizerBase._from_pretrained` and
`TokenizersBackend.__init__`): `added_tokens_decoder` of tokenizer_config.json makes the older files void; else
special_tokens_map.json has the last word on names, and added_tokens.json adds. A declared token that tokenizer.json has with
other flags replaces it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import tokenizers

from layered_llm.text.decode_tables import UnsupportedTokenizer

NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ID_DIGITS: Final = 20
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ADDED, _EXTRA, _OLD_EXTRA = "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"

Declared = str | tokenizers.AddedToken
"""A token of which the spelling is known, or how it is matched, too."""


class UnsupportedDeclaration(UnsupportedTokenizer):
    """A file beside the tokenizer.json declares what is no token; the message names the entry."""


@attrs.frozen(kw_only=True)
class TokenFiles:
    """What the files beside a tokenizer.json say, each empty where there is none."""

    config: Mapping[str, Any] = attrs.field(factory=dict)
    """tokenizer_config.json."""
    special_tokens_map: Mapping[str, Any] = attrs.field(factory=dict)
    """special_tokens_map.json."""
    added_tokens: Mapping[str, Any] = attrs.field(factory=dict)
    """added_tokens.json."""


@attrs.frozen(kw_only=True, eq=False)
class DeclaredTokens:
    """What they declare together."""

    named: Mapping[str, Declared]
    """By name (eos_token, …); names of the model's own, such as image_token, come last."""
    _extra: list[Declared]
    """Special tokens without a name."""
    _added: Mapping[int, tokenizers.AddedToken]
    """By the id that the file has, which only says in which order they are added."""
    _splits_special: bool

    @classmethod
    def of(cls, files: TokenFiles, in_tokenizer: Iterable[Mapping[str, Any]]) -> "DeclaredTokens":
        """`in_tokenizer` are the added tokens of the tokenizer.json. Raises UnsupportedDeclaration, which names the entry."""
        config = dict(files.config)
        own = {name: config.pop(name) for name in list(config) if _is_own_name(name) and isinstance(config[name], str)}
        if _OLD_EXTRA in config and not config.get(_EXTRA):
            config[_EXTRA] = config.pop(_OLD_EXTRA)
        own |= _taken_dict(config)
        if _ADDED in config:
            added = {_id(_ADDED, key): _token(_ADDED, entry) for key, entry in _object(_ADDED, config.pop(_ADDED)).items()}
        else:
            config |= _older_names(files.special_tokens_map, config)
            own |= _taken_dict(config)
            added = _older_tokens(files.added_tokens, config)
            added |= {entry["id"]: _token("added_tokens", entry) for entry in in_tokenizer}
        by_spelling = {token.content: token for token in added.values()}
        standard = {name: _declared(name, config[name]) for name in NAMES if config.get(name) is not None}
        later = {name: entry for name, entry in config.items() if _is_own_name(name) and _is_declared(entry)}
        named: dict[str, Declared | None] = dict.fromkeys(NAMES)
        named |= {name: by_spelling.get(_spelling(token), token) for name, token in standard.items()}
        named |= {name: _declared(name, entry) for name, entry in {**later, **own}.items()}
        known_names = {name: token for name, token in named.items() if token is not None}
        extra = config.get(_EXTRA) if _EXTRA in config else config.get(_OLD_EXTRA)
        splits = config.get("split_special_tokens", False)
        if type(splits) is not bool:
            raise UnsupportedDeclaration(f"split_special_tokens must be true or false, got {splits!r:.80}")
        return cls(named=known_names, extra=_declared_list(_EXTRA, extra), added=added, splits_special=splits)

    @property
    def spellings(self) -> dict[str, str]:
        """The named tokens as texts."""
        return {name: _spelling(token) for name, token in self.named.items()}

    def add_to(self, pipeline: tokenizers.Tokenizer) -> None:
        """Adds what the vocabulary lacks, and what it has otherwise."""
        new: list[Declared] = [token for _, token in sorted(self._added.items())]
        known = {token.content for token in pipeline.get_added_tokens_decoder().values()} | {_spelling(token) for token in new}
        for token in (*self.named.values(), *self._extra):
            if _spelling(token) not in known and token not in new:
                new.append(token)
        names = {_spelling(token) for token in self.named.values()}
        pipeline.add_tokens([_special(token, names) for token in new])
        pipeline.encode_special_tokens = self._splits_special


def _special(token: Declared, names: set[str]) -> tokenizers.AddedToken:
    if isinstance(token, str):
        return tokenizers.AddedToken(token, special=True)
    if token.content in names:
        token.special = True
    return token


def _older_names(special_tokens_map: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, entry in special_tokens_map.items():
        if name == _EXTRA and isinstance(entry, list):
            listed = [*_list(name, config.get(_EXTRA))]
            for token in entry:
                declared = _token(name, {**token, "special": True}) if isinstance(token, Mapping) else token
                if declared not in listed:
                    listed.append(declared)
            merged[name] = listed
        elif name != _EXTRA and isinstance(entry, Mapping):
            merged[name] = _token(name, {**entry, "special": True})
        else:
            merged[name] = entry
    return merged


def _older_tokens(added_tokens: Mapping[str, Any], config: Mapping[str, Any]) -> dict[int, tokenizers.AddedToken]:
    """They are special where a name is a plain text or special_tokens_map.json has it: an object of tokenizer_config.json is
    not looked into by then."""
    entries = [*(config.get(name) for name in NAMES), *_list(_EXTRA, config.get(_EXTRA))]
    special = {_spelling(entry) for entry in entries if isinstance(entry, str | tokenizers.AddedToken)}

    def made(spelling: str) -> tokenizers.AddedToken:
        is_special = spelling in special
        return tokenizers.AddedToken(spelling, normalized=not is_special, special=is_special)

    return {_id(f"added_tokens.json: {spelling!r:.80}", token): made(spelling) for spelling, token in added_tokens.items()}


def _taken_dict(config: dict[str, Any]) -> dict[str, Any]:
    """Extra tokens that have names; they are taken out of `config`."""
    return config.pop(_EXTRA) if isinstance(config.get(_EXTRA), dict) else {}


def _is_own_name(name: str) -> bool:
    return name.endswith("_token") and name not in NAMES


def _is_declared(entry: object) -> bool:
    """Other entries have such names, too, as add_bos_token has."""
    return isinstance(entry, str | tokenizers.AddedToken) or (isinstance(entry, Mapping) and "__type" in entry)


def _spelling(token: Declared) -> str:
    return token if isinstance(token, str) else token.content


def _declared(place: str, entry: object) -> Declared:
    match entry:
        case str() | tokenizers.AddedToken():
            return entry
        case Mapping():
            return _token(place, entry)
        case _:
            raise UnsupportedDeclaration(f"{place} must be a token, as a string or an object, got {entry!r:.80}")


def _declared_list(place: str, entry: object) -> list[Declared]:
    return [_declared(place, token) for token in _list(place, entry)]


def _list(place: str, entry: object) -> list[Any]:
    if entry is not None and not isinstance(entry, list):
        raise UnsupportedDeclaration(f"{place} must be a list of tokens, got {entry!r:.80}")
    return entry or []


def _token(place: str, entry: object) -> tokenizers.AddedToken:
    if isinstance(entry, tokenizers.AddedToken):
        return entry
    fields = _object(place, entry)
    content, flags = fields.get("content"), {name: fields[name] for name in _FLAGS if name in fields}
    if not isinstance(content, str):
        raise UnsupportedDeclaration(f"{place}: a token's content must be a string, got {content!r:.80}")
    for name, flag in flags.items():
        if type(flag) is not bool:
            raise UnsupportedDeclaration(f"{place}: {name} of {content!r:.80} must be true or false, got {flag!r:.80}")
    return tokenizers.AddedToken(content, **flags)


def _object(place: str, entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise UnsupportedDeclaration(f"{place} must be an object, got {entry!r:.80}")
    return entry


def _id(place: str, entry: object) -> int:
    """An id, which is a string where it is a key."""
    is_id = entry.isdecimal() and len(entry) < _ID_DIGITS if isinstance(entry, str) else type(entry) is int and entry >= 0
    if not is_id:
        raise UnsupportedDeclaration(f"{place}: {entry!r:.80} is no token id")
    return int(str(entry))
