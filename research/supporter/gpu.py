"""Trains adapters to the 1.5B base and lets supporters write outputs, in one process on one GPU.

    python research/supporter/gpu.py unpack base.gguf base          # weights in bfloat16, once (all cores)
    python research/supporter/gpu.py work base plan.json out        # the jobs of a plan, one after the other

A plan is a list of jobs:

    {"train": "sft-a", "chats": "chats.jsonl", "rank": 16, "rate": 1e-4, "epochs": 2, "batch": 32, "seed": 1}
    {"write": "sft-a", "prompts": "prompts.jsonl", "out": "natural", "n": 2, "temperature": 1.0, "seed": 1, "scale": 1.0}

`chats.jsonl` holds {"prompt": [messages], "output": text}; `prompts.jsonl` {"id", "prompt": [messages]}. A supporter is the
name of an adapter trained before (its folder under out/adapters) or "base". Outputs go to out/<out>.jsonl as they
come, {"id", "number", "supporter", "text", "ended"}; a job whose file ends with a "done" line is not done again.
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


# --- the base -----------------------------------------------------------------------------------------------------------


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


# --- training -----------------------------------------------------------------------------------------------------------


def encode(tokenizer: Any, prompt: list[dict[str, str]], output: str | None = None) -> tuple[list[int], list[int]]:
    """The tokens of the prompt, up to where the supporter's words begin, and of its output with the ending token."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in prompt) + "<|im_start|>assistant\n"
    asked = tokenizer(text, add_special_tokens=False)["input_ids"]
    said = tokenizer(output, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] if output else []
    return asked, said


def batches(rows: list[Any], size: int, generator: torch.Generator) -> list[list[Any]]:
    """An epoch: random order, rows of about the same length in one batch."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    large = size * 16
    blocks = [sorted(order[i : i + large], key=lambda n: len(rows[n][0]) + len(rows[n][1])) for i in range(0, len(order), large)]
    cut = [[rows[n] for n in block[i : i + size]] for block in blocks for i in range(0, len(block), size)]
    return [cut[n] for n in torch.randperm(len(cut), generator=generator).tolist()]


def loss_of(network: Any, rows: list[Any]) -> torch.Tensor:
    """The summed cross-entropy of the outputs; logits are computed where they are needed only."""
    device = network.device
    width = max(len(a) + len(s) for a, s, _ in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    target = torch.full((len(rows), width), -100)
    weight = torch.zeros((len(rows), width))
    for r, (asked, said, w) in enumerate(rows):
        n = len(asked) + len(said)
        ids[r, :n] = torch.tensor(asked + said)
        target[r, len(asked) - 1 : n - 1] = torch.tensor(said)
        weight[r, len(asked) - 1 : n - 1] = w
    ids, target, weight = (one.to(device) for one in (ids, target, weight))
    inner = network.get_base_model() if hasattr(network, "get_base_model") else network
    # padding stands behind every row, where causal attention does not look: a mask is not needed, and torch's attention
    # with one gave gradients that were not numbers (torch 2.11, H200)
    hidden = inner.model(input_ids=ids).last_hidden_state
    chosen = target != -100
    logits = inner.lm_head(hidden[chosen]).float()
    return (torch.nn.functional.cross_entropy(logits, target[chosen], reduction="none") * weight[chosen]).sum()


def train(network: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """Trains a LoRA adapter on the outputs of chats and saves it in bfloat16; the network comes back as it was."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    where = folder / "adapters" / job["train"]
    if (where / "adapter_model.safetensors").is_file():
        return
    torch.manual_seed(job["seed"])
    generator = torch.Generator().manual_seed(job["seed"])
    chats = [json.loads(line) for line in Path(job["chats"]).open(encoding="utf-8")]
    rows = [(*encode(tokenizer, c["prompt"], c["output"]), float(c.get("weight", 1.0))) for c in chats]
    rows = [row for row in rows if len(row[0]) + len(row[1]) <= job.get("most", 2048)]
    held, rows = rows[: job.get("held", 0)], rows[job.get("held", 0) :]
    config = LoraConfig(r=job["rank"], lora_alpha=job.get("alpha", 2 * job["rank"]), target_modules=TARGETS, lora_dropout=job.get("dropout", 0.05))
    tuned = get_peft_model(network, config)
    trained = [p for p in tuned.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    optimiser = torch.optim.AdamW(trained, lr=job["rate"], weight_decay=0.0, betas=(0.9, 0.99))
    total = math.ceil(len(rows) / job["batch"]) * job["epochs"]
    cuda = network.device.type == "cuda"
    started, seen, step = time.time(), 0, 0
    micro = job.get("micro", 16)
    for epoch in range(job["epochs"]):
        for batch in batches(rows, job["batch"], generator):
            rate = job["rate"] * min(1.0, (step + 1) / max(1, 0.05 * total)) * max(0.05, 0.5 * (1 + math.cos(math.pi * step / total)))
            for group in optimiser.param_groups:
                group["lr"] = rate
            tuned.train()
            count = sum(len(s) * w for _, s, w in batch)
            whole = 0.0
            for start in range(0, len(batch), micro):
                with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                    loss = loss_of(tuned, batch[start : start + micro]) / count
                loss.backward()
                whole += loss.item()
            if not torch.isfinite(torch.nn.utils.clip_grad_norm_(trained, 1.0)):
                raise RuntimeError(f"the gradient is not a number at step {step}")
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            seen += sum(len(a) + len(s) for a, s, _ in batch)
            step += 1
            if step % 10 == 0 or step == total:
                log({"train": job["train"], "step": step, "of": total, "loss": round(whole, 4), "tokens_s": round(seen / (time.time() - started))})
        if held:
            tuned.eval()
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                parts = [loss_of(tuned, held[i : i + micro]).item() for i in range(0, len(held), micro)]
            log({"train": job["train"], "epoch": epoch + 1, "held_loss": round(sum(parts) / sum(len(s) * w for _, s, w in held), 4)})
    tuned.save_pretrained(where)
    path = where / "adapter_model.safetensors"
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    (where / "job.json").write_text(json.dumps({**job, "chats": len(rows), "seconds": round(time.time() - started)}, indent=1))
    tuned.unload()


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


# --- writing ------------------------------------------------------------------------------------------------------------


def write(network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any, decoders: dict[str, Any]) -> None:
    """Writes n outputs for every prompt; kept in blocks as they come."""
    from compeer.policy.decoding import Decoder, Prompt
    from compeer.policy.graphs import Drawing
    from compeer.statistics import generator

    path = folder / f"{job['out']}.jsonl"
    if path.is_file() and '"done"' in path.read_text(encoding="utf-8")[-200:]:
        return
    lay_on(twin, network, None if job["write"] == "base" else folder / "adapters" / job["write"], job.get("scale", 1.0))
    drawing = Drawing(max_tokens=job.get("tokens", 224), ends=(tokenizer.eos_token_id,), temperature=job["temperature"], top_p=job.get("top_p", 1.0))
    key = repr(drawing)
    if key not in decoders:
        decoders.clear()
        torch.cuda.empty_cache()
        decoders[key] = Decoder(twin, drawing, rows=job.get("rows", 384))
    rows = [json.loads(line) for line in Path(job["prompts"]).open(encoding="utf-8")][job.get("from", 0) : job.get("to")]
    asked = [(row["id"], number, encode(tokenizer, row["prompt"])[0]) for row in rows for number in range(job["n"])]
    asked.sort(key=lambda one: (len(one[2]), one[0], one[1]))
    started = time.time()
    size = 4 * job.get("rows", 384)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(asked), size):
            block = asked[start : start + size]
            seeds = [int(generator(job["seed"], "outputs", id_, str(number)).integers(1 << 31)) for id_, number, _ in block]
            for (id_, number, _), drawn in zip(block, decoders[key].draw([Prompt(tuple(ids)) for _, _, ids in block], seeds), strict=True):
                ended = bool(drawn.ids) and drawn.ids[-1] == tokenizer.eos_token_id
                text = tokenizer.decode(drawn.ids[:-1] if ended else drawn.ids)
                file.write(json.dumps({"id": id_, "number": number, "supporter": job["write"], "text": text, "ended": ended}, ensure_ascii=False) + "\n")
            file.flush()
            log({"write": job["out"], "outputs": start + len(block), "of": len(asked), "seconds": round(time.time() - started, 1)})
        file.write(json.dumps({"done": len(asked)}) + "\n")


def work(base: Path, plan: Path, folder: Path) -> None:
    import copy

    folder.mkdir(parents=True, exist_ok=True)
    logs = (folder / f"log-{plan.stem}.jsonl").open("a", encoding="utf-8")

    def log(row: dict[str, Any]) -> None:
        line = json.dumps({"at": round(time.time() - began, 1), **row})
        print(line, flush=True)
        logs.write(line + "\n")
        logs.flush()

    began = time.time()
    network, tokenizer = load(base)
    twin, decoders = None, {}
    log({"loaded": str(network.dtype), "device": str(network.device)})
    for job in json.loads(plan.read_text()):
        try:
            while "after" in job and not (folder / "adapters" / job["after"] / "job.json").is_file():
                time.sleep(1)  # another process trains it
            if "train" in job:
                network.train()
                train(network, tokenizer, job, folder, log)
                network.eval()
                torch.cuda.empty_cache()
            else:
                twin = twin or copy.deepcopy(network)
                write(network, twin, tokenizer, job, folder, log, decoders)
        except Exception as error:  # the other jobs go on
            import traceback

            log({"job": job, "failed": repr(error)})
            traceback.print_exc()
    log({"done": plan.name})


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"unpack": unpack, "work": work}[command](*map(Path, words))
