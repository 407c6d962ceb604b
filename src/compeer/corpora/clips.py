"""Frames of a clip, for models that see: a few pictures spread evenly over what was said.

Decoding needs PyAV, an optional dependency (`pip install av`), imported only when a frame is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compeer.dialogue import Media
from compeer.errors import InputError

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer

_SLACK = 1.0  # seconds by which the length of a cut clip may differ from that of the stretch it was cut from


def read_frames(media: Media, count: int = 4) -> list[NDArray[np.uint8]]:
    """`count` RGB pictures (height, width, 3) from the middles of as many equal parts of the clip.

    `start` and `end` choose a stretch of the file. A file that is just as long as the stretch is itself the clip, cut
    out already, and is taken whole.
    """
    try:
        import av
    except ImportError:
        raise InputError("frames of a clip need PyAV, which is not installed.", do="pip install av") from None
    path = Path(media.path)
    if media.kind != "video":
        raise InputError(f"this is no video but of kind {media.kind}.", file=path)
    if not path.is_file():
        raise InputError("there is no such clip.", file=path, do="Say where the clips are (the media folder).")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError("there is no picture in this clip.", file=path)
            start, length = _stretch(media, _length(container))
            return _pick(container, [start + length * (2 * part + 1) / (2 * count) for part in range(count)], path)
    except av.FFmpegError as error:
        raise InputError(f"this clip cannot be decoded: {error}", file=path) from None


def _stretch(media: Media, whole: float) -> tuple[float, float]:
    """Where to begin in the file and how many seconds to cover."""
    start, end = media.start or 0.0, whole if media.end is None else media.end
    if media.end is not None and abs(whole - (end - start)) <= _SLACK:
        return 0.0, whole
    if start >= whole:
        what = f"the clip should begin at {start:g} s, but the file is only {whole:g} s long."
        raise InputError(what, file=media.path, do="Is it the right file?")
    return start, max(min(end, whole) - start, 0.0)


def _length(container: InputContainer) -> float:
    """The length in seconds; where the file does not tell it, from its packets."""
    import av

    if container.duration is not None:
        return float(container.duration / av.time_base)
    stream = container.streams.video[0]
    last = max((packet.pts for packet in container.demux(stream) if packet.pts is not None), default=0)
    container.seek(0)
    return float(last * (stream.time_base or 0))


def _pick(container: InputContainer, times: list[float], path: Path) -> list[NDArray[np.uint8]]:
    """For each time, in order, the first frame that is not before it, or else the last one there is."""
    stream = container.streams.video[0]
    if stream.time_base:
        container.seek(int(times[0] / stream.time_base), stream=stream)  # goes to the key frame before it
    picked: list[NDArray[np.uint8]] = []
    last: VideoFrame | None = None
    for frame in container.decode(stream):
        last = frame
        while len(picked) < len(times) and (frame.time is None or frame.time >= times[len(picked)]):
            picked.append(frame.to_ndarray(format="rgb24").astype(np.uint8))
        if len(picked) == len(times):
            return picked
    if last is None:
        raise InputError("there is no picture in this clip.", file=path)
    return picked + [last.to_ndarray(format="rgb24").astype(np.uint8)] * (len(times) - len(picked))
