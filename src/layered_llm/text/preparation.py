"""From what a client asked to what the scheduler admits: template, tokens, every check that needs neither pages nor a queue.

Must not know: which requests are open, queues, pages.

Invariant: `Preparation.run` reads only what never changes, so that it may run in any thread, and be forgotten half-way.
"""

from array import array
from collections.abc import Sequence
from typing import Final

import attrs

from layered_llm.domain.columns import pack_f32, pack_i32, rows
from layered_llm.domain.messages.api_text import Rejected, Submit
from layered_llm.domain.messages.text_scheduler import Admit, TokenSampling
from layered_llm.domain.sampling import DecidedSampling, SamplingParams
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.prompt_tokens import PromptWork, prompt_param
from layered_llm.text.stop_strings import StopAutomaton
from layered_llm.text.text_offsets import offsets_of_text
from layered_llm.text.tokenizer import CannotEncode, TokenIds

LONG_WORK_CHARS: Final = 4_000
"""About 1 ms of tokenizing (0.25 µs per character with SmolLM2's tokenizer on one core of 2025)."""
MAX_PROMPT_LOGPROBS: Final = 1 << 18
"""Of one request: a prompt of 128 Ki tokens with one beside each. An API process takes some 4 µs for each."""
_STOP_CHAR_COST_CHARS: Final = 4
_CHOICE_COST_CHARS: Final = 8
_ECHO_COST_CHARS: Final = 4
_OFFSET_COST_CHARS: Final = 8
"""Of a token; a text has some four characters of each."""


@attrs.frozen(kw_only=True)
class EndTokens:
    """The token ids at which a request ends."""

    ids: frozenset[int]
    """eos ids, none under ignore_eos, and the request's stop token ids."""
    named: frozenset[int]
    """Those that only the request named: a match with one of them is shown to the client."""


@attrs.frozen(kw_only=True)
class Prepared:
    """A request that may be admitted, and what the text side needs to follow its output."""

    admit: Admit
    incarnation: int
    params: SamplingParams
    stops: StopAutomaton | None
    end_tokens: EndTokens
    echo: str = ""
    """The prompt's text, where each choice begins with it."""
    echo_offsets: bytes = b""
    """Where each of the prompt's tokens begins in it, packed, where log probabilities show them."""


@attrs.frozen(kw_only=True)
class Preparation(PromptWork):
    """The work that a Submit asks for before anything is decided about it."""

    _message: Submit
    _token_ids: TokenIds

    @property
    def cost_chars(self) -> int:
        """What `run` costs, as so many characters of text to tokenize."""
        params = self._message.params
        words_chars = sum(map(len, params.stop)) + sum(map(len, params.bad_words))
        parameters = (
            _STOP_CHAR_COST_CHARS * words_chars
            + len(params.logit_bias)
            + len(params.allowed_token_ids or ())
            + _CHOICE_COST_CHARS * (params.n - 1)
        )
        return self._reader.chars(self._message.prompt) + parameters + (self._echo_cost_chars() if params.echo else 0)

    def _echo_cost_chars(self) -> int:
        prompt = self._message.prompt
        echoed_tokens = rows("i", prompt.token_ids or b"")
        places = echoed_tokens + len(prompt.text or "") // 4 if self._has_echo_offsets() else 0
        return _ECHO_COST_CHARS * echoed_tokens + _OFFSET_COST_CHARS * places

    def run(self) -> Prepared | Rejected:
        """Pure, thread-safe, and without any effect if its result is dropped."""
        decided = self._reader.files.defaults.applied(self._message.params)
        least_output = 0 if decided.max_tokens == 0 else 1
        tokens = self._reader.tokens(
            self._message.prompt,
            output_tokens=1 if decided.max_tokens is None else decided.max_tokens,
            least_output=least_output,
        )
        if isinstance(tokens, Rejected):
            return tokens
        refused = self._judge(tokens)
        if refused is None and len(tokens) + least_output > self._reader.limits.context_tokens:
            refused = self._reader.too_long(self._message.prompt, str(len(tokens)), least_output)
        return refused or self._judge_params(len(tokens)) or self._prepared(tokens, decided)

    def _judge(self, tokens: "array[int]") -> Rejected | None:
        fault = self._token_ids.fault(tokens)
        if tokens and fault is None:
            return None
        param = prompt_param(self._message.prompt)
        if not tokens:
            return self._reader.reject(RejectReason.EMPTY_PROMPT, "The prompt has no tokens; at least one is needed.", param)
        return self._reader.reject(RejectReason.TOKEN_OUT_OF_VOCABULARY, f"The prompt holds token id {fault}.", param)

    def _judge_params(self, prompt_tokens: int) -> Rejected | None:
        params, refused = self._message.params, None
        if params.stop_token_ids:
            refused = self._judge_ids("stop_token_ids", params.stop_token_ids)
        if refused is None and params.logit_bias:
            refused = self._judge_ids("logit_bias", [token for token, _ in params.logit_bias])
        if refused is None and params.allowed_token_ids is not None:
            refused = self._judge_allowed(params.allowed_token_ids)
        if refused is None and params.prompt_logprobs is not None:
            refused = self._judge_prompt_logprobs(prompt_tokens, params.prompt_logprobs)
        return refused

    def _judge_allowed(self, allowed: Sequence[int]) -> Rejected | None:
        """Whether a token is left before `min_tokens`, where none may end the output."""
        params, refused = self._message.params, self._judge_ids("allowed_token_ids", allowed)
        if refused or not params.min_tokens or params.max_tokens == 0 or not self._end_tokens().ids.issuperset(allowed):
            return refused
        message = f"allowed_token_ids holds only tokens that end the output, which min_tokens={params.min_tokens} forbids."
        return self._reader.reject(RejectReason.INVALID_PARAMETER, message, "allowed_token_ids")

    def _judge_prompt_logprobs(self, prompt_tokens: int, beside: int) -> Rejected | None:
        """They leave in one piece with a choice's first token, which other choices' may share."""
        choices = self._message.params.n
        count = prompt_tokens * (1 + beside) * choices
        if count <= MAX_PROMPT_LOGPROBS:
            return None
        message = (
            f"{count} log probabilities would be told of the prompt: those of {prompt_tokens} tokens and of the "
            f"{beside} likeliest beside each, n={choices} times. At most {MAX_PROMPT_LOGPROBS} are."
        )
        return self._reader.reject(RejectReason.INVALID_PARAMETER, message, "prompt_logprobs")

    def _judge_ids(self, param: str, token_ids: Sequence[int]) -> Rejected | None:
        fault = self._token_ids.fault(token_ids)
        return None if fault is None else self._reader.reject(RejectReason.INVALID_PARAMETER, f"{param} holds {fault}.", param)

    def _prepared(self, tokens: "array[int]", decided: DecidedSampling) -> Prepared | Rejected:
        params, room = self._message.params, self._reader.limits.context_tokens - len(tokens)
        max_tokens = room if decided.max_tokens is None else max(min(decided.max_tokens, room), 1)
        end_tokens = EndTokens(ids=frozenset(), named=frozenset()) if params.max_tokens == 0 else self._end_tokens()
        bad_words = self._bad_words() if params.bad_words else ()
        if isinstance(bad_words, Rejected):
            return bad_words
        admit = Admit(
            request=self.request,
            choices=params.n,
            prompt_ids=pack_i32(tokens),
            max_tokens=max_tokens,
            placement=self._message.placement,
            output_ids=self._message.output_ids,
            sampling=self._token_sampling(
                decided, min_tokens=min(decided.min_tokens, max_tokens), end_ids=end_tokens.ids, bad_words=bad_words
            ),
            reads_cache=params.prompt_logprobs is None,
        )
        echo, offsets = "", b""
        if params.echo:
            echo = self._echo(tokens)
            if self._has_echo_offsets():
                offsets = pack_i32(offsets_of_text(self._reader.files.tokenizer, tokens, echo))
        return Prepared(
            admit=admit,
            incarnation=self._message.incarnation,
            params=params,
            stops=StopAutomaton.of(params.stop) if params.stop else None,
            end_tokens=end_tokens,
            echo=echo,
            echo_offsets=offsets,
        )

    def _bad_words(self) -> tuple[bytes, ...] | Rejected:
        """The tokens of each bad word as vLLM has them: as a text begins with it, and with a space before it, where that makes
        as many tokens of it of which the first is another."""
        found: list[list[int]] = []
        for word in self._message.params.bad_words:
            bare, spaced = (self._encoded(prefix + word.lstrip()) for prefix in ("", " "))
            if not bare:
                message = f"bad_words holds {word!r}, which has no tokens."
                return self._reader.reject(RejectReason.INVALID_PARAMETER, message, "bad_words")
            found.append(bare)
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                found.append(spaced)
        return self._judge_ids("bad_words", [token for tokens in found for token in tokens]) or tuple(map(pack_i32, found))

    def _encoded(self, text: str) -> list[int]:
        """No tokens of what cannot be encoded."""
        try:
            return self._reader.files.tokenizer.encode(text, add_special_tokens=False)
        except CannotEncode:
            return []

    def _echo(self, tokens: "array[int]") -> str:
        """The assistant's last turn, or a text as the client wrote it; anything else as all of its tokens spell it."""
        prompt = self._message.prompt
        if prompt.chat is not None:
            return (prompt.chat[-1].content or "") if prompt.chat[-1].role == "assistant" else ""
        if prompt.text is not None and prompt.keep_last_tokens is None:
            return prompt.text
        return self._reader.files.tokenizer.decode(tokens, skip_special_tokens=False)

    def _has_echo_offsets(self) -> bool:
        return self._message.params.prompt_logprobs is not None and self._message.prompt.chat is None

    def _end_tokens(self) -> EndTokens:
        params = self._message.params
        ending = frozenset() if params.ignore_eos else self._reader.files.eos_ids
        return EndTokens(ids=ending.union(params.stop_token_ids), named=frozenset(params.stop_token_ids) - ending)

    def _token_sampling(
        self, decided: DecidedSampling, *, min_tokens: int, end_ids: frozenset[int], bad_words: tuple[bytes, ...]
    ) -> TokenSampling:
        params = self._message.params
        biases = dict(params.logit_bias)
        return TokenSampling(
            temperature=decided.temperature,
            top_p=decided.top_p,
            top_k=decided.top_k,
            seed=self._message.seed,
            min_tokens=min_tokens,
            end_ids=tuple(sorted(end_ids)),
            min_p=decided.min_p,
            repetition_penalty=decided.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            biased_ids=pack_i32(biases),
            biases=pack_f32(biases.values()),
            top_n_sigma=params.top_n_sigma,
            allowed_ids=pack_i32(params.allowed_token_ids or ()),
            bad_words=bad_words,
            prompt_logprobs=params.prompt_logprobs,
            logprobs=params.logprobs,
            missing_ranges=self._token_ids.missing_ranges,
        )
