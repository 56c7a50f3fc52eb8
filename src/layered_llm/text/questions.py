"""Questions about the tokenizer: the tokens of a prompt, the text of tokens, what the checkpoint says of both.

Must not know: which questions are open, queues, sampling.

Invariant: `Answering.run` reads only what never changes, so that it may run in any thread, and be forgotten half-way.
"""

from typing import Final, assert_never

import attrs

from layered_llm.domain.columns import pack_i32, rows, unpack_i32
from layered_llm.domain.messages.api_text import (
    MAX_TOLD_TOKENS,
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    TextQuestion,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.prompt_tokens import PromptReader, PromptWork, prompt_param
from layered_llm.text.tokenizer import TokenIds

MAX_ASKED_CHARS: Final = 8 * MAX_TOLD_TOKENS
"""Of a prompt whose tokens are asked for. The tokenizer takes 230 bytes of memory for each token, however many are told."""
MAX_TOLD_CHARS: Final = 1 << 23
"""Of a text; as UTF-8 half of what a message may have."""
_CHARS_PER_SPELLING: Final = 4
_CHARS_PER_TOKEN: Final = 4
_TOLD_CHARS_PER_CHAR: Final = 64


@attrs.frozen(kw_only=True)
class Answering(PromptWork):
    """The work that a question asks for."""

    _question: TextQuestion

    @classmethod
    def of(cls, question: TextQuestion, reader: PromptReader) -> "Answering":
        conversation = None
        if isinstance(question, Tokenize) and reader.chars(question.prompt) <= MAX_ASKED_CHARS:
            conversation = reader.conversation(question.prompt)
        return cls(
            request=question.request, tenant=question.tenant, conversation=conversation, question=question, reader=reader
        )

    @property
    def cost_chars(self) -> int:
        """What `run` costs, as so many characters of text to tokenize."""
        match self._question:
            case Tokenize(prompt=prompt, with_spellings=with_spellings):
                return self._reader.chars(prompt) * (_CHARS_PER_SPELLING if with_spellings else 1)
            case Detokenize(token_ids=token_ids):
                return rows("i", token_ids) * _CHARS_PER_TOKEN
            case DescribeTokenizer():
                return len(self._reader.files.config) // _TOLD_CHARS_PER_CHAR
            case _:
                assert_never(self._question)

    def run(self) -> TextAnswer | Rejected:
        """Pure, thread-safe, and without any effect if its result is dropped."""
        match self._question:
            case Tokenize():
                return self._tokenized(self._question)
            case Detokenize():
                return self._detokenized(self._question)
            case DescribeTokenizer(request=request):
                return TokenizerDescribed(request=request, config=self._reader.files.config)
            case _:
                assert_never(self._question)

    def _tokenized(self, question: Tokenize) -> Tokenized | Rejected:
        prompt = question.prompt
        chars = self._reader.chars(prompt)
        if chars > MAX_ASKED_CHARS:
            message = f"The prompt has {chars} characters; at most {MAX_ASKED_CHARS} are turned into tokens."
            return self._reader.reject(RejectReason.INVALID_PARAMETER, message, prompt_param(prompt))
        tokens = self._reader.tokens(prompt, most_tokens=MAX_TOLD_TOKENS)
        if isinstance(tokens, Rejected) and tokens.reason is not RejectReason.CONTEXT_LENGTH_EXCEEDED:
            return tokens
        if isinstance(tokens, Rejected) or len(tokens) > MAX_TOLD_TOKENS:
            message = f"The prompt has more than {MAX_TOLD_TOKENS} tokens, and no more are told."
            return self._reader.reject(RejectReason.INVALID_PARAMETER, message, prompt_param(prompt))
        spellings = tuple(map(self._reader.files.tokenizer.spelling, tokens)) if question.with_spellings else None
        return Tokenized(request=question.request, token_ids=pack_i32(tokens), spellings=spellings)

    def _detokenized(self, question: Detokenize) -> Detokenized | Rejected:
        tokens, tokenizer = unpack_i32(question.token_ids), self._reader.files.tokenizer
        fault = TokenIds.of(tokenizer, model_size=tokenizer.vocabulary_size).fault(tokens)
        if fault is not None:
            return self._reader.reject(RejectReason.TOKEN_OUT_OF_VOCABULARY, f"tokens holds {fault}.", "tokens")
        text = tokenizer.decode(tokens, skip_special_tokens=question.skip_special_tokens)
        if len(text) > MAX_TOLD_CHARS:
            message = f"The text has {len(text)} characters; at most {MAX_TOLD_CHARS} are told."
            return self._reader.reject(RejectReason.INVALID_PARAMETER, message, "tokens")
        return Detokenized(request=question.request, text=text)
