"""Engines for a CPU, side by side in one run: how fast each reads a prompt and writes from a GGUF file.

    python benchmarks/engines.py embedded                   # a base of the catalogue, or a path to a GGUF file
    python benchmarks/engines.py qwen-1.5b --engines int8 llama.cpp openvino --prompt 600 --tokens 60

`int8` and `llama.cpp` are the two of `compeer.engine`; `torch` is transformers in float32, `bfloat16` the same in
bfloat16; `openvino` is OpenVINO GenAI (`pip install openvino-genai`, not needed otherwise). Each engine runs in a
process of its own, one after the other, `--repeats` times over: machines are noisy, so compare within a run. Prompts
are random tokens (for OpenVINO random words), each read anew; one row and `--rows` rows are written greedily. Prints
one JSON object: tokens a second, the middle of the repeats, seconds to load, and memory in megabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from compeer.engine.rows import ModelFiles
from compeer.models.resolve import model_folder, prepare

ENGINES = ("int8", "llama.cpp", "torch", "bfloat16", "openvino")
FIRST_ID, LAST_ID = 1000, 20000
"""Plain words of both vocabularies."""


def speeds(read: Any, write: Any, prompt: int, tokens: int, rows: int) -> dict[str, float]:
    """Tokens a second. `read` reads a prompt into a row, `write` writes tokens for so many rows that were read."""
    rng = np.random.default_rng(time.monotonic_ns())
    prompts = [[int(one) for one in rng.integers(FIRST_ID, LAST_ID, size=prompt)] for _ in range(rows)]
    start = time.perf_counter()
    for row, ids in enumerate(prompts):
        read(row, ids)
    found = {"reads": rows * prompt / (time.perf_counter() - start)}
    for count, name in ((1, "writes_1"), (rows, f"writes_{rows}")):
        start = time.perf_counter()
        write(count, tokens)
        found[name] = count * tokens / (time.perf_counter() - start)
    return found


def own_engine(name: str, files: ModelFiles, options: argparse.Namespace) -> tuple[Any, Any]:
    """`Int8` or `Llama`, as `CpuTable` calls them: prompts in blocks, then one token a row."""
    from compeer.engine.int8 import Int8
    from compeer.engine.llama import Llama

    made = Int8 if name == "int8" else Llama
    model = made(files.base, options.rows + 1, options.prompt + 3 * options.tokens)
    model.use(files.adapter)
    lengths: dict[int, int] = {}

    def read(row: int, ids: list[int]) -> None:
        model.cut(row, 0)
        for start in range(0, len(ids), model.block):
            part = ids[start : start + model.block]
            model.decode([row] * len(part), range(start, start + len(part)), part, [False] * len(part))
        lengths[row] = len(ids)

    def write(count: int, tokens: int) -> None:
        last = [FIRST_ID] * count
        for _ in range(tokens):
            rows = range(count)
            logits = model.decode(rows, [lengths[row] for row in rows], last, [True] * count)
            last = [int(one) for one in logits.argmax(1)]
            lengths.update({row: lengths[row] + 1 for row in rows})

    return read, write


def network(name: str, model: str) -> tuple[Any, Any]:
    """transformers' own way, with a cache; rows that are written together are read together."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_folder(model), dtype=dtype).eval()
    known: dict[int, list[int]] = {}

    @torch.inference_mode()
    def read(row: int, ids: list[int]) -> None:
        loaded(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        known[row] = ids

    @torch.inference_mode()
    def write(count: int, tokens: int) -> None:
        short = torch.tensor([known[row][:16] for row in range(count)])  # so that hardly any of the time is reading
        cache = loaded(short, use_cache=True).past_key_values
        last = short[:, -1:]
        for _ in range(tokens):
            last = loaded(last, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

    return read, write


def opened_by_openvino(base: Path) -> Any:
    """OpenVINO GenAI's pipeline, which reads GGUF files."""
    import openvino_genai

    return openvino_genai.LLMPipeline(str(base), "CPU")


def openvino(pipeline: Any, options: argparse.Namespace) -> dict[str, float]:
    """By the pipeline's own clock."""
    import openvino_genai

    rng = np.random.default_rng(time.monotonic_ns())
    words = ["river", "stone", "winter", "bread", "engine", "ladder", "paper", "copper", "violet", "garden"]
    settings = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}

    def measured(rows: int) -> tuple[float, float]:
        texts = [" ".join(rng.choice(words, size=options.prompt)) for _ in range(rows)]
        metrics = pipeline.generate(texts, openvino_genai.GenerationConfig(**settings)).perf_metrics
        read = metrics.get_num_input_tokens() / metrics.get_ttft().mean * 1000
        return read, metrics.get_throughput().mean

    (read, alone), (_, together) = measured(1), measured(options.rows)
    return {"reads": read, "writes_1": alone, f"writes_{options.rows}": together}


def one_engine(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Speeds of an engine, in this process."""
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    files = prepare(options.model)
    assert files is not None
    runs = []
    if name == "openvino":
        pipeline = opened_by_openvino(files.base)
        loading = time.perf_counter() - start
        runs = [openvino(pipeline, options) for _ in range(options.repeats + 1)][1:]  # the first call compiles
    else:
        own = name in ("int8", "llama.cpp")
        read, write = own_engine(name, files, options) if own else network(name, options.model)
        loading = time.perf_counter() - start
        speeds(read, write, 64, 2, options.rows)  # the first pass over fresh memory is slow
        runs = [speeds(read, write, options.prompt, options.tokens, options.rows) for _ in range(options.repeats)]
    found: dict[str, Any] = {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
    memory = psutil.Process().memory_info().rss - before
    return {**found, "loads_s": round(loading, 1), "memory_mb": memory >> 20}


def installed(package: str) -> str | None:
    """A package's version; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES[:-1])
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(one_engine(options.engines[0], options)))
        return
    found = {}
    for engine in options.engines:
        call = [sys.executable, __file__, *sys.argv[1:], "--engines", engine, "--alone"]
        chosen = {**os.environ, "COMPEER_CPU": engine if engine == "llama.cpp" else ""}
        done = subprocess.run(call, capture_output=True, text=True, env=chosen)
        own = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-300:]
        found[engine.replace(".", "_")] = own
        print(engine, own, file=sys.stderr, flush=True)
    packages = ("torch", "transformers", "numba", "xllamacpp", "openvino-genai")
    machine = {"processor": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    settings = {key: getattr(options, key) for key in ("model", "prompt", "tokens", "rows", "repeats")}
    print(json.dumps({**settings, **found, "machine": machine, "versions": {one: installed(one) for one in packages}}))


if __name__ == "__main__":
    main()
