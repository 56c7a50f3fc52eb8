"""docs/settings.md, made from the table of settings and from the flags of the commands.

`make docs` writes it; a test holds the file against it.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import attrs

from layered_llm.client.bench import add_bench_arguments
from layered_llm.service.chat.flags import ENGINE_DEFAULTS, add_chat_arguments
from layered_llm.service.settings import command_flags
from layered_llm.service.settings.settings import GROUPS, Settings
from layered_llm.service.settings.settings_fields import Field, base_type, flag, is_tuple, metavar, shown_default
from layered_llm.service.settings.settings_sources import variable

WIDTH: Final = 128
_HEAD: Final = """\
# Settings

`make docs` makes this page from the table of settings; a test fails when it is out of date. `layered-llm serve --help`,
`layered-llm chat --help` and `layered-llm bench --help` show the same.

Every setting is a flag, a variable in the environment, and a key of a TOML file. The first that has it counts:

| | one value | several |
|---|---|---|
| 1. flag | `--num-pages 512` | `--served-model-name smol default` |
| 2. environment | `LAYERED_LLM_NUM_PAGES=512` | `LAYERED_LLM_SERVED_MODEL_NAME=smol,default` |
| 3. file | `num_pages = 512` or `num-pages = 512` | `served_model_name = ["smol", "default"]` |
| 4. default | | |

The file is named by `--config FILE` or `LAYERED_LLM_CONFIG`; paths in it are relative to where the server is started.
It has to be a regular file, as files of keys have to: neither comes from a pipe, since they are read several times.

```toml
port = 9000
num_pages = 512
served_model_name = ["smol", "default"]

[chat]
system = "You are terse."
temperature = 0
```

```sh
layered-llm serve --config llm.toml --port 9001
LAYERED_LLM_CONFIG=llm.toml hypercorn layered_llm.app       # hypercorn has a --bind of its own
```

A name that is no setting, and a value that is not allowed, are errors that say what there is. Flags take `_` for `-`, and the
names that vLLM and SGLang have for the same setting.

The library takes the same settings by their names: `LLM(num_pages=512)`.
"""
_COMMANDS: Final = {
    "chat": f"""\
A chat takes the settings of the model, the scheduling, the device and the log from above, with defaults of its own
({", ".join(f"`{name}` {value}" for name, value in ENGINE_DEFAULTS.items())}).
The following flags are its own: in the environment as `LAYERED_LLM_CHAT_SYSTEM`, in the file in a table `[chat]`.""",
    "bench": "In the environment as `LAYERED_LLM_BENCH_RATE`, in the file in a table `[bench]`.",
}


def page() -> str:
    """The whole of docs/settings.md."""
    return "".join(f"{line}\n" for line in (*_HEAD.splitlines(), *_settings(), *_commands()))


def _settings() -> Iterator[str]:
    for key, title in GROUPS.items():
        yield from ("", f"## {title[0].upper()}{title[1:]}", "")
        for field in attrs.fields(Settings):
            if field.metadata["group"] == key:
                yield from _item(_spelled(field), _meaning(field))


def _spelled(field: Field) -> str:
    if base_type(field) is bool:
        return f"`{flag(field.name)}`, `--no-{flag(field.name)[2:]}`"
    value = "|".join(field.metadata["choices"]) or metavar(field)
    return f"`{flag(field.name)} {value}{' …' if is_tuple(field) else ''}`"


def _meaning(field: Field) -> str:
    parts = [field.metadata["help"]]
    if "(default:" not in parts[0]:
        parts.append(f"Default: {shown_default(field.default) or 'none'}")
    if field.metadata["aliases"]:
        parts.append(f"Also {', '.join(f'`{alias}`' for alias in field.metadata['aliases'])}")
    return f"{'. '.join(parts)}. `{variable(field.name)}`"


def _commands() -> Iterator[str]:
    for command, text in _COMMANDS.items():
        yield from ("", f"## Flags of `layered-llm {command}`", "", *textwrap.wrap(text, WIDTH), "")
        parser = _parser(command)
        for name in command_flags.FLAGS[command]:
            action: Any = next(each for each in parser._actions if flag(name) in each.option_strings)
            value = "|".join(action.choices) if action.choices else action.metavar or ""
            given = dict(vars(action), prog=parser.prog)
            help_text = action.help % given
            yield from _item(f"`{f'{flag(name)} {value}'.strip()}`", f"{help_text}.")


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"layered-llm {command}")
    match command:
        case "chat":
            add_chat_arguments(parser, "")
        case _:
            add_bench_arguments(parser)
    return parser


def _item(spelled: str, meaning: str) -> list[str]:
    return textwrap.wrap(
        f"* {spelled}: {meaning}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.stdout.write(page())
