"""An argument parser for people: short errors that say what was meant, and either spelling of a flag's words.

Must not know: which commands and flags there are.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from layered_llm.service.settings_sources import closest

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
        arguments, unknown = self.parse_known_args([with_dashes(word) for word in words])
        if unknown:
            self.error(self._unknown(unknown))
        return arguments

    def error(self, message: str) -> NoReturn:
        """Without the usage, which for tens of flags hides the error."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nSee {self.prog} --help\n")

    def _unknown(self, words: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"unexpected argument: {words[0]}"
        return f"unknown flag {flags[0]}{closest(flags[0], self._option_string_actions)}"


def with_dashes(word: str) -> str:
    """A flag in this program's spelling; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, separator, value = word.partition("=")
    return name.replace("_", "-") + separator + value


def say(line: str) -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(f"layered-llm: {line}\n")
