"""What the prefix cache of a server is worth: a long prompt that comes again, and conversations that go on."""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio
from benchmarks.machine import Machine, this_machine
from benchmarks.serving import server_url

from layered_llm.client import AsyncChatClient, Usage

HELP = """\
Starts the server with its default model, or takes the one at --url, and asks it one request at a time.

First a prompt of random tokens, no two the same, and then the same one again. Read it so:
  cold, warm      from sending the request to its only token (TTFT): the median of the rounds
  cold / warm     the median of the rounds' ratios: a long prompt that is known should come at least 5 times sooner
  cached          tokens of the warm prompt that were found

Then conversations of some turns with one system prompt, each turn with everything that was said before it. Read it so:
  prompt          tokens of the turn's prompt, the mean of the conversations
  cached          the part of them that was found: from the second turn on at least 90 % should be. What is new is the answer's
                  last token, the question, and what of a page is not full
  first token     TTFT, the median of the conversations; each one's first turn finds the system prompt, but for the first one's
"""
LAST_TOKEN_ID = 40_000
"""Random prompts are made of the ids below it and above those of special tokens."""
FIRST_TOKEN_ID = 100
WORDS = (
    *("river", "stone", "garden", "letter", "window", "market", "bridge", "winter", "silver", "morning", "paper", "engine"),
    *("forest", "island", "music", "candle", "harbour", "planet", "mirror", "ladder", "copper", "meadow", "thunder", "blanket"),
)


@attrs.frozen(kw_only=True)
class Asked:
    """One request as its client saw it."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str


@attrs.frozen(kw_only=True)
class Repeat:
    """One prompt, twice."""

    cold: Asked
    warm: Asked

    @property
    def ratio(self) -> float:
        return self.cold.ttft_s / self.warm.ttft_s


def main() -> None:
    arguments = parse()
    machine = this_machine()
    with server_url(arguments.url) as url:
        repeats, conversations = trio.run(measure, url, arguments)
    turns = list(zip(*conversations, strict=True))
    print(f"{machine}\n\n{repeat_table(repeats)}\n\n{turn_table(turns)}")
    if arguments.json is not None:
        report = report_json(machine, arguments, repeats, conversations)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(str(machine), repeats, turns, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prefix_cache", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", metavar="URL", help="a server that runs already (default: start one)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="prompts that come twice (default: 5)")
    parser.add_argument("--prompt-tokens", type=int, default=1000, metavar="N", help="length of each (default: 1000)")
    parser.add_argument("--conversations", type=int, default=3, metavar="N", help="conversations (default: 3)")
    parser.add_argument("--turns", type=int, default=8, metavar="N", help="turns of each (default: 8)")
    parser.add_argument("--system-words", type=int, default=400, metavar="N", help="of their system prompt (default: 400)")
    parser.add_argument("--answer-tokens", type=int, default=24, metavar="N", help="of each answer (default: 24)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another one gives other prompts (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and all requests to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both into FILE (.png, .svg, …; needs matplotlib)")
    return parser.parse_args()


async def measure(url: str, arguments: argparse.Namespace) -> tuple[list[Repeat], list[list[Asked]]]:
    random = Random(arguments.seed)
    async with AsyncChatClient(url) as client:
        model = (await client.models())[0]
        await complete(client, model, random_ids(random, 64))  # the first request of a process is slower than those behind it
        repeats: list[Repeat] = []
        for number in range(1, arguments.rounds + 1):
            prompt = random_ids(random, arguments.prompt_tokens)
            cold, warm = [await complete(client, model, prompt) for _ in range(2)]
            repeats.append(Repeat(cold=cold, warm=warm))
            sys.stderr.write(f"prompt {number}/{arguments.rounds}: {cold.ttft_s:.2f} s, then {warm.ttft_s:.2f} s\n")
        system = words(random, arguments.system_words)
        conversations: list[list[Asked]] = []
        for number in range(1, arguments.conversations + 1):
            conversations.append(await converse(client, model, random, system, arguments))
            sys.stderr.write(f"conversation {number}/{arguments.conversations}\n")
    return repeats, conversations


def random_ids(random: Random, count: int) -> list[int]:
    return [random.randrange(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(count)]


def words(random: Random, count: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(count))


async def complete(client: AsyncChatClient, model: str, prompt: Sequence[int]) -> Asked:
    return await ask(client.completion_stream(model=model, prompt=prompt, temperature=0, max_tokens=1, ignore_eos=True))


async def converse(
    client: AsyncChatClient, model: str, random: Random, system: str, arguments: argparse.Namespace
) -> list[Asked]:
    messages = [{"role": "system", "content": system}]
    turns: list[Asked] = []
    for _ in range(arguments.turns):
        messages.append({"role": "user", "content": f"Tell me about {words(random, 4)}."})
        parameters = {"temperature": 0, "max_tokens": arguments.answer_tokens, "ignore_eos": True}
        turns.append(await ask(client.chat_stream(model=model, messages=messages, **parameters)))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return turns


async def ask(opening: Any) -> Asked:
    """`opening` opens the stream. Exits when the server does not say how much it found."""
    started_s = trio.current_time()
    ttft_s: float | None = None
    usage: Usage | None = None
    texts: list[str] = []
    async with opening as stream:
        async for chunk in stream:
            if ttft_s is None and (chunk.has_output or chunk.has_finish):
                ttft_s = trio.current_time() - started_s
            usage = chunk.usage or usage
            texts.append(chunk.text)
    if ttft_s is None or usage is None or usage.cached_tokens is None:
        raise SystemExit("the server does not tell cached_tokens")
    return Asked(ttft_s=ttft_s, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, text="".join(texts))


def repeat_table(repeats: Sequence[Repeat]) -> str:
    cold_s, warm_s = (statistics.median(asked.ttft_s for asked in column) for column in columns(repeats))
    ratios = [repeat.ratio for repeat in repeats]
    return (
        f"{'prompt':>8}{'cached':>8}{'cold':>10}{'warm':>10}{'cold / warm':>13}{'range':>16}\n"
        f"{'tokens':>8}{'tokens':>8}{'ms':>10}{'ms':>10}{'':>13}\n"
        f"{repeats[0].cold.prompt_tokens:>8}{repeats[0].warm.cached_tokens:>8}{1e3 * cold_s:>10.1f}{1e3 * warm_s:>10.1f}"
        f"{statistics.median(ratios):>13.1f}{f'{min(ratios):.1f} - {max(ratios):.1f}':>16}"
    )


def columns(repeats: Sequence[Repeat]) -> tuple[list[Asked], list[Asked]]:
    return [repeat.cold for repeat in repeats], [repeat.warm for repeat in repeats]


def turn_table(turns: Sequence[Sequence[Asked]]) -> str:
    lines = [
        f"{'turn':>8}{'prompt':>8}{'cached':>8}{'lowest':>8}{'first token':>13}",
        f"{'':>8}{'tokens':>8}{'':>8}{'':>8}{'ms':>13}",
    ]
    for number, asked in enumerate(turns, 1):
        prompt_tokens = statistics.mean(one.prompt_tokens for one in asked)
        lowest = min(share([one]) for one in asked)
        ttft_ms = 1e3 * statistics.median(one.ttft_s for one in asked)
        lines.append(f"{number:>8}{prompt_tokens:>8.0f}{share(asked):>8.1%}{lowest:>8.1%}{ttft_ms:>13.1f}")
    lines.append(f"of all prompt tokens from turn 2 on, {share([one for asked in turns[1:] for one in asked]):.1%} were found")
    return "\n".join(lines)


def share(asked: Sequence[Asked]) -> float:
    """The part of the prompt tokens that was found."""
    return sum(one.cached_tokens for one in asked) / max(1, sum(one.prompt_tokens for one in asked))


def report_json(
    machine: Machine, arguments: argparse.Namespace, repeats: Sequence[Repeat], conversations: Sequence[Sequence[Asked]]
) -> dict[str, Any]:
    settings = {name: value for name, value in vars(arguments).items() if name not in {"json", "plot"}}
    return {
        "machine": attrs.asdict(machine),
        "settings": settings,
        "repeats": [attrs.asdict(repeat) for repeat in repeats],
        "conversations": [[attrs.asdict(asked) for asked in turns] for turns in conversations],
    }


def save_plot(title: str, repeats: Sequence[Repeat], turns: Sequence[Sequence[Asked]], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    twice, talk = figure.subplots(1, 2)
    for place, column in enumerate(columns(repeats)):
        times_ms = [1e3 * asked.ttft_s for asked in column]
        twice.bar(place, statistics.median(times_ms), color="tab:blue" if place else "tab:gray")
        twice.scatter([place] * len(times_ms), times_ms, color="tab:orange", zorder=3)
    twice.set(xticks=[0, 1], xticklabels=["cold", "warm"], ylabel="time to first token, ms", ylim=(0, None))
    numbers = list(range(1, len(turns) + 1))
    new = [statistics.mean(one.prompt_tokens - one.cached_tokens for one in asked) for asked in turns]
    found = [statistics.mean(one.cached_tokens for one in asked) for asked in turns]
    talk.bar(numbers, found, label="found")
    talk.bar(numbers, new, bottom=found, label="computed")
    talk.set(xlabel="turn", ylabel="prompt tokens", xticks=numbers)
    talk.legend()
    figure.suptitle(title, fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
