"""What several tests share: no network, no deadlines on slow machines, and tiny models.

`make test` runs the files in two workers at once; a third made it slower. A file stays in one worker, because its tests
share what took long to make; each worker has temporary folders, ports and a database server of its own.
"""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["COMPEER_GUARD"] = "small"  # the same guard with and without the large base on this machine
if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded, and for the processes that tests start
    os.environ["OMP_NUM_THREADS"] = "1"
settings.register_profile("compeer", deadline=None, max_examples=60)
settings.load_profile("compeer")

LONGEST = (
    *("recipe", "pages", "chat_page", "soak", "distributed", "judge", "catalogue", "page", "curious_annotator"),
    *("engine", "probes", "store", "load", "train", "grpo", "vision_judge", "serve", "packaged_base", "app_fuzz"),
)
"""The files that take longest: they begin first, so that none is left to run alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: whoever collects garbage (each training does) need not look through it."""
    gc.freeze()


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls a command that must refuse, in an empty folder; what it says."""
    from tests.support.commands import exit_code

    def call(*words: str | Path) -> str:
        monkeypatch.chdir(tmp_path)
        assert exit_code(monkeypatch, *words) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "Traceback" not in told
        return told

    return call


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of two layers and the embedded model's tokenizer and chat template.

    Its weights are larger than usual, so that what it says depends clearly on what it reads.
    """
    from transformers import AutoTokenizer

    from compeer.models import model_folder

    folder = tmp_path_factory.mktemp("tiny_model")
    AutoTokenizer.from_pretrained(model_folder("embedded")).save_pretrained(folder)
    return _with_tiny_network(folder)


@pytest.fixture(scope="session")
def tiny_learner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the 6,000 commonest tokens alone: most of the time in which it learns goes into all others."""
    from transformers import AutoTokenizer

    from compeer.models import model_folder

    folder = tmp_path_factory.mktemp("tiny_learner")
    AutoTokenizer.from_pretrained(model_folder("embedded")).save_pretrained(folder)
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    words = {word: number for word, number in whole["model"]["vocab"].items() if number < 6000}
    for answer in ("Both", "Rest", "Ref"):  # how a judge's answers begin: no two alike
        words[answer] = len(words)
    whole["model"]["vocab"] = words
    whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if "".join(pair) in words]
    file.write_text(json.dumps(whole), encoding="utf-8")
    return _with_tiny_network(folder)


def _with_tiny_network(folder: Path) -> Path:
    """A folder that has a tokenizer, and now a network for it."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.4,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


ALLOWED_SKIPS = (
    "the public corpora are not at hand",
    "deepspeed is not installed",
    "inspect-ai is not installed",
    "verifiers is not installed",
    "vllm is not installed",
)
"""Reasons for which a test may be skipped in CI; any other skip fails there, so that nothing is left out unseen."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:  # noqa: ARG001
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report


@pytest.fixture(scope="session")
def tiny_seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen2.5-VL of two layers, a tokenizer trained on the spot and the family's template."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from trl.chat_template_utils import qwen2_5_vl_chat_template

    import compeer.reward

    folder = tmp_path_factory.mktemp("tiny_seeing_model")
    pictures = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *pictures]
    split = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    prompts = [path.read_text() for path in (Path(compeer.reward.__file__).parent / "prompts").iterdir()]
    words = ["True False A B Both Neither\nTrue\nFalse\nA\nB\nBoth\nNeither\nVerdict: True"] * 20
    core.train_from_iterator(
        [*prompts, *words],
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=control,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=control,
        chat_template=qwen2_5_vl_chat_template,
    )
    ids = dict(zip(control, tokenizer.convert_tokens_to_ids(control), strict=True))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "initializer_range": 0.3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": False,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
            "window_size": 56,
            "initializer_range": 0.3,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=84 * 112).save_pretrained(folder)
    return folder
