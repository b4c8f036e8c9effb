"""Read AVIF and HEIC: the plugins that decode them in a process of its own.

Pillow reads AVIF by itself. HEIC, in which many phones save photographs, needs pillow-heif: `pip install vitviz[heic]`.
"""

from contextlib import suppress
from importlib.util import find_spec

from vitviz.images.limits import ImageError, kind_of


def check_installed(head: bytes, name: str) -> None:
    """Check that a file which begins with `head` can be read here.

    Raises:
        ImageError: if it is HEIC, and pillow-heif is not installed.
    """
    if kind_of(head) == "HEIC" and find_spec("pillow_heif") is None:
        raise ImageError(
            f"Expected a photograph that Pillow reads, got a HEIC photo (the format of many phones) in {name}. Run "
            "pip install 'vitviz[heic]', or save it as JPEG or PNG."
        )


def register() -> None:
    """Register both with Pillow, in one thread each: for the process that decodes."""
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False)
