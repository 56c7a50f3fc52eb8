"""A tokenizer with one token for each byte, a chat template and an end token, without any file: texts read as their tokens.

Must not know: engines, requests.
"""

import datetime as dt
import json
from typing import Any, Final

from layered_llm.text.chat_template import ChatTemplate
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.decode_tables import byte_alphabet
from layered_llm.text.tokenizer import Tokenizer

END: Final = "<|end|>"
"""The one special token: it ends an output, and a prompt may spell it out."""
END_ID: Final = 256
VOCABULARY_SIZE: Final = 257

_TEMPLATE: Final = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def byte_text_files() -> TextFiles:
    """Token b is byte b, and 256 is END."""
    return TextFiles(
        tokenizer=Tokenizer.from_json(json.dumps(_tokenizer_spec())),
        template=ChatTemplate(_TEMPLATE, variables={}, clock=lambda: dt.datetime(2025, 1, 1, tzinfo=dt.UTC)),
        eos_ids=frozenset({END_ID}),
    )


def _tokenizer_spec() -> dict[str, Any]:
    """The content of a tokenizer.json, as the `tokenizers` library documents it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": END_ID,
                "content": END,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": byte_alphabet(),
            "merges": [],
        },
    }
