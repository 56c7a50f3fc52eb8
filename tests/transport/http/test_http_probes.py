import attrs
import pytest

from layered_llm.domain.messages.supervision import AbortTally, EnginePhase, EngineState, Role, StateReport
from layered_llm.domain.metrics import ABORTS_EMITTED, Measured, Metric
from support.exposition import read_exposition
from support.http_client import SETTINGS, application, get, post
from support.http_engine import READY, FakeEngine

PAGES = {"pages_total": 64, "pages_free": 60, "pages_cached": 4, "pages_used": 0}
GAUGES = {
    "running": "requests_running",
    "waiting": "requests_waiting",
    "pages_used": "kv_pages_used",
    "pages_total": "kv_pages_total",
}
ABORTS = (Measured.of(ABORTS_EMITTED, 2.0),)


def report(role: Role, index: int = 0, **fields: object) -> StateReport:
    given = {"open_requests": 0, "maps": (("streams", 0),), **fields}
    return StateReport(query=1, role=role, index=index, pid=100 + index, **given)  # type: ignore[arg-type] # built by tests


def scheduler(running: int = 0, waiting: int = 0, **gauges: int) -> StateReport:
    named = {"running": running, "waiting": waiting, **PAGES, **gauges}
    metrics = tuple(Measured.of(Metric(name, "gauge", "Now."), named[gauge]) for gauge, name in GAUGES.items())
    return report(Role.SCHEDULER, gauges=tuple(named.items()), metrics=metrics)


def state(*reports: StateReport, silent: tuple[str, ...] = ()) -> EngineState:
    return EngineState(query=1, reports=reports, silent=silent)


IDLE = (report(Role.API), report(Role.API, 1), report(Role.TEXT), scheduler(), report(Role.RUNTIME))


async def debugged(reported: EngineState) -> dict[str, object]:
    body = (await get(application(FakeEngine(reported=reported)), "/debug/state")).json()
    assert isinstance(body, dict)
    return body


async def test_debug_state_has_one_object_for_each_process() -> None:
    body = await debugged(state(*reversed(IDLE)))

    assert body["api"] == [
        {"index": 0, "pid": 100, "open_requests": 0, "maps": {"streams": 0}},
        {"index": 1, "pid": 101, "open_requests": 0, "maps": {"streams": 0}},
    ]
    assert body["scheduler"] == {
        "index": 0,
        "pid": 100,
        "open_requests": 0,
        "maps": {"streams": 0},
        "running": 0,
        "waiting": 0,
        **PAGES,
    }
    assert (body["violations"], body["quiescent"]) == ([], True)


@pytest.mark.parametrize(
    "changed",
    [
        state(*IDLE, silent=("text 1",)),
        state(*IDLE[:3], IDLE[4]),
        state(*IDLE, report(Role.TEXT, 1, open_requests=1)),
        state(*IDLE, report(Role.TEXT, 1, maps=(("a", 0), ("b", 2)))),
        state(*IDLE, report(Role.TEXT, 1, violations=("page 3 is free twice",))),
        state(*IDLE[:3], scheduler(running=1)),
        state(*IDLE[:3], scheduler(waiting=1)),
        state(*IDLE[:3], scheduler(pages_free=59)),
        state(*IDLE[:3], report(Role.SCHEDULER)),
        state(),
    ],
)
async def test_anything_left_anywhere_is_not_quiescent(changed: EngineState) -> None:
    assert (await debugged(changed))["quiescent"] is False


def tally(peer: Role, aborts: int) -> tuple[AbortTally, ...]:
    return (AbortTally(peer=peer, index=0, aborts=aborts),)


def with_aborts(*, by_api: int, by_text: int, to_text: int, to_scheduler: int) -> EngineState:
    """Two API processes, of which only the first has sent any; the text worker also tells of one that is gone."""
    gone = AbortTally(peer=Role.API, index=9, aborts=4)
    return state(
        report(Role.API, aborts_sent=tally(Role.TEXT, by_api)),
        report(Role.API, 1, aborts_sent=tally(Role.TEXT, 0)),
        report(Role.TEXT, aborts_taken=(gone, *tally(Role.API, by_text)), aborts_sent=tally(Role.SCHEDULER, to_text)),
        attrs.evolve(scheduler(), aborts_taken=tally(Role.TEXT, to_scheduler)),
        report(Role.RUNTIME),
    )


@pytest.mark.parametrize(
    ("figures", "expected"), [((3, 3, 2, 2), True), ((3, 2, 2, 2), False), ((3, 3, 2, 1), False), ((0, 0, 0, 0), True)]
)
async def test_an_abort_on_its_way_between_two_processes_is_not_quiescent(
    figures: tuple[int, int, int, int], expected: bool
) -> None:
    by_api, by_text, to_text, to_scheduler = figures
    reported = with_aborts(by_api=by_api, by_text=by_text, to_text=to_text, to_scheduler=to_scheduler)

    assert (await debugged(reported))["quiescent"] is expected


async def test_violations_are_named_with_their_process() -> None:
    body = await debugged(state(*IDLE, report(Role.TEXT, 1, violations=("bad",))))

    assert body["violations"] == ["text 1: bad"]


async def metrics_lines(reported: EngineState) -> list[str]:
    exchange = await get(application(FakeEngine(reported=reported)), "/metrics")

    assert exchange.status == 200
    assert exchange.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert exchange.body.endswith(b"\n")
    return exchange.body.decode().splitlines()


async def test_the_schedulers_gauges_are_told() -> None:
    lines = await metrics_lines(state(scheduler(running=3, waiting=2, pages_used=7)))

    assert "layered_llm_engine_ready 1" in lines
    assert "layered_llm_requests_running 3" in lines
    assert "layered_llm_requests_waiting 2" in lines
    assert "layered_llm_kv_pages_used 7" in lines
    assert "layered_llm_kv_pages_total 64" in lines
    assert "# TYPE layered_llm_kv_pages_used gauge" in lines


async def test_counters_are_summed_over_processes() -> None:
    lines = await metrics_lines(state(report(Role.API, metrics=ABORTS), report(Role.API, 1, metrics=ABORTS)))

    assert "layered_llm_aborts_emitted_total 4" in lines
    assert "# TYPE layered_llm_aborts_emitted_total counter" in lines


async def test_a_histogram_is_one_family_with_its_buckets_in_order() -> None:
    name = "layered_llm_time_to_first_token_seconds"
    metric = Metric("time_to_first_token_seconds", "histogram", "Time.")
    samples = (
        ('_bucket{le="2.5"}', 1.0),
        ('_bucket{le="10"}', 2.0),
        ('_bucket{le="+Inf"}', 3.0),
        ("_count", 3.0),
        ("_sum", 1.5),
    )
    metrics = (Measured(metric, samples),)

    lines = await metrics_lines(state(report(Role.API, metrics=metrics), report(Role.API, 1, metrics=metrics)))

    at = lines.index(f"# TYPE {name} histogram")
    assert lines[at - 1].startswith(f"# HELP {name} ")
    assert lines[at + 1 : at + 6] == [
        f'{name}_bucket{{le="2.5"}} 2',
        f'{name}_bucket{{le="10"}} 4',
        f'{name}_bucket{{le="+Inf"}} 6',
        f"{name}_count 6",
        f"{name}_sum 3",
    ]


async def test_each_family_is_introduced_once_however_many_labels_it_has() -> None:
    name = "layered_llm_choices_finished_total"
    samples = tuple((f'{{reason="{reason}"}}', 1.0) for reason in ("stop", "length"))
    finished = Measured(Metric("choices_finished_total", "counter", "Choices that ended."), samples)
    new = Measured.of(Metric("new_things_total", "counter", "New things."), 1.0)

    lines = await metrics_lines(state(report(Role.API, metrics=(finished, new)), report(Role.API, 1, metrics=(finished,))))

    assert len([line for line in lines if line.startswith(f"# TYPE {name} ")]) == 1
    assert "# TYPE layered_llm_new_things_total counter" in lines
    assert len({line for line in lines if line.startswith("# TYPE")}) == len(
        [line for line in lines if line.startswith("# TYPE")]
    )


async def test_sums_are_left_out_while_a_process_does_not_answer() -> None:
    reports = (report(Role.API, metrics=ABORTS), scheduler(running=3))

    whole, partial = await metrics_lines(state(*reports)), await metrics_lines(state(*reports, silent=("api-2",)))

    assert {"layered_llm_aborts_emitted_total 2", "layered_llm_processes_silent 0"} <= set(whole)
    assert {"layered_llm_requests_running 3", "layered_llm_processes_silent 1"} <= set(partial)
    assert not [line for line in partial if "aborts_emitted" in line]


async def test_a_models_name_in_a_label_is_escaped() -> None:
    settings = attrs.evolve(SETTINGS, served_model_names=('C:\\models\n"best"',), has_vllm_metrics=True)
    metrics = (Measured.of(Metric("prompt_tokens_total", "counter", "Tokens."), 2.0),)
    engine = FakeEngine(reported=state(report(Role.API, metrics=metrics), scheduler(running=3)))

    families = read_exposition((await get(application(engine, settings=settings), "/metrics")).body.decode())

    assert 2 == families["vllm:prompt_tokens_total"].value(model_name=r"C:\\models\n\"best\"", engine="0")
    assert 3 == families["vllm:num_requests_running"].value()


async def test_nothing_is_told_under_vllms_names_unless_asked_for() -> None:
    assert not [line for line in await metrics_lines(state(scheduler(running=3))) if "vllm:" in line]


async def test_metrics_of_a_lost_engine_say_that_it_is_not_ready() -> None:
    engine = FakeEngine(current=attrs.evolve(READY, phase=EnginePhase.FAILED, detail="gone"))

    exchange = await get(application(engine), "/metrics")

    assert exchange.status == 200
    assert "layered_llm_engine_ready 0" in exchange.body.decode().splitlines()


async def test_flushing_the_cache_asks_the_engine_and_tells_the_pages_after_it() -> None:
    engine = FakeEngine(reported=state(*IDLE))

    answer = await post(application(engine), "/flush_cache", {})

    assert (200, PAGES, 1) == (answer.status, answer.json(), engine.flushes)


async def test_looking_at_the_state_flushes_nothing() -> None:
    engine = FakeEngine(reported=state(*IDLE))

    await get(application(engine), "/debug/state")

    assert 0 == engine.flushes


async def test_the_root_says_what_this_is_and_names_only_paths_that_there_are() -> None:
    app = application(FakeEngine())
    told = (await get(app, "/")).json()
    assert isinstance(told, dict)
    places = {name: told[name] for name in ("models", "docs", "openapi", "health", "metrics")}

    assert "layered_llm" == told["name"]
    assert {200} == {(await get(app, path)).status for path in places.values()}
