import datetime as dt
import json

import pytest

from layered_llm.domain.messages.prompts import ChatMessage, Rendering, ToolCall
from layered_llm.text.chat_template import ChatTemplate, TemplateFailed

MOMENT = dt.datetime(2025, 3, 9, 12, 30)


def render(source: str, *messages: ChatMessage, **variables: str) -> str | TemplateFailed:
    return ChatTemplate(source, variables=variables, clock=lambda: MOMENT).render(messages)


def user(content: str | None, name: str | None = None) -> ChatMessage:
    return ChatMessage(role="user", content=content, name=name)


def test_messages_and_generation_prompt_are_given() -> None:
    turns = "{% for m in messages %}<{{ m['role'] }}>{{ m.content }}{% endfor %}"
    source = turns + "{% if add_generation_prompt %}<assistant>{% endif %}"
    assert "<user>hi<system>be<assistant>" == render(source, user("hi"), ChatMessage(role="system", content="be"))


def test_blocks_are_trimmed() -> None:
    assert "x\ny\n" == render("  {% if true %}\nx\n    {% endif %}\ny\n\n")


def test_loop_controls_exist() -> None:
    assert "01" == render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")


def test_the_generation_block_renders_what_it_holds() -> None:
    assert "a[hi]b" == render("a{% generation %}[{{ messages[0].content }}]{% endgeneration %}b", user("hi"))


def test_the_clock_is_the_one_passed_in() -> None:
    assert "09 Mar 2025" == render("{{ strftime_now('%d %b %Y') }}")


def test_tojson_escapes_neither_html_nor_unicode() -> None:
    assert '{"b": "<é>", "a": 1}' == render("{{ {'b': '<é>', 'a': 1} | tojson }}")
    assert json.dumps({"a": [1]}, indent=2) == render("{{ {'a': [1]} | tojson(indent=2) }}")


def test_variables_of_the_checkpoint_are_given() -> None:
    assert "<s>|</s>" == render("{{ bos_token }}|{{ eos_token }}", bos_token="<s>", eos_token="</s>")


def test_a_missing_variable_is_empty_as_are_tools() -> None:
    assert "[]no" == render("[{{ bos_token }}]{% if tools or documents %}yes{% else %}no{% endif %}")


def test_null_content_is_the_empty_text() -> None:
    assert "<user>" == render("{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}", user(None))


def test_a_name_is_given_only_where_there_is_one() -> None:
    source = "{% for m in messages %}{{ m.name if 'name' in m else '-' }}{% endfor %}"
    assert "-ann" == render(source, user("a"), user("b", name="ann"))


NULL_AWARE = "{% for m in messages %}{% if m['content'] is none %}calls{% else %}[{{ m['content'] }}]{% endif %}{% endfor %}"
CALL = ToolCall(id="c1", name="f", arguments='{"b": 1, "a": "é"}')


@pytest.mark.parametrize(("calls", "expected"), [((CALL,), "calls"), ((), "[]")])
def test_a_turn_of_calls_alone_is_null_for_a_template_that_asks(calls: tuple[ToolCall, ...], expected: str) -> None:
    assert expected == render(NULL_AWARE, ChatMessage(role="assistant", content=None, tool_calls=calls))


def test_calls_come_with_their_arguments_as_an_object() -> None:
    source = (
        "{% for m in messages %}{% for call in m.tool_calls %}{{ call.id }}:{{ call.type }}:{{ call.function.name }}"
        ":{{ call.function.arguments | tojson }}{% endfor %}>{{ m.tool_call_id }}<{% endfor %}"
    )
    asked = ChatMessage(role="assistant", content=None, tool_calls=(CALL,))
    answer = ChatMessage(role="tool", content="42", tool_call_id="c1")
    assert 'c1:function:f:{"b": 1, "a": "é"}><>c1<' == render(source, asked, answer)


def test_thoughts_are_given_by_both_of_their_names() -> None:
    source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ 'thinking' in messages[1] }}"
    assert "hm|hm|False" == render(source, ChatMessage(role="assistant", content="a", reasoning="hm"), user("b"))


@pytest.mark.parametrize(("source", "role"), [("", "system"), ("{# system or developer #}", "developer")])
def test_a_developer_is_a_system_where_the_template_knows_none(source: str, role: str) -> None:
    assert role == render(source + "{{ messages[0].role }}", ChatMessage(role="developer", content="x"))


TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TRIMMED = TURNS.replace("m.content", "m.content | trim")
CONTINUED = Rendering(add_generation_prompt=False, continue_final_message=True)


def rendered(source: str, rendering: Rendering, *contents: str | None) -> str | TemplateFailed:
    template = ChatTemplate(source, variables={"bos_token": "<s>"}, clock=lambda: MOMENT)
    return template.render([ChatMessage(role="assistant", content=content) for content in contents], rendering)


def test_the_next_turn_is_begun_only_where_it_is_wanted() -> None:
    assert "<assistant>a</>" == rendered(TURNS, Rendering(add_generation_prompt=False), "a")


@pytest.mark.parametrize(
    ("source", "expected"), [(TURNS, "<assistant>a</><assistant> b "), (TRIMMED, "<assistant>a</><assistant>b")]
)
def test_a_last_turn_that_goes_on_is_not_closed(source: str, expected: str) -> None:
    assert expected == rendered(source, CONTINUED, "a", " b ")


@pytest.mark.parametrize(
    ("source", "content"), [(TURNS, ""), (TURNS, None), ("fixed", "a"), ("{{ messages[0].content[2:] }}", "abc")]
)
def test_a_last_turn_that_is_not_shown_cannot_go_on(source: str, content: str | None) -> None:
    assert isinstance(rendered(source, CONTINUED, content), TemplateFailed)


def test_variables_of_the_request_come_before_those_of_the_checkpoint() -> None:
    source = "{{ bos_token }}{{ enable_thinking }}{{ documents[0].title if documents }}{{ tools }}"
    variables = '{"bos_token": "<b>", "enable_thinking": false, "documents": [{"title": "t"}]}'
    assert "<b>FalsetNone" == rendered(source, Rendering(variables=variables), "a")


def test_no_variable_of_a_request_replaces_the_conversation() -> None:
    variables = '{"messages": [], "add_generation_prompt": false}'
    assert "<assistant>a</><assistant>" == rendered(TURNS, Rendering(variables=variables), "a")


def test_the_words_of_raise_exception_reach_the_caller() -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('The first role must be system') }}{% endif %}"
    assert TemplateFailed(message="The first role must be system") == render(source, user("a"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 // 0 }}",
        "{{ nothing.at.all }}",
        "{{ messages[7]['content'].strip() }}",
        "{% for x in 3 %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'etc' %}",
        "{{ {1, 2} | tojson }}",
        "{{ strftime_now(3) }}",
        "{% if %}",
        "{{ 'unclosed'",
        "{% unknown_tag %}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    ],
)
def test_whatever_goes_wrong_is_a_value(source: str) -> None:
    outcome = render(source, user("a"))
    assert isinstance(outcome, TemplateFailed)
    assert outcome.message


def test_arguments_that_are_nested_too_deeply_fail_the_rendering() -> None:
    call = ToolCall(name="f", arguments="[" * 10_000 + "]" * 10_000)

    rendered = render("{{ messages }}", ChatMessage(role="assistant", content=None, tool_calls=(call,)))

    assert isinstance(rendered, TemplateFailed)
    assert rendered.message.startswith("RecursionError")


def test_what_a_template_says_of_its_failure_is_cut() -> None:
    answer = render("{{ raise_exception(messages[0].content) }}", user("x" * 100_000))

    assert TemplateFailed(message="x" * 500) == answer
