import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

import layered_llm
from layered_llm import LLM, Engine, EngineClosed, ParameterError, RequestRejected, SamplingParams
from layered_llm.service.model.checkpoint import CheckpointError, default_gguf
from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.library import PATIENCE_S, engine_threads, tiny_settings

REFERENCE: Final = Path(__file__).parents[1] / "golden" / "smollm2_greedy.json"
SHORT = SamplingParams(max_tokens=4)
INTERRUPTED = """
import sys
from layered_llm import LLM, SamplingParams
from support.library import engine_threads, tiny_settings

with LLM(sys.argv[1], **tiny_settings(scripted_step_ms=2.0)) as llm:
    try:
        llm.generate(["abc"] * 4, SamplingParams(max_tokens=450))
    except KeyboardInterrupt:
        while not llm.is_quiescent():
            pass
        print("quiescent", llm.generate("abc", SamplingParams(max_tokens=3), progress=False)[0].text)
print("threads", engine_threads())
"""
FORGOTTEN = """
import sys
from layered_llm import LLM, SamplingParams
from support.library import tiny_settings

llm = LLM(sys.argv[1], **tiny_settings(scripted_step_ms=2.0))
print(llm.generate("abc", SamplingParams(max_tokens=450))[0].finish_reason)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_checkpoint(tmp_path)


def test_a_template_that_never_ends_is_refused_and_the_engine_goes_on(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "endless.jinja"
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template.write_text(f"{{% if messages[0].content == 'attack' %}}{endless}{{% endif %}}{{{{ messages[0].content }}}}")
    with LLM(model, **tiny_settings(chat_template=str(template))) as llm:
        with pytest.raises(RequestRejected, match="takes more than 1 s of processor time"):
            llm.chat([{"role": "user", "content": "attack"}], SHORT, progress=False)
        assert 5 == llm.chat([{"role": "user", "content": "hello"}], SHORT, progress=False)[0].usage.prompt_tokens


@pytest.fixture
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, **tiny_settings()) as llm:
        yield llm
        eventually(llm.is_quiescent)
    assert [] == engine_threads()


def test_one_prompt_of_each_kind_has_one_completion(llm: LLM) -> None:
    assert ["abca"] == [each.text for each in llm.generate("abc", SHORT)]
    assert ["xyxy"] == [each.text for each in llm.generate([120, 121], SHORT)]
    assert ["use"] == [each.text for each in llm.generate([{"role": "user", "content": "hi"}], SHORT)]


def test_many_prompts_keep_their_order(llm: LLM) -> None:
    prompts = [f"{number:03}" for number in range(20)]
    assert [f"{prompt}0" for prompt in prompts] == [each.text for each in llm.generate(prompts, SHORT)]
    params = [SamplingParams(max_tokens=1 + number % 2) for number in range(20)]
    assert [each.max_tokens for each in params] == [len(each.token_ids) for each in llm.generate(prompts, params)]
    assert [] == llm.generate([])


def test_chat_takes_a_conversation_or_several(llm: LLM) -> None:
    one = [{"role": "user", "content": "hi"}]
    assert ["use"] == [each.text for each in llm.chat(one, SHORT)]
    assert ["use", "sys"] == [each.text for each in llm.chat([one, [{"role": "system", "content": "hi"}]], SHORT)]
    with pytest.raises(ParameterError, match="must be a conversation"):
        llm.chat(["hi"])  # type: ignore[arg-type] # a text is for generate


def test_tokens_and_their_text_need_no_request(llm: LLM) -> None:
    assert ([97, 98], "ab") == (llm.tokenize("ab"), llm.detokenize([97, 98]))


def test_progress_is_shown_on_standard_error_unless_it_is_off(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["abc"] * 3, SHORT)
    shown = capsys.readouterr()
    assert "" == shown.out
    assert "3/3" in shown.err
    assert "tokens/s" in shown.err
    assert "\r" not in shown.err  # standard error is no terminal here
    llm.generate(["abc"] * 3, SHORT, progress=False)
    assert ("", "") == capsys.readouterr()


def test_errors_arrive_in_the_calling_thread_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(RequestRejected):
        llm.generate("x" * 600)
    with pytest.raises(ParameterError, match="lone surrogate"):
        llm.generate("\ud800")
    with pytest.raises(ParameterError, match="prompts must be a prompt"):
        llm.generate(None)  # type: ignore[arg-type] # as a caller without a type checker
    with pytest.raises(ParameterError, match="params has 1 items for 2 prompts"):
        llm.generate(["a", "b"], [SHORT])
    assert "abca" == llm.generate("abc", SHORT, progress=False)[0].text


def test_of_many_prompts_the_one_that_is_refused_is_named(llm: LLM) -> None:
    with pytest.raises(RequestRejected, match=r"^prompts\[2\]: .*512") as caught:
        llm.generate(["abc", "abc", "x" * 600, "abc"], SHORT, progress=False)
    assert caught.value.message == str(caught.value)
    with pytest.raises(RequestRejected, match=r"^(?!prompts)"):
        llm.generate("x" * 600, progress=False)


def test_several_threads_may_call_at_once(llm: LLM) -> None:
    texts: dict[str, str] = {}

    def ask(prompt: str) -> None:
        texts[prompt] = llm.generate(prompt, SHORT, progress=False)[0].text

    threads = [threading.Thread(target=ask, args=(f"{number:03}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {f"{number:03}": f"{number:03}0" for number in range(8)} == texts


def test_it_works_beside_asyncio(llm: LLM) -> None:
    async def main() -> str:
        first, second = await asyncio.gather(*(asyncio.to_thread(llm.generate, text, SHORT) for text in ("abc", "xyz")))
        return first[0].text + second[0].text

    assert "abcaxyzx" == asyncio.run(main())


def test_use_after_close_is_an_error(model: Path) -> None:
    llm = LLM(model, **tiny_settings())
    llm.close()
    llm.close()
    assert [] == engine_threads()
    with pytest.raises(EngineClosed, match="after it was closed"):
        llm.generate("abc", progress=False)


def test_closing_ends_a_call_of_another_thread(model: Path) -> None:
    """What another thread is inside of cannot be closed: the error is swallowed and nothing ends (Blaizzy/mlx-vlm 1217)."""
    llm = LLM(model, **tiny_settings(scripted_step_ms=2.0))
    ends: list[BaseException] = []

    def ask() -> None:
        try:
            llm.generate("abc", SamplingParams(max_tokens=450), progress=False)
        except EngineClosed as error:
            ends.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: llm.state().running)
    llm.close()
    thread.join(PATIENCE_S)
    assert [EngineClosed] == [type(end) for end in ends]


def test_a_call_that_is_interrupted_while_the_engine_ends_does_not_hang(model: Path) -> None:
    llm = LLM(model, **tiny_settings())
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    async def work(_engine: Engine) -> None:
        (job,) = llm._thread._jobs
        llm._thread.request_stop()
        signal.pthread_kill(main_thread, signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(PATIENCE_S, shield=True):
                while not job._scope.cancel_called:
                    await trio.lowlevel.checkpoint()

    with pytest.raises(KeyboardInterrupt):
        llm._thread.call(work)
    llm.close()


def test_a_dropped_one_ends_by_itself(model: Path) -> None:
    llm = LLM(model, **tiny_settings())
    del llm
    eventually(lambda: not engine_threads())


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(layered_llm.EngineStartFailed, match="there is no such file or directory"):
        LLM(tmp_path / "none", **tiny_settings())
    with pytest.raises(layered_llm.SettingsError, match="num_page is no setting"):
        LLM(num_page=3)
    assert [] == engine_threads()


def program(text: str, model: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join((str(Path(__file__).parents[1]), *filter(None, (os.environ.get("PYTHONPATH"),))))
    return subprocess.Popen(
        [sys.executable, "-c", text, str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def interrupt_under_way(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Sends SIGINT once the progress bar shows tokens; what the program wrote then."""
    assert process.stderr is not None
    seen = ""
    while " tokens/s" not in seen or " 0.0 tokens/s" in seen[-40:]:
        letter = process.stderr.read(1)
        assert letter, seen
        seen += letter
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE_S)


def test_ctrl_c_aborts_what_is_open_and_the_engine_goes_on(model: Path) -> None:
    with program(INTERRUPTED, model) as process:
        out, err = interrupt_under_way(process)
    assert "quiescent abc\nthreads []\n" == out, err
    assert 0 == process.returncode


def test_ctrl_c_ends_a_program_that_handles_nothing(model: Path) -> None:
    with program(FORGOTTEN, model) as process:
        out, err = interrupt_under_way(process)
    assert ("", -signal.SIGINT) == (out, process.returncode)
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_program_that_forgets_to_close_ends(model: Path) -> None:
    with program(FORGOTTEN, model) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert ("length\n", 0) == (out, process.returncode), err


def has_default_model() -> bool:
    try:
        return default_gguf().is_file()
    except CheckpointError:
        return False


@pytest.mark.skipif(not REFERENCE.is_file() or not has_default_model(), reason="needs the default model and its reference")
def test_greedy_tokens_of_the_default_model_are_those_of_the_reference() -> None:
    prompts = [
        each for each in json.loads(REFERENCE.read_text())["prompts"] if each["name"] in ("english", "story", "chat-fact")
    ]
    length = 12
    with LLM(dtype="float32", threads=1) as llm:
        params = [SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=each["ignore_eos"]) for each in prompts]
        given = [each.get("text") or each["messages"] for each in prompts]
        completions = llm.generate(given, params, progress=False)
    expected = [each["output_ids"][:length] for each in prompts]
    assert expected == [list(completion.token_ids) for completion in completions]
