"""Why the packaged base is split: how fast llama.cpp reads and writes with the same weights in different formats.

One thread, and tokens by second of the processor, so that other work on the machine matters little; all formats in
turn, `--repeats` times, the best of each. Read is a prompt of 192 tokens; written is by one row, and by eight at once.

    python benchmarks/formats.py [--repeats 3] [--base file.gguf]

`--base` measures a file as it is beside them. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from compeer.engine.attention import GROUPED, attend
from compeer.engine.llama import Llama
from compeer.engine.network import load_network
from compeer.models.catalogue import SMOLLM2
from compeer.models.resolve import model_folder, prepare

READ, WRITTEN = 192, 12
FORMATS = ("Q8_0", "F16", "BF16", "F32")


def requantised(source: Path, to: Path, kind: str) -> None:
    """The same weights in another format, norms as they are."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader, wanted = GGUFReader(source), GGMLQuantizationType[kind]
    writer = GGUFWriter(to, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rate(work: Callable[[], object], tokens: int) -> float:
    start = time.process_time()
    work()
    return tokens / (time.process_time() - start)


def on_llama(llama: Llama, adapter: Path | None) -> tuple[float, float, float]:
    """Tokens a second that are read, written by one row, and by eight."""
    llama.use(adapter)
    llama.clear()
    ids = np.random.default_rng(0).integers(1000, 40000, READ).tolist()

    def read(row: int) -> None:
        for start in range(0, READ, 32):
            llama.decode([row] * 32, range(start, start + 32), ids[start : start + 32], [False] * 31 + [True])

    def write(rows: int) -> None:
        for step in range(WRITTEN):
            llama.decode(range(rows), [READ + step] * rows, ids[step : step + rows], [True] * rows)

    found = rate(lambda: read(0), READ)
    for row in range(1, 8):
        llama.restore(row, llama.state(0))
    one = rate(lambda: write(1), WRITTEN)
    llama.cut(0, READ)
    return found, one, rate(lambda: write(8), 8 * WRITTEN)


@torch.inference_mode()
def on_torch(network: Any) -> tuple[float, float, float]:
    cache = DynamicCache()
    ids = torch.randint(1000, 40000, (1, READ))

    def feed(rows: int) -> None:
        for _ in range(WRITTEN):
            network(input_ids=ids[:, :rows].T, past_key_values=cache, use_cache=True)

    read = rate(lambda: network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1), READ)
    one = rate(lambda: feed(1), WRITTEN)
    cache.batch_repeat_interleave(8)
    return read, one, rate(lambda: feed(8), 8 * WRITTEN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base", type=Path)
    told = parser.parse_args()
    torch.set_num_threads(1)
    source, plain, adapted = SMOLLM2.checked_path(), prepare("embedded"), prepare("supporter")
    assert plain is not None
    assert adapted is not None
    network = load_network(model_folder("embedded"), torch.device("cpu"), torch.float32)
    attend(network, GROUPED)
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], tuple[float, float, float]]] = {"torch, float32": lambda: on_torch(network)}

        def add(name: str, path: Path, adapter: Path | None = None) -> None:
            llama = Llama(path, 8, 256, threads=1)
            ways[name] = lambda: on_llama(llama, adapter)

        add("Q4_1, as packaged", source)
        for kind in FORMATS:
            requantised(source, Path(folder) / f"{kind}.gguf", kind)
            add(kind, Path(folder) / f"{kind}.gguf")
        add("split", plain.base, plain.adapter)
        add("split, with the supporter's adapters", adapted.base, adapted.adapter)
        if told.base:
            add(told.base.name, told.base)
        found: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(told.repeats):
            for name, work in ways.items():
                found.setdefault(name, []).append(work())
    best = {name: [round(max(values), 1) for values in zip(*rows, strict=True)] for name, rows in found.items()}
    names = ("reads", "writes, one row", "writes, eight rows")
    print(
        json.dumps(
            {
                "tokens_a_cpu_second": {name: dict(zip(names, values, strict=True)) for name, values in best.items()},
                "machine": platform.machine(),
                "torch": torch.__version__,
                "xllamacpp": version("xllamacpp"),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
