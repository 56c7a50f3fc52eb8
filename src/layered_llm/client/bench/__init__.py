"""`bench`: how fast an OpenAI-compatible server answers, alone and under load."""

from layered_llm.client.bench.command import run_bench
from layered_llm.client.bench.settings import add_bench_arguments

__all__ = ["add_bench_arguments", "run_bench"]
