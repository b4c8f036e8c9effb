"""Register decoders for AVIF and HEIC, which run in a worker process.

Pillow reads AVIF. HEIC, the format of many phones, needs pillow-heif: `pip install vitviz[heic]`.
"""

from contextlib import suppress
from importlib.util import find_spec

from vitviz.images.limits import ImageError, kind_of
from vitviz.phrases import Phrase


def check_installed(head: bytes, name: str) -> None:
    """Check that a file starting with `head` can be read.

    Raises:
        ImageError: for HEIC without pillow-heif.
    """
    if kind_of(head) == "HEIC" and find_spec("pillow_heif") is None:
        raise ImageError(
            Phrase(
                "photograph-heic",
                "Expected a photograph that Pillow reads, got a HEIC photo (the format of many phones) in {0}. Run "
                "{1}, or save it as JPEG or PNG.",
                *(name, "pip install 'vitviz[heic]'"),
            )
        )


def register() -> None:
    """Register both decoders with Pillow, with one thread each, for the worker process."""
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False)
