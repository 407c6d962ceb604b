"""Multimodal models: what they need beside a tokenizer to be trained on pictures and asked about them.

A picture stands in a chat as one mark, which is repeated for as many tokens as the picture has cells, and the network
puts its patches in their index. Positions run in three directions inside a picture and go on after it from its longer
side, so the tokens behind a picture stand nearer than their number says (M-RoPE). Two families of models are
understood, Qwen2-VL and Qwen2.5-VL; other ones are asked as if they read text only. Pictures are files: nothing is
fetched from a network. They are read by Pillow, never by torchvision, so that a file gives the same numbers everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from compeer.errors import InputError

MULTIMODAL = ("qwen2_vl", "qwen2_5_vl")
"""The families (`model_type`) whose pictures and positions are understood here."""
PICTURE_TOKENS = 512
"""The most tokens that a picture may take, about 630 pixels squared: a photograph of a telephone would else take more
than a whole conversation. A model folder that sets a lower limit keeps it."""
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
"""What other programs need to feed a model pictures; kept beside trained weights."""
_LONGEST = 200
"""A picture longer than this is refused by the models' own resizing."""
_IGNORED = -100


class PictureError(InputError):
    """A picture that cannot be given to a model: says which, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"this picture {why}", file=path, do="Give the folder of the pictures, or leave them out.")
        self.reason = f"the picture {path} {why}"


def network_class(folder: Path) -> Any:
    """The class that loads a folder: that of multimodal models if its configuration says so, else of text models."""
    kind = AutoConfig.from_pretrained(folder).model_type
    multimodal = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if multimodal else AutoModelForCausalLM


def open_picture(path: str, media: str | Path = "") -> Any:
    """A picture file as an RGB image, upright; a path that is not absolute counts from the folder `media`."""
    from PIL import Image, ImageOps

    if "://" in path or path.startswith("data:"):
        raise PictureError(path[:80], "is an address; a model in this process sees files only")
    file = Path(media) / path
    try:
        if not file.is_file():
            raise PictureError(str(file), "cannot be read: there is no such file")
        with Image.open(file) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except PictureError:
        raise
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
        self.merge: int = config.vision_config.spatial_merge_size
        self._media = media
        sizes = {
            "patch_size": config.vision_config.patch_size,
            "temporal_patch_size": config.vision_config.temporal_patch_size,
            "merge_size": self.merge,
        }
        own = (folder / "preprocessor_config.json").is_file() or (folder / "processor_config.json").is_file()
        self._processor = (
            Qwen2VLImageProcessorPil.from_pretrained(folder, **sizes) if own else Qwen2VLImageProcessorPil(**sizes)
        )
        limit = PICTURE_TOKENS * (sizes["patch_size"] * self.merge) ** 2
        size = dict(self._processor.size)
        self._size = {
            "shortest_edge": min(size["shortest_edge"], limit),
            "longest_edge": min(size["longest_edge"], limit),
        }

    def read(self, path: str) -> Picture:
        """The picture in a file."""
        found = self._processor(images=[open_picture(path, self._media)], size=self._size, return_tensors="pt")
        time, height, width = found["image_grid_thw"][0].tolist()
        return Picture(found["pixel_values"], (time, height, width))

    def cells(self, grid: Sequence[int]) -> int:
        """How many tokens a picture takes."""
        return grid[0] * grid[1] * grid[2] // self.merge**2

    def expand(self, ids: Sequence[int], grids: Sequence[Sequence[int]], values: Sequence[int] = ()) -> list[int]:
        """The tokens with each picture's mark repeated as often as the picture has cells; or the tokens' `values`."""
        left = iter(grids)
        found: list[int] = []
        for token, value in zip(ids, values or ids, strict=True):
            found += [value] * (self.cells(next(left)) if token == self.token else 1)
        return found

    def positions(self, ids: Sequence[int], grids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, int]:
        """The positions of a row's tokens in time, height and width, and the position of whatever follows."""
        left = iter(grids)
        pieces: list[torch.Tensor] = []
        index = following = 0
        while index < len(ids):
            if ids[index] == self.token:
                time, height, width = next(left)
                sides = [torch.arange(n) for n in (time, height // self.merge, width // self.merge)]
                cells = torch.stack(torch.meshgrid(*sides, indexing="ij")).reshape(3, -1)
                pieces.append(cells + following)
                following += max(height, width) // self.merge
                index += cells.shape[1]
            else:
                pieces.append(torch.full((3, 1), following))
                following += 1
                index += 1
        return torch.cat(pieces, dim=1) if pieces else torch.zeros((3, 0), dtype=torch.long), following

    def inputs(self, pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
        """The pictures as the network takes them; nothing for no pictures."""
        if not pictures:
            return {}
        return {
            "pixel_values": torch.cat([picture.patches for picture in pictures]),
            "image_grid_thw": torch.tensor([picture.grid for picture in pictures]),
        }


# --- training -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultimodalChat:
    """A chat as tokens, which of them the assistant wrote, and the pictures in it."""

    ids: list[int]
    learnt: list[int]
    pictures: tuple[str, ...]


def encode_chats(
    tokenizer: Any, reader: PictureReader, chats: Sequence[Sequence[Mapping[str, Any]]]
) -> list[MultimodalChat]:
    """The chats as a multimodal model is trained on them; each picture is read once, for its size."""
    template = training_template(tokenizer)
    grids: dict[str, tuple[int, int, int]] = {}
    found = []
    for chat in chats:
        pictures = chat_pictures(chat)
        for path in pictures:
            if path not in grids:
                grids[path] = reader.read(path).grid
        encoded = tokenizer.apply_chat_template(
            chat, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, own = encoded["input_ids"], [grids[path] for path in pictures]
        learnt = reader.expand(ids, own, encoded["assistant_masks"])
        found.append(MultimodalChat(reader.expand(ids, own), learnt, pictures))
    return found


def chat_pictures(chat: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The pictures in a chat, by path or address, in their order."""
    return tuple(
        block.get("path") or block["url"]
        for message in chat
        if not isinstance(message["content"], str)
        for block in message["content"]
        if block["type"] == "image"
    )


def training_template(tokenizer: Any) -> str:
    """The tokenizer's chat template with marks around what the assistant says."""
    from trl.chat_template_utils import get_training_chat_template

    try:
        return get_training_chat_template(tokenizer) or str(tokenizer.chat_template)
    except ValueError:
        raise InputError(
            "the model's chat template does not mark what the assistant says, and is none that we know.",
            field="model",
            do="Put {% generation %} and {% endgeneration %} around it in the folder's chat template.",
        ) from None


class MultimodalBatches:
    """Makes batches of chats by their numbers; with and without pictures. Loss is on the assistant's tokens alone."""

    def __init__(self, reader: PictureReader, chats: Sequence[MultimodalChat], pad: int) -> None:
        self._reader, self._chats, self._pad = reader, chats, pad

    def __call__(self, rows: Sequence[Mapping[str, int]]) -> dict[str, torch.Tensor]:
        chats = [self._chats[row["chat"]] for row in rows]
        width = max(len(chat.ids) for chat in chats)
        ids = torch.full((len(chats), width), self._pad)
        labels = torch.full((len(chats), width), _IGNORED)
        mask = torch.zeros((len(chats), width), dtype=torch.long)
        for number, chat in enumerate(chats):
            length = len(chat.ids)
            ids[number, :length] = torch.tensor(chat.ids)
            mask[number, :length] = 1
            learnt = torch.tensor(chat.learnt, dtype=torch.bool)
            labels[number, :length] = torch.where(learnt, ids[number, :length], _IGNORED)
        pictures = [self._reader.read(path) for chat in chats for path in chat.pictures]
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        if pictures:
            batch |= {"mm_token_type_ids": ((ids == self._reader.token) & (mask == 1)).int()}
            batch |= self._reader.inputs(pictures)
        return batch


def restore_renamed(network: Any, checkpoint: Path) -> None:
    """Puts back weights that a checkpoint holds under other names than the network's.

    Multimodal networks are saved under the names of their published files, by which the trainer does not find them: it
    would warn and go on from the weights it started with.
    """
    if (checkpoint / "config.json").is_file() and network_class(checkpoint) is AutoModelForImageTextToText:
        saved = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
        network.load_state_dict(saved.state_dict())
