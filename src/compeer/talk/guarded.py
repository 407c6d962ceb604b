"""A supporter made of a writer, the guard around it, and a judge where the best of several outputs is wanted.

The guard looks at the seeker's words first; in a crisis the writer is not asked at all. Then the output is read as it
is written: steps are shown one by one, the response sentence by sentence, once the guard has read them. A response that
breaks a rule is taken back and written anew from the same steps, and replaced where that does not help.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.models.base import Message
from compeer.policy.control import Control
from compeer.policy.prompt import Task, pictures_of, supporter_prompt
from compeer.reasoning import STEPS, SupportTurn
from compeer.reward.score import Judge
from compeer.safety.guard import Guard, GuardedTurn
from compeer.safety.output import SentenceGate
from compeer.safety.replies import Replies, language_of
from compeer.safety.resources import load_resources
from compeer.safety.risk import Risk
from compeer.statistics import generator
from compeer.talk.best import Contender, candidates
from compeer.talk.reading import Said, TurnReader, problems_of
from compeer.talk.shown import Showing, Shown, ShownSteps
from compeer.talk.turn import LONGEST_UTTERANCE, NO_REPLY, Busy, Done, Event, Reply, Retracted, StepDone, Wish
from compeer.talk.writing import Anew, Ending, NotWritten, Piece, Writer, write_turn

ATTEMPTS = 3
"""So often a response is written before it is replaced."""


class GuardedSupporter:
    """Takes the supporter's part with any writer. At most `places` outputs are under way or waiting at a time.

    Without a guard everything is shown as it is written; whoever does that says so to the seeker. `history` limits what
    the writer is shown to so many utterances.
    """

    def __init__(
        self,
        writer: Writer,
        guard: Guard | None,
        judge: Judge | None = None,
        *,
        history: int | None = None,
        task: Task = "supporter",
        language: str = "en",
        places: int = 64,
    ) -> None:
        self._writer, self._guard, self._judge = writer, guard, judge
        self._history, self._task, self._language, self._places = history, task, language, places
        self._open = 0
        self._seconds = 5.0  # that a turn takes, by those that have ended

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def sees(self) -> bool:
        return self._writer.sees

    @property
    def language(self) -> str:
        return self._language

    @property
    def guarded(self) -> bool:
        return self._guard is not None

    @property
    def judges(self) -> bool:
        return self._judge is not None

    def close(self) -> None:
        self._writer.close()

    def converse(self, wish: Wish) -> AsyncIterator[Event]:
        if not wish.history or wish.history[-1].speaker != "seeker":
            raise InputError("the history must end with the seeker.", field="history", do="Add what the seeker says.")
        return self._conversing(wish)

    # --- whether a wish can be met --------------------------------------------------------------------------------

    def _check(self, wish: Wish) -> None:
        if wish.best_of < 1 or wish.best_of > self._places:
            raise InputError(f"it must be from 1 to {self._places}.", field="best_of")
        if wish.best_of > 1 and self._judge is None:
            do = "Start with a judge (--judge), or ask for one output."
            raise InputError("there is no judge to choose among several outputs.", field="best_of", do=do)
        if wish.best_of > 1 and wish.sampling.temperature == 0:
            do = "Set a temperature above 0."
            raise InputError("several outputs at temperature 0 are all the same.", field="temperature", do=do)
        if pictures_of(wish.history) and not self.sees:
            do = "Leave the pictures out, or serve a model that sees."
            raise InputError(f"{self.name} cannot see pictures.", field="history", do=do)

    def _find_room(self, wish: Wish) -> None:
        if self._open and self._open + wish.best_of > self._places:
            raise Busy(max(1.0, self._seconds))

    # --- a turn ---------------------------------------------------------------------------------------------------

    async def _conversing(self, wish: Wish) -> AsyncGenerator[Event, None]:
        messages = [utterance.text for utterance in wish.history if utterance.speaker == "seeker"]
        turn = await self._before(wish, messages)
        if turn.reply:  # nobody in danger is sent away, so the guard looks before anything can be refused
            yield Reply(turn.reply)
            yield Done(None, turn.reply, turn)
            return
        self._check(wish)
        self._find_room(wish)
        self._open += wish.best_of
        start = time.monotonic()
        try:
            making = self._best(wish, turn, messages) if wish.best_of > 1 else self._streamed(wish, turn, messages)
            async with aclosing(making) as events:
                async for event in events:
                    yield event
            self._seconds += 0.2 * (time.monotonic() - start - self._seconds)
        finally:
            self._open -= wish.best_of

    async def _before(self, wish: Wish, messages: Sequence[str]) -> GuardedTurn:
        if self._guard is None:
            return GuardedTurn("", Risk("none"), state=wish.state)
        return await asyncio.to_thread(self._guard.before, messages, wish.state, wish.conversation)

    async def _streamed(self, wish: Wish, turn: GuardedTurn, messages: Sequence[str]) -> AsyncGenerator[Event, None]:
        """The turn as it is written, attempt after attempt."""
        tokens = prompt_tokens = 0
        problems: tuple[str, ...] = ()
        screen, begun = Shown(self._gate(messages)), ""
        steps = ShownSteps(lambda: self._gate(messages), messages, turn.hide_reasoning)
        for attempt in range(1, ATTEMPTS + 1):
            turn = replace(turn, attempts=attempt)
            screen, ending = Shown(self._gate(messages)), Ending()
            showing = Showing(screen, steps, begun)
            failed: NotWritten | None = None
            try:
                async with aclosing(self._written(wish, attempt, begun)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Ending):
                            ending = piece
                            continue
                        if isinstance(piece, Anew):
                            showing = Showing(screen, steps)
                            continue
                        for event in await showing.feed(piece):
                            yield event
                        if not screen.open:
                            break
            except NotWritten as error:
                failed = error
            except Exception as error:  # an error's own words could quote somebody
                failed = NotWritten(f"the supporter failed: {type(error).__name__}")
            tokens, prompt_tokens = tokens + ending.tokens, max(prompt_tokens, ending.prompt_tokens)
            left, parsed = await showing.end(ending.cut_off, failed is not None)
            for event in left:
                yield event
            problems = (*([failed.reason] if failed else ()), *problems_of(parsed))
            whole = None
            if parsed.turn and _same_words(parsed.turn.response, screen.shown) and steps.may_all(parsed.turn):
                whole = parsed.turn.model_copy(update={"response": screen.shown})
                problems += _unheeded(wish.control, whole)
            turn = replace(turn, hide_reasoning=steps.hidden)
            if failed is None and screen.open and screen.shown:
                final = self._after(screen, turn, messages)
                if tail := final.reply[len(screen.shown) :]:
                    yield Reply(tail)
                yield Done(whole, final.reply, final, problems, tokens, prompt_tokens, ending.cut_off)
                return
            if screen.shown:
                yield Retracted()
            if ending.cut_off or (failed is not None and not failed.passing):
                break  # another attempt would end the same way
            begun = showing.reader.steps() if self._writer.continues else ""
        final = self._instead(screen, turn, messages)
        yield Reply(final.reply)
        yield Done(None, final.reply, final, problems, tokens, prompt_tokens)

    async def _best(self, wish: Wish, turn: GuardedTurn, messages: Sequence[str]) -> AsyncGenerator[Event, None]:
        """Several outputs, and of those that may be shown the one that the judge puts first."""
        assert self._judge is not None
        outputs = await asyncio.gather(*(self._whole(wish, number) for number in range(1, wish.best_of + 1)))
        allowed = await asyncio.to_thread(lambda: [self._allowed(one, messages) for one in outputs])
        failed: tuple[str, ...] = ()
        try:
            found = await candidates(self._judge, wish, [one.parsed for one in outputs], allowed)
        except Exception as error:
            found, failed = [], (f"the judge failed: {type(error).__name__}",)
        if not turn.hide_reasoning:
            for candidate in found:
                yield candidate
        tokens, prompt_tokens = sum(one.tokens for one in outputs), max(one.prompt_tokens for one in outputs)
        problems = (*failed, *(problem for one in outputs for problem in one.problems))
        turn = replace(turn, attempts=wish.best_of)
        chosen = next((one.turn for one in found if one.place == 1), None)
        if chosen is None:  # no verdict: the first that may be shown
            chosen = next((one.parsed.turn for one, good in zip(outputs, allowed, strict=True) if good), None)
        if chosen is None:
            final = self._instead(Shown(self._gate(messages)), turn, messages)
            yield Reply(final.reply)
            yield Done(None, final.reply, final, problems, tokens, prompt_tokens)
            return
        if not turn.hide_reasoning:
            for part in STEPS:
                yield StepDone(part, chosen.step(part))
        screen = Shown(self._gate(messages))
        screen.feed(chosen.response)
        screen.close()
        final = self._after(screen, turn, messages)
        yield Reply(final.reply)
        yield Done(chosen, final.reply, final, problems, tokens, prompt_tokens)

    # --- writing --------------------------------------------------------------------------------------------------

    def _written(self, wish: Wish, number: int, begun: str = "") -> AsyncGenerator[Piece, None]:
        seed = int(generator(wish.seed, "turn", str(number)).integers(2**31))
        return write_turn(self._writer, self._prompt(wish), wish.control, wish.sampling, seed, begun)

    async def _whole(self, wish: Wish, number: int) -> Contender:
        """A whole output; a failure is one of which nothing could be read."""
        text, ending = "", Ending()
        problems: tuple[str, ...] = ()
        try:
            async with aclosing(self._written(wish, number)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Ending):
                        ending = piece
                    else:
                        text = text + piece if isinstance(piece, str) else ""
        except NotWritten as error:
            problems = (error.reason,)
        except Exception as error:
            problems = (f"the supporter failed: {type(error).__name__}",)
        reader = TurnReader()
        read = list(reader.feed(text))
        left, parsed = reader.end(ending.cut_off or bool(problems))
        said = "".join(one.text for one in (*read, *left) if isinstance(one, Said))
        if parsed.turn and not _same_words(parsed.turn.response, said):
            parsed = replace(parsed, turn=None, missing={"response": "a form stands in it"})
        return Contender(parsed, (*problems, *problems_of(parsed)), ending.tokens, ending.prompt_tokens)

    def _prompt(self, wish: Wish) -> list[Message]:
        """What the writer is asked: the history, its oldest utterances left out until it fits."""
        last = min(self._history or len(wish.history), len(wish.history))
        history = [_shortened(utterance) for utterance in wish.history]
        while True:
            messages = supporter_prompt(history, last, wish.control, images=self.sees, task=self._task)
            if last == 1 or self._writer.fits(messages, wish.sampling.max_tokens):
                return messages
            last = max(1, last - max(1, last // 8))

    # --- the guard ------------------------------------------------------------------------------------------------

    def _gate(self, messages: Sequence[str]) -> SentenceGate | None:
        return self._guard.gate(messages) if self._guard else None

    def _allowed(self, output: Contender, messages: Sequence[str]) -> bool:
        if output.parsed.turn is None:
            return False
        screen = Shown(self._gate(messages))
        screen.feed(output.parsed.turn.response)
        screen.close()
        return screen.open and ShownSteps(lambda: self._gate(messages), messages, False).may_all(output.parsed.turn)

    def _after(self, screen: Shown, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        if self._guard is None or screen.gate is None:
            return replace(turn, reply=screen.shown)
        return self._guard.after_gate(screen.gate, screen.shown, turn, messages)

    def _instead(self, screen: Shown, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        """The turn with a safe reply in the place of what could not be written or shown, steps included."""
        if self._guard is None or screen.gate is None:
            replies = Replies(language_of(messages), load_resources(), None)
            return replace(turn, reply=replies.safe("general", len(messages)), replaced=NO_REPLY)
        return replace(self._guard.after_gate(screen.gate, "", turn, messages), hide_reasoning=True)


def _unheeded(control: Control, turn: SupportTurn) -> tuple[str, ...]:
    """The decisions that were asked for and not taken, which only a server that cannot be made to does."""
    taken = {"stage": turn.history.stage, "emotion": turn.emotion.emotion, "strategy": turn.strategy.strategy}
    asked = control.requested()
    return tuple(f"{field}: not as it was asked for" for field, one in taken.items() if asked.get(field, one) != one)


def _shortened(utterance: Utterance) -> Utterance:
    """The utterance as a model is shown it."""
    if len(utterance.text) <= LONGEST_UTTERANCE:
        return utterance
    return utterance.model_copy(update={"text": utterance.text[-LONGEST_UTTERANCE:]})


def _same_words(one: str, other: str) -> bool:
    """Whether two texts differ in marks and white space at most."""
    return re.sub(r"\W+", "", one) == re.sub(r"\W+", "", other)
