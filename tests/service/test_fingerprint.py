import attrs

from layered_llm.service.settings.settings import Settings


def test_where_a_server_listens_changes_no_output() -> None:
    assert Settings().fingerprint("1") == Settings(port=1, log_level="error").fingerprint("1")


def test_what_an_output_depends_on_changes_the_fingerprint() -> None:
    base = Settings()
    others = [attrs.evolve(base, dtype="float32"), attrs.evolve(base, model="/m"), attrs.evolve(base, page_size=32)]
    words = {base.fingerprint("1"), base.fingerprint("2"), *(other.fingerprint("1") for other in others)}
    assert 5 == len(words)
    assert all(word.startswith("fp_") and len(word) == 19 for word in words)
