from layered_llm.domain.ids import RequestId
from layered_llm.domain.metrics import Measured, metrics_of
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.flight import AbortRelease
from layered_llm.service.workers.scheduler_figures import SchedulerFigures
from support.metrics import samples_by_name
from support.scheduling_rig import Rig, admit, limits


def test_waits_and_fills_are_counted() -> None:
    figures = SchedulerFigures(100)
    figures.planned(tokens=50, waited_us=(20_000, 3_000_000))
    figures.planned(tokens=100, waited_us=())

    samples = samples_by_name(metrics_of(figures))

    assert (2.0, 3.02) == (samples["layered_llm_queue_time_seconds_count"], samples["layered_llm_queue_time_seconds_sum"])
    assert 1.0 == samples['layered_llm_queue_time_seconds_bucket{le="0.02"}']
    assert (2.0, 1.5) == (samples["layered_llm_step_fill_ratio_count"], samples["layered_llm_step_fill_ratio_sum"])
    assert 1.0 == samples['layered_llm_step_fill_ratio_bucket{le="0.5"}']


def test_a_step_that_computes_nothing_has_no_fill() -> None:
    figures = SchedulerFigures(100)

    figures.planned(tokens=0, waited_us=())

    assert 0.0 == samples_by_name(metrics_of(figures))["layered_llm_step_fill_ratio_count"]


def test_the_time_and_the_steps_until_an_aborted_request_holds_nothing_are_counted() -> None:
    figures = SchedulerFigures(100)
    for steps, now_us in ((0, 1_000), (2, 31_000)):
        release = AbortRelease(request=RequestId(1), aborted_us=1_000, steps=steps)
        figures.came_about(Effects(releases=(release,)), now_us)

    samples = samples_by_name(metrics_of(figures))

    assert (2.0, 0.03) == tuple(samples[f"layered_llm_abort_release_seconds_{part}"] for part in ("count", "sum"))
    assert (1.0, 2.0) == tuple(samples[f'layered_llm_abort_release_steps_bucket{{le="{steps}"}}'] for steps in (0, 2))


def test_the_prefix_cache_and_preemptions_are_reported() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    rig.run()

    samples = samples_by_name(report_of(rig.scheduler))

    statistics = rig.scheduler.statistics()
    assert statistics.pages_evicted > 0
    assert (
        1,
        statistics.counters.prefix_hit_tokens,
        statistics.counters.prefix_lookup_tokens,
        statistics.pages_evicted,
    ) == tuple(
        samples[f"layered_llm_{name}_total"]
        for name in ("preemptions", "prefix_cache_hit_tokens", "prefix_cache_lookup_tokens", "kv_pages_evicted")
    )


def test_every_token_of_a_request_is_new_once_however_often_it_is_computed() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    rig.run()

    ended = [one for effects in rig.completed for one in effects.ended]
    assert 0 < rig.scheduler.statistics().counters.preemptions
    assert 2 * (4 + 20) == sum(effects.new_tokens for effects in rig.completed)
    assert [0, 1] == sorted(preemptions for _, preemptions in ended)


def test_what_is_new_in_steps_and_what_requests_took_is_counted() -> None:
    figures = SchedulerFigures(100)
    figures.came_about(Effects(new_tokens=5), 0)
    figures.came_about(Effects(ended=((2_000_000, 3),)), 0)

    samples = samples_by_name(metrics_of(figures))

    assert (1.0, 5.0) == tuple(samples[f"layered_llm_step_new_tokens_{part}"] for part in ("count", "sum"))
    assert 2.0 == samples["layered_llm_request_inference_time_seconds_sum"]
    assert 3.0 == samples["layered_llm_request_preemptions_sum"]


def report_of(scheduler: Scheduler) -> tuple[Measured, ...]:
    return SchedulerFigures(1).report(scheduler.statistics(), scheduler.check(), query=1, pid=1).metrics
