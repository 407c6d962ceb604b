"""One conversation, from its first message to the file it may be saved in.

A session keeps the utterances, the control that holds until it is changed, and the guard's memory. It makes the
`TurnRequest` for the next turn and takes in how that turn ended. It is kept in memory only, until somebody saves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compeer.chat.turn import SAMPLING, TurnDone, TurnRequest
from compeer.dialogue import Dialogue, Notes, Utterance
from compeer.errors import InputError
from compeer.io import write_lines, write_text
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.reasoning import SupportTurn
from compeer.safety.guard import GuardState


@dataclass
class ChatSession:
    """A conversation under way."""

    control: Control = field(default_factory=Control)
    best_of: int = 1
    sampling: Sampling = SAMPLING
    seed: int = 0
    utterances: list[Utterance] = field(default_factory=list)
    last: TurnDone | None = None
    _state: GuardState = field(default_factory=GuardState)
    _before: GuardState = field(default_factory=GuardState)
    _turns: int = 0

    def say(self, text: str) -> TurnRequest:
        """The request for an answer to the seeker's message."""
        self.utterances.append(Utterance(speaker="seeker", text=text))
        return self._request(self.control)

    def redo(self, control: Control | None = None) -> TurnRequest:
        """The request for the last turn again, this once under another control; its old reply is forgotten."""
        while self.utterances and self.utterances[-1].speaker == "supporter":
            self.utterances.pop()
        if not self.utterances:
            raise InputError("there is no turn to redo yet.", do="Say something first.")
        self._state, self.last = self._before, None
        return self._request(control or self.control)

    def _request(self, control: Control) -> TurnRequest:
        self._turns += 1
        self._before = self._state
        seed = self.seed + self._turns - 1
        return TurnRequest(tuple(self.utterances), control, self.best_of, self.sampling, seed, self._state)

    def done(self, done: TurnDone) -> None:
        self._state, self.last = done.guarded.state, done
        if done.turn is not None and self.utterances:
            feeling = {"emotion": done.turn.emotion.emotion, "intensity": done.turn.emotion.intensity}
            self.utterances[-1] = self.utterances[-1].model_copy(update=feeling)
        reply = _utterance(done.reply, done.turn)
        self.utterances.append(reply.model_copy(update={"notes": None}) if done.guarded.hide_reasoning else reply)

    def stopped(self, reply: str) -> None:
        """Takes in that the seeker stopped the turn; what was displayed of the reply stays."""
        self.last = None
        if reply.strip():
            self.utterances.append(_utterance(reply.strip(), None))

    def save(self, path: Path, model: str, language: str) -> None:
        """Writes the conversation to a new file: Markdown if the name ends in .md, else a dialogue as JSON."""
        if not self.utterances:
            raise InputError("nothing has been said yet.", file=path)
        if path.exists():
            raise InputError("there is such a file already.", file=path, do="Give another name.")
        every = tuple(self.utterances)
        dialogue = Dialogue(id=path.stem or "chat", language=language, source=f"chat: {model}", utterances=every)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() == ".md":
                write_text(path, as_markdown(every, model))
            else:
                write_lines(path, [dialogue])
        except (OSError, ValueError) as error:
            raise InputError(f"it cannot be written: {error}", file=path) from None


def _utterance(reply: str, turn: SupportTurn | None) -> Utterance:
    if turn is None:
        return Utterance(speaker="supporter", text=reply)
    notes = Notes(history=turn.history.text, emotion=turn.emotion.text, strategy=turn.strategy.text)
    strategy, stage = turn.strategy.strategy, turn.history.stage
    return Utterance(speaker="supporter", text=reply, strategy=strategy, stage=stage, notes=notes)


def as_markdown(utterances: Sequence[Utterance], model: str) -> str:
    """A conversation for people to read, decisions under each reply."""
    lines = [f"# A conversation with {model}", "", "Written by software, not by a clinician.", ""]
    for utterance in utterances:
        lines += [f"**{utterance.speaker.capitalize()}:** {utterance.text}", ""]
        if utterance.strategy:
            lines += [f"*{utterance.stage}, {utterance.strategy}*", ""]
    return "\n".join(lines)
