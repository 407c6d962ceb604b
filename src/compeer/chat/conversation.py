"""A guarded supporter: a writer, the guard around it, and a judge where the best of several outputs is wanted.

A turn enters the guard, then the writer, then the guard again. Before: in a crisis the writer is not asked at all.
After: the output is checked as it is written, the steps one by one and the response sentence by sentence. A response
that breaks a rule is withdrawn and written again from the same steps, and replaced where that does not help. So is one
that begins as an earlier one did, though the last attempt counts whatever it holds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from compeer.chat.reading import CheckedOutput, CheckedReply, CheckedSteps, TurnReader, checked, problems_of, same_words
from compeer.chat.turn import Busy, Event, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone, TurnRequest
from compeer.chat.writing import Ending, NotWritten, Piece, Restart, Writer, write_turn
from compeer.errors import InputError
from compeer.models.base import Message
from compeer.policy.control import Control, decisions_of
from compeer.policy.prompt import Task, pictures_of, supporter_prompt
from compeer.reasoning import STEPS, ParsedTurn, Part, SupportTurn
from compeer.reward.rank import Ranked, arank
from compeer.reward.score import Judge, Score, Sign
from compeer.safety.fixed_replies import Replies, language_of
from compeer.safety.guard import Guard, GuardedTurn
from compeer.safety.output import SentenceGate
from compeer.safety.resources import load_resources
from compeer.safety.risk import Risk
from compeer.statistics import generator

LONGEST_UTTERANCE = 20_000  # characters of an utterance that the model reads, its last ones. The guard reads all
NO_REPLY = "no reply"  # why a reply was replaced if the supporter wrote none that could be read
ATTEMPTS = 3  # so often a response is written before it is replaced
LIVELY = 0.9  # the temperature at which a response is written again that began as an earlier one did
Events = AsyncGenerator[Event, None]


class GuardedSupporter:
    """Takes the supporter's part with any writer, which reads `history` utterances; `capacity` outputs at a time.

    `multimodal` says whether it reads pictures, `judges` whether it has a judge, so that `best_of` can be above one.
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
        capacity: int = 64,
    ) -> None:
        self.writer, self._guard, self._judge = writer, guard, judge
        self.name, self.multimodal, self.language = writer.name, writer.multimodal, language
        self.guarded, self.judges, self.close = guard is not None, judge is not None, writer.close
        self._history, self._task, self._capacity = history, task, capacity
        self._open = 0
        self._seconds = 5.0  # that a turn takes, by those that have ended

    def converse(self, request: TurnRequest) -> AsyncIterator[Event]:
        """The events of one turn; closing the iterator ends the work on it.

        `Busy`, `InputError` (a request that cannot be met) or the request's own refusal are raised at the latest in the
        place of the first event. Whatever fails after that ends in `TurnDone`, with problems and a safe reply.
        """
        if not request.history or request.history[-1].speaker != "seeker":
            raise InputError("the history must end with the seeker.", field="history", do="Add what the seeker says.")
        return self._converse(request)

    async def _converse(self, request: TurnRequest) -> Events:
        messages = [utterance.text for utterance in request.history if utterance.speaker == "seeker"]
        turn = GuardedTurn("", Risk("none"), state=request.state)
        if self._guard is not None:
            turn = await asyncio.to_thread(self._guard.before, messages, request.state, request.conversation)
        if turn.reply:  # nobody in danger is sent away, so the guard reads before anything can be refused
            yield ReplyPart(turn.reply)
            yield TurnDone(None, turn.reply, turn)
            return
        self._check(request)
        if self._open and self._open + request.best_of > self._capacity:
            raise Busy(max(1.0, self._seconds))
        self._open += request.best_of
        start = time.monotonic()
        try:
            make = self._best if request.best_of > 1 else self._streamed
            async with aclosing(make(request, turn, messages)) as events:
                async for event in events:
                    yield event
            self._seconds += 0.2 * (time.monotonic() - start - self._seconds)
        finally:
            self._open -= request.best_of

    def _check(self, request: TurnRequest) -> None:
        """Raises where a request cannot be met."""
        if request.refusal:
            raise request.refusal
        if request.best_of < 1 or request.best_of > self._capacity:
            raise InputError(f"it must be from 1 to {self._capacity}.", field="best_of")
        if request.best_of > 1 and self._judge is None:
            do = "Start with a judge (--judge), or ask for one output."
            raise InputError("there is no judge to choose among several outputs.", field="best_of", do=do)
        if request.best_of > 1 and request.sampling.temperature == 0:
            do = "Set a temperature above 0."
            raise InputError("several outputs at temperature 0 are all the same.", field="temperature", do=do)
        if pictures_of(request.history) and not self.multimodal:
            do = "Leave the pictures out, or serve a model that sees."
            raise InputError(f"{self.name} cannot see pictures.", field="history", do=do)

    async def _streamed(self, request: TurnRequest, turn: GuardedTurn, messages: Sequence[str]) -> Events:
        """The turn as it is written, attempt after attempt."""
        tokens = prompt_tokens = 0
        problems: tuple[str, ...] = ()
        reply, begun = CheckedReply(self._gate(messages)), ""
        earlier = [one.text for one in request.history if one.speaker == "supporter"]
        steps = CheckedSteps(lambda: self._gate(messages, step=True), messages, turn.hide_reasoning)
        for attempt in range(1, ATTEMPTS + 1):
            turn = replace(turn, attempts=attempt)
            fresh = attempt < ATTEMPTS and request.sampling.temperature > 0
            reply, ending = CheckedReply(self._gate(messages), earlier if fresh else ()), Ending()
            output = CheckedOutput(reply, steps, begun)
            failed: NotWritten | None = None
            try:
                async with aclosing(self._written(request, attempt, begun)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Ending):
                            ending = piece
                            continue
                        if isinstance(piece, Restart):
                            output = CheckedOutput(reply, steps)
                            continue
                        for event in await asyncio.to_thread(output.feed, piece):
                            yield event
                        if not reply.open:
                            break
            except Exception as error:
                failed = _failure(error)
            tokens, prompt_tokens = tokens + ending.tokens, max(prompt_tokens, ending.prompt_tokens)
            left, parsed = await asyncio.to_thread(output.end, ending.cut_off, failed is not None)
            for event in left:
                yield event
            problems = (*([failed.reason] if failed else ()), *problems_of(parsed))
            whole = None
            if parsed.turn and same_words(parsed.turn.response, reply.text) and steps.allow_all(parsed.turn):
                whole = parsed.turn.model_copy(update={"response": reply.text})
                problems += _not_as_asked(request.control, whole)
            turn = replace(turn, hide_reasoning=steps.hidden)
            if failed is None and reply.open and reply.text:
                final = self._after(reply, turn, messages)
                if tail := final.reply[len(reply.text) :]:
                    yield ReplyPart(tail)
                yield TurnDone(whole, final.reply, final, problems, tokens, prompt_tokens, ending.cut_off)
                return
            if reply.text:
                yield Retracted()
            if ending.cut_off or (failed is not None and not failed.passing):
                break  # another attempt would end the same way
            begun = output.reader.steps() if self.writer.continues else ""
            if reply.stale:
                livelier = {"temperature": max(LIVELY, request.sampling.temperature)}
                request = replace(request, sampling=request.sampling.model_copy(update=livelier))
        final = self._replaced(reply, turn, messages)
        yield ReplyPart(final.reply)
        yield TurnDone(None, final.reply, final, problems, tokens, prompt_tokens)

    def _written(self, request: TurnRequest, number: int, begun: str = "") -> AsyncGenerator[Piece, None]:
        seed = int(generator(request.seed, "turn", str(number)).integers(2**31))
        return write_turn(self.writer, self._prompt(request), request.control, request.sampling, seed, begun)

    def _prompt(self, request: TurnRequest) -> list[Message]:
        """The prompt for the writer: the history, its oldest utterances left out until it fits."""
        last = visible(len(request.history), self._history)
        history = [one.model_copy(update={"text": one.text[-LONGEST_UTTERANCE:]}) for one in request.history]
        while True:
            messages = supporter_prompt(history, last, request.control, images=self.multimodal, task=self._task)
            if last == 1 or self.writer.fits(messages, request.sampling.max_tokens):
                return messages
            last = max(1, last - max(1, last // 8))

    async def _best(self, request: TurnRequest, turn: GuardedTurn, messages: Sequence[str]) -> Events:
        """Several outputs, and of those that may be displayed the one that the judge puts first."""
        assert self._judge is not None
        written = await asyncio.gather(*(self._whole(request, number) for number in range(1, request.best_of + 1)))
        outputs = [parsed for parsed, _, _ in written]
        tokens = sum(ending.tokens for _, ending, _ in written)
        prompt_tokens = max(ending.prompt_tokens for _, ending, _ in written)
        problems = tuple(problem for _, _, own in written for problem in own)
        allowed = await asyncio.to_thread(lambda: [self._allowed(output, messages) for output in outputs])
        found: list[JudgedCandidate] = []
        try:
            found = await ranked_candidates(self._judge, request, outputs, allowed)
        except Exception as error:
            problems = (f"the judge failed: {type(error).__name__}", *problems)
        if not turn.hide_reasoning:
            for candidate in found:
                yield candidate
        turn = replace(turn, attempts=request.best_of)
        chosen = next((one.turn for one in found if one.place == 1), None)
        if chosen is None:  # no verdict: the first that may be displayed
            chosen = next((output.turn for output, good in zip(outputs, allowed, strict=True) if good), None)
        if chosen is None:
            final = self._replaced(CheckedReply(self._gate(messages)), turn, messages)
        else:
            if not turn.hide_reasoning:
                for part in STEPS:
                    yield StepDone(part, chosen.step(part))
            final = self._after(checked(self._gate(messages), chosen.response), turn, messages)
        yield ReplyPart(final.reply)
        yield TurnDone(chosen, final.reply, final, problems, tokens, prompt_tokens)

    async def _whole(self, request: TurnRequest, number: int) -> tuple[ParsedTurn, Ending, tuple[str, ...]]:
        """A whole output and its problems; a failure is one of which nothing could be read."""
        text, ending = "", Ending()
        problems: tuple[str, ...] = ()
        try:
            async with aclosing(self._written(request, number)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Ending):
                        ending = piece
                    else:
                        text = text + piece if isinstance(piece, str) else ""
        except Exception as error:
            problems = (_failure(error).reason,)
        reader = TurnReader()
        read = list(reader.feed(text))
        left, parsed = reader.end(ending.cut_off or bool(problems))
        response = "".join(one for one in (*read, *left) if isinstance(one, str))
        if parsed.turn and not same_words(parsed.turn.response, response):
            parsed = replace(parsed, turn=None, missing={"response": "a form stands in it"})
        return parsed, ending, (*problems, *problems_of(parsed))

    def _gate(self, messages: Sequence[str], step: bool = False) -> SentenceGate | None:
        return self._guard.gate(messages, step) if self._guard else None

    def _allowed(self, output: ParsedTurn, messages: Sequence[str]) -> bool:
        if output.turn is None or not checked(self._gate(messages), output.turn.response).open:
            return False
        return CheckedSteps(lambda: self._gate(messages, step=True), messages, False).allow_all(output.turn)

    def _after(self, reply: CheckedReply, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        if self._guard is None or reply.gate is None:
            return replace(turn, reply=reply.text)
        return self._guard.after_gate(reply.gate, reply.text, turn, messages)

    def _replaced(self, reply: CheckedReply, turn: GuardedTurn, messages: Sequence[str]) -> GuardedTurn:
        """The turn with a safe reply in the place of what could not be written or displayed, steps included."""
        if self._guard is None or reply.gate is None:
            replies = Replies(language_of(messages), load_resources(), None)
            return replace(turn, reply=replies.safe("general", len(messages)), replaced=NO_REPLY)
        return replace(self._guard.after_gate(reply.gate, "", turn, messages), hide_reasoning=True)


async def ranked_candidates(
    judge: Judge, request: TurnRequest, outputs: Sequence[ParsedTurn], allowed: Sequence[bool]
) -> list[JudgedCandidate]:
    """The outputs with their ranks and verdicts, in the order they were written; what is not allowed has no rank."""
    numbers = [number for number, good in enumerate(allowed) if good]
    ranking = await arank(judge, request.history, [outputs[number] for number in numbers], seed=request.seed)
    found = []
    for number, output in enumerate(outputs, 1):
        why = "; ".join(problems_of(output)) if output.turn is None else ""
        found.append(JudgedCandidate(number, None, None, None, why or "the guard does not let it pass"))
    for rank, one in enumerate(ranking, 1):
        number, score = numbers[one.index], ranked_score(one, getattr(judge, "threshold", 0.5))
        found[number] = JudgedCandidate(number + 1, outputs[number].turn, score, rank, one.problem)
    return found


def ranked_score(ranked: Ranked, threshold: float) -> Score | None:
    """A rank as a score, if any: +1 for a step more likely right or a response that wins half."""
    if ranked.score is None:
        return None
    steps: dict[Part, Sign] = {part: 1 if one >= threshold else -1 for part, one in ranked.steps.items()}
    response: Sign | None = None if ranked.wins is None else 1 if ranked.wins >= 0.5 else -1
    return Score(steps=steps, response=response, format=1, total=sum(steps.values()) + (response or 0) + 1)


def _failure(error: Exception) -> NotWritten:
    """Why nothing was written, without an error's own words, which could quote somebody."""
    return error if isinstance(error, NotWritten) else NotWritten(f"the supporter failed: {type(error).__name__}")


def _not_as_asked(control: Control, turn: SupportTurn) -> tuple[str, ...]:
    """The decisions that were asked for and not taken, as by a server that cannot be forced."""
    asked, taken = control.requested(), decisions_of(turn).items()
    return tuple(f"{field}: not as it was asked for" for field, one in taken if asked.get(field, one) != one)


def visible(utterances: int, longest: int | None) -> int:
    """How many of a conversation's last utterances the writer reads: at most `longest`."""
    # The first one moves on by a third of them at a time. In between a prompt goes on from the one before, of which an
    # engine has the beginning computed already.
    left_out = max(0, utterances - (longest or utterances))
    step = max(1, (longest or 0) // 3)
    return utterances - -(-left_out // step) * step
