"""Read frames of a video clip, spread evenly over it, within limits of memory.

PyAV decodes the clip (extra `video`). It gets an open file, and only formats that contain their own pictures are
accepted, because playlists can refer to other files and addresses.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vitviz.extras import extra
from vitviz.images.decoding import display_name
from vitviz.images.limits import ImageError

SUFFIXES = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi")
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"  # FFmpeg's format names
MAX_FRAMES = 240  # maximum frames of a film
MAX_PACKETS = 200_000  # maximum packets of a clip: an hour at 50 frames per second
MEGAPIXELS = 9.0  # maximum per frame: 4K has 8.9
SIDE = 960  # longest side of a returned frame, in pixels


@dataclass(frozen=True, eq=False)
class Frame:
    """Frame of a clip: time in seconds from the start, and upright picture of at most `SIDE` pixels."""

    time: float
    picture: Image.Image


def is_clip(path: str | os.PathLike[str]) -> bool:
    """Return whether a file name has a video suffix."""
    return Path(path).suffix.lower() in SUFFIXES


def count_frames(path: str | os.PathLike[str]) -> int:
    """Count the frames of a clip without decoding them.

    Raises:
        ImageError: if the file is not a clip or too large.
    """
    with _opened(path) as (container, stream):
        return _count(container, stream, path)


def read_clip(path: str | os.PathLike[str], frames: int = 48) -> Iterator[Frame]:
    """Yield at most `frames` frames, spread evenly over a clip, one at a time.

    Args:
        path: path of an MP4, MOV, WebM, Matroska or AVI file.
        frames: number of frames, 2 to `MAX_FRAMES`; shorter clips yield all.

    Raises:
        ImageError: if the file is not a clip, is damaged or too large.
        MissingExtraError: if PyAV is not installed.
    """
    if not 2 <= frames <= MAX_FRAMES:
        raise ImageError(f"Expected 2 to {MAX_FRAMES} frames of a clip, got {frames}. Choose a number in between.")
    total = count_frames(path)
    count = min(frames, total)
    chosen = {round(index * (total - 1) / max(1, count - 1)) for index in range(count)}
    with extra("video"):
        import av
    with _opened(path) as (container, stream):
        try:
            for index, frame in enumerate(container.decode(stream)):
                if index in chosen:
                    yield Frame(float(frame.time or 0.0), _picture(frame))
        except (av.error.FFmpegError, ValueError) as error:
            raise ImageError(
                f"Expected a clip that can be decoded, got a damaged one: {display_name(os.fspath(path))} ({error}). "
                "Save it again as MP4."
            ) from error


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, Any]]:
    """Open a clip, and return its container and first video stream."""
    with extra("video"):
        import av
    name = display_name(os.fspath(path))
    with open(path, "rb") as file:
        try:
            container = av.open(file, options={"format_whitelist": FORMATS})
        except (av.error.FFmpegError, ValueError) as error:
            raise ImageError(
                f"Expected a video clip ({', '.join(SUFFIXES)}), got {name}, which is not a clip or is "
                "damaged. Save it as MP4."
            ) from error
        with container:
            if not container.streams.video:
                raise ImageError(f"Expected a clip with pictures, got none in {name}. Choose another clip.")
            stream = container.streams.video[0]
            width, height = stream.codec_context.width, stream.codec_context.height
            if not 0 < width * height <= MEGAPIXELS * 1e6:
                raise ImageError(
                    f"Expected frames of at most {MEGAPIXELS:g} megapixels, got {width} x {height} in {name}. Make "
                    "them smaller."
                )
            yield container, stream


def _count(container: Any, stream: Any, path: str | os.PathLike[str]) -> int:
    """Count the packets of the stream."""
    total = 0
    for packet in container.demux(stream):
        total += packet.size > 0
        if total > MAX_PACKETS:
            break
    if not 2 <= total <= MAX_PACKETS:
        raise ImageError(
            f"Expected a clip of 2 to {MAX_PACKETS:,} frames, got {'more' if total > 2 else total} in "
            f"{display_name(os.fspath(path))}. Cut it to the part that matters."
        )
    return total


def _picture(frame: Any) -> Image.Image:
    """Convert a frame to an upright, scaled-down RGB picture."""
    factor = min(1.0, SIDE / max(frame.width, frame.height))
    width, height = (max(1, round(length * factor)) for length in (frame.width, frame.height))
    picture: Image.Image = frame.reformat(width=width, height=height, format="rgb24").to_image()
    rotation = getattr(frame, "rotation", 0) % 360
    return picture.rotate(rotation, expand=True) if rotation else picture
