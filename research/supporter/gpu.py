"""Trains adapters to the 1.5B base and lets supporters write outputs, in one process on one GPU.

    python research/supporter/gpu.py unpack base.gguf base          # weights in bfloat16, once (all cores)
    python research/supporter/gpu.py work base plan.json out        # the jobs of a plan, one after the other

A plan is a list of jobs:

    {"train": "sft-a", "chats": "chats.jsonl", "rank": 16, "rate": 1e-4, "epochs": 2, "batch": 32, "seed": 1}
    {"write": "sft-a", "prompts": "prompts.jsonl", "out": "natural", "n": 2, "temperature": 1.0, "min_p": 0.1}

`chats.jsonl` holds {"messages": […], "weight", "times"}; `prompts.jsonl` {"id", "prompt": [messages]}. A judge job,

    {"judge": "judge-a", "records": "records.jsonl", "form": {"kind": "unified"}, "out": "judged"}

writes the probabilities of every verdict,

    {"score": "judge-a", "outputs": "natural", "contexts": "contexts.jsonl", "form": {…}, "out": "scored"}

the parts of the reward of every output that a write job wrote,

    {"rank": "judge-a", "outputs": "four", "contexts": "contexts.jsonl", "form": {…}, "out": "four"}

of several outputs for a context the one that the judge puts first, as in use, and a random one (out/best-<out>.jsonl,
out/random-<out>.jsonl; out/ranked-<out>.jsonl has every output's scores), and

    {"levels": "guard-a", "windows": "windows.jsonl", "out": "levels"}

the probabilities of the guard's answers to conversations ({"messages"}), in their order (with "why" and "after_why" it
writes a reason first, as `research/guard/prepare.py` asks for it), and

    {"first": "guard-a", "prompts": "replies.jsonl", "words": ["fine", "dosage"], "out": "replies"}

those of words that an answer to a prompt may begin with.

    {"likelihood": "again-3", "prompts": "six.jsonl", "outputs": "six", "out": "likely-six"}

writes what an adapter gives to outputs: {"id", "number", "supporter", "log", "tokens"}, `outputs` a write job's, or a
file of such rows. `grpo.py` has the GRPO job, `prefer.py` that of
preference training, `talks.py` that of conversations with simulated seekers. A train job with "start" goes on from
that adapter.
With "compile" a job lets torch compile the layers that it trains (the first steps take a minute). A supporter is the
name of an adapter trained before (its folder under out/adapters) or "base". Outputs go to out/<out>.jsonl as they come,
{"id", "number", "supporter", "text", "ended"}; a job whose file ends with a "done" line is not done again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
_OUTER["output_norm.weight"] = "model.norm.weight"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- the base ---------------------------------------------------------------------------------------------------------


def hub_name(name: str) -> str:
    """The name that transformers gives to a tensor of a Qwen2 GGUF file."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


_file: Any = None
"""The opened file, which worker processes inherit: reading its vocabulary takes seconds."""


def _tensor(number: int) -> tuple[str, torch.Tensor]:
    import gguf

    found = _file.tensors[number]
    values = gguf.quants.dequantize(found.data, found.tensor_type)
    return hub_name(found.name), torch.from_numpy(values.astype("float32")).to(torch.bfloat16).contiguous()


def unpack(path: Path, folder: Path) -> None:
    """Writes the weights of a Qwen2 GGUF file as bfloat16 safetensors beside config and tokenizer in `folder`."""
    import gguf
    from safetensors.torch import save_file

    global _file
    _file = gguf.GGUFReader(str(path))
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.set_num_threads(1)  # before workers are forked
    order = sorted(range(len(_file.tensors)), key=lambda number: -_file.tensors[number].n_elements)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        weights = dict(pool.map(_tensor, order))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    return network.to(device).eval(), AutoTokenizer.from_pretrained(folder)


# --- training ---------------------------------------------------------------------------------------------------------


class Low(torch.nn.Module):
    """A linear layer with a low-rank correction, whose weights are float32 and compute in the layer's precision.

    peft would turn what flows through the layer into float32, which takes twice the memory and time.
    """

    def __init__(self, linear: Any, rank: int, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = linear, scale
        like = {"device": linear.weight.device, "dtype": torch.float32}
        self.a = torch.nn.Parameter(torch.empty((rank, linear.in_features), **like))
        self.b = torch.nn.Parameter(torch.zeros((linear.out_features, rank), **like))
        torch.nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (x @ self.a.to(x.dtype).T) @ (self.b * self.scale).to(x.dtype).T


def add_low(network: Any, rank: int, alpha: float) -> dict[str, Low]:
    """Puts corrections on all linear layers of the network's blocks, by name."""
    found = {}
    for name, module in list(network.named_modules()):
        if name.rsplit(".", 1)[-1] in TARGETS:
            parent, last = network.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[-1]
            found[name] = Low(module, rank, alpha / rank)
            setattr(parent, last, found[name])
    return found


def drop_low(network: Any, low: dict[str, Low]) -> None:
    """Takes the corrections off again."""
    for name, own in low.items():
        setattr(network.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[-1], own.linear)


def compile_layers(network: Any, wanted: bool) -> None:
    """Lets torch compile every block for any batch and length, or takes that back."""
    for layer in network.model.layers:
        layer._compiled_call_impl = None
        if wanted:
            layer.compile(dynamic=True)


def save_low(low: dict[str, Low], rank: int, alpha: float, folder: Path) -> None:
    """Writes an adapter as peft reads it, in bfloat16."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, own in low.items():
        for letter, value in (("A", own.a), ("B", own.b)):
            key = f"base_model.model.{name}.lora_{letter}.weight"
            weights[key] = value.detach().to(torch.bfloat16).cpu().contiguous()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
    }
    config |= {
        "target_modules": TARGETS,
        "base_model_name_or_path": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def encode(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """A chat's tokens, and which of them are learnt (1): what the assistant says, and where it ends.

    A chat that ends with the seeker is a prompt: the tokens up to where the assistant's words begin.
    """
    ids: list[int] = []
    learnt: list[int] = []

    def add(text: str, mark: int) -> None:
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.extend(own)
        learnt.extend([mark] * len(own))

    for message in messages:
        add(f"<|im_start|>{message['role']}\n", 0)
        said = message["role"] == "assistant"
        add(message["content"], int(said))
        add("<|im_end|>", int(said))
        add("\n", 0)
    if messages[-1]["role"] != "assistant":
        add("<|im_start|>assistant\n", 0)
    return ids, learnt


def batches(rows: list[Any], size: int, generator: torch.Generator) -> list[list[Any]]:
    """An epoch: random order, rows of about the same length in one batch."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    large = size * 16
    blocks = [sorted(order[i : i + large], key=lambda n: len(rows[n][0])) for i in range(0, len(order), large)]
    cut = [[rows[n] for n in block[i : i + size]] for block in blocks for i in range(0, len(block), size)]
    return [cut[n] for n in torch.randperm(len(cut), generator=generator).tolist()]


def loss_of(network: Any, rows: list[Any]) -> torch.Tensor:
    """The summed cross-entropy of what is learnt; logits are computed where they are needed only."""
    device = network.device
    width = max(len(ids) for ids, _, _ in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    target = torch.full((len(rows), width), -100)
    weight = torch.zeros((len(rows), width))
    for r, (own, learnt, w) in enumerate(rows):
        ids[r, : len(own)] = torch.tensor(own)
        marked = torch.tensor(learnt[1:], dtype=torch.bool)
        target[r, : len(own) - 1][marked] = torch.tensor(own[1:])[marked]
        weight[r, : len(own) - 1] = w
    ids, target, weight = (one.to(device) for one in (ids, target, weight))
    # padding stands behind every row, where causal attention does not look: a mask is not needed, and torch's attention
    # with one gave gradients that were not numbers (torch 2.11, H200)
    hidden = network.model(input_ids=ids, use_cache=False).last_hidden_state
    chosen = target != -100
    logits = network.lm_head(hidden[chosen]).float()
    return (torch.nn.functional.cross_entropy(logits, target[chosen], reduction="none") * weight[chosen]).sum()


def train(network: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """Trains an adapter on what assistants say in chats; the network comes back as it was."""
    where = folder / "adapters" / job["train"]
    if (where / "job.json").is_file():
        return
    torch.manual_seed(job["seed"])
    generator = torch.Generator().manual_seed(job["seed"])
    rows = []
    for line in Path(job["chats"]).read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        rows += [(*encode(tokenizer, one["messages"]), float(one.get("weight", 1.0)))] * int(one.get("times", 1))
    rows = [row for row in rows if len(row[0]) <= job.get("most", 2048)]
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    if "start" in job:
        from grpo import start_low

        low, rank, alpha = start_low(network, folder / "adapters" / job["start"])
    else:
        rank, alpha = job["rank"], job.get("alpha", 2 * job["rank"])
        low = add_low(network, rank, alpha)
    compile_layers(network, job.get("compile", False))
    trained = [p for own in low.values() for p in (own.a, own.b)]
    optimiser = torch.optim.AdamW(trained, lr=job["rate"], weight_decay=0.0, betas=(0.9, 0.99))
    total = math.ceil(len(rows) / job["batch"]) * job["epochs"]
    started, seen, step = time.time(), 0, 0
    micro = job.get("micro", 16)
    for _ in range(job["epochs"]):
        for batch in batches(rows, job["batch"], generator):
            rate = job["rate"] * min(1.0, (step + 1) / max(1, 0.05 * total))
            for group in optimiser.param_groups:
                group["lr"] = rate * max(0.05, 0.5 * (1 + math.cos(math.pi * step / total)))
            count = sum(sum(learnt) * w for _, learnt, w in batch)
            whole = torch.zeros((), device=network.device)
            for start in range(0, len(batch), micro):
                loss = loss_of(network, batch[start : start + micro]) / count
                loss.backward()
                whole += loss.detach()
            if not torch.isfinite(torch.nn.utils.clip_grad_norm_(trained, 1.0)):
                raise RuntimeError(f"the gradient is not a number at step {step}")
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seen += sum(len(ids) for ids, _, _ in batch)
            step += 1
            if step % 10 == 0 or step == total:
                log(
                    {
                        "train": job["train"],
                        "step": step,
                        "of": total,
                        "loss": round(whole.item(), 4),
                        "tokens_s": round(seen / (time.time() - started)),
                    }
                )
    save_low(low, rank, alpha, where)
    compile_layers(network, False)
    drop_low(network, low)
    (where / "job.json").write_text(
        json.dumps({**job, "rows": len(rows), "seconds": round(time.time() - started)}, indent=1)
    )


def lay_on(twin: Any, network: Any, adapter: Path | None, scale: float) -> None:
    """Makes the twin the base with the adapter merged in, at a share of its strength."""
    from safetensors.torch import load_file

    deltas = {}
    if adapter:
        config = json.loads((adapter / "adapter_config.json").read_text())
        weights = load_file(adapter / "adapter_model.safetensors", device=str(network.device))
        factor = scale * config["lora_alpha"] / config["r"]
        for key in weights:
            if ".lora_A." in key:
                name = key.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
                deltas[name] = factor * (weights[key.replace(".lora_A.", ".lora_B.")].float() @ weights[key].float())
    own = dict(twin.named_parameters())
    with torch.no_grad():
        for name, value in network.named_parameters():
            own[name].copy_(value.float() + deltas[name] if name in deltas else value)


# --- writing ----------------------------------------------------------------------------------------------------------


def write(
    network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any, decoders: dict[str, Any]
) -> None:
    """Writes n outputs for every prompt; kept in blocks as they come."""
    from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling
    from compeer.statistics import generator

    path = folder / f"{job['out']}.jsonl"
    if path.is_file() and '"done"' in path.read_text(encoding="utf-8")[-200:]:
        return
    lay_on(twin, network, None if job["write"] == "base" else folder / "adapters" / job["write"], job.get("scale", 1.0))
    drawing = RolloutSampling(
        max_tokens=job.get("tokens", 224),
        ends=(tokenizer.eos_token_id,),
        temperature=job["temperature"],
        top_p=job.get("top_p", 1.0),
        min_p=job.get("min_p", 0.0),
    )
    key = repr(drawing)
    if key not in decoders:
        decoders.clear()
        torch.cuda.empty_cache()
        decoders[key] = Decoder(twin, drawing, rows=job.get("rows", 384))
    rows = [json.loads(line) for line in Path(job["prompts"]).read_text(encoding="utf-8").splitlines()][
        job.get("from", 0) : job.get("to")
    ]
    asked = [(row["id"], number, encode(tokenizer, row["prompt"])[0]) for row in rows for number in range(job["n"])]
    asked.sort(key=lambda one: (len(one[2]), one[0], one[1]))
    started = time.time()
    size = 4 * job.get("rows", 384)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(asked), size):
            block = asked[start : start + size]
            seeds = [
                int(generator(job["seed"], "outputs", id_, str(number)).integers(1 << 31)) for id_, number, _ in block
            ]
            for (id_, number, _), drawn in zip(
                block, decoders[key].sample([Prompt(tuple(ids)) for _, _, ids in block], seeds), strict=True
            ):
                ended = bool(drawn) and drawn[-1] == tokenizer.eos_token_id
                text = tokenizer.decode(drawn[:-1] if ended else drawn)
                file.write(
                    json.dumps(
                        {"id": id_, "number": number, "supporter": job["write"], "text": text, "ended": ended},
                        ensure_ascii=False,
                    )
                    + "\n"
                )
            file.flush()
            log(
                {
                    "write": job["out"],
                    "outputs": start + len(block),
                    "of": len(asked),
                    "seconds": round(time.time() - started, 1),
                }
            )
        file.write(json.dumps({"done": len(asked)}) + "\n")


def judge(network: Any, twin: Any, tokenizer: Any, base: Path, job: dict[str, Any], folder: Path, log: Any) -> None:
    """What a judge says of records: {"id", "steps": P(True) by step, "response": probabilities by preference}."""
    from compeer.reward.conversation import JudgeForm, record_case
    from compeer.reward.judge import LocalJudge
    from compeer.reward.score import Judgment
    from compeer.ser.record import read_records

    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    lay_on(twin, network, None if job["judge"] == "base" else folder / "adapters" / job["judge"], job.get("scale", 1.0))
    asked = LocalJudge(base, 48, form=JudgeForm(**job["form"]), both_orders=True, network=twin, tokenizer=tokenizer)
    records = list(read_records(Path(job["records"])))
    started, lines = time.time(), []
    for record, found in zip(records, asked.judge([record_case(record) for record in records]), strict=True):
        said = (
            {"steps": dict(found.steps), "response": found.response and dict(found.response)}
            if isinstance(found, Judgment)
            else {"unscored": str(found)}
        )
        lines.append(json.dumps({"id": record.id, **said}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    log({"judge": job["out"], "records": len(records), "seconds": round(time.time() - started, 1)})


def score(network: Any, twin: Any, tokenizer: Any, base: Path, job: dict[str, Any], folder: Path, log: Any) -> None:
    """The parts of the reward of outputs: {"id", "number", "parts"}."""
    from grpo import DEFAULTS, judged_rewards

    from compeer.reward.conversation import JudgeForm
    from compeer.reward.judge import LocalJudge

    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    written = written_rows(folder / f"{job['outputs']}.jsonl")
    lay_on(twin, network, folder / "adapters" / job["score"], job.get("scale", 1.0))
    asked = LocalJudge(base, 48, form=JudgeForm(**job["form"]), network=twin, tokenizer=tokenizer)
    contexts = {row["id"]: row for row in _rows(Path(job["contexts"]))}
    outputs = [row for row in written if row["id"] in contexts]
    rewards = judged_rewards(asked, {**DEFAULTS, **job}, list(contexts.values()))
    started = time.time()
    found = rewards(
        [contexts[row["id"]] for row in outputs], [row["text"] for row in outputs], [row["ended"] for row in outputs]
    )
    lines = [{"id": row["id"], "number": row["number"], "parts": own} for row, own in zip(outputs, found, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    log({"score": job["out"], "outputs": len(outputs), "seconds": round(time.time() - started, 1)})


def written_rows(path: Path) -> list[dict[str, Any]]:
    """What a write job wrote; if it is another process' it is waited for."""
    while not (path.is_file() and '"done"' in path.read_text(encoding="utf-8")[-200:]):
        time.sleep(1)
    return [row for row in _rows(path) if "id" in row]


def rank_outputs(
    network: Any, twin: Any, tokenizer: Any, base: Path, job: dict[str, Any], folder: Path, log: Any
) -> None:
    """The best of each context's outputs by the judge, who sees no reference, and a random one of them."""
    from compeer.dialogue import Utterance
    from compeer.reasoning import parse_turn
    from compeer.reward.conversation import JudgeForm
    from compeer.reward.judge import LocalJudge
    from compeer.reward.rank import rank
    from compeer.statistics import generator

    paths = {name: folder / f"{name}-{job['out']}.jsonl" for name in ("best", "random")}
    if paths["random"].is_file():
        return
    lay_on(twin, network, folder / "adapters" / job["rank"], job.get("scale", 1.0))
    asked = LocalJudge(base, 48, form=JudgeForm(**job["form"]), network=twin, tokenizer=tokenizer)
    histories = {
        row["id"]: [Utterance.model_validate(one) for one in row["history"]] for row in _rows(Path(job["contexts"]))
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in written_rows(folder / f"{job['outputs']}.jsonl"):
        if row["id"] in histories:
            groups.setdefault(row["id"], []).append(row)
    started = time.time()
    chosen: dict[str, list[dict[str, Any]]] = {"best": [], "random": []}
    scores: list[dict[str, Any]] = []
    for id_, rows in sorted(groups.items()):
        outputs = [parse_turn(row["text"], cut_off=not row["ended"]) for row in rows]
        ranked = rank(asked, histories[id_], outputs)
        chosen["best"].append(rows[ranked[0].index])
        scores += [
            {"id": id_, "number": rows[one.index]["number"], "score": one.score, "wins": one.wins, "steps": one.steps}
            for one in ranked
        ]
        chosen["random"].append(rows[int(generator(0, "one of them", id_).integers(len(rows)))])
    for name, path in paths.items():
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen[name]), encoding="utf-8")
    lines = "".join(json.dumps({**row, "steps": dict(row["steps"])}) + "\n" for row in scores)
    (folder / f"ranked-{job['out']}.jsonl").write_text(lines, encoding="utf-8")
    log({"rank": job["out"], "histories": len(groups), "seconds": round(time.time() - started, 1)})


@torch.no_grad()
def last_logits(network: Any, rows: list[list[int]], size: int = 64) -> list[torch.Tensor]:
    """The logits of what follows each row of tokens."""
    found: dict[int, torch.Tensor] = {}
    order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        ids = torch.zeros((len(chosen), max(len(rows[n]) for n in chosen)), dtype=torch.long)
        for row, n in enumerate(chosen):
            ids[row, : len(rows[n])] = torch.tensor(rows[n])
        ends = torch.tensor([len(rows[n]) - 1 for n in chosen], device=network.device)
        hidden = network.model(input_ids=ids.to(network.device), use_cache=False).last_hidden_state
        last = network.lm_head(hidden[torch.arange(len(chosen), device=network.device), ends]).float().cpu()
        found.update(zip(chosen, last, strict=True))
    return [found[n] for n in range(len(rows))]


def levels(network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """What the guard's large reader makes of conversations: {"levels": probabilities, "kinds": probabilities}."""
    from compeer.safety.large import prompt
    from compeer.safety.risk import KINDS, LEVELS

    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    lay_on(twin, network, folder / "adapters" / job["levels"], 1.0)

    def tokens(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    windows = [row["messages"] for row in _rows(Path(job["windows"]))]
    space = " " if "why" in job else ""
    first, kinds = [tokens(f"{space}{word}")[0] for word in LEVELS], [tokens(f" {word}")[0] for word in KINDS]
    started, lines = time.time(), []
    for begin in range(0, len(windows), 2048):  # all vocabularies at once would not fit
        chats = [prompt(messages) for messages in windows[begin : begin + 2048]]
        if "why" in job:
            chats = [[system, {**user, "content": user["content"] + job["why"]}] for system, user in chats]
        asked = [encode(tokenizer, messages)[0] for messages in chats]
        if "why" in job:
            asked = reasoned(twin, asked, tokens(job["after_why"]), tokenizer.eos_token_id)
        found = [row[first].softmax(0).tolist() for row in last_logits(twin, asked)]
        more = [
            ids + tokens(f"{space}crisis:" if own[2] > own[1] else f"{space}concern:")
            for ids, own in zip(asked, found, strict=True)
        ]
        named = [row[kinds].softmax(0).tolist() for row in last_logits(twin, more)]
        lines += [{"levels": own, "kinds": kind} for own, kind in zip(found, named, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    log({"levels": job["out"], "windows": len(windows), "seconds": round(time.time() - started, 1)})


def reasoned(network: Any, rows: list[list[int]], end: list[int], eos: int, size: int = 256) -> list[list[int]]:
    """The rows with the likeliest reason behind each, and what ends a reason."""
    from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling

    (last,) = end
    sampling = RolloutSampling(max_tokens=64, ends=(last, eos), temperature=0.0)
    written = Decoder(network, sampling, rows=size).sample([Prompt(tuple(row)) for row in rows], list(range(len(rows))))
    return [row + [n for n in one if n not in (last, eos)] + end for row, one in zip(rows, written, strict=True)]


def first_words(network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """How likely each of the job's words is to be the first of the answer, among them: {"words": probabilities}."""
    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    lay_on(twin, network, folder / "adapters" / job["first"], 1.0)
    tokens = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in job["words"]]
    asked = [encode(tokenizer, row["prompt"])[0] for row in _rows(Path(job["prompts"]))]
    found = [row[tokens].softmax(0).tolist() for row in last_logits(twin, asked)]
    path.write_text("".join(json.dumps({"words": one}) + "\n" for one in found), encoding="utf-8")
    log({"first": job["out"], "prompts": len(asked)})


@torch.no_grad()
def likelihood(network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """The log probability of outputs, and of their responses alone, after their prompts."""
    from grpo import log_probabilities

    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    lay_on(twin, network, None if job["likelihood"] == "base" else folder / "adapters" / job["likelihood"], 1.0)
    twin.set_attn_implementation("eager")
    prompts = {row["id"]: row["prompt"] for row in _rows(Path(job["prompts"]))}
    given = Path(job["outputs"])
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(given) if given.suffix == ".jsonl" else written_rows(folder / f"{job['outputs']}.jsonl"):
        if row.get("id") in prompts:
            groups.setdefault(row["id"], []).append(row)
    started = time.time()
    with path.open("w", encoding="utf-8") as file:
        for id_, rows in groups.items():
            texts = [tokenizer(row["text"] + "<|im_end|>", add_special_tokens=False)["input_ids"] for row in rows]
            found = log_probabilities(twin, encode(tokenizer, prompts[id_])[0], texts, 1.0)
            for row, own in zip(rows, found.split([len(one) for one in texts]), strict=True):
                reply = len(tokenizer(row["text"].rpartition("Response:")[2] + "<|im_end|>")["input_ids"])
                kept = {key: row[key] for key in ("id", "number", "supporter")}
                kept |= {"log": float(own.sum()), "tokens": len(own), "reply": float(own[-reply:].sum())}
                file.write(json.dumps(kept) + "\n")
    twin.set_attn_implementation("sdpa")
    log({"likelihood": job["out"], "groups": len(groups), "seconds": round(time.time() - started, 1)})


def work(base: Path, plan: Path, folder: Path) -> None:
    """Does the jobs of a plan; one that finds no memory waits and tries again, one that fails is left out."""
    import copy
    import traceback

    import talks

    folder.mkdir(parents=True, exist_ok=True)
    logs = (folder / f"log-{plan.stem}.jsonl").open("a", encoding="utf-8")

    def log(row: dict[str, Any]) -> None:
        line = json.dumps({"at": round(time.time() - began, 1), **row})
        print(line, flush=True)
        logs.write(line + "\n")
        logs.flush()

    began = time.time()
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every length
    network, tokenizer = load(base)
    twin: Any = None
    decoders: dict[Any, Any] = {}
    log({"loaded": str(network.dtype), "device": str(network.device)})

    def do(job: dict[str, Any]) -> None:
        nonlocal twin
        while "after" in job and not (folder / "adapters" / job["after"] / "job.json").is_file():
            time.sleep(1)  # another process trains it
        if "train" in job:
            train(network, tokenizer, job, folder, log)
        elif "prefer" in job:
            import prefer

            prefer.train_by_preference(network, tokenizer, job, folder, log)
        elif "grpo" in job:
            import grpo

            while not (folder / "adapters" / job["judge"] / "job.json").is_file():
                time.sleep(1)
            grpo.run(network, tokenizer, base, job, folder, log)
        else:
            twin = twin or copy.deepcopy(network)
            if "judge" in job:
                judge(network, twin, tokenizer, base, job, folder, log)
            elif "levels" in job:
                levels(network, twin, tokenizer, job, folder, log)
            elif "likelihood" in job:
                likelihood(network, twin, tokenizer, job, folder, log)
            elif "first" in job:
                first_words(network, twin, tokenizer, job, folder, log)
            elif "score" in job:
                score(network, twin, tokenizer, base, job, folder, log)
            elif "rank" in job:
                rank_outputs(network, twin, tokenizer, base, job, folder, log)
            elif "talk" in job:
                decoders.clear()
                talks.talk(network, twin, tokenizer, job, folder, log)
            else:
                write(network, twin, tokenizer, job, folder, log, decoders)
            return
        torch.cuda.empty_cache()

    for job in json.loads(plan.read_text()):
        for attempt in range(20):
            try:
                do(job)
            except torch.OutOfMemoryError as error:  # a process beside this one may end and leave room
                log({"job": job, "attempt": attempt, "failed": str(error)[:80]})
                drop_low(network, {name: own for name, own in network.named_modules() if isinstance(own, Low)})
                decoders.clear()
                torch.cuda.empty_cache()
                time.sleep(20)
            except Exception as error:  # the other jobs go on
                log({"job": job, "failed": repr(error)})
                traceback.print_exc()
                break
            else:
                break
    log({"done": plan.name})


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"unpack": unpack, "work": work}[command](*map(Path, words))
