"""An LLM inference server, and the same engine as a library."""
