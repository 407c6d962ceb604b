"""The GPU jobs of the 1.5B supporter on a tiny random model: what is rewarded becomes likelier, plans run whole."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SCRIPTS = Path(__file__).parents[2] / "research" / "supporter"


@pytest.fixture
def scripts() -> Iterator[None]:
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))
    for name in ("data", "gpu", "grpo", "prefer", "prepare", "talks"):
        sys.modules.pop(name, None)


CONTEXTS = [
    {"id": f"c-{n}", "language": "en", "history": [{"speaker": "seeker", "text": text}], "reference": "I hear you."}
    for n, text in enumerate(["I lost my job.", "My cat died.", "I cannot sleep.", "She left me."])
]


@pytest.mark.usefixtures("scripts")
def test_what_is_rewarded_becomes_likelier(tiny_learner: Path, tmp_path: Path) -> None:
    import data
    import gpu
    import grpo

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_learner)
    before = {name: value.clone() for name, value in network.named_parameters()}
    low = gpu.add_low(network, 4, 8)
    gpu.save_low(low, 4, 8, tmp_path / "adapters" / "start")
    gpu.drop_low(network, low)
    logged: list[dict[str, Any]] = []
    ids = torch.tensor([gpu.encode(tokenizer, data.guided_prompt(CONTEXTS[0]["history"]))[0]])

    @torch.no_grad()
    def probabilities() -> torch.Tensor:
        return torch.softmax(network(ids).logits[0, -1], -1)

    wanted = int(probabilities().argmax())
    at_first = float(probabilities()[wanted])

    def score(rows: Sequence[dict[str, Any]], texts: Sequence[str], ended: Sequence[bool]) -> list[dict[str, float]]:
        assert len(rows) == len(texts) == len(ended) == 32
        return [{"hit": float(text == tokenizer.decode([wanted]))} for text in texts]

    job = {"grpo": "policy", "start": "start", "steps": 8, "histories": 2, "group": 16, "tokens": 1, "rate": 0.03}
    job |= {"kl": 0.0, "seed": 1, "save": 4, "rows": 32, "temperature": 1.0, "negatives": "off"}
    grpo.train_by_reward(network, tokenizer, job, tmp_path, logged.append, CONTEXTS[:2], score)

    assert [row["step"] for row in logged] == list(range(1, 9))
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())
    low, _, _ = grpo.start_low(network, tmp_path / "adapters" / "policy")
    assert float(probabilities()[wanted]) > 2 * at_first
    gpu.drop_low(network, low)
    for name in ("policy-4", "policy"):
        assert (tmp_path / "adapters" / name / "adapter_model.safetensors").is_file()
    assert json.loads((tmp_path / "adapters" / "policy" / "job.json").read_text())["steps"] == 8
    again: list[Any] = []
    grpo.train_by_reward(network, tokenizer, job, tmp_path, again.append, CONTEXTS[:2], score)
    assert not again  # what is done is not done again


@pytest.mark.usefixtures("scripts")
def test_what_annotators_preferred_becomes_likelier(tiny_learner: Path, tmp_path: Path) -> None:
    import data
    import gpu
    import grpo
    import prefer

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_learner)
    low = gpu.add_low(network, 4, 8)
    gpu.save_low(low, 4, 8, tmp_path / "adapters" / "start")
    gpu.drop_low(network, low)
    prompts = [data.guided_prompt(one["history"]) for one in CONTEXTS[:2]]
    texts = ["good words", "bad words here", "middling"]
    rows = [{"prompt": one, "outputs": texts, "scores": [4.0, 1.0, 3.5]} for one in prompts]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def gap() -> float:
        network.set_attn_implementation("eager")
        prompt = gpu.encode(tokenizer, prompts[0])[0]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts[:2]]
        with torch.no_grad():
            good, bad = grpo.log_probabilities(network, prompt, ids, 1.0).split([len(one) for one in ids])
        return float(good.sum() - bad.sum())

    at_first, logged = gap(), []
    job = {"prefer": "taught", "start": "start", "groups": str(tmp_path / "groups.jsonl"), "epochs": 5, "rate": 0.01}
    prefer.train_by_preference(network, tokenizer, {**job, "batch": 2}, tmp_path, logged.append)

    assert prefer.comparisons([4.0, 1.0, 3.5], 1.0) == [(0, 1), (2, 1)]
    assert logged[-1]["step"] == 5
    assert logged[-1]["right"] == 1.0
    assert gap() == pytest.approx(at_first)  # the network is as it was
    low, _, _ = grpo.start_low(network, tmp_path / "adapters" / "taught")
    assert gap() > at_first + 1
    gpu.drop_low(network, low)


@pytest.mark.usefixtures("scripts")
def test_a_group_read_as_one_sequence_has_the_probabilities_of_its_outputs_alone(tiny_learner: Path) -> None:
    import grpo

    network = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32).eval()
    network.set_attn_implementation("eager")
    rng = torch.Generator().manual_seed(1)
    prompt, *outputs = [torch.randint(50, (size,), generator=rng).tolist() for size in (30, 7, 1, 12)]
    together = grpo.log_probabilities(network, prompt, outputs, 0.9)
    alone = []
    for output in outputs:
        logits = network(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1] / 0.9
        alone.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(output)[:, None])[:, 0])
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("scripts")
def test_a_strategy_that_is_always_the_same_earns_nothing_and_faults_get_the_floor() -> None:
    import grpo

    from compeer.reasoning import STEPS
    from compeer.reward.score import Judgment

    class Sure:
        def judge(self, cases: Sequence[Any]) -> list[Judgment]:
            response = {"candidate": 0.25, "reference": 0.5, "both": 0.25, "neither": 0.0}
            return [Judgment(steps=dict.fromkeys(STEPS, 0.75), response=response) for _ in cases]

    rows = [
        {**CONTEXTS[0], "id": f"esconv-test-{n}-1", "strategies": [name]}
        for n, name in enumerate(["Question", "Information"])
    ]
    turn = (
        "History: They lost a job. [exploration]\nEmotion: They feel low. [negative, sadness, 3]\n"
        "Strategy: I ask. [Question]\nResponse: "
    )
    job = {**grpo.DEFAULTS}
    score = grpo.judged_rewards(Sure(), job, rows)
    good = [turn + "What happened at work today?"] * 2
    first, second = score(rows, good, [True, True])
    assert first["history"] == 0.5
    assert first["response"] == 0.0
    assert first["decision"] + second["decision"] == 0.0
    shared = grpo.judged_rewards(Sure(), {**job, "shares": {"en": {"Question": 0.25}}}, rows)(rows, good, [True, True])
    assert [one["balance"] for one in shared] == pytest.approx([-job["balance"] * math.log(4)] * 2)
    faulty = ["no form", turn + "Ok.", turn + "word " * 200, turn + "You should kill yourself tonight."]
    for text, fault in zip(faulty, ("form", "length", "length", "unsafe"), strict=True):
        assert score(rows[:1], [text], [True]) == [{fault: job["floor"]}]


@pytest.mark.usefixtures("scripts")
def test_a_whole_plan_runs(tiny_learner: Path, tmp_path: Path) -> None:
    import data
    import gpu
    import prepare

    from compeer.reasoning import STEPS, parse_turn
    from compeer.reward.conversation import chats
    from compeer.ser.record import write_records

    turn = parse_turn(
        "History: They lost a job. [exploration]\nEmotion: They feel low. [negative, sadness, 3]\n"
        "Strategy: I ask. [Question]\nResponse: What happened at work today?"
    ).turn
    rows = [{**one, "id": f"esconv-test-{n}-1", "strategies": ["Question"]} for n, one in enumerate(CONTEXTS[:2])]
    labels = {**dict.fromkeys(STEPS, True), "preference": "both"}
    records = [prepare.record_of(f"{one['id']}:x:0", one, turn, "x", labels, "test") for one in rows]
    form = prepare.FORMS["judge"]

    def lines(name: str, values: list[Any]) -> str:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in values), encoding="utf-8")
        return str(path)

    taught = lines("chats", [data.chat(one, turn) for one in rows])
    asked = lines("judge", [{"messages": one} for record in records for one in chats(record, form, True)])
    prompts = lines("use", [{"id": one["id"], "prompt": data.guided_prompt(one["history"])} for one in rows])
    contexts = lines("contexts", rows)
    write_records(tmp_path / "records.jsonl", records)
    learn = {"rank": 2, "rate": 1e-3, "seed": 1, "epochs": 1, "batch": 2, "micro": 2, "most": 4096}
    plan = [
        {"train": "sft", "chats": taught, **learn},
        {"train": "judge", "chats": asked, **learn},
        {"judge": "judge", "records": str(tmp_path / "records.jsonl"), "form": form.model_dump(), "out": "judged"},
        {"grpo": "policy", "start": "sft", "judge": "judge", "form": form.model_dump(), "contexts": contexts}
        | {"after": "sft", "steps": 1, "histories": 2, "group": 2, "tokens": 4, "seed": 1, "rows": 4},
        {"write": "policy", "prompts": prompts, "out": "use", "n": 1, "temperature": 0.4, "min_p": 0.1, "seed": 1}
        | {"tokens": 4, "rows": 4},
        {"score": "judge", "outputs": "use", "contexts": contexts, "form": form.model_dump(), "out": "scored"},
        {"rank": "judge", "outputs": "use", "contexts": contexts, "form": form.model_dump(), "out": "use"},
        {"levels": "sft", "windows": lines("windows", [{"messages": ["I am tired."]}]), "out": "levels"},
        {"levels": "sft", "windows": str(tmp_path / "windows.jsonl"), "out": "reasoned", "why": " Why?"}
        | {"after_why": "="},
        {"talk": "policy", "out": "talks", "rounds": 2, "repeats": 1, "cards": 2, "rows": 4, "seed": 1},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    gpu.work(tiny_learner, tmp_path / "plan.json", tmp_path / "out")

    log = [json.loads(line) for line in (tmp_path / "out" / "log-plan.jsonl").read_text().splitlines()]
    assert not [row for row in log if "failed" in row]
    judged = [json.loads(line) for line in (tmp_path / "out" / "judged.jsonl").read_text().splitlines()]
    assert [row["id"] for row in judged] == [record.id for record in records]
    assert all(0 <= row["steps"][part] <= 1 for row in judged for part in STEPS)
    written = [json.loads(line) for line in (tmp_path / "out" / "use.jsonl").read_text().splitlines()]
    assert {row["id"] for row in written[:-1]} == {one["id"] for one in rows}
    assert written[-1] == {"done": 2}
    scored = [json.loads(line) for line in (tmp_path / "out" / "scored.jsonl").read_text().splitlines()]
    assert [(row["id"], row["parts"]) for row in scored] == [(row["id"], {"form": -5.0}) for row in written[:-1]]
    for name in ("best", "random"):
        rows_of = [json.loads(line) for line in (tmp_path / "out" / f"{name}-use.jsonl").read_text().splitlines()]
        assert {row["id"] for row in rows_of} == {one["id"] for one in rows}
    for name in ("levels", "reasoned"):
        (found,) = (json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines())
        assert sum(found["levels"]) == pytest.approx(1)
        assert len(found["kinds"]) == 5
    talks = [json.loads(line) for line in (tmp_path / "out" / "talks.jsonl").read_text().splitlines()]
    assert [(row["whole"], len(row["utterances"])) for row in talks] == [(False, 1)] * 2  # a random model has no form


@pytest.mark.usefixtures("scripts")
def test_seekers_and_supporters_take_turns(tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import talks

    from compeer.engine import rollouts

    network = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_learner)
    turn = (
        "History: They lost a job. [exploration]\nEmotion: They feel low. [negative, sadness, 3]\n"
        "Strategy: I ask. [Question]\nResponse: What then?"
    )
    tries: list[int] = []

    class Scripted:
        def __init__(self, network: Any, sampling: Any, rows: int) -> None:
            self.supporter = sampling.max_tokens == talks.WORDS["supporter"]

        def sample(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Any]:
            tries.extend(seeds if self.supporter else [])
            texts = [turn if self.supporter and number else "I was sacked." for number, _ in enumerate(prompts)]
            if self.supporter and len(prompts) == 1:
                texts = [turn]  # the second try
            return [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts]

    monkeypatch.setattr(rollouts, "Decoder", Scripted)
    job = {"talk": "base", "out": "talks", "rounds": 2, "repeats": 1, "cards": 2, "seed": 1}
    talks.talk(network, AutoModelForCausalLM.from_pretrained(tiny_learner), tokenizer, job, tmp_path, lambda row: None)
    found = [json.loads(line) for line in (tmp_path / "talks.jsonl").read_text().splitlines()]
    assert len(set(tries)) == len(tries) == 6  # two rounds of two, and one more try in each
    for row in found:
        assert row["whole"]
        assert [one["speaker"] for one in row["utterances"]] == ["seeker", "supporter"] * 2
        assert [one["text"] for one in row["utterances"]][1:] == ["What then?", "I was sacked.", "What then?"]
    assert talks.moments(found, 1) == []  # too short to have a later round
    longer = [{**row, "utterances": row["utterances"] * 3} for row in found]
    for row, moment in zip(longer, talks.moments(longer, 1), strict=True):
        history = moment["history"]
        assert len(history) > 3
        assert history[-1]["speaker"] == "seeker"
        assert history == row["utterances"][: len(history)]
        assert moment["id"] == f"talk-{row['id']}-{len(history) - 1}"
