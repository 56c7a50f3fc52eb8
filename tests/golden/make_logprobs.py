"""Writes the log probabilities that transformers gives to the default model's greedy answers: smollm2_logprobs.json.

They are the log-softmax of the logits in fp32, of the first tokens of some of the answers in smollm2_greedy.json.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from support.golden import LOGPROB_PROMPTS, LOGPROB_TOKENS, LOGPROBS, default_checkpoint, golden
from support.hugging_face import write_hugging_face

TOP: Final = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = write_hugging_face(default_checkpoint(), Path(place))
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    lines = [f" {json.dumps(name)}: {json.dumps(told(model, name))}" for name in LOGPROB_PROMPTS]
    Path(LOGPROBS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def told(model: Any, name: str) -> list[list[tuple[int, float]]]:
    """The likeliest tokens at each place of the answer, the likeliest first, which is the answer's token."""
    answer = golden(name)
    token_ids = [*answer.prompt_ids, *answer.output_ids[: LOGPROB_TOKENS - 1]]
    with torch.inference_mode():
        logprobs = model(torch.tensor([token_ids])).logits[0, len(answer.prompt_ids) - 1 :].log_softmax(dim=-1)
    top = logprobs.topk(TOP)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [[(token, round(value, 6)) for token, value in zip(ids, values, strict=True)] for ids, values in pairs]


if __name__ == "__main__":
    main()
