"""A client of any OpenAI-compatible server."""
