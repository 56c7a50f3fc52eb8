"""The loop of a chat: reads a line, shows the answer, until the user leaves.

Must not know: how lines are read, how text is shown, how a backend answers.
"""

from typing import Final, assert_never

import attrs

from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat import session
from layered_llm.service.chat.backend import ContextFull, End, Failed, Finished, Lost, Piece
from layered_llm.service.chat.host import Answer, Answered, BackendHost, Stopped
from layered_llm.service.chat.terminal import Front, Interrupts

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130

_RESET_HINT: Final = "/reset begins a new conversation."
_END_NOTES: Final = {
    End.STOP: "",
    End.LENGTH: " · cut off at the most tokens of an answer",
    End.CONTEXT: f" · cut off: the context is full. {_RESET_HINT}",
}


@attrs.define(eq=False, kw_only=True)
class Shell:
    """One chat. A script that meets an error or is interrupted ends; a person goes on."""

    _front: Front
    _host: BackendHost
    _interrupts: Interrupts
    _conversation: session.Conversation
    _params: SamplingParams
    _joiner: session.LineJoiner = attrs.field(factory=session.LineJoiner, init=False)

    def run(self) -> int:
        """Returns the exit code."""
        code: int | None = None
        while code is None:
            try:
                with self._interrupts.raising():
                    line = self._front.read_line(is_more=self._joiner.is_open)
            except KeyboardInterrupt:
                code = self._on_interrupt()
            except EOFError:
                return self._on_end_of_input()
            else:
                text = self._joiner.add(line)
                code = None if text is None else self._obey(text)
        return code

    def _on_interrupt(self) -> int | None:
        self._joiner.clear()
        if not self._front.is_interactive:
            return EXIT_INTERRUPTED
        self._front.write("\n")
        return None

    def _on_end_of_input(self) -> int:
        unfinished = self._joiner.clear()
        if self._front.is_interactive:
            self._front.write("\n")
            return EXIT_OK
        return (self._obey("\n".join(unfinished)) if unfinished else None) or EXIT_OK

    def _obey(self, text: str) -> int | None:
        """The exit code, when the chat is to end."""
        code: int | None = None
        match session.read_input(text):
            case None:
                pass
            case session.Say(text=question):
                code = self._ask(question)
            case session.SetSystem(text=system):
                self._conversation.set_system(system)
                self._front.note("there is no system prompt now" if system is None else "the system prompt is set")
            case session.Reset():
                self._conversation.reset()
                self._front.note("the conversation is forgotten")
            case session.ShowHelp():
                self._front.note(session.HELP)
            case session.Leave():
                code = EXIT_OK
            case session.UnknownCommand(name=name):
                code = self._on_error(f"{name} is no command; /help lists them, //{name[1:]} says {name}")
            case other:
                assert_never(other)
        return code

    def _ask(self, question: str) -> int | None:
        answer = self._host.ask(self._conversation.messages_for(question), self._params)
        with self._interrupts.calling(answer.stop):
            text, answered = self._show(answer)
        if text or self._front.is_interactive:
            self._front.write("\n")
        return self._conclude(question, text, answered)

    def _show(self, answer: Answer) -> tuple[str, Answered]:
        text = ""
        while True:
            match event := answer.next_event():
                case Piece():
                    if event.reasoning:
                        self._front.write(event.reasoning, is_aside=True)
                    self._front.write(event.text)
                    text += event.text
                case Answered():
                    return text, event
                case _:
                    assert_never(event)

    def _conclude(self, question: str, text: str, answered: Answered) -> int | None:
        match answered.outcome:
            case Finished(end=end):
                self._conversation.keep(question, text)
                self._front.note(answered.stats.line() + _END_NOTES[end])
                return None
            case Stopped():
                if text:
                    self._conversation.keep(question, text)
                self._front.note(f"{answered.stats.line()} · stopped")
                return None if self._front.is_interactive else EXIT_INTERRUPTED
            case ContextFull(message=message):
                return self._on_error(f"{message} {_RESET_HINT}")
            case Failed(message=message):
                return self._on_error(message)
            case Lost(message=message):
                self._front.error(message)
                return EXIT_FAILED
            case other:
                assert_never(other)

    def _on_error(self, message: str) -> int | None:
        self._front.error(message)
        return None if self._front.is_interactive else EXIT_FAILED
