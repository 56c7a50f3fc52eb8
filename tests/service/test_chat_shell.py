import contextlib
import signal
import threading
from collections.abc import AsyncIterator

import pytest
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import ContextFull, End, Failed, Finished, Lost, Piece
from layered_llm.service.chat.host import BackendStuck, open_host
from layered_llm.service.chat.session import HELP, Conversation
from layered_llm.service.chat.shell import Shell
from layered_llm.service.chat.terminal import Interrupts
from support.chat_fakes import FINISHED, CtrlC, Item, ScriptedBackend, ScriptedUser, Silence, piece

HELLO: list[Item] = [piece("Hel"), piece("lo"), FINISHED]


def chat(user: ScriptedUser, backend: ScriptedBackend, *, system: str | None = None) -> int:
    """The exit code of a whole chat."""
    interrupts = Interrupts()
    params = SamplingParams(temperature=0.0, max_tokens=None)
    with open_host(backend.open) as host, interrupts.installed():
        shell = Shell(front=user, host=host, interrupts=interrupts, conversation=Conversation(system), params=params)
        return shell.run()


def test_each_question_brings_all_that_was_said_before() -> None:
    user, backend = ScriptedUser(["Hi", "Why?"]), ScriptedBackend([HELLO, [piece("So"), FINISHED]])

    assert 0 == chat(user, backend, system="Be kind.")

    assert "Hello\nSo\n\n" == user.answers
    assert [
        [("system", "Be kind."), ("user", "Hi")],
        [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")],
    ] == backend.asked
    assert [SamplingParams(temperature=0.0, max_tokens=None)] * 2 == backend.params
    assert backend.is_closed


def test_a_line_with_the_figures_follows_each_answer() -> None:
    user, backend = ScriptedUser(["Hi"]), ScriptedBackend([[piece("a"), Finished(end=End.STOP, tokens=7)]])

    chat(user, backend)

    (note,) = user.notes
    assert note.startswith("7 tokens · ")


def test_reasoning_is_shown_aside_and_is_no_part_of_the_conversation() -> None:
    thought = Piece(text="", reasoning="Hm.", tokens=1)
    user, backend = ScriptedUser(["Hi", "Why?"]), ScriptedBackend([[thought, *HELLO], HELLO])

    chat(user, backend)

    assert "Hm." == user.asides
    assert ("assistant", "Hello") == backend.asked[1][1]


def test_ctrl_c_stops_the_answer_and_keeps_it_as_far_as_it_came() -> None:
    user = ScriptedUser(["Hi", "Why?"], stops_at="Hel")
    backend = ScriptedBackend([[piece("Hel"), Silence()], HELLO[1:]])

    assert 0 == chat(user, backend)

    assert 1 == backend.cancelled
    assert [("user", "Hi"), ("assistant", "Hel"), ("user", "Why?")] == backend.asked[1]
    assert user.notes[0].endswith("stopped")


def test_an_answer_that_was_stopped_before_its_first_text_is_not_kept() -> None:
    user = ScriptedUser(["Hi", "Why?"], stops_at="Hm.")
    backend = ScriptedBackend([[Piece(text="", reasoning="Hm.", tokens=1), Silence()], HELLO])

    chat(user, backend)

    assert [("user", "Why?")] == backend.asked[1]


def test_ctrl_c_at_the_prompt_drops_what_was_begun() -> None:
    user, backend = ScriptedUser(["one\\", CtrlC(), "two"]), ScriptedBackend([HELLO])

    assert 0 == chat(user, backend)

    assert [[("user", "two")]] == backend.asked
    assert [False, True, False, False] == user.continued


def test_commands() -> None:
    user = ScriptedUser(["Hi", "/system Be kind.", "Why?", "/reset", "So?", "/help", "/exit", "not read"])
    backend = ScriptedBackend([HELLO, HELLO, HELLO])

    assert 0 == chat(user, backend)

    assert [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")] == backend.asked[1]
    assert [("system", "Be kind."), ("user", "So?")] == backend.asked[2]
    assert HELP in user.notes
    assert ["not read"] == user.lines


def test_a_mistyped_command_is_not_sent() -> None:
    user, backend = ScriptedUser(["/rest"]), ScriptedBackend([])

    assert 0 == chat(user, backend)

    assert ["/rest is no command; /help lists them, //rest says /rest"] == user.errors


def test_a_full_context_suggests_reset_and_leaves_the_conversation_as_it_was() -> None:
    user = ScriptedUser(["long", "Hi"])
    backend = ScriptedBackend([[ContextFull("The context has 8 tokens.")], HELLO])

    assert 0 == chat(user, backend)

    assert ["The context has 8 tokens. /reset begins a new conversation."] == user.errors
    assert [("user", "Hi")] == backend.asked[1]


@pytest.mark.parametrize(
    ("end", "told"), [(End.CONTEXT, "the context is full. /reset begins"), (End.LENGTH, "the most tokens of an answer")]
)
def test_a_cut_off_answer_is_told(end: End, told: str) -> None:
    user, backend = ScriptedUser(["Hi"]), ScriptedBackend([[piece("a"), Finished(end=end, tokens=1)]])

    chat(user, backend)

    assert told in user.notes[0]


def test_a_person_goes_on_after_a_failure_which_is_not_kept() -> None:
    user, backend = ScriptedUser(["Hi", "Why?"]), ScriptedBackend([[piece("He"), Failed("no luck")], HELLO])

    assert 0 == chat(user, backend)

    assert ["no luck"] == user.errors
    assert [("user", "Why?")] == backend.asked[1]


@pytest.mark.parametrize("outcome", [Failed("no luck"), ContextFull("no luck"), Lost("no luck")])
def test_a_script_ends_at_its_first_error(outcome: Failed | ContextFull | Lost) -> None:
    user, backend = ScriptedUser(["Hi", "Why?"], is_interactive=False), ScriptedBackend([[outcome]])

    assert 1 == chat(user, backend)

    assert "" == user.answers
    assert user.errors[0].startswith("no luck")


def test_a_script_is_ended_by_ctrl_c_in_an_answer_and_between_lines() -> None:
    in_answer = ScriptedUser(["Hi"], is_interactive=False, stops_at="Hel")
    between = ScriptedUser([CtrlC()], is_interactive=False)

    assert 130 == chat(in_answer, ScriptedBackend([[piece("Hel"), Silence()]]))
    assert 130 == chat(between, ScriptedBackend([]))


def test_a_script_may_end_within_a_line_that_goes_on() -> None:
    user, backend = ScriptedUser(["one\\"], is_interactive=False), ScriptedBackend([HELLO])

    assert 0 == chat(user, backend)

    assert [[("user", "one")]] == backend.asked
    assert "Hello\n" == user.answers


def test_a_lost_engine_ends_the_chat() -> None:
    user, backend = ScriptedUser(["Hi", "Why?"]), ScriptedBackend([[Lost("the engine ended")]])

    assert 1 == chat(user, backend)

    assert ["the engine ended"] == user.errors


def test_our_own_fault_in_the_backend_is_not_hidden() -> None:
    user, backend = ScriptedUser(["Hi", "Why?"]), ScriptedBackend([[InvariantViolated("two and two is five")]])

    with pytest.raises(InvariantViolated, match="five"):
        chat(user, backend)


def ask_for_ever(backend: ScriptedBackend) -> None:
    with open_host(backend.open) as host:
        while True:
            host.ask((), SamplingParams(max_tokens=None)).next_event()


def test_a_backend_that_has_failed_answers_no_more() -> None:
    with pytest.raises(InvariantViolated, match="five"):
        ask_for_ever(ScriptedBackend([[InvariantViolated("two and two is five")]]))


def test_nobody_waits_for_a_start_that_cannot_be_cancelled() -> None:
    is_released = threading.Event()

    class Loading(ScriptedBackend):
        @contextlib.asynccontextmanager
        async def open(self) -> AsyncIterator[ScriptedBackend]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await trio.to_thread.run_sync(is_released.wait)
            yield self

    with pytest.raises(BackendStuck), open_host(Loading([]).open):
        pass
    is_released.set()
