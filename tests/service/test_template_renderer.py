import datetime as dt
import os
import signal
import subprocess
import sys

import pytest
import trio

from layered_llm.domain.messages.prompts import ChatMessage, Prompt, Rendering, ToolCall
from layered_llm.service.workers.template_process import TemplateLimits
from layered_llm.service.workers.template_renderer import ProcessRenderer, open_renderer
from layered_llm.text.chat_template import ChatTemplate, TemplateFailed
from support.eventually import eventually

MOMENT = dt.datetime(2025, 6, 7)
LIMITS = TemplateLimits(memory_bytes=128 << 20, render_s=0.2, text_bytes=1 << 20)
HELLO = Prompt.of_chat([ChatMessage(role="user", content="hello")])
ATTACK = Prompt.of_chat([ChatMessage(role="user", content="attack")])
FAIR = "{% if messages[0].content != 'attack' %}{{ messages[0].content }}{% else %}{% set one = messages | length %}"
"""What is constant is computed when a template is compiled, so that the attacks are not."""

ATTACKS = {
    "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "text": "{{ 'x' * 300000000 }}",
    "text-kept": "{% set a = 'x' * 300000000 %}",
    "doubling": "{% set n = namespace(a='xxxxxxxx') %}{% for _ in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "list": "{{ ([0] * 300000000) | length }}",
    "range": "{{ range(10 ** 9) | list | length }}",
    "center": "{{ 'x' | center(10 ** 9) }}",
    "ljust": "{{ 'x'.ljust(10 ** 9) }}",
    "format": "{{ '%*d' % (10 ** 9, 1) }}",
    "str-format": "{{ '{:>1000000000}'.format(1) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) | length }}",
    "join": "{{ (['a' * 100000] * (100000 * one)) | join('b' * 1000) | length }}",
    "power": "{{ 9 ** (9 ** (8 + one)) }}",
    "macro": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "long-text": "{{ 'x' * 2000000 }}",
    "indent": "{{ ('a\n' * (100000 * one)) | indent(100000) | length }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list | length }}",
    "regex": "{{ ('a ' * (5000000 * one)) | urlize | length }}",
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, variables={"bos_token": "<s>"}, clock=lambda: MOMENT)


def attack_on_some(attack: str) -> ChatTemplate:
    return template(f"{FAIR}{ATTACKS[attack]}{{% endif %}}")


async def test_a_conversation_has_the_text_that_it_has_here() -> None:
    own = template(
        "{{ bos_token }}{{ strftime_now('%Y') }}{{ tools | tojson }}"
        "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ add_generation_prompt }}"
    )
    call = ToolCall(name="f", arguments='{"a": 1}', id="7")
    turns = [
        ChatMessage(role="user", content="caf\u00e9 \U0001f600 \ud800", name="bob"),
        ChatMessage(role="assistant", content=None, reasoning="hm", tool_calls=(call, ToolCall(name="g", arguments="{}"))),
        ChatMessage(role="tool", content="1", tool_call_id="7"),
    ]
    for rendering in (Rendering(variables='{"tools": [1]}'), Rendering(add_generation_prompt=False)):
        async with open_renderer(own) as renderer:
            assert own.render(turns, rendering) == await renderer.render(Prompt.of_chat(turns, rendering))


async def test_a_text_that_is_continued_is_cut_there_too() -> None:
    own = template("{% for m in messages %}{{ m.content }}|{% endfor %}")
    rendering = Rendering(add_generation_prompt=False, continue_final_message=True)
    async with open_renderer(own) as renderer:
        assert "hello" == await renderer.render(Prompt.of_chat(HELLO.chat or (), rendering))


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_template_that_takes_too_much_fails_and_the_next_conversation_is_rendered(attack: str) -> None:
    async with open_renderer(attack_on_some(attack), LIMITS) as renderer:
        failed = await renderer.render(ATTACK)
        assert isinstance(failed, TemplateFailed), failed
        assert "hello" == await renderer.render(HELLO)


async def test_a_failure_says_the_limit() -> None:
    async with open_renderer(attack_on_some("loop"), LIMITS) as renderer:
        message = "it takes more than 0.2 s of processor time, the most that a template may take"
        assert TemplateFailed(message=message) == await renderer.render(ATTACK)
    async with open_renderer(attack_on_some("text"), LIMITS) as renderer:
        assert TemplateFailed(message="it needs too much memory") == await renderer.render(ATTACK)
    async with open_renderer(attack_on_some("long-text"), LIMITS) as renderer:
        message = "it makes a text of 2000000 bytes, and 1048576 are the most"
        assert TemplateFailed(message=message) == await renderer.render(ATTACK)


@pytest.mark.parametrize(
    "source", ["{% if", "{% if a %}" * 3000 + "{% endif %}" * 3000, "{{ " + "(" * 9000 + ")" * 9000 + " }}"]
)
async def test_a_template_that_cannot_be_compiled_fails_in_one_line(source: str) -> None:
    async with open_renderer(template(source), LIMITS) as renderer:
        failed = await renderer.render(HELLO)
        assert isinstance(failed, TemplateFailed)
        assert "\n" not in failed.message


async def test_a_process_that_was_killed_is_replaced() -> None:
    async with open_renderer(template("{{ messages[0].content }}"), LIMITS) as renderer:
        await renderer.start()
        first = pid_of(renderer)
        os.kill(first, signal.SIGKILL)
        failed = await renderer.render(HELLO)
        assert isinstance(failed, TemplateFailed)
        assert "hello" == await renderer.render(HELLO)
        assert first != pid_of(renderer)


async def test_a_process_knows_nothing_but_the_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERED_LLM_API_KEY", "secret")
    async with open_renderer(template("x")) as renderer:
        await renderer.render(HELLO)
        environment = await trio.Path(f"/proc/{pid_of(renderer)}/environ").read_bytes()
        files = sorted(os.listdir(f"/proc/{pid_of(renderer)}/fd"))  # noqa: PTH208 - a moment in /proc

    assert ["PYTHONPATH"] == [entry.partition(b"=")[0].decode() for entry in environment.split(b"\0") if entry]
    assert ["0", "1", "2"] == files


async def test_a_cancelled_conversation_leaves_the_process_at_its_beginning() -> None:
    async with open_renderer(template("{{ messages[0].content }}")) as renderer:
        with trio.CancelScope() as scope:
            scope.cancel()
            await renderer.render(ATTACK)
        assert "hello" == await renderer.render(HELLO)


async def test_a_process_ends_with_the_one_that_asked_it() -> None:
    program = (
        "import sys, trio, datetime\n"
        "from layered_llm.text.chat_template import ChatTemplate\n"
        "from layered_llm.service.workers.template_renderer import open_renderer\n"
        "async def main():\n"
        "    async with open_renderer(ChatTemplate('x', variables={}, clock=datetime.datetime.now)) as renderer:\n"
        "        await renderer.start()\n"
        "        print(renderer.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        pid = int(await trio.to_thread.run_sync(parent.stdout.readline))
        parent.kill()
    await trio.to_thread.run_sync(eventually, lambda: not is_running(pid))


def pid_of(renderer: ProcessRenderer) -> int:
    assert renderer.pid is not None
    return renderer.pid


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
