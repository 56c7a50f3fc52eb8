"""Who is taken at all, and who starts next.

Must not know: steps, page ids, what runs.

Choices start in the order in which they came. The first one that does not fit holds up all behind it: letting smaller ones
pass would starve a big one for as long as small ones come. A text worker without credit holds up nobody: its choices are
passed over and keep their place.

Invariants: a choice stands in the queue at most once; a request counts as waiting as long as one of its choices does.
"""

from collections import OrderedDict

from layered_llm.domain.columns import rows
from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.text_scheduler import Admit, Refused
from layered_llm.domain.verdicts import RejectReason
from layered_llm.scheduling.sequences import Sequence, TextWorker


def judge(admit: Admit, *, limits: RuntimeLimits, waiting_requests: int, max_queued_requests: int) -> Refused | None:
    """Why the request is not taken, or None when it is; what can never run is told before what cannot run now.

    The choices of a request may run one after another, so one of them decides whether it fits. Units of `limit` and `actual`:
    tokens for CONTEXT_LENGTH_EXCEEDED, pages for NEVER_FITS, waiting requests for QUEUE_FULL.
    """
    tokens = rows("i", admit.prompt_ids) + admit.max_tokens
    pages = -(-tokens // limits.page_size_tokens)
    if tokens > limits.context_tokens:
        return _refuse(admit, RejectReason.CONTEXT_LENGTH_EXCEEDED, limits.context_tokens, tokens)
    if pages > limits.pages:
        return _refuse(admit, RejectReason.NEVER_FITS, limits.pages, pages)
    if waiting_requests >= max_queued_requests:
        return _refuse(admit, RejectReason.QUEUE_FULL, max_queued_requests, waiting_requests)
    return None


def _refuse(admit: Admit, reason: RejectReason, limit: int, actual: int) -> Refused:
    return Refused(request=admit.request, reason=reason, limit=limit, actual=actual)


class WaitingQueue:
    """Choices that have not started; every operation takes the same time however long the queue is."""

    def __init__(self) -> None:
        # An OrderedDict for each worker: a choice leaves from the middle when it is aborted, and passing over a worker
        # without credit costs one look instead of one for each of its choices.
        self._queues: dict[TextWorker, OrderedDict[Sequence, None]] = {}
        self._choices_by_request: dict[RequestId, int] = {}

    @property
    def request_count(self) -> int:
        return len(self._choices_by_request)

    @property
    def choice_count(self) -> int:
        return sum(map(len, self._queues.values()))

    def choices_by_request(self) -> dict[RequestId, int]:
        return dict(self._choices_by_request)

    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(sequence for queue in self._queues.values() for sequence in queue)

    def push(self, sequence: Sequence) -> None:
        self._queues.setdefault(sequence.worker, OrderedDict())[sequence] = None
        self._choices_by_request[sequence.request] = self._choices_by_request.get(sequence.request, 0) + 1

    def remove(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.worker]
        del queue[sequence]
        if not queue:
            del self._queues[sequence.worker]
        left = self._choices_by_request[sequence.request] - 1
        if left:
            self._choices_by_request[sequence.request] = left
        else:
            del self._choices_by_request[sequence.request]

    def first(self) -> Sequence | None:
        """The choice that came first among those whose worker has credit."""
        heads = [next(iter(queue)) for worker, queue in self._queues.items() if worker.has_credit]
        return min(heads, key=_arrival, default=None)


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
