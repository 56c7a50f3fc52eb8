"""Bounds between our own processes.

Must not know: who uses them.
"""

from typing import Final

ENGINE_OUTBOX_MESSAGES: Final = 1 << 16
"""Far above what open requests, steps in flight and heartbeats add up to: an outbox that is full means a peer that hangs."""
