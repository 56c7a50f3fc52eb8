import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import jinja2
import pytest
import tokenizers
import transformers
from tokenizers import AddedToken, processors

from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import NEXT_TURN, Prompt, Rendering
from layered_llm.text.checkpoint_text import CheckpointFiles, TextFiles, read_text_files
from layered_llm.text.prompt_tokens import PromptReader
from layered_llm.transport.http.openai.schema.messages import parse_messages
from support.chat_templates import STYLES, Style
from support.golden import default_checkpoint
from support.text_tokenizers import byte_level_pipeline

Conversation = list[dict[str, Any]]

LIMITS = EngineLimits(context_tokens=8192, vocabulary_size=1 << 20)
TODAY = dt.datetime(2025, 3, 9)

HELLO: Conversation = [{"role": "user", "content": "  Hello <b>\n"}]
LONGER: Conversation = [
    {"role": "system", "content": " Be brief.\n"},
    *HELLO,
    {"role": "assistant", "content": "日本 👨‍👩‍👧\n"},
    {"role": "user", "content": "{{ 7 }} <|im_end|></s>"},
]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "multiply", "arguments": {"a": 6, "b": ["é", None, 1.5]}}}
HISTORY: Conversation = [
    {"role": "user", "content": "6 * 7?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"product": 42}', "tool_call_id": "abcdefghi", "name": "multiply"},
]
THOUGHTS: Conversation = [*HELLO, {"role": "assistant", "content": "42", "reasoning_content": "\n6 * 7 is 42\n"}]
CONVERSATIONS = {"one": HELLO, "longer": LONGER, "history": HISTORY, "thoughts": THOUGHTS}
CASES = [(style, name) for style in (*STYLES, "smollm2") for name in CONVERSATIONS if (style, name) != ("smollm2", "history")]
"""SmolLM2's template concatenates the content, which transformers leaves out where it is null."""
RENDERINGS = {
    "next": NEXT_TURN,
    "none": Rendering(add_generation_prompt=False),
    "continued": Rendering(add_generation_prompt=False, continue_final_message=True),
}


def write_style(style: Style, directory: Path) -> None:
    """A tokenizer that puts bos before a plain text, so that a second one would show."""
    pipeline: tokenizers.Tokenizer = byte_level_pipeline()
    pipeline.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in style.special])
    bos, eos = style.special[0], style.special[-1]
    bos_id = pipeline.token_to_id(bos)
    pipeline.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    pipeline.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "chat_template": style.template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_default(directory: Path) -> None:
    """The default model's tokenizer as transformers reads it."""
    files = CheckpointFiles.of(default_checkpoint())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (directory / name).write_text(files.read(name) or "", encoding="utf-8")


@attrs.frozen(kw_only=True)
class Both:
    """A checkpoint's files as read here and by transformers."""

    files: TextFiles
    reference: Any
    variables: Mapping[str, object]
    """What a request gives the template."""

    def ours(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> list[int] | str:
        """The ids, or the words of the template's own error."""
        rendering = attrs.evolve(how, variables=json.dumps(dict(self.variables)))
        prompt = Prompt.of_chat(parse_messages("messages", messages), rendering)
        tokens = PromptReader(RequestId(1), self.files, LIMITS).tokens(prompt)
        return tokens.message.partition(": ")[2] if isinstance(tokens, Rejected) else list(tokens)

    def theirs(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> list[int] | str:
        asked = {"add_generation_prompt": how.add_generation_prompt, "continue_final_message": how.continue_final_message}
        try:
            ids: list[int] = self.reference.apply_chat_template(messages, return_dict=False, **asked, **self.variables)
        except (jinja2.TemplateError, ValueError) as error:
            return str(error)
        return ids


@pytest.fixture(scope="module")
def open_both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Both]:
    """Each style is read once: transformers takes seconds for it."""
    opened: dict[str, Both] = {}

    def get(name: str) -> Both:
        if name not in opened:
            opened[name] = _open(name, tmp_path_factory.mktemp(name))
        return opened[name]

    return get


def _open(name: str, directory: Path) -> Both:
    style = STYLES.get(name)
    if style is None:
        write_default(directory)
    else:
        write_style(style, directory)
    return Both(
        files=read_text_files(directory, clock=lambda: TODAY),
        reference=transformers.AutoTokenizer.from_pretrained(directory),
        variables={} if style is None else style.variables,
    )


@pytest.mark.parametrize("rendering", RENDERINGS)
@pytest.mark.parametrize(("style", "conversation"), CASES)
def test_a_conversation_has_the_ids_that_transformers_gives_it(
    style: str, conversation: str, rendering: str, open_both: Callable[[str], Both]
) -> None:
    both, messages, how = open_both(style), CONVERSATIONS[conversation], RENDERINGS[rendering]

    expected, ids = both.theirs(messages, how), both.ours(messages, how)

    assert isinstance(expected, str) == isinstance(ids, str)
    assert expected == ids or isinstance(ids, str)


@pytest.mark.parametrize("messages", [[*HELLO, *HELLO], [{"role": "assistant", "content": "a"}], [*HELLO, *LONGER]])
def test_a_template_refuses_in_the_words_that_transformers_hands_on(
    messages: Conversation, open_both: Callable[[str], Both]
) -> None:
    both = open_both("mistral")
    words = both.ours(messages, NEXT_TURN)

    assert isinstance(words, str)
    assert both.theirs(messages, NEXT_TURN) == words


def test_a_turn_of_calls_alone_is_empty_for_a_template_that_knows_no_calls(open_both: Callable[[str], Both]) -> None:
    template = open_both("smollm2").files.template
    assert template is not None
    text = template.render(parse_messages("messages", HISTORY))

    assert isinstance(text, str)
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n" in text
