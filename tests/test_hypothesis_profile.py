from hypothesis import HealthCheck, settings


def test_no_test_has_to_be_fast() -> None:
    profile = settings()
    assert (None, True) == (profile.deadline, HealthCheck.too_slow in profile.suppress_health_check)
