"""How exact the runtime is: greedy tokens, perplexity and logits of the default model, beside transformers.

python -m benchmarks.precision [--json FILE] [--only VARIANT ...]

Tokens: the runtime answers the 20 prompts of a text (the first words of its paragraphs) together, greedily, 128 tokens each;
then transformers computes in fp32 what it would have put at each place of these answers, given all that stands before. A flip
is a place where it would have put another token; its margin is how far the reference's best logit lies above its second.

  lossless    variants keep each weight of their file. The reference has the weights of the same file, so a flip may only be a
              near-tie: a margin below 1e-3, where another order of the same sums decides.
  converted   variants round weights or the KV cache. The reference has the weights before that, and the aim is that no flip
              has a margin of 2e-2 or more.

Perplexity: of the whole text, teacher forced; the aim is within 0.5 % of the reference. Logits: the largest difference over all
places and tokens of prompts of 300 tokens, of the text and random ones. transformers in fp64 is the truth there: by how much
transformers in fp32 misses it is rounding that nobody can be asked to share.

Load of the machine changes nothing but how long it takes: some 5 minutes on 2 quiet cores.
"""

import argparse
import itertools
import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import torch
import trio
from benchmarks.machine import this_machine
from benchmarks.peers.bare_layers import prompt_logits, step_models
from benchmarks.peers.own_engine import Own
from benchmarks.peers.protocol import Setup
from benchmarks.peers.transformers_reference import Reference, write_plain
from tokenizers import Tokenizer
from tqdm import tqdm

from layered_llm.runtime.cpu.process_limits import available_cores
from layered_llm.runtime.models.model_files import read_model
from layered_llm.service.settings.settings import load
from layered_llm.service.supervisor.supervisor_loop import find_checkpoint
from layered_llm.text.checkpoint_text import CheckpointFiles

TEXT: Final = Path(__file__).parent / "texts" / "precision.txt"
PROMPTS: Final = 20
PROMPT_TOKENS: Final = 12
ANSWER_TOKENS: Final = 128
LOGIT_PROMPT_TOKENS: Final = 300
NEAR_TIE: Final = 1e-3
CONVERTED_BOUND: Final = 2e-2
PERPLEXITY_BOUND: Final = 0.005

AS_STORED: Final = "as stored"
FILES: Final[Mapping[str, torch.dtype]] = {
    "float32 file": torch.float32,
    "bfloat16 file": torch.bfloat16,
    "float16 file": torch.float16,
}
"""Made from the default model, which itself has blocks of 4 bits."""
CONVERTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "--dtype bfloat16": {"dtype": "bfloat16"},
    "--dtype float16": {"dtype": "float16"},
    "--dtype int8": {"dtype": "int8"},
    "--kv-dtype float16": {"kv_dtype": "float16"},
}
"""Of the float32 file."""


@attrs.frozen(kw_only=True)
class Place:
    """Of an answer."""

    prompt: int
    token: int
    margin: float
    """The reference's best logit less its second."""


@attrs.frozen(kw_only=True)
class Measured:
    """One variant."""

    bound: float
    tokens: int
    ties: Sequence[Place]
    """All places whose margin is below the bound."""
    flips: Sequence[Place]
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_change(self) -> float:
        return self.perplexity / self.reference_perplexity - 1

    @property
    def holds(self) -> bool:
        return all(flip.margin < self.bound for flip in self.flips) and abs(self.perplexity_change) < PERPLEXITY_BOUND


@attrs.frozen(kw_only=True)
class Texts:
    """What is computed, as token ids."""

    prompts: Sequence[Sequence[int]]
    whole: Sequence[int]
    long_prompts: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, checkpoint: Path) -> "Texts":
        tokenizer = Tokenizer.from_str(CheckpointFiles.of(checkpoint).read("tokenizer.json") or "")
        text = TEXT.read_text(encoding="utf-8")
        whole = tokenizer.encode(text).ids
        generator = random.Random(0)
        vocabulary = read_model(checkpoint).config.vocabulary_size
        random_ids = [generator.randrange(vocabulary) for _ in range(2 * LOGIT_PROMPT_TOKENS)]
        return cls(
            prompts=[tokenizer.encode(part).ids[:PROMPT_TOKENS] for part in text.split("\n\n")][:PROMPTS],
            whole=whole,
            long_prompts={
                "text": whole[:LOGIT_PROMPT_TOKENS],
                "more text": whole[LOGIT_PROMPT_TOKENS : 2 * LOGIT_PROMPT_TOKENS],
                "random": random_ids[:LOGIT_PROMPT_TOKENS],
                "more random": random_ids[LOGIT_PROMPT_TOKENS:],
            },
        )


def measure(texts: Texts, reference: Reference, settings: Mapping[str, Any], bound: float) -> Measured:
    setup = Setup(contexts=texts.prompts, threads=available_cores(), context_tokens=len(texts.whole) + 1)
    own = Own(setup, settings)
    answers = own.decode(len(texts.prompts), ANSWER_TOKENS).token_ids
    places = [
        place
        for number, (prompt, answer) in enumerate(zip(texts.prompts, answers, strict=True))
        for place in _places(reference, number, prompt, answer)
    ]
    told = own.log_probabilities(texts.whole)
    return Measured(
        bound=bound,
        tokens=len(places),
        ties=[place for place, _ in places if place.margin < bound],
        flips=[place for place, is_flip in places if is_flip],
        perplexity=math.exp(-sum(told) / len(told)),
        reference_perplexity=reference.perplexity(texts.whole),
    )


def _places(reference: Reference, number: int, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[tuple[Place, bool]]:
    """Each place of the answer, and whether the reference would have put another token there."""
    expected_ids, margins = (column[len(prompt) - 1 :] for column in reference.best([*prompt, *answer[:-1]]))
    for token, (expected, margin, actual) in enumerate(zip(expected_ids, margins, answer, strict=True)):
        yield Place(prompt=number, token=token, margin=margin), expected != actual


def measure_variants(texts: Texts, checkpoint: Path, place: Path, names: Sequence[str]) -> dict[str, Measured]:
    measured = {}
    plain = place / "float32 file"
    progress = tqdm(total=len(names), desc="variants")

    def add(name: str, reference: Reference, settings: Mapping[str, Any], bound: float) -> None:
        if name in names:
            measured[name] = measure(texts, reference, settings, bound)
            progress.update()

    reference = Reference(plain)
    add(AS_STORED, reference, {"model": str(checkpoint)}, NEAR_TIE)
    for name, settings in CONVERTED.items():
        add(name, reference, {"model": str(plain), **settings}, CONVERTED_BOUND)
    for name, dtype in FILES.items():
        if name in names:
            directory = place / name
            if not directory.exists():
                Reference(plain).write(directory, dtype)
            add(name, Reference(directory), {"model": str(directory)}, NEAR_TIE)
    progress.close()
    return measured


def measure_logits(texts: Texts, checkpoint: Path, directory: Path) -> dict[str, dict[str, float]]:
    """The largest difference of each pair, by kind of prompt."""
    vocabulary = read_model(checkpoint).config.vocabulary_size
    seen: dict[str, dict[str, torch.Tensor]] = {}
    for name, dtype in (("transformers fp64", torch.float64), ("transformers fp32", torch.float32)):
        reference = Reference(directory, dtype)
        seen[name] = {kind: reference.logits(prompt) for kind, prompt in texts.long_prompts.items()}
    for name, model in step_models(checkpoint, LOGIT_PROMPT_TOKENS):
        seen[name] = {kind: prompt_logits(model, prompt, vocabulary) for kind, prompt in texts.long_prompts.items()}
    return {
        f"{second} / {first}": {
            kind: float((seen[first][kind].double() - seen[second][kind].double()).abs().max()) for kind in texts.long_prompts
        }
        for first, second in itertools.combinations(seen, 2)
    }


def tokens_table(measured: Mapping[str, Measured]) -> str:
    lines = [
        f"{'':<22}{'tokens':>8}{'flips':>8}{'bound':>8}{'near it':>9}{'perplexity':>12}{'reference':>11}{'change':>10}{'':>8}"
    ]
    for name, each in measured.items():
        lines.append(
            f"{name:<22}{each.tokens:>8}{len(each.flips):>8}{each.bound:>8.0e}{len(each.ties):>9}{each.perplexity:>12.4f}"
            f"{each.reference_perplexity:>11.4f}{each.perplexity_change:>+10.4%}{'holds' if each.holds else 'FAILS':>8}"
        )
    for name, each in measured.items():
        for word, places in (("flip", each.flips), ("near-tie", each.ties if each.bound == NEAR_TIE else ())):
            lines.extend(f"{name}: {word} in prompt {p.prompt} at token {p.token}, margin {p.margin:.1e}" for p in places)
    return "\n".join(lines)


def logits_table(differences: Mapping[str, Mapping[str, float]]) -> str:
    kinds = next(iter(differences.values()))
    lines = [f"{'largest logit difference':<40}" + "".join(f"{kind:>14}" for kind in kinds)]
    lines.extend(f"{name:<40}" + "".join(f"{value:>14.1e}" for value in row.values()) for name, row in differences.items())
    return "\n".join(lines)


def run(arguments: argparse.Namespace, place: Path) -> int:
    checkpoint = trio.run(find_checkpoint, load()).path
    if not (place / "float32 file").exists():
        write_plain(checkpoint, place / "float32 file")
    texts = Texts.of(checkpoint)
    measured = measure_variants(texts, checkpoint, place, arguments.only or [AS_STORED, *FILES, *CONVERTED])
    differences = measure_logits(texts, checkpoint, place / "float32 file")
    print(f"{this_machine()}\n\n{tokens_table(measured)}\n\n{logits_table(differences)}")
    if arguments.json:
        figures = {
            "machine": str(this_machine()),
            "variants": {name: attrs.asdict(each) for name, each in measured.items()},
            "logits": differences,
        }
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(each.holds for each in measured.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[AS_STORED, *FILES, *CONVERTED], metavar="VARIANT", help="variants")
    parser.add_argument(
        "--files", type=Path, metavar="DIR", help="where the made checkpoints are kept (1.1 GB; default: nowhere)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all figures")
    arguments = parser.parse_args()
    if arguments.files:
        arguments.files.mkdir(parents=True, exist_ok=True)
        return run(arguments, arguments.files)
    with tempfile.TemporaryDirectory() as place:
        return run(arguments, Path(place))


if __name__ == "__main__":
    raise SystemExit(main())
