"""Messages that API processes have not taken yet, each process's in order.

Must not know: links, why a process is slow, what becomes of its requests.

A process that does not take a message at once has fallen behind: what comes after waits, too, until all before it is taken.
Nobody else waits for it.
"""

from collections import deque
from collections.abc import Callable, Iterable

import attrs

from layered_llm.domain.ids import ApiId
from layered_llm.domain.messages.api_text import TextToApi


@attrs.define(eq=False)
class DeferredSends:
    """What waits, for the processes that have fallen behind."""

    _take: Callable[[ApiId, TextToApi], bool]
    """Offers a process a message; whether it is done with."""
    _waiting: dict[ApiId, deque[TextToApi]] = attrs.field(init=False, factory=dict)

    def send(self, api: ApiId, message: TextToApi) -> bool:
        """False where the process has fallen behind; the message waits then."""
        if api not in self._waiting and self._take(api, message):
            return True
        self.defer(api, (message,))
        return False

    def defer(self, api: ApiId, messages: Iterable[TextToApi]) -> None:
        """They wait for the next `retry`."""
        self._waiting.setdefault(api, deque()).extend(messages)

    def retry(self) -> None:
        """Offers every process what it has not taken, as far as it takes it now."""
        for api, messages in list(self._waiting.items()):
            while messages and self._take(api, messages[0]):
                messages.popleft()
            if not messages:
                del self._waiting[api]

    def drop(self, api: ApiId) -> None:
        """The process has died."""
        self._waiting.pop(api, None)
