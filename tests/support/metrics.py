"""What a process reports of itself, as tests compare it."""

from layered_llm.domain.metrics import PREFIX, Measured


def samples_by_name(metrics: tuple[Measured, ...]) -> dict[str, float]:
    """Values by their full names, as an exposition has them."""
    return {f"{PREFIX}{each.metric.name}{sample}": value for each in metrics for sample, value in each.samples}
