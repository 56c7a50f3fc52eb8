import pytest

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.service.chat.session import (
    Conversation,
    Input,
    Leave,
    LineJoiner,
    Reset,
    Say,
    SetSystem,
    ShowHelp,
    UnknownCommand,
    read_input,
)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("hello", Say("hello")),
        ("  indented\n  code", Say("  indented\n  code")),
        ("", None),
        ("  \n ", None),
        ("/reset", Reset()),
        (" /reset ", Reset()),
        ("/exit", Leave()),
        ("/quit", Leave()),
        ("/help", ShowHelp()),
        ("/system  Be terse. ", SetSystem("Be terse.")),
        ("/system", SetSystem(None)),
        ("/system one\ntwo", SetSystem("one\ntwo")),
        ("/restart now", UnknownCommand("/restart")),
        ("/", UnknownCommand("/")),
        ("//etc is a directory", Say("/etc is a directory")),
        ("1/2", Say("1/2")),
    ],
)
def test_what_an_input_means(text: str, meaning: Input | None) -> None:
    assert meaning == read_input(text)


def test_a_backslash_at_the_end_joins_lines() -> None:
    joiner = LineJoiner()

    assert (None, None, "one\ntwo \nthree") == (joiner.add("one\\"), joiner.add("two \\"), joiner.add("three"))
    assert not joiner.is_open


def test_an_input_that_goes_on_can_be_dropped() -> None:
    joiner = LineJoiner()
    joiner.add("one\\")

    assert joiner.is_open
    assert ("one",) == joiner.clear()
    assert "two" == joiner.add("two")


def roles_and_texts(messages: tuple[ChatMessage, ...]) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in messages]


def test_a_request_holds_the_system_prompt_what_was_said_and_the_question() -> None:
    conversation = Conversation("Be terse.")
    conversation.keep("Hi", "Hello")

    assert [("system", "Be terse."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")] == roles_and_texts(
        conversation.messages_for("Why?")
    )


def test_a_question_without_an_answer_is_not_kept() -> None:
    conversation = Conversation()
    conversation.messages_for("Hi")

    assert [("user", "Why?")] == roles_and_texts(conversation.messages_for("Why?"))


def test_reset_keeps_the_system_prompt_and_a_new_system_prompt_keeps_the_rest() -> None:
    conversation = Conversation("Be terse.")
    conversation.keep("Hi", "Hello")
    conversation.set_system("Be kind.")
    after_system = conversation.messages_for("Why?")
    conversation.reset()

    assert [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")] == roles_and_texts(after_system)
    assert [("system", "Be kind."), ("user", "Why?")] == roles_and_texts(conversation.messages_for("Why?"))


def test_the_system_prompt_can_be_removed() -> None:
    conversation = Conversation("Be terse.")
    conversation.set_system(None)

    assert [("user", "Why?")] == roles_and_texts(conversation.messages_for("Why?"))
