import attrs
import pytest

from layered_llm.domain.ids import ApiId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiDied,
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineSized,
    EngineState,
    EngineStatus,
    EngineToSupervisor,
    Heartbeat,
    ProcessReady,
    RequestsAborted,
    Role,
    StateQuery,
    StateReport,
    Stop,
)
from layered_llm.domain.metrics import MESSAGES_DROPPED, Measured
from layered_llm.service.supervisor.supervision import MAX_RESTARTS, Outgoing, Supervision
from layered_llm.transport.peers import RESTART_WINDOW_S, STATE_TIMEOUT_S, api_of_peer, api_peer_name, peer_name
from layered_llm.transport.ports import Garbled

API, OTHER_API = ApiId(0x3F2A), ApiId(0x77)
LIMITS = EngineLimits(context_tokens=128, vocabulary_size=300)
TEXTS = ("ipc://text-0", "ipc://text-1")


@pytest.fixture
def supervision() -> Supervision:
    return Supervision(pid=1)


def only_status(outgoing: tuple[Outgoing, ...]) -> EngineStatus:
    ((_peer, message),) = outgoing
    assert isinstance(message, EngineStatus)
    return message


def reported(supervision: Supervision, report: StateReport) -> tuple[Outgoing, ...]:
    """What follows from a report that its process sent; a rank's is the scheduler's to send."""
    role = Role.SCHEDULER if report.role is Role.RUNTIME else report.role
    peer = api_peer_name(ApiId(report.index)) if role is Role.API else peer_name(role, report.index)
    return supervision.answered(peer, report)


def make_ready(supervision: Supervision) -> tuple[Outgoing, ...]:
    supervision.generation_started(TEXTS)
    supervision.process_ready(ProcessReady(role=Role.TEXT, index=0))
    supervision.process_ready(ProcessReady(role=Role.SCHEDULER, index=0, limits=LIMITS))
    return supervision.process_ready(ProcessReady(role=Role.TEXT, index=1))[1:]


def report(query: int, role: Role, index: int) -> StateReport:
    return StateReport(query=query, role=role, index=index, pid=1, open_requests=0, maps=())


def supervisors(query: int, dropped: int = 0) -> StateReport:
    """The supervisor's own report."""
    return attrs.evolve(report(query, Role.SUPERVISOR, 0), metrics=(Measured.of(MESSAGES_DROPPED, dropped),))


def hello(supervision: Supervision, api: ApiId = API) -> EngineStatus:
    return only_status(supervision.api_hello(ApiHello(api=api, pid=1)))


def test_an_api_process_hears_the_status_when_it_comes(supervision: Supervision) -> None:
    status = hello(supervision)

    assert (EnginePhase.STARTING, 0, (), None) == (status.phase, status.generation, status.text_addresses, status.limits)


def test_the_engine_is_ready_with_its_last_process_and_tells_where_and_how_much(supervision: Supervision) -> None:
    hello(supervision)

    outgoing = make_ready(supervision)

    assert [api_peer_name(API)] == [peer for peer, _status in outgoing]
    status = only_status(outgoing)
    assert (EnginePhase.READY, 1, TEXTS, LIMITS) == (status.phase, status.generation, status.text_addresses, status.limits)


def test_text_workers_hear_the_limits_once_both_they_and_the_scheduler_are_up(supervision: Supervision) -> None:
    supervision.generation_started(TEXTS)
    sized = EngineSized(limits=LIMITS)

    assert () == supervision.process_ready(ProcessReady(role=Role.TEXT, index=1))
    assert (("text-1", sized),) == supervision.process_ready(ProcessReady(role=Role.SCHEDULER, index=0, limits=LIMITS))
    assert ("text-0", sized) == supervision.process_ready(ProcessReady(role=Role.TEXT, index=0))[0]


def test_a_generation_that_never_was_ready_fails_for_good(supervision: Supervision) -> None:
    hello(supervision)
    supervision.generation_started(TEXTS)

    status = only_status(supervision.generation_died("no config.json", now_s=1.0))

    assert (EnginePhase.FAILED, "no config.json") == (status.phase, status.detail)


def test_a_ready_generation_that_dies_is_restarted_a_bounded_number_of_times(supervision: Supervision) -> None:
    phases = []
    for death in range(MAX_RESTARTS + 1):
        make_ready(supervision)
        supervision.generation_died("killed", now_s=float(death))
        phases.append(supervision.phase)

    assert [EnginePhase.RESTARTING] * MAX_RESTARTS + [EnginePhase.FAILED] == phases


def test_the_end_of_restarts_is_told_with_their_number(supervision: Supervision) -> None:
    for death in range(MAX_RESTARTS):
        make_ready(supervision)
        supervision.generation_died("killed", now_s=float(death))
    make_ready(supervision)
    hello(supervision)

    status = only_status(supervision.generation_died("killed", now_s=9.0))

    assert "killed, and was started again 3 times in 10 minutes already: not again" == status.detail


def test_while_it_restarts_the_status_keeps_saying_why(supervision: Supervision) -> None:
    hello(supervision)
    make_ready(supervision)
    supervision.generation_died("runtime-0 was killed by SIGKILL", now_s=0.0)

    status = only_status(supervision.generation_started(TEXTS))

    assert (EnginePhase.RESTARTING, "loading the model again: runtime-0 was killed by SIGKILL") == (status.phase, status.detail)


def test_restarts_long_ago_do_not_count(supervision: Supervision) -> None:
    for death in range(MAX_RESTARTS + 1):
        make_ready(supervision)
        supervision.generation_died("killed", now_s=death * RESTART_WINDOW_S)

    assert EnginePhase.RESTARTING == supervision.phase


def test_only_the_last_api_process_ends_the_engine(supervision: Supervision) -> None:
    hello(supervision)
    hello(supervision, OTHER_API)
    assert not supervision.is_abandoned

    first = supervision.api_goodbye(API)
    last = supervision.api_goodbye(OTHER_API)

    assert ((api_peer_name(API), Stop()),) == first
    assert () == last
    assert supervision.is_abandoned


def test_a_dead_api_process_is_told_to_every_text_worker(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)

    assert (("text-0", ApiDied(api=API)), ("text-1", ApiDied(api=API))) == supervision.api_died(API)


def test_text_workers_are_told_of_a_goodbye_while_others_stay(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    hello(supervision, OTHER_API)

    assert {("text-0", ApiDied(api=API)), ("text-1", ApiDied(api=API)), (api_peer_name(API), Stop())} == set(
        supervision.api_goodbye(API)
    )


def test_the_exit_after_a_goodbye_is_no_death(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    supervision.api_goodbye(API)

    assert () == supervision.api_died(API)


def test_a_state_query_is_answered_with_everybodys_report(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    asker = api_peer_name(API)

    asked = supervision.ask(asker, StateQuery(query=77), now_s=0.0)
    who = ((Role.API, API), (Role.TEXT, 0), (Role.TEXT, 1), (Role.RUNTIME, 0), (Role.SCHEDULER, 0))
    answers = [reported(supervision, report(1, role, index)) for role, index in who]

    assert {(peer, StateQuery(query=1)) for peer in (asker, "scheduler-0", "text-0", "text-1")} == set(asked)
    assert [()] * 4 == answers[:-1]
    ((to, state),) = answers[-1]
    assert isinstance(state, EngineState)
    assert (asker, 77, 6, ()) == (to, state.query, len(state.reports), state.silent)


def test_a_state_query_waits_for_the_report_of_every_rank() -> None:
    supervision = Supervision(pid=1, ranks=2)
    make_ready(supervision)
    hello(supervision)
    supervision.ask(api_peer_name(API), StateQuery(query=77), now_s=0.0)
    who = ((Role.API, API), (Role.TEXT, 0), (Role.TEXT, 1), (Role.SCHEDULER, 0), (Role.RUNTIME, 0), (Role.RUNTIME, 1))

    assert [0, 0, 0, 0, 0, 1] == [len(reported(supervision, report(1, role, index))) for role, index in who]


def test_a_flush_reaches_whoever_is_asked(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)

    asked = supervision.ask(api_peer_name(API), StateQuery(query=1, flush_cache=True), now_s=0.0)

    assert ("scheduler-0", StateQuery(query=1, flush_cache=True)) in asked


def test_a_silent_process_is_named_after_the_timeout(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    supervision.ask(api_peer_name(API), StateQuery(query=1), now_s=0.0)
    reported(supervision, report(1, Role.TEXT, 0))

    assert () == supervision.expire_queries(STATE_TIMEOUT_S / 2)
    ((_to, state),) = supervision.expire_queries(STATE_TIMEOUT_S)
    assert isinstance(state, EngineState)
    assert (api_peer_name(API), "runtime-0", "scheduler-0", "text-1") == state.silent


def test_a_process_that_dies_while_asked_does_not_hold_the_answer_up(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    supervision.ask(api_peer_name(API), StateQuery(query=1), now_s=0.0)
    reported(supervision, report(1, Role.API, API))

    (_to, state), *_status = supervision.generation_died("killed", now_s=0.1)

    assert isinstance(state, EngineState)
    assert ("runtime-0", "scheduler-0", "text-0", "text-1") == state.silent


def test_an_api_process_that_leaves_while_asked_does_not_hold_the_answer_up(supervision: Supervision) -> None:
    hello(supervision)
    hello(supervision, OTHER_API)
    supervision.ask(api_peer_name(API), StateQuery(query=77), now_s=0.0)
    own = report(1, Role.API, API)
    assert () == reported(supervision, own)

    answered, told = supervision.api_goodbye(OTHER_API)

    assert (api_peer_name(API), EngineState(query=77, reports=(own, supervisors(1)), silent=())) == answered
    assert (api_peer_name(OTHER_API), Stop()) == told


def test_a_late_or_doubled_report_is_dropped(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)
    supervision.ask(api_peer_name(API), StateQuery(query=1), now_s=0.0)
    reported(supervision, report(1, Role.TEXT, 0))

    assert () == reported(supervision, report(1, Role.TEXT, 0))
    assert () == reported(supervision, report(99, Role.TEXT, 0))


def test_stopping_tells_everybody(supervision: Supervision) -> None:
    make_ready(supervision)
    hello(supervision)

    told = supervision.stopping()

    assert {"text-0", "text-1", "scheduler-0"} == {peer for peer, message in told if message == Stop()}
    assert EnginePhase.STOPPING == supervision.phase


@pytest.mark.parametrize(
    ("peer", "api"), [(api_peer_name(API), API), ("text-0", None), ("api-", None), ("api-xyz", None), ("00ff", None)]
)
def test_the_name_of_an_api_process_says_which_it_is(peer: str, api: ApiId | None) -> None:
    assert api == api_of_peer(peer)


STRANGE: list[tuple[str, ApiToSupervisor | EngineToSupervisor | Garbled]] = [
    (api_peer_name(API), Garbled(reason="noise")),
    ("scheduler-0", Garbled(reason="noise")),
    (api_peer_name(API), ApiHello(api=OTHER_API, pid=5)),
    ("api-0", ApiHello(api=API, pid=5)),
    ("nobody", ApiHello(api=API, pid=5)),
    ("api--5", ApiHello(api=ApiId(-5), pid=5)),
    (api_peer_name(OTHER_API), ApiGoodbye(api=API)),
    (api_peer_name(OTHER_API), ApiGoodbye(api=OTHER_API)),
    ("nobody", StateQuery(query=1)),
    (api_peer_name(OTHER_API), StateQuery(query=1)),
    ("supervisor-0", AbortByName(query=1, request=None)),
    (api_peer_name(OTHER_API), RequestsAborted(query=1, count=1)),
    (api_peer_name(API), report(1, Role.API, OTHER_API)),
    (api_peer_name(API), report(1, Role.SCHEDULER, 0)),
    ("text-0", report(1, Role.RUNTIME, 0)),
    ("text-0", report(1, Role.TEXT, 1)),
    ("text-0", report(1, Role.SUPERVISOR, 0)),
    ("text-2", Heartbeat(role=Role.TEXT, index=2)),
    ("text-0", Heartbeat(role=Role.TEXT, index=-1)),
    ("runtime-0", Heartbeat(role=Role.RUNTIME, index=0)),
    ("scheduler-0", ProcessReady(role=Role.SCHEDULER, index=0)),
    ("text-0", ProcessReady(role=Role.SCHEDULER, index=0, limits=LIMITS)),
    ("text-7", ProcessReady(role=Role.TEXT, index=7)),
    ("api-7", ProcessReady(role=Role.API, index=7)),
]


@pytest.mark.parametrize(("peer", "message"), STRANGE, ids=str)
def test_what_a_peer_may_not_say_is_not_heard_and_counted(
    supervision: Supervision, peer: str, message: ApiToSupervisor | EngineToSupervisor | Garbled
) -> None:
    hello(supervision)
    make_ready(supervision)

    assert not supervision.hears(peer, message)

    asked = supervision.ask(api_peer_name(API), StateQuery(query=77), 0.0)
    ((_peer, state),) = supervision.expire_queries(STATE_TIMEOUT_S)
    assert asked
    assert isinstance(state, EngineState)
    assert supervisors(1, dropped=1) == state.reports[-1]


def test_what_our_own_processes_say_is_heard(supervision: Supervision) -> None:
    hello(supervision)
    make_ready(supervision)
    api = api_peer_name(API)
    words: list[tuple[str, ApiToSupervisor | EngineToSupervisor]] = [
        (api, ApiHello(api=API, pid=1)),
        (api_peer_name(OTHER_API), ApiHello(api=OTHER_API, pid=1)),
        (api, StateQuery(query=1)),
        (api, AbortByName(query=1, request=None)),
        (api, RequestsAborted(query=1, count=1)),
        (api, report(1, Role.API, API)),
        (api, ApiGoodbye(api=API)),
        ("text-1", ProcessReady(role=Role.TEXT, index=1)),
        ("scheduler-0", ProcessReady(role=Role.SCHEDULER, index=0, limits=LIMITS)),
        ("scheduler-0", Heartbeat(role=Role.SCHEDULER, index=0)),
        ("scheduler-0", report(1, Role.SCHEDULER, 0)),
        ("scheduler-0", report(1, Role.RUNTIME, 0)),
        ("text-1", report(1, Role.TEXT, 1)),
    ]
    assert [] == [word for word in words if not supervision.hears(*word)]


@pytest.mark.parametrize("pid", [-5, 0, 1 << 31])
def test_what_is_no_number_of_a_process_is_no_message(pid: int) -> None:
    with pytest.raises(ValueError, match="is no number of a process"):
        ApiHello(api=API, pid=pid)


def test_a_stalled_process_is_told_of_until_it_goes_on(supervision: Supervision) -> None:
    hello(supervision)
    make_ready(supervision)

    (stalled,), again, (back,) = (supervision.stalled(peers) for peers in (["runtime-0"], ["runtime-0"], []))

    first, last = only_status((stalled,)), only_status((back,))
    assert (EnginePhase.READY, ("runtime-0",), TEXTS) == (first.phase, first.stalled, first.text_addresses)
    assert "runtime-0: stopped" in first.trouble
    assert ((), (), "") == (again, last.stalled, last.trouble)


def test_a_stopped_runtime_is_among_the_silent_although_the_scheduler_speaks_for_it(supervision: Supervision) -> None:
    hello(supervision)
    make_ready(supervision)
    supervision.stalled(["runtime-0"])
    supervision.ask(api_peer_name(API), StateQuery(query=77), 0.0)
    reported(supervision, report(1, Role.RUNTIME, 0))

    ((_peer, state),) = supervision.expire_queries(STATE_TIMEOUT_S)

    assert isinstance(state, EngineState)
    assert "runtime-0" in state.silent


def test_a_generation_that_died_is_not_stalled(supervision: Supervision) -> None:
    hello(supervision)
    make_ready(supervision)
    supervision.stalled(["runtime-0"])

    assert () == only_status(supervision.generation_died("over", 0.0)).stalled
