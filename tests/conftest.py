"""What holds for every test: Hypothesis draws the same examples each time, and no example has to be fast.

A busy machine makes any example slow, which is not a fault of what is tested.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
