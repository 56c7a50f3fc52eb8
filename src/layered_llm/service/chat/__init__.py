"""`layered-llm chat`: a conversation in the terminal, with an engine of its own or with any OpenAI-compatible server."""
