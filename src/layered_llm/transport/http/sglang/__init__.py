"""Endpoints that OpenAI does not have, in the words of vLLM and SGLang."""
