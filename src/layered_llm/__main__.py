"""Command line: `python -m layered_llm`."""
