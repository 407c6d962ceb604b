"""The guard around a supporter: looks at the seeker's words before it speaks, and at its reply before anybody reads it.

    guard = Guard(locale="en-US", hooks=[LogLine()])
    turn = guard.respond(messages, generate)              # generate(attempt) asks the supporter
    turn.reply, turn.risk.level, turn.state               # keep the state, and give it with the next turn

In a crisis the supporter is not asked at all: the seeker gets a fixed reply with the resources of the place, and the
service's hooks are called. At concern the supporter answers, and once in a conversation a short passage with resources
follows. So does one in every reply while something was said in a language that the guard cannot read. A reply that
breaks a rule is written anew, and replaced where that does not help. Whatever part fails, the guard does not: the safe
side is taken, and `degraded` says what did not work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from compeer.safety.detect import detect
from compeer.safety.fixed_replies import Replies, language_of, recognised
from compeer.safety.hooks import CrisisEvent, Hook
from compeer.safety.languages import UNREAD, unread
from compeer.safety.output import LONGEST, Check, SentenceGate, check_carefully, check_reply, without_weights
from compeer.safety.resources import Resources, load_resources
from compeer.safety.risk import Kind, Risk, Trigger

FOLLOW_UPS = 3  # messages after the last sign of danger that are still answered by fixed wordings
_GRAVEST: tuple[Kind, ...] = ("medical emergency", "suicide", "harm to others", "abuse", "self-harm")
_APART = "\n\n"


class Detects(Protocol):
    def detect(self, messages: str | Sequence[str], /) -> Risk: ...


@dataclass(frozen=True)
class GuardState:
    """What the guard remembers of a conversation; the caller keeps it between turns."""

    answered: tuple[Kind, ...] = ()  # the kinds of crisis that got a fixed reply, one entry a reply
    concern_shown: bool = False
    handed_over: bool = False

    @classmethod
    def of(cls, utterances: Sequence[str]) -> Self:
        """What can be known from the supporter's side of a conversation, where nobody has kept its state."""
        crises, concern, handed_over = recognised(utterances)
        return cls(crises, concern or bool(crises), handed_over)


@dataclass(frozen=True)
class GuardedTurn:
    """What the seeker is to read, and how it came about."""

    reply: str  # empty as long as the supporter has yet to speak
    risk: Risk
    replaced: str | None = None  # why the supporter's own words are not shown: "crisis: …", "output: …" or "no reply"
    attempts: int = 0
    hide_reasoning: bool = False
    degraded: tuple[str, ...] = ()
    state: GuardState = field(default_factory=GuardState)
    passage: str = ""  # what follows the supporter's own reply, where there is concern


class Guard:
    """Guards conversations of one locale. It keeps nothing of them, and can serve many at the same time."""

    def __init__(
        self,
        detector: Detects | None = None,
        locale: str | None = None,
        language: str | None = None,
        hooks: Sequence[Hook] = (),
        attempts: int = 3,
        resources: Resources | None = None,
        check: Check | None = None,
        spoken: str | None = None,
    ) -> None:
        self._detect = detect if detector is None else detector.detect
        self._hooks, self._spoken = tuple(hooks), spoken
        self._check, self._check_step = check or check_carefully, check or check_reply
        self._locale, self._language, self._attempts = locale, language, max(1, attempts)
        self._resources = resources or load_resources()

    def before(
        self, messages: Sequence[str], state: GuardState | None = None, conversation: str | None = None
    ) -> GuardedTurn:
        """The risk, and in a crisis the fixed reply; an empty reply means that the supporter may speak."""
        state = state or GuardState()
        risk = self._risk(messages)
        replies = self._replies(messages)
        degraded = (*risk.degraded, *(without_weights() if self._check is check_carefully else ()))
        turn = GuardedTurn("", risk, degraded=degraded, state=state, hide_reasoning=bool(state.answered))
        if (other := self._unread(messages)) is not None:
            turn = replace(turn, degraded=(*degraded, UNREAD), passage=replies.unread(other))
        if risk.level == "crisis":
            signs = [reason.message for reason in risk.reasons if reason.level == "crisis"]
            if not state.answered or not signs or len(messages) - 1 - max(signs) <= FOLLOW_UPS:
                return self._crisis(turn, messages, conversation)
            return replace(turn, passage=replies.concern(_kinds(risk)[0]), hide_reasoning=True)
        if risk.level == "concern" and not state.concern_shown and not state.answered:
            passage = replies.concern(_kinds(risk)[0])
            return replace(turn, passage=passage, state=replace(state, concern_shown=True))
        return turn

    def after(self, reply: str, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        """The turn with the supporter's reply, if it may be shown, or with a safe one."""
        problem, broken = self._problem(reply, messages)
        return self._instead(_with(turn, *broken), problem, messages) if problem else _spoken(turn, reply)

    def gate(self, messages: Sequence[str], step: bool = False) -> SentenceGate:
        """A gate for a reply that comes in pieces, or for a step. If it shuts, end with `after_gate`."""
        return SentenceGate(messages, self._check_step if step else self._check)

    def after_gate(self, gate: SentenceGate, released: str, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        """The turn after a reply was let through a gate: what was released, and a safe ending if the gate shut."""
        if gate.open and released.strip():
            return _spoken(turn, released)
        turn = _with(turn, *([f"output check: {gate.failed}"] if gate.failed else []))
        ended = self._instead(turn, gate.finding.category if gate.finding else "general", messages)
        return replace(ended, reply=_APART.join(part for part in (released.strip(), ended.reply) if part))

    def respond(
        self,
        messages: Sequence[str],
        generate: Callable[[int], str],
        state: GuardState | None = None,
        conversation: str | None = None,
    ) -> GuardedTurn:
        """A whole turn; `generate` is asked for a reply with the attempt's number, from 1. Never raises for a part."""
        turn = self.before(messages, state, conversation)
        if turn.reply:
            return turn
        problem = "general"
        for attempt in range(1, self._attempts + 1):
            turn = replace(turn, attempts=attempt)
            try:
                reply = generate(attempt)
            except Exception as error:
                turn, problem = _with(turn, f"supporter: {type(error).__name__}"), "general"
                continue
            found, broken = self._problem(reply, messages)
            if found is None:
                return _spoken(turn, reply)
            turn, problem = _with(turn, *broken), found
        return self._instead(turn, problem, messages)

    def _risk(self, messages: Sequence[str]) -> Risk:
        try:
            return self._detect(messages)
        except Exception as error:
            last = max(0, len(messages) - 1)
            named = f"detector: {type(error).__name__}"  # an error's own words could quote the seeker
            return Risk("concern", (Trigger("suicide", "concern", "failure", last),), (named,))

    def _unread(self, messages: Sequence[str]) -> str | None:
        """A language of the messages that cannot be read; None where that cannot be found out."""
        try:
            return unread(messages, self._spoken)
        except Exception:  # the detector says what does not work
            return None

    def _problem(self, reply: str, messages: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
        """The category that a reply breaks, "general" for an empty, endless or unreadable one; and what failed."""
        if not isinstance(reply, str) or not reply.strip() or len(reply) > LONGEST:
            return "general", ()
        try:
            finding = self._check(reply, messages)
        except Exception as error:
            return "general", (f"output check: {type(error).__name__}",)
        return (finding.category if finding else None), ()

    def _crisis(self, turn: GuardedTurn, messages: Sequence[str], conversation: str | None) -> GuardedTurn:
        kinds, state, risk, replies = _kinds(turn.risk), turn.state, turn.risk, self._replies(messages)
        event = CrisisEvent(
            level="crisis",
            kinds=kinds,
            rules=tuple(dict.fromkeys(reason.by for reason in risk.reasons)),
            locale=self._locale,
            language=replies.language,
            earlier=len(state.answered),
            conversation=conversation,
            degraded=risk.degraded,
            messages=tuple(messages),
        )
        for hook in self._hooks:
            try:
                accepted = hook(event) is True
            except Exception as error:
                turn, accepted = _with(turn, f"hook {type(hook).__name__}: {type(error).__name__}"), False
            state = replace(state, handed_over=state.handed_over or accepted)
        reply = replies.crisis(kinds, state.answered.count(kinds[0]), state.handed_over)
        state = replace(state, answered=(*state.answered, kinds[0]), concern_shown=True)
        return replace(turn, reply=reply, replaced=f"crisis: {kinds[0]}", hide_reasoning=True, state=state)

    def _instead(self, turn: GuardedTurn, problem: str, messages: Sequence[str]) -> GuardedTurn:
        reply = self._replies(messages).safe(problem, len(messages))
        why = "no reply" if problem == "general" else f"output: {problem}"
        return replace(_spoken(turn, reply), replaced=why)

    def _replies(self, messages: Sequence[str]) -> Replies:
        return Replies(self._language or language_of(messages), self._resources, self._locale)


def _spoken(turn: GuardedTurn, reply: str) -> GuardedTurn:
    return replace(turn, reply=_APART.join(part for part in (reply.strip(), turn.passage) if part))


def _with(turn: GuardedTurn, *failures: str) -> GuardedTurn:
    return replace(turn, degraded=tuple(dict.fromkeys((*turn.degraded, *failures))))


def _kinds(risk: Risk) -> tuple[Kind, ...]:
    """The kinds of danger at the risk's level, those of its newest sign first, then the gravest."""
    signs = [reason for reason in risk.reasons if reason.level == risk.level]
    newest = max((reason.message for reason in signs), default=0)
    ranked = sorted(signs, key=lambda reason: (reason.message != newest, _GRAVEST.index(reason.kind)))
    return tuple(dict.fromkeys(reason.kind for reason in ranked)) or ("suicide",)
