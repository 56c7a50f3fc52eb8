"""`python -m layered_llm.client.bench URL`."""

import argparse
import sys

from layered_llm.client.bench import add_bench_arguments, run_bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m layered_llm.client.bench")
    add_bench_arguments(parser)
    return run_bench(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
