"""ASGI application: `hypercorn layered_llm.app`."""
