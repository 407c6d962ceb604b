"""Multimodal models: what they need beside a tokenizer to be trained on pictures and asked about them.

A picture stands in a chat as one mark, which is repeated for as many tokens as the picture has cells, and the network
puts its patches in their index. Positions run in three directions inside a picture and go on after it from its longer
side, so the tokens behind a picture stand nearer than their number says (M-RoPE). Two families of models are
understood, Qwen2-VL and Qwen2.5-VL; other ones are asked as if they read text only. Pictures are files: nothing is
fetched from a network. They are read by Pillow, never by torchvision, so that a file gives the same numbers everywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto import modeling_auto as auto

from compeer.errors import InputError

MULTIMODAL = ("qwen2_vl", "qwen2_5_vl")  # the families (`model_type`) whose pictures and positions are understood here
PICTURE_TOKENS = 512
"""The most tokens that a picture may take, about 630 pixels squared: a photograph of a telephone would else take more
than a whole conversation. A model folder that sets a lower limit keeps it."""
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
"""What other programs need to feed a model pictures; kept beside trained weights."""
_LONGEST = 200  # a picture longer than this is refused by the models' own resizing
_IGNORED = -100


class PictureError(InputError):
    """A picture that cannot be given to a model: says which, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"this picture {why}", file=path, do="Give the folder of the pictures, or leave them out.")
        self.reason = f"the picture {path} {why}"


def network_class(folder: Path) -> Any:
    """The class that loads a folder: that of multimodal models if its configuration says so, else of text models."""
    kind = AutoConfig.from_pretrained(folder).model_type
    text, pictures = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return AutoModelForImageTextToText if kind in pictures and kind not in text else AutoModelForCausalLM


def open_picture(path: str, media: str | Path = "") -> Any:
    """A picture file as an RGB image, upright; a path that is not absolute counts from the folder `media`."""
    from PIL import Image, ImageOps

    if "://" in path or path.startswith("data:"):
        raise PictureError(path[:80], "is an address; a model in this process reads files only")
    file = Path(media) / path
    if not os.path.isfile(file):  # unlike a path's own, it is False for whatever cannot be a name
        raise PictureError(str(file), "cannot be read: there is no such file")
    try:
        with Image.open(file) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a broken file makes Pillow raise whatever its decoders do
        raise PictureError(str(file), f"cannot be read: {error or type(error).__name__}") from None
    if max(upright.size) > _LONGEST * min(upright.size):
        raise PictureError(str(file), f"cannot be read: one side is more than {_LONGEST} times the other")
    return upright


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as a model takes it: its patches, and how many there are each way (time, height, width)."""

    patches: torch.Tensor
    grid: tuple[int, int, int]


def picture_reader(folder: Path, media: str | Path = "") -> PictureReader | None:
    """The reader of pictures for a model folder, or None if the model reads text only."""
    config = AutoConfig.from_pretrained(folder)
    return PictureReader(folder, config, media) if config.model_type in MULTIMODAL else None


class PictureReader:
    """Turns picture files into what one model takes."""

    def __init__(self, folder: Path, config: Any, media: str | Path = "") -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.token: int = config.image_token_id
        vision = config.vision_config
        self.merge: int = vision.spatial_merge_size
        self._media = media
        sizes = {"patch_size": vision.patch_size, "temporal_patch_size": vision.temporal_patch_size}
        own = (folder / "preprocessor_config.json").is_file() or (folder / "processor_config.json").is_file()
        make = partial(Qwen2VLImageProcessorPil.from_pretrained, folder) if own else Qwen2VLImageProcessorPil
        self._processor = make(**sizes, merge_size=self.merge)
        limit = PICTURE_TOKENS * (vision.patch_size * self.merge) ** 2
        self._size = {edge: min(self._processor.size[edge], limit) for edge in ("shortest_edge", "longest_edge")}

    def read(self, path: str) -> Picture:
        found = self._processor(images=[open_picture(path, self._media)], size=self._size, return_tensors="pt")
        time, height, width = found["image_grid_thw"][0].tolist()
        return Picture(found["pixel_values"], (time, height, width))

    def cells(self, grid: Sequence[int]) -> int:
        """How many tokens a picture takes."""
        return math.prod(grid) // self.merge**2

    def expand(self, ids: Sequence[int], grids: Sequence[Sequence[int]], values: Sequence[int] = ()) -> list[int]:
        """The tokens with each picture's mark repeated as often as the picture has cells; or the tokens' `values`."""
        left = iter(grids)
        found: list[int] = []
        for token, value in zip(ids, values or ids, strict=True):
            found += [value] * (self.cells(next(left)) if token == self.token else 1)
        return found

    def inputs(self, pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
        """The pictures as the network takes them; nothing for no pictures."""
        if not pictures:
            return {}
        patches, grids = zip(*((picture.patches, picture.grid) for picture in pictures), strict=True)
        return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def inputs_beside_tokens(
    network: Any, ids: torch.Tensor, mask: torch.Tensor, pictures: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What a network takes beside rows of tokens with these pictures, in their order, and each row's next position."""
    lengths = mask.sum(1)
    if not pictures:
        return {"position_ids": (mask.long().cumsum(1) - 1).clamp_(min=0)}, lengths
    inputs = {name: values.to(ids.device) for name, values in pictures.items()}
    kinds = (ids == network.config.image_token_id).int()
    inputs["position_ids"], shift = network.model.get_rope_index(
        ids, mm_token_type_ids=kinds, image_grid_thw=inputs["image_grid_thw"], attention_mask=mask
    )
    return inputs, lengths + shift[:, 0]


# --- training -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedChat:
    """A chat as tokens, which of them the assistant wrote, and the pictures in it."""

    ids: torch.Tensor
    learnt: torch.Tensor
    pictures: tuple[str, ...]


def encode_chats(
    tokenizer: Any, reader: PictureReader | None, chats: Sequence[Sequence[Mapping[str, Any]]]
) -> list[EncodedChat]:
    """The chats as a model is trained on them; each picture is read once, for its size. Text needs no reader."""
    template = training_template(tokenizer)
    grid = cache(lambda path: reader.read(path).grid if reader else ())
    found = []
    for chat in chats:
        encoded = tokenizer.apply_chat_template(
            chat, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, learnt = encoded["input_ids"], encoded["assistant_masks"]
        pictures = chat_pictures(chat) if reader else ()
        if reader:
            own = [grid(path) for path in pictures]
            ids, learnt = reader.expand(ids, own), reader.expand(ids, own, learnt)
        found.append(EncodedChat(torch.tensor(ids), torch.tensor(learnt, dtype=torch.bool), pictures))
    return found


def chat_pictures(chat: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The pictures in a chat, by path or address, in their order."""
    blocks = (block for message in chat if not isinstance(message["content"], str) for block in message["content"])
    return tuple(block.get("path") or block["url"] for block in blocks if block["type"] == "image")


def training_template(tokenizer: Any) -> str:
    """The tokenizer's chat template with marks around what the assistant says."""
    from trl.chat_template_utils import get_training_chat_template

    try:
        return get_training_chat_template(tokenizer) or str(tokenizer.chat_template)
    except ValueError:
        what = "the model's chat template does not mark what the assistant says, and is none that we know."
        do = "Put {% generation %} and {% endgeneration %} around it in the folder's chat template."
        raise InputError(what, field="model", do=do) from None


def chat_batch(
    reader: PictureReader | None, known: Sequence[EncodedChat], pad: int, rows: Sequence[Mapping[str, int]]
) -> dict[str, torch.Tensor]:
    """A batch of chats by their numbers; with and without pictures. Loss is only on the assistant's tokens."""
    chats = [known[row["chat"]] for row in rows]
    ids = pad_sequence([chat.ids for chat in chats], batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(chat.ids) for chat in chats], batch_first=True)
    learnt = pad_sequence([chat.learnt for chat in chats], batch_first=True)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.where(learnt, ids, _IGNORED)}
    if reader and (pictures := [reader.read(path) for chat in chats for path in chat.pictures]):
        batch |= {"mm_token_type_ids": ((ids == reader.token) & (mask == 1)).int(), **reader.inputs(pictures)}
    return batch


def restore_renamed(network: Any, checkpoint: Path) -> None:
    """Puts back what a multimodal checkpoint holds under its published names: by these the trainer finds no weights."""
    if (checkpoint / "config.json").is_file() and network_class(checkpoint) is AutoModelForImageTextToText:
        saved = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
        network.load_state_dict(saved.state_dict())
