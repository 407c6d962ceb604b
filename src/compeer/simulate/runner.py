"""One dialogue on its way: its turns, whose turn it is, and the file in which every turn is saved as it happens.

The file is a log: a head (what the dialogue depends on), an entry a turn with all the calls that it took, and the end.
Entries are appended as whole lines. What a kill left of a line is dropped when the file is opened again, and so is an
end that another try may change.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.io import Frozen, json_line, text_hash
from compeer.models.base import Failure, Generation, Message, Request, Sampling
from compeer.models.costs import prompt_tokens, text_tokens
from compeer.simulate.agents import Agent, AgentTurn, Complaint, Turning
from compeer.simulate.conversation import Call, Conversation, Outcome, Scenario, Status, Turn, view_of
from compeer.statistics import generator


class DialogueSettings(Frozen):
    """The limits of a simulated conversation."""

    rounds: int = Field(default=5, ge=1, description="seeker turns at most, each with the supporter's answer")
    tokens: int = Field(default=200_000, ge=1, description="tokens, prompts' too, after which no new round begins")
    retries: int = Field(default=2, ge=0, description="further tries when an answer cannot be used")


class Entry(Frozen):
    """A line of the log: a turn, or notes without a word, or the end; with the calls that it took."""

    turn: Turn | None = None
    closing: dict[str, Any] | None = Field(default=None, description="noted without a word, at the end")
    outcome: Outcome | None = None
    calls: tuple[Call, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def tokens(self) -> int:
        return sum(call.tokens for call in self.calls)


class LoggedDialogue:
    """A dialogue and its file. `take`, then `add`, or `replay` what an earlier run saved, until there is an outcome."""

    def __init__(
        self, scenario: Scenario, seeker: Agent, supporter: Agent, limits: DialogueSettings, logs: Path, seed: int
    ) -> None:
        self.scenario = scenario
        self.agents: dict[Speaker, Agent] = {"seeker": seeker, "supporter": supporter}
        self._limits, self._seed = limits, seed
        readable = re.sub(r"[^\w-]+", "_", scenario.id, flags=re.ASCII)[:40]  # any file system takes that
        self.path = logs / f"{readable}-{text_hash(scenario.id)[:10]}.jsonl"
        self.entries: list[Entry] = []
        head = {
            "scenario": scenario.model_dump(),
            "seed": seed,
            "limits": limits.model_dump(),
            "seeker": seeker.described,
            "supporter": supporter.described,
        }
        self.saved = _opened(self.path, json.loads(json.dumps(head)))

    @property
    def turns(self) -> list[Turn]:
        return [entry.turn for entry in self.entries if entry.turn]

    @property
    def outcome(self) -> Outcome | None:
        return self.entries[-1].outcome if self.entries else None

    @property
    def next_speaker(self) -> Speaker:
        return "supporter" if len(self.turns) % 2 else "seeker"

    @property
    def next_agent(self) -> Agent:
        return self.agents[self.next_speaker]

    @property
    def rounds_over(self) -> int:
        """The rounds that were talked, or, at its end, all that could have been."""
        return self._limits.rounds if self.outcome else len(self.turns) // 2

    @property
    def conversation(self) -> Conversation:
        """The whole of it, once there is an outcome."""
        assert self.outcome, "a dialogue that is not over is no conversation yet"
        return Conversation(
            scenario=self.scenario.id,
            language=self.scenario.language,
            turns=tuple(self.turns),
            closing=self.entries[-1].closing or {},
            outcome=self.outcome,
            prompt_tokens=sum(entry.prompt_tokens for entry in self.entries),
            tokens=sum(entry.tokens for entry in self.entries),
        )

    def replay(self) -> None:
        self.entries.append(self.saved.popleft())

    def take(self) -> Taking:
        """The next turn, begun: it is over once it has no request any more."""
        speaker, agent = self.next_speaker, self.next_agent
        names = ("simulate", self.scenario.id, speaker, str(len(self.turns)))
        if not self.turns and self.scenario.opening:
            turning = _spoken(self.scenario.opening)
        else:
            over = self._limit_reached() is not None
            view = view_of(self.scenario, self.turns, speaker, over=over)
            turning = agent.turn(view)
        return Taking(turning, speaker, agent.sampling, self._limits.retries, self._seed, *names)

    def add(self, taking: Taking) -> None:
        """Saves what a turn came to, and goes on from there."""
        line = json_line(self._entry(taking)) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
        self.entries.append(Entry.model_validate_json(line))  # exactly what another run would read

    def _entry(self, taking: Taking) -> Entry:
        calls, result = tuple(taking.calls), taking.result
        if not isinstance(result, AgentTurn):
            return Entry(outcome=result, calls=calls)
        stop = Outcome(status="ended", why=result.stop, who=taking.speaker) if result.stop else None
        limit = self._limit_reached()
        if limit or (stop and not result.text.strip()):  # a closing turn, or leaving without a word: nothing is spoken
            return Entry(closing=result.extra, outcome=stop or limit, calls=calls)
        if not result.text.strip():
            nothing = Outcome(status="model failed", why="empty", who=taking.speaker, reason="nothing was said")
            return Entry(outcome=nothing, calls=calls)
        turn = Turn(speaker=taking.speaker, text=result.text, reasoning=result.reasoning, extra=result.extra)
        entry = Entry(turn=turn, outcome=stop, calls=calls)
        if stop or self.agents["seeker"].wants_closing_turn:
            return entry
        return entry.model_copy(update={"outcome": self._limit_reached(entry)})

    def _limit_reached(self, *more: Entry) -> Outcome | None:
        """The limit that ends the conversation as it stands, or would with one more turn; None within a round."""
        turns = len(self.turns) + len(more)
        tokens = sum(entry.prompt_tokens + entry.tokens for entry in (*self.entries, *more))
        over = "turns" if turns >= 2 * self._limits.rounds else "tokens" if tokens >= self._limits.tokens else None
        return Outcome(status="ended", why=f"{over} reached") if over and turns % 2 == 0 else None


class Taking:
    """A turn that is being made: `request` is its next question, until `result` is the turn, or why there is none."""

    def __init__(
        self, turning: Turning, speaker: Speaker, sampling: Sampling, retries: int, seed: int, *names: str
    ) -> None:
        """Seed, names and the number of a call seed how its answer is sampled."""
        self.speaker, self.sampling = speaker, sampling
        self.calls: list[Call] = []
        self.request: Request | None = None
        self.result: AgentTurn | Outcome | None = None
        self._making = self._made(turning, retries, seed, names)
        self.give(None)

    def give(self, answer: Generation | Failure | None) -> None:
        """Takes the answer to the request; from there on it is over, or has another request."""
        try:
            self.request = self._making.send(answer)
        except StopIteration as done:
            self.request, self.result = None, done.value

    def _made(
        self, turning: Turning, retries: int, seed: int, names: Sequence[str]
    ) -> Generator[Request, Any, AgentTurn | Outcome]:
        """Puts the agent's questions, each again where its answer cannot be used, until the agent has its words."""
        sampling = self.sampling
        value: Any = None
        while True:
            try:
                asked = turning.send(value)
            except StopIteration as done:
                spoken: AgentTurn = done.value
                return spoken
            self.sampling = asked.sampling or sampling
            more: tuple[Message, ...] = ()
            for left in range(retries, -1, -1):
                own = int(generator(seed, *names, str(len(self.calls))).integers(2**31))
                request = Request((*asked.messages, *more), own, grammar=asked.grammar)
                answer = yield request
                call = Call(messages=request.messages, seed=request.seed)
                if isinstance(answer, Failure):
                    self.calls.append(call.model_copy(update={"failure": f"{answer.kind}: {answer.reason}"}))
                    return self._failed("infrastructure failed", answer.kind, answer.reason)
                answer = replace(answer, text=answer.text.encode("utf-8", "replace").decode())  # half characters
                value = asked.read(answer)
                update = {
                    "answer": answer.text,
                    "cut_off": answer.cut_off,
                    "prompt_tokens": answer.prompt_tokens or prompt_tokens(request),
                    "tokens": answer.tokens or text_tokens(answer.text),
                    "complaint": f"{value.kind}: {value.text}" if isinstance(value, Complaint) else None,
                }
                self.calls.append(call.model_copy(update=update))
                if not isinstance(value, Complaint):
                    break
                if not left:
                    return self._failed("model failed", value.kind, value.text)
                mend = f"That cannot be used: {value.text}. Answer again, as you were asked to."
                tried: Message = {"role": "assistant", "content": answer.text.strip() or "(nothing)"}
                more = (tried, {"role": "user", "content": mend})

    def _failed(self, status: Status, why: str, reason: str) -> Outcome:
        return Outcome(status=status, why=why, who=self.speaker, reason=reason)


def _spoken(text: str) -> Turning:
    """A turn of given words."""
    yield from ()
    return AgentTurn(text)


def read_log(path: Path) -> list[Entry]:
    """The entries of a dialogue's log, the seeker's and the supporter's by turns; half a line at its end is dropped."""
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[1:-1], 2):
        try:
            found.append(Entry.model_validate_json(line))
        except ValidationError:
            do = "Delete this file, and the dialogue is made anew."
            raise InputError("this line cannot be read.", file=path, line=number, do=do) from None
    return found


def _opened(path: Path, head: dict[str, Any]) -> deque[Entry]:
    """The entries of a log that can be kept; the file then holds the head and them, and nothing else."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    if not lines:
        path.write_bytes((json.dumps(head) + "\n").encode())
        return deque()
    try:
        found = json.loads(lines[0])
    except ValueError:
        found = None
    if found != head:
        other = [key for key, value in head.items() if not isinstance(found, dict) or found.get(key) != value]
        what = f"this dialogue was made with another {' and another '.join(other) or 'head'}."
        raise InputError(what, file=path, line=1, do="Give another folder, or delete this one to begin anew.")
    entries = deque(read_log(path))
    if entries and entries[-1].outcome and entries[-1].outcome.may_pass:
        entries.pop()
    with path.open("r+b") as file:
        file.truncate(sum(len(line) + 1 for line in lines[: 1 + len(entries)]))
    return entries
