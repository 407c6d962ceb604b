"""The supporter by example: what it is taught, what is masked, control words, the best of many outputs, pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Media, Notes, Utterance
from compeer.engine.network import load_tokenizer
from compeer.errors import InputError
from compeer.models import Failure, Generation, Request, Sampling
from compeer.models.local import LocalModel
from compeer.models.training import model_card
from compeer.policy.control import (
    PART_OF,
    Control,
    decisions,
    forced_grammar,
    forced_step,
    instructions,
    obedience,
    read_control,
    sampled_control,
)
from compeer.policy.persona import PERSONAS, Profile, Scores, persona_of, personas
from compeer.policy.prompt import supporter_prompt
from compeer.policy.rewards import JudgeSource
from compeer.policy.selection import (
    Candidate,
    Output,
    best_candidates,
    candidate_stage,
    generate_turns,
    read_candidates,
)
from compeer.policy.sft import SupporterSettings, merge_adapter, train_supporter, training_chats
from compeer.reasoning import (
    EMOTIONS,
    STAGES,
    STEPS,
    STRATEGIES,
    EmotionStep,
    HistoryStep,
    StrategyStep,
    SupportTurn,
    parse_turn,
    render_step,
    render_turn,
    sentiment_of,
)
from compeer.reward import Case, Judgment, Unscored
from compeer.reward.conversation import with_whole_paths
from compeer.ser.record import SerRecord, write_records
from compeer.statistics import generator

THOUGHT = "a thought that nobody may see"
HISTORY = (
    Utterance(speaker="seeker", text="the landlord wants us out by May"),
    Utterance(
        speaker="supporter",
        text="By May. Who else knows?",
        strategy="Question",
        stage="exploration",
        notes=Notes(history=THOUGHT, emotion=THOUGHT, strategy=THOUGHT),
    ),
    Utterance(speaker="seeker", text="only my sister"),
)


def turn(response: str = "Your sister knows, at least. What did she say?", strategy: str = "Question") -> SupportTurn:
    return SupportTurn(
        history=HistoryStep(text="Has to leave the flat.", stage="comforting"),
        emotion=EmotionStep(text="Worried and rather alone.", sentiment="negative", emotion="anxiety", intensity=4),
        strategy=StrategyStep.model_validate({"text": "Ask about the sister.", "strategy": strategy}),
        response=response,
    )


def record(number: int = 0, *pictures: str, **changes: Any) -> SerRecord:
    attached = tuple(Media(kind="image", path=path) for path in pictures)
    history = (*HISTORY[:2], HISTORY[2].model_copy(update={"media": attached}))
    values: dict[str, Any] = {
        "id": f"r{number}",
        "dialogue": f"d{number}",
        "round": 2,
        "language": "en",
        "source": "test",
        "split": "policy",
        "history": history,
        "candidate": turn(f"Your sister knows, that is {number + 1}. What did she say?"),
        "author": "corpus",
        "reference": "Your sister knows.",
        "candidate_first": True,
        **changes,
    }
    return SerRecord.model_validate(values)


def settings(model: Path, **changes: Any) -> SupporterSettings:
    values = {"model": str(model), "steps": 1, "learning_rate": 1e-3, "lora_rank": 0, "batch": 3, **changes}
    return SupporterSettings.model_validate(values)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """What the trainer is given in each step."""
    from trl import SFTTrainer

    recorded: list[dict[str, torch.Tensor]] = []
    compute = SFTTrainer.compute_loss

    def watching(self: Any, model: Any, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        recorded.append(dict(inputs))
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "compute_loss", watching)
    return recorded


def rows(batch: dict[str, torch.Tensor], tokenizer: Any) -> list[tuple[str, str]]:
    """For each row what it says, and what of it is taught."""
    found = []
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        taught = labels != -100
        assert torch.equal(labels[taught], ids[taught])
        found.append((tokenizer.decode(ids[mask == 1]), tokenizer.decode(ids[taught])))
    return found


# --- what is taught -------------------------------------------------------------------------------------------------


def test_the_loss_is_on_the_output_alone_and_earlier_reasoning_is_gone(
    tiny_learner: Path, tmp_path: Path, batches: list[dict[str, torch.Tensor]]
) -> None:
    records = [record(number) for number in range(3)]
    metrics = train_supporter(records, settings(tiny_learner, control_share=0.5), tmp_path, 4)
    assert metrics["chats"] == metrics["histories"] == 3
    read = rows(batches[0], load_tokenizer(tiny_learner))
    assert len(read) == 3
    assert {taught.removesuffix("\n") for _, taught in read} == {
        render_turn(one.candidate) + "<|im_end|>" for one in records
    }
    for whole, taught in read:
        prompt = whole.removesuffix(taught)
        assert "Supporter: By May. Who else knows?\nSeeker: only my sister<|im_end|>" in prompt
        assert THOUGHT not in whole
        assert "exploration" not in whole
        assert "Has to leave the flat" not in prompt


def test_the_history_is_as_short_as_it_will_be_when_asked(
    tiny_learner: Path, tmp_path: Path, batches: list[dict[str, torch.Tensor]]
) -> None:
    train_supporter([record()] * 3, settings(tiny_learner, history=1), tmp_path, 0)
    assert all("By May" not in whole for whole, _ in rows(batches[0], load_tokenizer(tiny_learner)))
    assert model_card(tmp_path / "model") == {"role": "supporter", "history": 1}


def test_turns_of_others_are_not_imitated(tiny_learner: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no turn of the corpus"):
        train_supporter([record(author="silver")], settings(tiny_learner), tmp_path, 0)


def test_control_words_stand_in_their_share_of_prompts(tiny_learner: Path) -> None:
    records = [record(number) for number in range(300)]
    plain = supporter_prompt(HISTORY)[0]["content"]
    for share in (0.0, 0.3, 1.0):
        chats = training_chats(records, settings(tiny_learner, control_share=share), 3)
        controlled = [chat for chat in chats if chat[0]["content"] != plain]
        assert len(controlled) / len(chats) == pytest.approx(share, abs=0.08 if 0 < share < 1 else 0)
        assert chats == training_chats(records, settings(tiny_learner, control_share=share), 3)
        assert all("Question" in chat[0]["content"] for chat in controlled if "strategy Q" in chat[0]["content"])
    texts = [str(chat[0]["content"]).removeprefix(str(plain)) for chat in chats]
    for sentence in ("Choose the strategy Question.", "stage to be comforting.", "emotion to be anxiety."):
        assert 0.3 < sum(sentence in text for text in texts) / len(texts) < 0.9
    assert not any("manner" in text for text in texts), "nobody knows a manner"
    assert training_chats(records, settings(tiny_learner, control_share=0.3), 4) != training_chats(
        records, settings(tiny_learner, control_share=0.3), 3
    )


def profile(dialogue: str = "d0", participant: Any = "supporter", **scores: float) -> Profile:
    values = {"dominance": 3.0, "influence": 3.0, "steadiness": 3.0, "compliance": 3.0, **scores}
    found = Scores.model_validate(values)
    return Profile(dialogue=dialogue, participant=participant, scores=found, description="Calm.", source="lexical")


def test_a_manner_is_asked_for_where_the_profile_has_one(tiny_learner: Path, tmp_path: Path) -> None:
    assert persona_of(profile(steadiness=4.2, influence=4.1)) == "steady"
    assert persona_of(profile(steadiness=3.4)) is None
    assert persona_of(profile(steadiness=4, influence=4)) is None
    known = personas([profile("d0", dominance=5), profile("d1", "seeker", dominance=5), profile("d2")])
    assert known == {"d0": "dominant"}
    records = [record(0), record(1), record(0, id="reworded", rewritten="personality")]
    chosen = settings(tiny_learner, control_share=1.0)
    asked = [
        ["manner" in chat[0]["content"] for chat in training_chats(records, chosen, seed, known)] for seed in range(40)
    ]
    assert 0 < sum(own for own, _, _ in asked) < 40
    assert not any(other or reworded for _, other, reworded in asked)
    (tmp_path / "profiles.jsonl").write_text(profile(compliance=5).model_dump_json() + "\n")
    with pytest.raises(InputError, match="no such file of profiles"):
        train_supporter(records, settings(tiny_learner, profiles=str(tmp_path / "none.jsonl")), tmp_path, 0)
    train_supporter(records, settings(tiny_learner, profiles=str(tmp_path / "profiles.jsonl")), tmp_path, 0)


# --- control --------------------------------------------------------------------------------------------------------

CONTROLS = st.builds(
    Control,
    strategy=st.none() | st.sampled_from(STRATEGIES),
    stage=st.none() | st.sampled_from(STAGES),
    emotion=st.none() | st.sampled_from(EMOTIONS),
    persona=st.none() | st.sampled_from(PERSONAS),
)


def test_control_is_read_from_words() -> None:
    assert read_control(["strategy=reflection of feelings", "stage = Action", "persona=steady"]) == Control(
        strategy="Reflection of feelings", stage="action", persona="steady"
    )
    assert not read_control([]).requested()
    for word, message in (
        ("strategy=Hugging", "Known: Question"),
        ("emotion=", "anxiety"),
        ("mood=low", "Known fields: strategy"),
        ("Question", "strategy=Question"),
    ):
        with pytest.raises(InputError, match=message):
            read_control([word])


@given(CONTROLS)
def test_the_prompt_asks_for_each_wish_once(control: Control) -> None:
    text = instructions(control)
    assert text.count(".") == len(control.requested())
    assert all(value in text for value in control.requested().values())
    asked, plain = (supporter_prompt(HISTORY, None, one) for one in (control, None))
    assert str(asked[0]["content"]).startswith(str(plain[0]["content"]))
    assert asked[1] == plain[1]


@given(CONTROLS)
def test_a_step_written_for_the_model_holds_what_is_forced(control: Control) -> None:
    forced = {field: value for field, value in control.requested().items() if field in PART_OF}
    steps = {PART_OF[field]: forced_step(PART_OF[field], value) for field, value in forced.items()}
    parsed = parse_turn("\n".join(render_step(part, steps[part]) for part in STEPS if part in steps))
    assert not parsed.problems
    assert {field: decisions(parsed)[field] for field in forced} == forced
    if control.emotion:
        assert decisions(parsed)["sentiment"] == sentiment_of(control.emotion)


@given(CONTROLS, st.integers(0, 1000))
def test_a_turn_obeys_the_control_that_was_drawn_from_it(control: Control, seed: int) -> None:
    own = turn()
    sampled = sampled_control(own, control.persona, 1.0, generator(seed, "test"))
    assert sampled is not None
    assert sampled.requested()
    assert sampled.persona in (None, control.persona)
    assert set(obedience([parse_turn(render_turn(own))], [sampled]).values()) <= {1.0}
    assert sampled_control(own, control.persona, 0.0, generator(seed, "test")) is None


def test_obedience_counts_what_was_asked_for_and_nothing_else() -> None:
    whole = parse_turn(render_turn(turn()))
    broken = parse_turn(render_turn(turn()).replace("[Question]", "[Hugging]"))
    asked = Control(strategy="Question", stage="comforting")
    assert obedience([whole, broken], [asked, asked]) == {"strategy": 0.5, "stage": 1.0, "all": 0.5}
    assert obedience([whole, whole], [Control(strategy="Others"), None]) == {"strategy": 0.0, "all": 0.0}
    assert obedience([whole], [Control(persona="lively")]) == {}


def test_under_the_grammar_even_a_random_model_does_what_it_is_told(tiny_learner: Path) -> None:
    control = Control(strategy="Information", stage="action", emotion="hope")
    model = LocalModel(tiny_learner, device=torch.device("cpu"))
    found = generate_turns(model, [record()], Sampling(max_tokens=300), 1, 1, True, control=control, candidates=2)
    outputs = [one for one in found if isinstance(one, Output)]
    assert len(outputs) == 2
    assert outputs[0].text != outputs[1].text
    reached = [one for one in outputs if "strategy" in one.parsed.parts]
    assert reached, outputs[0].text
    assert obedience([one.parsed for one in reached], [control] * len(reached))["all"] == 1
    assert all(decisions(one.parsed)["sentiment"] == "positive" for one in reached)
    assert forced_grammar() == forced_grammar(Control(persona="steady"))
    assert forced_grammar().count("\n") == forced_grammar(control).count("\n")


# --- the best of several ----------------------------------------------------------------------------------------------


def candidate(total: float | None, number: int = 1, record: str = "r0", **changes: Any) -> Candidate:
    output = render_turn(turn(f"This is answer {number}."))
    return Candidate.model_validate({"record": record, "number": number, "output": output, "total": total, **changes})


def test_the_best_output_is_chosen_if_it_is_good_enough() -> None:
    records = [record(0), record(1), record(2)]
    offered = [
        candidate(1, 1),
        candidate(5, 2),
        candidate(5, 3),
        candidate(1, 1, "r1"),
        candidate(5, 1, "r9"),
        candidate(None, 1, "r2", unscored="asleep"),
        candidate(5, 2, "r2", output="Response: only this"),
        candidate(5, 3, "r2", cut_off=True),
        candidate(5, 4, "r2", output=render_turn(turn("You are clearly bipolar, take 20 mg of Prozac."))),
    ]
    (chosen,) = best_candidates(records, offered, 3)
    assert chosen == records[0].model_copy(update={"candidate": turn("This is answer 2.")})
    assert [one.id for one in best_candidates(records, offered, 1)] == ["r0", "r1"]
    assert best_candidates(records, offered, 6) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, -5, -3, -1, 1, 3, 5])), max_size=20))
def test_no_better_output_was_there(pairs: list[tuple[int, int | None]]) -> None:
    records = [record(number) for number in range(4)]
    offered = [candidate(total, place + 1, f"r{number}") for place, (number, total) in enumerate(pairs)]
    chosen = {one.id: one.candidate.response for one in best_candidates(records, offered, 1)}
    for number in range(4):
        good = [(t, -p) for p, (n, t) in enumerate(pairs) if n == number and t is not None and t >= 1]
        expected = f"This is answer {1 - max(good)[1]}." if good else None
        assert chosen.get(f"r{number}") == expected


class FixedJudge:
    """Says True where a response is short; fails where it is told to."""

    name = "fixed"

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        self.cases.extend(cases)
        return [self._one(str(case.output.parts.get("response", ""))) for case in cases]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)

    def _one(self, response: str) -> Judgment | Unscored:
        if "fail" in response:
            return Unscored("told to")
        chance = 0.9 if len(response) < 10 else 0.1
        steps: Any = dict.fromkeys(("history", "emotion", "strategy"), chance)
        return Judgment(steps, {"candidate": chance, "reference": 1 - chance})


class Writer:
    """Writes a turn with another response each time, or what it is told to."""

    name, batch_size, at_once = "writer", 4, 1

    def __init__(self, stops_after: int = 10**6) -> None:
        self.asked: list[Request] = []
        self.stops_after = stops_after

    async def generate(self, requests: Sequence[Request], _: Sampling) -> list[Generation | Failure]:
        if len(self.asked) + len(requests) > self.stops_after:
            raise KeyboardInterrupt
        self.asked.extend(requests)
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Generation | Failure:
        responses = ["Short.", "A response that goes on for longer.", "fail", "Oh."]
        if request.seed % 5 == 4:
            return Generation("nothing readable")
        return Generation(render_turn(turn(responses[request.seed % 4] + f" {request.seed % 7}")))


def test_outputs_are_scored_and_written_so_that_a_stop_costs_nothing(tmp_path: Path) -> None:
    records = [record(number) for number in range(7)]
    write_records(tmp_path / "records.jsonl", records)

    def stage(name: str, writer: Writer, count: int = 3) -> dict[str, Any]:
        out = tmp_path / f"{name}.jsonl"
        where = tmp_path / "records.jsonl"
        wanted = Control(strategy="Question")
        judge = FixedJudge()
        return candidate_stage(
            where, records, out, writer, Sampling(), 5, count=count, last=2, control=wanted, judge=judge
        )

    metrics = stage("whole", Writer())
    assert metrics["histories"] == 7
    assert metrics["outputs"] == 21
    assert metrics["scored"] < 21
    assert metrics["best_of_each"] > metrics["total"]
    assert metrics["obedience"] == {"strategy": metrics["whole"], "all": metrics["whole"]}
    with pytest.raises(KeyboardInterrupt):
        stage("stopped", Writer(stops_after=10))
    assert not (tmp_path / "stopped.jsonl").exists()
    rest = Writer()
    assert stage("stopped", rest) == metrics
    assert len(rest.asked) == 12
    assert (tmp_path / "stopped.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    again = Writer()
    assert stage("whole", again) == metrics
    assert not again.asked
    assert stage("whole", again, 2)["outputs"] == len(again.asked) == 14
    assert "strategy Question" in str(again.asked[0].messages[0]["content"])
    assert "landlord" not in str(again.asked[0].messages[1]["content"])
    assert len({request.seed for request in again.asked}) == 14


def test_scores_are_those_of_the_judge_and_the_parser() -> None:
    texts = [render_turn(turn(text)) for text in ("Short.", "A response that goes on for longer.", "fail")]
    outputs = [Output("r0", text, False, parse_turn(text)) for text in [*texts, "nothing", texts[0].split("Strat")[0]]]
    judge = FixedJudge()
    scores = JudgeSource(judge, 0).score([record()] * len(outputs), [one.parsed for one in outputs])
    assert [one.total for one in scores] == [5, -3, None, -5, -1]
    assert scores[2].unscored == "told to"
    assert len(judge.cases) == 4
    assert all(case.reference == "Your sister knows." for case in judge.cases)


def test_training_on_the_best_outputs(
    tiny_learner: Path, tmp_path: Path, batches: list[dict[str, torch.Tensor]]
) -> None:
    file = tmp_path / "outputs.jsonl"
    file.write_text("".join(one.model_dump_json() + "\n" for one in (candidate(1), candidate(5, 2))))
    chosen = settings(tiny_learner, candidates=str(file), batch=1)
    metrics = train_supporter([record(0), record(1)], chosen, tmp_path / "a", 0)
    assert (metrics["histories"], metrics["histories_kept"], metrics["chats"]) == (2, 1, 1)
    ((_, taught),) = rows(batches[0], load_tokenizer(tiny_learner))
    assert "Response: This is answer 2." in taught
    with pytest.raises(InputError, match="Lower the threshold"):
        train_supporter([record(1)], chosen, tmp_path / "b", 0)
    file.write_text('{"record": "r0", "score": 3}\n')
    with pytest.raises(InputError, match=r"line 1, field 'score': unknown key"):
        list(read_candidates(file))
    with pytest.raises(InputError, match="compeer policy generate"):
        list(read_candidates(tmp_path / "none.jsonl"))


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for name, size in {"wide.png": (60, 90), "tall.png": (112, 56)}.items():
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / name)
    (folder / "torn.png").write_bytes(b"no picture")
    return folder


def test_pictures_stand_in_their_turns() -> None:
    one, other = Media(kind="image", path="a.png"), Media(kind="image", path="https://example.org/b.png")
    voice = Media(kind="audio", path="c.wav")
    history = (
        HISTORY[0].model_copy(update={"media": (one, voice, other)}),
        HISTORY[1],
        HISTORY[2].model_copy(update={"media": (one,)}),
    )
    content = supporter_prompt(history, images=True)[1]["content"]
    assert content == [
        {"type": "text", "text": "Seeker:"},
        {"type": "image", "path": "a.png"},
        {"type": "image", "url": "https://example.org/b.png"},
        {"type": "text", "text": " the landlord wants us out by May\nSupporter: By May. Who else knows?\nSeeker:"},
        {"type": "image", "path": "a.png"},
        {"type": "text", "text": " only my sister"},
    ]
    assert "".join(block.get("text", "") for block in content) == supporter_prompt(history)[1]["content"]
    assert isinstance(supporter_prompt(history[1:2], images=True)[1]["content"], str)
    assert len(supporter_prompt(history, 1, images=True)[1]["content"]) == 3
    placed = with_whole_paths(history, "/pictures")
    assert [m.path for m in placed[0].media] == ["/pictures/a.png", "/pictures/c.wav", "https://example.org/b.png"]


def test_histories_with_and_without_pictures_in_one_batch(
    tiny_seeing_model: Path, media: Path, tmp_path: Path, batches: list[dict[str, torch.Tensor]]
) -> None:
    records = [record(0, "wide.png"), record(1), record(2, "wide.png", "tall.png")]
    chosen = settings(tiny_seeing_model, media=str(media), control_share=0.5)
    metrics = train_supporter(records, chosen, tmp_path, 0)
    assert metrics["chats"] == 3
    tokenizer = load_tokenizer(tiny_seeing_model)
    (batch,) = batches
    cells = sorted((batch["mm_token_type_ids"] == 1).sum(1).tolist())
    assert cells == [0, 6, 6 + 8]
    assert len(batch["image_grid_thw"]) == 3
    read = rows(batch, tokenizer)
    picture = "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
    assert sum(f"Seeker:{picture} only my sister" in whole for whole, _ in read) == 1
    assert sum(f"Seeker:{picture}<|vision_start|>" in whole for whole, _ in read) == 1
    assert sum("Seeker: only my sister" in whole for whole, _ in read) == 1
    assert {taught.rstrip("\n") for _, taught in read} == {render_turn(one.candidate) + "<|im_end|>" for one in records}
    assert not any(THOUGHT in whole for whole, _ in read)
    assert model_card(tmp_path / "model")["media"] == str(media)
    assert (tmp_path / "model" / "preprocessor_config.json").is_file()


def test_a_picture_that_cannot_be_read_is_named_with_its_record(
    tiny_seeing_model: Path, tiny_learner: Path, media: Path, tmp_path: Path
) -> None:
    chosen = settings(tiny_seeing_model, media=str(media))
    for path in ("torn.png", "gone.png", "https://example.org/a.png"):
        with pytest.raises(InputError, match="record 'r1'") as error:
            train_supporter([record(0, "wide.png"), record(1, path)], chosen, tmp_path, 0)
        assert path in str(error.value)
    train_supporter([record(1, "gone.png")], settings(tiny_learner), tmp_path / "text", 0)


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_a_merged_adapter_is_the_model_that_was_trained(tiny_learner: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    chosen = settings(tiny_learner, lora_rank=2, steps=3, learning_rate=1e-2)
    train_supporter([record(number) for number in range(3)], chosen, tmp_path / "run", 0)
    adapter = tmp_path / "run" / "checkpoints" / "checkpoint-3"
    (adapter / "compeer.json").write_text(json.dumps({"role": "supporter", "history": 4}))
    merge_adapter(adapter, tiny_learner, tmp_path / "merged")
    merged, trained, start = (
        load_file(folder / "model.safetensors")
        for folder in (tmp_path / "merged", tmp_path / "run/model", tiny_learner)
    )
    assert set(merged) == set(trained)
    assert all(torch.allclose(merged[name], trained[name], atol=1e-6) for name in merged)
    assert any(not torch.equal(merged[name], start[name]) for name in merged)
    assert model_card(tmp_path / "merged") == {"role": "supporter", "history": 4}
    assert load_tokenizer(tmp_path / "merged").chat_template == load_tokenizer(tiny_learner).chat_template
    with pytest.raises(InputError, match="there already"):
        merge_adapter(adapter, tiny_learner, tmp_path / "merged")
    with pytest.raises(InputError, match="adapter_config"):
        merge_adapter(tiny_learner, tiny_learner, tmp_path / "other")
    with pytest.raises(InputError, match="no model folder"):
        merge_adapter(adapter, tmp_path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
