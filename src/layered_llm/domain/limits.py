"""What the running engine can hold: decided once by the runtime and the scheduler, then sent to everybody.

Must not know: settings, devices.
"""

import attrs


@attrs.frozen(kw_only=True)
class RuntimeLimits:
    """What fits the runtime's memory and its model."""

    pages: int
    page_size_tokens: int
    slots: int
    """Most choices that can hold runtime state at once."""
    context_tokens: int
    """Prompt and output of one choice together; never above `pages * page_size_tokens`."""
    vocabulary_size: int
    """Width of the logits; a token id at or above it is out of vocabulary."""
    page_groups: int = 1
    """Groups of layers that share a page table of each slot, and a pool of `pages` pages."""
    decode_tokens: int = 1
    """Most tokens that one row of a choice that decodes may yield: more than 1 where the device runs ahead of itself."""


@attrs.frozen(kw_only=True)
class EngineLimits:
    """What an API or text process needs to know to judge a request by itself."""

    context_tokens: int
    vocabulary_size: int
