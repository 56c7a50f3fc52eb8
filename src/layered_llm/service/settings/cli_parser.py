"""An argument parser for people: short errors that say what was meant, and either spelling of a flag's words.

Must not know: which commands and flags there are.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from layered_llm.service.settings import command_flags
from layered_llm.service.settings.settings_fields import SettingsError, is_text, printable
from layered_llm.service.settings.settings_sources import closest, elsewhere, to_bool

EXIT_USAGE: Final = 2


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    A flag's words may be joined by `_` as well as by `-`, as other servers allow; flags are not guessed from their beginnings,
    since what is a beginning today names two flags tomorrow.
    """

    def __init__(self, *, prog: str, description: str, epilog: str = "", usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            usage=usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Exits with 2, and a message on standard error, for words that are no arguments of this command."""
        for word in words:
            if not is_text(word):
                self.error(f"{printable(word)} is no UTF-8 text")
        arguments, unknown = self.parse_known_args([with_dashes(word) for word in words])
        if unknown:
            self.error(self._unknown(unknown))
        return arguments

    def names_in(self, words: Sequence[str]) -> set[str]:
        """The flags among these words, in the spelling of keys."""
        spelled = {with_dashes(word).partition("=")[0] for word in words}
        return {_key(option) for option in spelled.intersection(self._option_string_actions)}

    def tell_variables(self, command: str) -> None:
        """Adds the names in the environment to the help texts of the command's own flags."""
        for name in command_flags.FLAGS[command]:
            action = self._action(name)
            action.help = f"{action.help} [{command_flags.variable(command, name)}]"

    def prefer(self, given: command_flags.Source) -> None:
        """Makes these the defaults of the command's own flags. Raises SettingsError."""
        for name, each in given.items():
            action = self._action(name)
            self.set_defaults(**{action.dest: _value(action, each)})

    def error(self, message: str) -> NoReturn:
        """Without the usage, which for tens of flags hides the error."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nSee {self.prog} --help\n")

    def _action(self, name: str) -> argparse.Action:
        return self._option_string_actions["--" + name.replace("_", "-")]

    def _unknown(self, words: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"unexpected argument: {words[0]}"
        command = self.prog.rpartition(" ")[2]
        hint = elsewhere(flags[0], command) or closest(flags[0], self._option_string_actions)
        return f"unknown flag {flags[0]}{hint}"


def _key(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _value(action: argparse.Action, given: command_flags.Given) -> Any:
    """What the flag's own parser makes of it."""
    if action.nargs == 0:
        return given.value if isinstance(given.value, bool) else to_bool(str(given.value), given.place)
    text = _as_text(given)
    try:
        value = action.type(text) if callable(action.type) else text
    except argparse.ArgumentTypeError as error:
        raise SettingsError(f"{given.place}: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{given.place}: {text!r} is no value of {action.option_strings[0]}") from error
    if action.choices is not None and value not in action.choices:
        raise SettingsError(f"{given.place} must be one of {', '.join(map(str, action.choices))}, got {text!r}")
    return value


def _as_text(given: command_flags.Given) -> str:
    """As it would be typed behind the flag."""
    match given.value:
        case bool() | list():
            raise SettingsError(f"{given.place} must be one value, and neither true nor false, got {given.value!r}")
        case dict():
            return json.dumps(given.value)
        case value:
            return str(value)


def with_dashes(word: str) -> str:
    """A flag in this program's spelling; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, separator, value = word.partition("=")
    return name.replace("_", "-") + separator + value


def say(line: str) -> None:
    """One line for the person at the terminal."""
    with contextlib.suppress(OSError):  # a full disk or a terminal that is gone is no reason to end the program
        sys.stderr.write(f"layered-llm: {line}\n")
        sys.stderr.flush()
