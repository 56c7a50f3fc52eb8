"""litellm: its three ways to an OpenAI-compatible server, whole and streamed, and its names for our errors."""

import sys

import litellm

BASE_URL, MODEL = sys.argv[1:]
SAID = "system\nRepeat me."
MESSAGES = [{"role": "system", "content": "Repeat me."}, {"role": "user", "content": "hello"}]
SERVER = {"api_base": BASE_URL, "api_key": "none", "num_retries": 0}

for provider in ("hosted_vllm", "openai"):
    whole = litellm.completion(model=f"{provider}/{MODEL}", messages=MESSAGES, **SERVER)
    assert (SAID, "stop") == (whole.choices[0].message.content, whole.choices[0].finish_reason), whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(
        litellm.completion(
            model=f"{provider}/{MODEL}", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SERVER
        )
    )
    assert SAID == "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks
    assert ["stop"] == [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert [whole.usage.total_tokens] == [chunk.usage.total_tokens for chunk in chunks if getattr(chunk, "usage", None)]

text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="one two three", max_tokens=3, **SERVER)
assert ("one two three", "length") == (text.choices[0].text, text.choices[0].finish_reason), text

for fault, model, fields in (
    (litellm.BadRequestError, f"hosted_vllm/{MODEL}", {"temperature": -1}),
    (litellm.ContextWindowExceededError, f"openai/{MODEL}", {"messages": [{"role": "user", "content": "word " * 9000}]}),
    (litellm.NotFoundError, "hosted_vllm/nothing", {}),
):
    try:
        litellm.completion(model=model, **{"messages": MESSAGES, **fields}, **SERVER)
    except fault:
        continue
    raise AssertionError(fault)
