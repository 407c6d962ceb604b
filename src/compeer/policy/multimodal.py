"""What TRL's GRPO needs to train a multimodal supporter: prompts with pictures, turned into tokens and patches.

The processors of transformers read pictures with torchvision or want a video processor as well. `MultimodalProcessor`
has the few methods that TRL calls, and reads pictures as judge and fine-tuning do. Histories with and without mix.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import BatchFeature, ProcessorMixin

from compeer.engine.multimodal import PictureReader
from compeer.engine.network import defuse

PICTURE_FIELDS = ("pixel_values", "image_grid_thw", "mm_token_type_ids")  # what a model is given for pictures


class MultimodalProcessor(ProcessorMixin):  # type: ignore[misc]
    """A tokenizer and a reader of pictures behind the face of a processor; pictures are given by path."""

    def __init__(self, tokenizer: Any, reader: PictureReader) -> None:
        # not the parent's: it would insist on parts that we do without
        self.tokenizer, self.chat_template, self._reader = tokenizer, tokenizer.chat_template, reader

    def __call__(self, images: Sequence[Sequence[str] | None], text: Sequence[str], **_: Any) -> BatchFeature:
        """The texts as padded tokens with their patches; None or nothing for a text without pictures."""
        fields = self._encoded(text, images)
        kinds = fields.pop("mm_token_type_ids")
        padded = self.tokenizer.pad({"input_ids": fields.pop("input_ids")}, padding_side="left", return_tensors="pt")
        width = padded["input_ids"].shape[1]
        marks = torch.tensor([[0] * (width - len(row)) + row for row in kinds])
        return BatchFeature({**padded, **fields, "mm_token_type_ids": marks})

    def apply_chat_template(self, conversation: Any, tokenize: bool = False, **more: Any) -> Any:
        """The chats as text, or as tokens with their patches; a single chat as its text."""
        chats = [_plain(chat) for chat in (conversation if isinstance(conversation[0], list) else [conversation])]
        ask = bool(more.get("add_generation_prompt"))
        texts = [self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=ask) for chat in chats]
        if tokenize:
            parts = [[part for message in chat for part in message["content"]] for chat in chats]
            return self._encoded(texts, [[one["image"] for one in own if one["type"] == "image"] for own in parts])
        return texts if isinstance(conversation[0], list) else texts[0]

    def _encoded(self, texts: Sequence[str], images: Sequence[Sequence[str] | None]) -> dict[str, Any]:
        read = {path: self._reader.read(path) for row in images for path in row or ()}
        ids = []
        for text, row in zip(texts, images, strict=True):
            grids = [read[path].grid for path in row or ()]
            ids.append(self._reader.expand(self.tokenizer(text, add_special_tokens=False)["input_ids"], grids))
        patches = self._reader.inputs([read[path] for row in images for path in row or ()])
        if not patches:
            return {"input_ids": ids}
        kinds = [[int(token == self._reader.token) for token in row] for row in ids]
        return {"input_ids": ids, **patches, "mm_token_type_ids": kinds}

    def batch_decode(self, *args: Any, **more: Any) -> Any:
        return self.tokenizer.batch_decode(*args, **more)

    def save_pretrained(self, save_directory: Any, **_: Any) -> Any:
        return self.tokenizer.save_pretrained(save_directory)

    def __repr__(self) -> str:
        return "MultimodalProcessor"


def blocks(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every content as a list of blocks of one shape, as a table of prompts needs it."""

    def shaped(content: Any) -> list[dict[str, Any]]:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept = ((one["type"], one.get("text"), one.get("path") or one.get("url")) for one in parts)
        return [{"type": kind, "text": text, "image": image} for kind, text, image in kept]

    return [{"role": one["role"], "content": shaped(one["content"])} for one in defuse(tokenizer, messages)]


def _plain(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The chat without empty fields: a chat template takes whatever has an `image` for one."""
    return [
        {**message, "content": [{k: v for k, v in part.items() if v is not None} for part in message["content"]]}
        for message in chat
    ]


def drop_empty_patches(_: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a forward pass: takes out the empty patches of rows without pictures, which a vision tower cannot take."""
    if (patches := given.get("pixel_values")) is not None and not len(patches):
        given = {key: value for key, value in given.items() if key not in PICTURE_FIELDS}
    return args, given
