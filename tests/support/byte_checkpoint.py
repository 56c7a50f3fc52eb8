"""A checkpoint directory without weights for the scripted device: one token for each byte, so that tests can read tokens."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, TURN = "<|bos|>", "<|eos|>", "<|turn|>"
SPECIAL_IDS = {BOS: 256, EOS: 257, TURN: 258}
VOCABULARY_SIZE = 259
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def write_byte_checkpoint(directory: Path, *, context_tokens: int = 512, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """`directory`, filled. Token b is byte b; 256, 257 and 258 are special."""
    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = {_byte_of(letter): letter for letter in alphabet}
    vocabulary = {by_byte[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_IDS])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(
        directory / "tokenizer_config.json", {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    )
    _write(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY_SIZE,
            "max_position_embeddings": context_tokens,
            "eos_token_id": SPECIAL_IDS[EOS],
        },
    )
    if chat_template is not None:
        (directory / "chat_template.jinja").write_text(chat_template)
    return directory


def _byte_of(letter: str) -> int:
    """The byte behind a letter of the GPT-2 alphabet: printable Latin-1 stands for itself, the rest counts on from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    code = ord(letter)
    return code if code in printable else others[code - 256]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
