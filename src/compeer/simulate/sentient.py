"""The sentient seeker: after each reply it says what the reply did to it, and then it answers from its new state.

A turn takes two calls of its model. The first, `ask_emotion`, gives it the profile, the hidden intention, the
conversation and the emotion so far, and asks for the change with its reasons; `feel` applies the change by the rules.
If that neither wins nor loses the conversation, the second, `ask_reply`, asks for the next message of somebody who
feels like that now. Both begin with all that they share, so that models need not read it anew each time. The emotion is
kept in the notes of the seeker's turns.

A message may end the conversation: by the mark `[goodbye]` that the prompt offers, or by parting words at its very end.
Speaking *of* goodbyes ends nothing. Where the turns are used up, the rules say whether the last reply is still scored.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from compeer.dialogue import language_of
from compeer.io import Frozen
from compeer.models.base import Generation, Message, Sampling, TextModel
from compeer.simulate.agents import (
    SPEAKING,
    AgentTurn,
    Ask,
    Complaint,
    SeekerAgent,
    Turning,
    mark_of,
    pattern,
    prompt_file,
)
from compeer.simulate.conversation import Conversation, Scenario, View
from compeer.simulate.emotion import (
    HIGHEST,
    SAGE,
    EmotionAnswer,
    EmotionRules,
    Outcome,
    allowed_change,
    plain_text,
    read_emotion,
    states_change,
    update,
)
from compeer.simulate.seekers import LANGUAGES, Language, listed, phrases, prompt_language, read_scenarios

MAX_MESSAGE = 4_000  # characters of a seeker's message; more is a model that does not stop
_REASONS, _REASON_TOKENS = 200, 100  # characters and tokens of the reasons, where a model can be held to it
_TEXTS = ("shared", "emotion", "reply", "opening")
PROMPTS = (*(f"{name}.{language}.txt" for name in _TEXTS for language in LANGUAGES), "phrases.toml")


class SeekerProfile(BaseModel):
    """A person to be played; the names of the released profiles (`player`, `task`, `first_talk`) are understood too."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    id: str = Field(min_length=1)
    person: str = Field(min_length=1, alias="player")
    scene: str = Field(min_length=1)
    intention: str = Field(min_length=1, alias="task", description="what they hope for and do not say")
    opening: str | None = Field(default=None, min_length=1, alias="first_talk", description="their first words")
    language: Language | None = Field(default=None, description="without it, by the writing of the scene")

    def scenario(self) -> Scenario:
        """The profile as the engine takes it: its facts are the seeker's alone."""
        facts = {"person": self.person, "scene": self.scene, "intention": self.intention}
        language = self.language or language_of(self.scene)
        return Scenario(id=self.id, language=language, opening=self.opening, facts=facts)


class OwnProfile(Frozen):
    """A profile as our files hold it; `cards/README.md` describes the fields."""

    id: str = Field(min_length=1)
    language: Language
    who: str = Field(min_length=1)
    event: str = Field(min_length=1)
    hidden_intention: str = Field(min_length=1)
    likes: tuple[str, ...] = ()
    dislikes: tuple[str, ...] = ()
    opening: str = Field(min_length=1)
    start_emotion: int = Field(ge=0, le=100, description="not used: the rules of a run fix where emotion starts")

    def scenario(self) -> Scenario:
        """The same, with what the person likes and dislikes as a part of the intention."""
        words = phrases("seeker", self.language)
        preferences = [*listed(words["likes"], self.likes), *listed(words["dislikes"], self.dislikes)]
        facts = {"person": self.who, "scene": self.event, "intention": "\n".join([self.hidden_intention, *preferences])}
        return Scenario(id=self.id, language=self.language, opening=self.opening, facts=facts)


def own_profiles() -> Path:
    """The file of our profiles, which are English."""
    return Path(__file__).with_name("profiles") / "en.jsonl"


def read_profiles(path: Path) -> list[Scenario]:
    """The profiles of a file: ours, those of SAGE and RLVER, or any with id, person, scene and intention."""
    needs = "id, person, scene and intention"
    return read_scenarios(path, "hidden_intention", OwnProfile, SeekerProfile, "profile", needs)


@dataclass(frozen=True)
class Feeling:
    """What a reply did to the seeker: `change` is the model's own, `applied` what the rules made of it."""

    emotion: float
    change: float
    applied: float
    reasons: str
    outcome: Outcome | None


def ask_emotion(view: View, emotion: float, rules: EmotionRules = SAGE) -> Ask:
    """Asks by how much the last reply changed the seeker, and why; gives an `EmotionAnswer`."""
    question = _filled("emotion", view, emotion)
    return Ask(_user(_shared(view, rules), question), read_emotion, emotion_grammar(view.language, rules))


def emotion_grammar(language: str, rules: EmotionRules = SAGE) -> str:
    """A Lark grammar of the two lines, with the changes that the rules allow; it takes no more than 128 tokens.

    Reasons hold no digit and no colon, so that no number but the change, and no label but its own, can be read. They
    begin with a capital: after a space that is a token of its own, a small letter would begin in the middle of a word.
    A change always has its sign: models that like to go on with a digit would else be left with 0 alone.
    """
    words = phrases("phrases", language)
    most = HIGHEST if rules.largest_change is None else rules.largest_change
    changes = [f"{size:+d}" for size in range(-most, most + 1)]
    reasons = f"[{words['first']}][{words['letters']} {words['marks']}]{{3,{_REASONS - 1}}}"
    return (
        f'start: "{words["reasons"]}" reasons "\\n{words["change"]}" change\n'
        f"reasons[max_tokens={_REASON_TOKENS}]: /{reasons}/\n"
        "change: " + " | ".join(f'"{change}"' for change in changes)
    )


def feel(emotion: float, answer: EmotionAnswer, rules: EmotionRules = SAGE) -> Feeling:
    """The seeker's state after a reply, by the rules."""
    after, outcome = update(emotion, answer.change, rules)
    return Feeling(after, answer.change, allowed_change(answer.change, rules), answer.reasons, outcome)


def ask_reply(view: View, feeling: Feeling, rules: EmotionRules = SAGE, sampling: Sampling | None = None) -> Ask:
    """Asks for the next message of the seeker as it feels now; gives its `AgentTurn`."""
    words = phrases("phrases", view.language)
    movement = words["rose" if feeling.applied > 0 else "fell" if feeling.applied < 0 else "same"]
    reasons = " ".join(feeling.reasons.split()) or words["no_reasons"]
    question = _filled("reply", view, feeling.emotion, movement=movement, reasons=reasons)
    return Ask(_user(_shared(view, rules), question), read_message, sampling=sampling)


def ask_opening(view: View, rules: EmotionRules = SAGE, sampling: Sampling | None = None) -> Ask:
    """Asks for the first message, where the profile gives none."""
    return Ask(_user(_filled("opening", view, rules.start)), read_message, sampling=sampling)


_MARK, _PARTING, _QUOTED = (pattern(name) for name in ("goodbye", "parting", "quoted"))
_OWN_NAME, _OTHER_NAME = pattern("own_name"), pattern("other_name")


def read_message(answer: Generation) -> AgentTurn | Complaint:
    """The words of the seeker and whether they part; talk for both sides or of points is no message."""
    text = _OWN_NAME.sub("", plain_text(answer.text))
    if quoted := _QUOTED.match(text):
        text = next(part for part in quoted.groups() if part is not None)
    if states_change(text):
        return Complaint("out of role", "it gives a change of emotion; write the message alone")
    if _OTHER_NAME.search(text):
        return Complaint("out of role", "it goes on with the conversation by itself; write one message of the seeker")
    words = _MARK.sub(" ", text).strip()
    if not words:
        return Complaint("empty", "there is no message in it")
    if len(words) > MAX_MESSAGE:
        return Complaint("unparsable", f"the message is longer than {MAX_MESSAGE} characters")
    goodbye = _MARK.search(text) or _PARTING.search(words)
    return AgentTurn(words, None, {"cut_off": True} if answer.cut_off else {}, "goodbye" if goodbye else None)


def _filled(name: str, view: View, emotion: float, **values: str) -> str:
    """A prompt with the facts, the emotion as a number and in words, and what else is given in its placeholders."""
    levels = [one["text"] for one in phrases("phrases", view.language)["levels"] if one["from"] <= emotion]
    facts = {fact: view.facts[fact].strip() for fact in ("person", "scene", "intention")}
    text = prompt_file(f"{name}.{prompt_language(view.language)}.txt").strip()
    return text.format(**facts, **values, emotion=f"{emotion:g}", level=levels[-1])


def _shared(view: View, rules: EmotionRules) -> str:
    """What both calls begin with. An utterance is a line, whatever it holds: nobody can speak in the other's name."""
    words, most = phrases("phrases", view.language), rules.largest_change
    limit = words["no_limit"] if most is None else words["limit"].format(most=most)
    colon = "：" if prompt_language(view.language) == "zh" else ": "
    conversation = "\n".join(f"{words[one.speaker]}{colon}{' '.join(one.text.split())}" for one in view.turns)
    return _filled("shared", view, rules.start, limit=limit, conversation=conversation)


def _user(*parts: str) -> list[Message]:
    return [{"role": "user", "content": "\n\n".join(parts)}]


class SentientSeeker(SeekerAgent):
    """Plays a profile for the engine, whose limit of rounds should be the rules' turns."""

    def __init__(
        self,
        model: TextModel,
        rules: EmotionRules = SAGE,
        sampling: Sampling = SPEAKING,
        messages: Sampling | None = None,
    ) -> None:
        """`messages` is for its messages, which may be shorter than its reasons: they are in every later prompt."""
        super().__init__(model, sampling)
        self.rules, self._messages = rules, messages
        self.wants_closing_turn = rules.score_last_reply

    @property
    def described(self) -> dict[str, Any]:
        prompts = mark_of([prompt_file(name).strip() for name in PROMPTS])
        messages = {"messages": self._messages.model_dump()} if self._messages else {}
        return {**super().described, "rules": self.rules.model_dump(), "prompts": prompts, **messages}

    def turn(self, view: View) -> Turning:
        if not view.turns:
            first: AgentTurn = yield ask_opening(view, self.rules, self._messages)
            return AgentTurn(first.text, extra={"emotion": self.rules.start})
        noted = [turn.extra["emotion"] for turn in view.own if "emotion" in turn.extra]
        before = noted[-1] if noted else self.rules.start
        answer: EmotionAnswer = yield ask_emotion(view, before, self.rules)
        feeling = feel(before, answer, self.rules)
        notes = asdict(feeling)
        if feeling.outcome or view.over:
            return AgentTurn("", extra=notes, stop=feeling.outcome)
        message: AgentTurn = yield ask_reply(view, feeling, self.rules, self._messages)
        return AgentTurn(message.text, feeling.reasons or None, {**notes, **message.extra}, message.stop)


def emotions(conversation: Conversation, rules: EmotionRules = SAGE) -> list[float]:
    """The seeker's emotion from the start on, one more number for each reply that was scored; the last is the score."""
    notes = [turn.extra for turn in conversation.turns if turn.speaker == "seeker"] + [conversation.closing]
    return [rules.start, *(note["emotion"] for note in notes if "change" in note)]
