import attrs
import pytest
import trio
from trio.testing import MockClock

from layered_llm.domain.columns import pack_i32, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, StepId
from layered_llm.domain.messages.api_text import (
    Abort,
    Accepted,
    Detokenize,
    Detokenized,
    Rejected,
    Submit,
    TextEmitted,
    Tokenize,
)
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.messages.supervision import ApiDied, EngineSized, Role, StateQuery, StateReport, Stop
from layered_llm.domain.messages.text_scheduler import AbortRequest, Admit, Queued, StepsTaken
from layered_llm.domain.placement import Placement
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.workers.preparations import HUGE_WORK_CHARS
from layered_llm.testing.byte_text import byte_text_files
from layered_llm.text.chat_template import TemplateFailed
from layered_llm.text.core import Outcome, Work
from layered_llm.text.preparation import LONG_WORK_CHARS
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, api_peer_name
from support.service_ends import ADDRESSES, LIMITS, TextEnds, finished, submit, text_ends, tokens

API, OTHER = ApiId(1), ApiId(2)
SHORT = "x" * LONG_WORK_CHARS
LONG = "x" * (LONG_WORK_CHARS + 1)
HUGE = "x" * (HUGE_WORK_CHARS + 1)


async def prepare_at_once(work: Work) -> Outcome:
    await trio.lowlevel.checkpoint()
    return work.run()


class Workshop:
    """Prepares long prompts when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = trio.Event()

    async def prepare(self, work: Work) -> Outcome:
        self.begun += 1
        await self.go.wait()
        return work.run()


def placed(api: ApiId, counter: int, text: str, tenant: str) -> Submit:
    return attrs.evolve(submit(api, counter, text), placement=Placement(tenant=tenant))


async def admitted(ends: TextEnds, count: int) -> list[RequestId]:
    """The next requests that the scheduler hears of."""
    orders = [await ends.ordered() for _ in range(count)]
    return [order.request for order in orders if isinstance(order, Admit)]


async def test_a_submit_becomes_an_admit_and_its_queued_an_accepted(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        message = submit(API, 1)
        await ends.apis[API].send(message)
        admit = await ends.ordered()
        ends.answer(Queued(request=message.request))

        assert isinstance(admit, Admit)
        assert (Accepted(request=message.request, prompt_tokens=5),) == await ends.apis[API].receive()


async def test_tokens_become_text_and_are_acknowledged(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        message = submit(API, 1)
        await ends.apis[API].send(message)
        await ends.ordered()
        ends.answer(Queued(request=message.request), tokens(1, [(message.request, 0, ord("a"))]))
        taken = list(await ends.apis[API].receive())
        while len(taken) < 2:
            taken.extend(await ends.apis[API].receive())
        _accepted, emitted = taken

        assert isinstance(emitted, TextEmitted)
        assert ("a",) == emitted.texts
        assert StepsTaken(step=StepId(1)) == await ends.ordered()


async def test_a_long_prompt_is_prepared_aside_and_short_ones_go_on(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare) as ends:
        for counter in range(2):
            await ends.apis[API].send(submit(API, counter, LONG))
        await ends.apis[API].send(submit(API, 9))
        short = await ends.ordered()

        assert isinstance(short, Admit)
        assert submit(API, 9).request == short.request
        assert 1 == workshop.begun

        workshop.go.set()
        assert [submit(API, counter).request for counter in range(2)] == await admitted(ends, 2)


@pytest.mark.parametrize("flood", [SHORT, LONG, HUGE], ids=["short", "long", "huge"])
async def test_a_tenant_that_floods_delays_another_by_a_turn(autojump_clock: MockClock, flood: str) -> None:
    async with text_ends(API, OTHER, prepare_long=prepare_at_once, is_sized=False) as ends:
        for counter in range(20):
            await ends.apis[API].send(placed(API, counter, flood, "flooder"))
        await ends.apis[OTHER].send(placed(OTHER, 0, flood, "other"))
        ends.order(EngineSized(limits=attrs.evolve(LIMITS, context_tokens=2 * HUGE_WORK_CHARS)))
        order = await admitted(ends, 21)

        assert order.index(placed(OTHER, 0, "", "").request) <= 2


async def test_questions_take_turns_as_requests_do(autojump_clock: MockClock) -> None:
    async with text_ends(API, OTHER, prepare_long=prepare_at_once, is_sized=False) as ends:
        for counter in range(20):
            question = Tokenize(request=submit(API, counter).request, prompt=Prompt.of_text(LONG), tenant="flooder")
            await ends.apis[API].send(question)
        await ends.apis[OTHER].send(placed(OTHER, 0, LONG, "other"))
        ends.order(EngineSized(limits=LIMITS))
        await ends.ordered()

        answers = await ends.apis[API].receive()
        assert len(answers) <= 4


async def test_a_prompt_is_not_delayed_by_much_longer_ones(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare) as ends:
        for counter in range(2):
            await ends.apis[API].send(submit(API, counter, HUGE))
        await ends.apis[API].send(submit(API, 9, LONG))
        await trio.testing.wait_all_tasks_blocked()

        assert 2 == workshop.begun
        workshop.go.set()


async def test_more_short_prompts_than_fit_between_two_checkpoints_are_all_prepared(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once, is_sized=False) as ends:
        for counter in range(20):
            await ends.apis[API].send(submit(API, counter, SHORT))
        ends.order(EngineSized(limits=LIMITS))

        assert [submit(API, counter).request for counter in range(20)] == await admitted(ends, 20)


async def test_a_request_that_is_aborted_while_it_is_prepared_is_never_admitted(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare) as ends:
        await ends.apis[API].send(submit(API, 1, LONG))
        await ends.apis[API].send(Abort(request=submit(API, 1).request, reason=AbortReason.CLIENT_GONE))
        await trio.testing.wait_all_tasks_blocked()
        workshop.go.set()
        await ends.apis[API].send(submit(API, 2))
        first = await ends.ordered()

        assert isinstance(first, Admit)
        assert submit(API, 2).request == first.request


async def test_a_late_abort_does_not_end_the_preparation_of_a_later_incarnation(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare) as ends:
        again = attrs.evolve(submit(API, 1, LONG), incarnation=1)
        await ends.apis[API].send(again)
        await trio.testing.wait_all_tasks_blocked()
        await ends.apis[API].send(Abort(request=again.request, reason=AbortReason.CLIENT_GONE))
        await trio.testing.wait_all_tasks_blocked()
        workshop.go.set()

        assert [again.request] == await admitted(ends, 1)


async def test_what_is_submitted_again_is_prepared_beside_work_that_was_left(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare, is_sized=False) as ends:
        first = submit(API, 1, LONG)
        await ends.apis[API].send(first)
        await ends.apis[API].send(Abort(request=first.request, reason=AbortReason.CLIENT_GONE))
        await ends.apis[API].send(attrs.evolve(first, incarnation=1))
        ends.order(EngineSized(limits=LIMITS))
        await trio.testing.wait_all_tasks_blocked()
        workshop.go.set()

        assert [first.request] == await admitted(ends, 1)
        assert 1 == workshop.begun


class SlowRenderer:
    """Renders when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = trio.Event()

    async def start(self) -> None:
        await trio.lowlevel.checkpoint()

    async def render(self, prompt: Prompt) -> str | TemplateFailed:
        self.begun += 1
        await self.go.wait()
        (turn,) = prompt.chat or ()
        return TemplateFailed(message="too slow") if turn.content == "bad" else "rendered"


def chat(api: ApiId, counter: int, text: str = "hello", tenant: str = "") -> Submit:
    prompt = Prompt.of_chat([ChatMessage(role="user", content=text)])
    return attrs.evolve(submit(api, counter), prompt=prompt, placement=Placement(tenant=tenant))


async def test_a_conversation_is_rendered_aside_and_others_go_on(autojump_clock: MockClock) -> None:
    renderer = SlowRenderer()
    async with text_ends(API, prepare_long=prepare_at_once, renderer=renderer) as ends:
        await ends.apis[API].send(chat(API, 1))
        await ends.apis[API].send(submit(API, 2))
        assert [submit(API, 2).request] == await admitted(ends, 1)

        renderer.go.set()
        order = await ends.ordered()
        assert isinstance(order, Admit)
        assert [*b"rendered"] == unpack_i32(order.prompt_ids).tolist()


async def test_a_conversation_that_the_template_fails_at_is_refused(autojump_clock: MockClock) -> None:
    renderer = SlowRenderer()
    renderer.go.set()
    async with text_ends(API, prepare_long=prepare_at_once, renderer=renderer) as ends:
        await ends.apis[API].send(chat(API, 1, "bad"))
        (verdict,) = await ends.apis[API].receive()

        assert isinstance(verdict, Rejected)
        assert (RejectReason.TEMPLATE_ERROR, "messages") == (verdict.reason, verdict.param)
        assert "The model's chat template cannot render these messages: too slow" == verdict.message


async def test_tenants_take_turns_at_the_template(autojump_clock: MockClock) -> None:
    renderer = SlowRenderer()
    async with text_ends(API, OTHER, prepare_long=prepare_at_once, renderer=renderer) as ends:
        for counter in range(5):
            await ends.apis[API].send(chat(API, counter, tenant="flooder"))
        await ends.apis[OTHER].send(chat(OTHER, 0, tenant="other"))
        await trio.testing.wait_all_tasks_blocked()
        assert 1 == renderer.begun

        renderer.go.set()
        order = await admitted(ends, 6)
        assert order.index(chat(OTHER, 0).request) <= 1


async def test_a_conversation_that_was_left_is_not_rendered(autojump_clock: MockClock) -> None:
    renderer = SlowRenderer()
    async with text_ends(API, prepare_long=prepare_at_once, renderer=renderer) as ends:
        for counter in range(2):
            await ends.apis[API].send(chat(API, counter))
        await trio.testing.wait_all_tasks_blocked()
        await ends.apis[API].send(Abort(request=chat(API, 1).request, reason=AbortReason.CLIENT_GONE))
        await trio.testing.wait_all_tasks_blocked()
        renderer.go.set()
        await ends.ordered()
        await trio.testing.wait_all_tasks_blocked()

        assert 1 == renderer.begun


async def test_a_question_is_answered_by_the_worker_itself(autojump_clock: MockClock) -> None:
    request = submit(API, 1).request
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        await ends.apis[API].send(Detokenize(request=request, token_ids=pack_i32([*b"hi"])))

        assert (Detokenized(request=request, text="hi"),) == await ends.apis[API].receive()


@pytest.mark.parametrize("end", ["abort", "death"])
async def test_work_that_nobody_waits_for_any_more_is_not_begun(autojump_clock: MockClock, end: str) -> None:
    workshop = Workshop()
    left = submit(OTHER, 9).request
    async with text_ends(API, OTHER, prepare_long=workshop.prepare) as ends:
        await ends.apis[API].send(submit(API, 0, LONG))
        await trio.testing.wait_all_tasks_blocked()
        await ends.apis[OTHER].send(Tokenize(request=left, prompt=Prompt.of_text(LONG)))
        await trio.testing.wait_all_tasks_blocked()
        if end == "abort":
            await ends.apis[OTHER].send(Abort(request=left, reason=AbortReason.CLIENT_GONE))
        else:
            ends.order(ApiDied(api=OTHER))
        await trio.testing.wait_all_tasks_blocked()
        workshop.go.set()
        await ends.ordered()
        await trio.testing.wait_all_tasks_blocked()

        assert 1 == workshop.begun


async def test_a_submit_whose_abort_is_already_there_is_not_prepared(autojump_clock: MockClock) -> None:
    workshop = Workshop()
    async with text_ends(API, prepare_long=workshop.prepare, is_sized=False) as ends:
        left = submit(API, 1, LONG)
        await ends.apis[API].send(left)
        await ends.apis[API].send(Abort(request=left.request, reason=AbortReason.CLIENT_GONE))
        ends.order(EngineSized(limits=LIMITS))
        await trio.testing.wait_all_tasks_blocked()

        assert 0 == workshop.begun


async def test_an_api_that_takes_nothing_loses_its_requests_and_nobody_else_waits(autojump_clock: MockClock) -> None:
    async with text_ends(API, OTHER, prepare_long=prepare_at_once, high_water_mark=2) as ends:
        slow, quick = submit(API, 1), submit(OTHER, 1)
        for message in (slow, quick):
            await ends.apis[API if message is slow else OTHER].send(message)
            await ends.ordered()
        ends.links.stall(api_peer_name(API))
        ends.answer(Queued(request=slow.request), Queued(request=quick.request))
        for step in range(1, 4):
            ends.answer(tokens(step, [(slow.request, step - 1, ord("a")), (quick.request, step - 1, ord("a"))]))
            await ends.apis[OTHER].receive()
        orders = [await ends.ordered() for _ in range(4)]

        assert AbortRequest(request=slow.request, reason=AbortReason.SLOW_CONSUMER) in orders
        assert 1 == sum(isinstance(order, AbortRequest) for order in orders)


async def test_an_api_that_fell_behind_gets_all_it_is_owed_when_it_takes_messages_again(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once, high_water_mark=2) as ends:
        running, unanswered = submit(API, 1), submit(API, 2)
        for message in (running, unanswered):
            await ends.apis[API].send(message)
            await ends.ordered()
        ends.links.stall(api_peer_name(API))
        ends.answer(Queued(request=running.request))
        for step in range(1, 4):
            ends.answer(tokens(step, [(running.request, step - 1, ord("a"))]))
        await trio.testing.wait_all_tasks_blocked()
        ends.links.resume(api_peer_name(API))
        taken = list(await ends.apis[API].receive())
        while not (isinstance(taken[-1], TextEmitted) and taken[-1].ended):
            taken.extend(await ends.apis[API].receive())

        assert isinstance(taken[0], Accepted)
        assert [unanswered.request] == [message.request for message in taken if isinstance(message, Rejected)]
        texts = [message for message in taken if isinstance(message, TextEmitted)]
        assert "aa" == "".join(text for message in texts for text in message.texts)
        assert [running.request] == [request for message in texts for request in unpack_i64(message.ended)]
        assert texts[-1].ended_errors[0] is not None


async def test_what_an_api_is_owed_is_dropped_when_it_dies(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once, high_water_mark=1) as ends:
        message = submit(API, 1)
        await ends.apis[API].send(message)
        await ends.ordered()
        ends.links.stall(api_peer_name(API))
        ends.answer(Queued(request=message.request), tokens(1, [(message.request, 0, ord("a"))]))
        await trio.testing.wait_all_tasks_blocked()
        ends.order(ApiDied(api=API))
        await trio.testing.wait_all_tasks_blocked()
        ends.links.resume(api_peer_name(API))
        assert (Accepted(request=message.request, prompt_tokens=5),) == await ends.apis[API].receive()
        with trio.move_on_after(5 * HEARTBEAT_INTERVAL_S) as scope:
            await ends.apis[API].receive()

        assert scope.cancelled_caught


async def test_a_dead_api_process_leaves_nothing(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        message = submit(API, 1)
        await ends.apis[API].send(message)
        await ends.ordered()
        ends.answer(Queued(request=message.request))
        ends.order(ApiDied(api=API))
        assert AbortRequest(request=message.request, reason=AbortReason.PEER_DIED) == await ends.ordered()
        ends.answer(finished(message.request, FinishReason.ABORT, 0))
        await trio.testing.wait_all_tasks_blocked()
        ends.order(StateQuery(query=3))
        report = await ends.reported()

        assert isinstance(report, StateReport)
        assert (3, Role.TEXT, 0) == (report.query, report.role, report.open_requests)
        assert [0, 0] == [size for _, size in report.maps]
        assert () == report.violations


async def test_an_api_process_that_sends_garbage_loses_its_requests(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        message = submit(API, 1)
        await ends.apis[API].send(message)
        await ends.ordered()
        ends.links.garble(ADDRESSES.text(0), api_peer_name(API))

        assert AbortRequest(request=message.request, reason=AbortReason.SLOW_CONSUMER) == await ends.ordered()


async def test_what_comes_before_the_limits_are_known_waits_for_them(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once, is_sized=False) as ends:
        await ends.apis[API].send(submit(API, 1))
        await trio.testing.wait_all_tasks_blocked()
        ends.order(EngineSized(limits=LIMITS))

        assert isinstance(await ends.ordered(), Admit)


async def test_stop_ends_the_worker(autojump_clock: MockClock) -> None:
    async with text_ends(API, prepare_long=prepare_at_once) as ends:
        ends.order(Stop())
        await trio.testing.wait_all_tasks_blocked()

        assert not ends.worker.child_tasks


async def test_limits_that_are_told_twice_are_our_own_fault(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvariantViolated, match="told once"), flatten_subgroups=True):
        async with text_ends(API, prepare_long=prepare_at_once) as ends:
            ends.order(EngineSized(limits=LIMITS))
            await trio.sleep(1.0)


def test_the_byte_tokenizer_reads_as_its_text() -> None:
    tokenizer = byte_text_files().tokenizer

    assert list(b"caf\xc3\xa9 \x00") == tokenizer.encode("café \x00", add_special_tokens=True)
