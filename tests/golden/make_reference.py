"""Makes smollm2_greedy.json: greedy tokens of the default model, as transformers computes them in fp32."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers
from tqdm import tqdm

from layered_llm.service.model.checkpoint import default_gguf
from support.hugging_face import write_hugging_face

HELP = """\
Asks transformers (fp32, greedy, with a KV cache, one prompt at a time) for the answers to a fixed set of prompts, and writes
them as the reference that the server and the runtime are compared with. The model is the server's own default checkpoint, so
that the tokenizer and the chat template that are made for it are checked too: prompt ids are those of transformers.

One entry of "prompts":
  name        of the prompt; test ids are made of it
  text        a plain prompt, or
  messages    a conversation, rendered with the checkpoint's chat template
  ignore_eos  false: the answer ends with the first end token, which is its last id
  prompt_ids  token ids of the prompt
  output_ids  token ids of the answer
  margins     for each output id: its logit less that of the runner-up, to four places

A margin under 1e-3 is a near-tie: another order of the same sums may flip it, and everything after it. The program names such
positions and fails, since a reference of that kind proves nothing: change the prompt.
"""
REFERENCE = Path(__file__).with_name("smollm2_greedy.json")
LICENSE = Path(__file__).parents[2] / "LICENSE"
NEAR_TIE = 1e-3

CODE = '''\
def binary_search(items: list[int], wanted: int) -> int | None:
    """The index of `wanted` in sorted `items`, or None."""
    low, high = 0, len(items)
    while low < high:
'''
CONVERSATION = (
    ("system", "You answer in one short sentence."),
    ("user", "Which planet is the largest?"),
    ("assistant", "Jupiter is the largest planet of the solar system."),
    ("user", "And which one is the smallest?"),
)


@attrs.frozen
class Case:
    """A prompt before it is answered: a text, or a conversation of (role, content)."""

    name: str
    prompt: str | tuple[tuple[str, str], ...]
    ignore_eos: bool = True


def cases() -> tuple[Case, ...]:
    return (
        Case("english", "The capital of France is"),
        Case("one-word", "Once"),
        Case("story", "It was a dark and stormy night, and the lighthouse keeper"),
        Case("list", "Here are the days of the week:\n1. Monday\n2. Tuesday\n3."),
        Case("code", CODE),
        Case("json", '{"name": "Ada Lovelace", "born": 1815, "languages": ["English", "French"], "known_for":'),
        Case("german", "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen"),
        Case("russian", "Все счастливые семьи похожи друг на друга,"),  # noqa: RUF001 - Cyrillic is meant
        Case("chinese", "人工智能是计算机科学的一个分支，"),  # noqa: RUF001 - a fullwidth comma is meant
        Case("arabic", "في البدء كان"),
        Case("emoji", "🎉 Happy birthday! 🎂🎈 Translate the emoji 👩‍🚀🚀 into words:"),
        Case("long", LICENSE.read_text()[:2900]),
        Case("chat-fact", (("user", "What is the capital of Japan?"),), ignore_eos=False),
        Case("chat-conversation", CONVERSATION, ignore_eos=False),
        Case("chat-greeting", (("user", "Hi! 👋"),), ignore_eos=False),
        Case("chat-code", (("user", "Write a Python function that reverses a string."),)),
    )


def main() -> int:
    arguments = parse()
    if arguments.model is not None:
        return make(arguments, arguments.model, arguments.model.name)
    with tempfile.TemporaryDirectory() as place:
        return make(arguments, write_hugging_face(default_gguf(), Path(place)), default_gguf().name)


def make(arguments: argparse.Namespace, directory: Path, name: str) -> int:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=arguments.attention
    )
    end_ids = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None  # else it would stand in for the None of those that ignore it
    progress = tqdm(cases(), desc="prompts", unit="prompt")
    prompts = [answered(case, tokenizer, model, end_ids, arguments.tokens) for case in progress]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    head = {"model": name, "made_with": f"{versions}, fp32, {arguments.attention} attention"}
    arguments.output.write_text(as_json(head, prompts), encoding="utf-8")
    ties = list(near_ties(prompts))
    sys.stderr.write("".join(f"near-tie: {tie}\n" for tie in ties))
    return 1 if ties else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="Hugging Face directory (default: the server's default model)"
    )
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of each answer (default: 64)")
    parser.add_argument(
        "--attention", choices=("eager", "sdpa"), default="eager", help="attention of transformers (default: eager)"
    )
    parser.add_argument("--output", type=Path, default=REFERENCE, metavar="FILE", help=f"default: {REFERENCE.name}, beside me")
    return parser.parse_args()


def answered(case: Case, tokenizer: Any, model: Any, end_ids: list[int], output_tokens: int) -> dict[str, Any]:
    prompt, prompt_ids = asked(case, tokenizer)
    answer = list(greedy(model, prompt_ids, output_tokens, None if case.ignore_eos else end_ids))
    return {
        "name": case.name,
        **prompt,
        "ignore_eos": case.ignore_eos,
        "prompt_ids": prompt_ids,
        "output_ids": [token_id for token_id, _ in answer],
        "margins": [round(margin, 4) for _, margin in answer],
    }


def asked(case: Case, tokenizer: Any) -> tuple[dict[str, Any], list[int]]:
    """The prompt as a request words it, and its ids."""
    if isinstance(case.prompt, str):
        return {"text": case.prompt}, list(tokenizer(case.prompt)["input_ids"])
    messages = [{"role": role, "content": content} for role, content in case.prompt]
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return {"messages": messages}, list(encoded["input_ids"])


def greedy(model: Any, prompt_ids: list[int], output_tokens: int, end_ids: list[int] | None) -> Iterator[tuple[int, float]]:
    """Each token with its margin over the runner-up."""
    settings = transformers.GenerationConfig(
        max_new_tokens=output_tokens, do_sample=False, eos_token_id=end_ids, output_logits=True, return_dict_in_generate=True
    )
    prompt = torch.tensor([prompt_ids])
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    new_ids = answer.sequences[0, len(prompt_ids) :].tolist()
    for token_id, logits in zip(new_ids, answer.logits, strict=True):
        best, second = logits[0].topk(2).values.tolist()
        yield token_id, best - second


def near_ties(prompts: list[dict[str, Any]]) -> Iterator[str]:
    for prompt in prompts:
        for position, margin in enumerate(prompt["margins"]):
            if margin < NEAR_TIE:
                yield f"{prompt['name']} at output position {position}, margin {margin}"


def as_json(head: dict[str, str], prompts: list[dict[str, Any]]) -> str:
    """One field a line, so that a change can be read in a diff."""
    entries = [
        "  {\n" + ",\n".join(f"   {json.dumps(key)}: {dumped(value)}" for key, value in prompt.items()) + "\n  }"
        for prompt in prompts
    ]
    fields = [f" {json.dumps(key)}: {dumped(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*fields, ' "prompts": [\n' + ",\n".join(entries) + "\n ]"]) + "\n}\n"


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
