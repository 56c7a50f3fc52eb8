import datetime as dt
import json

import pytest

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.text.chat_template import ChatTemplate, TemplateFailed

MOMENT = dt.datetime(2025, 3, 9, 12, 30)


def render(source: str, *messages: ChatMessage, **variables: str) -> str | TemplateFailed:
    return ChatTemplate(source, variables=variables, clock=lambda: MOMENT).render(messages)


def user(content: str | None, **fields: str) -> ChatMessage:
    return ChatMessage(role="user", content=content, **fields)


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
