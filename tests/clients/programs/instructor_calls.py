"""instructor: its structured modes need what the server refuses by name as long as it does not have it."""

import sys

import instructor
import openai
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
SAID = "system\nRepeat me."
MESSAGES = [{"role": "system", "content": "Repeat me."}, {"role": "user", "content": "hello"}]


class Person(BaseModel):
    name: str


def client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0), mode=mode)


plain = client(instructor.Mode.MD_JSON)
whole = plain.create(response_model=None, model=MODEL, messages=MESSAGES)
assert SAID == whole.choices[0].message.content, whole
assert SAID == "".join(
    chunk.choices[0].delta.content or ""
    for chunk in plain.create(response_model=None, model=MODEL, messages=MESSAGES, stream=True)
)

for mode, field in ((instructor.Mode.TOOLS, "tool"), (instructor.Mode.JSON, "response_format")):
    try:
        client(mode).create(response_model=Person, model=MODEL, messages=MESSAGES, max_retries=1)
    except Exception as error:
        assert field in str(error), error
        assert "400" in str(error), error
    else:
        raise AssertionError(f"{mode} works now: let this program use it")
