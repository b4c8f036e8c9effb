"""Entry point of the command line.

Layers, heads, rows and columns count from 1, as on the page; in the Python API they count from 0.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import TextIOWrapper
from typing import Any

from vitviz.errors import VitvizError

COMPLETE = "_VITVIZ_COMPLETE"  # variable with which a shell asks for completions
# Control characters except tab, line feed and carriage return, and characters that change the direction of text.
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MOVES = re.compile("(\x1b\\[A)+")  # tqdm moves to the bar above
INTERRUPTED = 130  # a shell's exit code after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 after an error message on standard error, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # escape characters that the output cannot encode
            stream.reconfigure(errors="backslashreplace")
    with redirect_stdout(Printable(sys.stdout)), redirect_stderr(Printable(sys.stderr)):
        return _main(argv)


class Printable:
    """Stream that removes a terminal's control sequences, which labels, file names and records may contain.

    Args:
        stream: the output.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text with a question mark for each unsafe character."""
        self._stream.write(text if MOVES.fullmatch(text) else UNSAFE.sub("?", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)


def _main(argv: Sequence[str] | None) -> int:
    try:
        return _run(argv)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"\nvitviz: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except (VitvizError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    import click  # here, so that Ctrl-C during the import is caught
    from click.shell_completion import shell_complete

    from vitviz.cli.commands import vitviz

    if instruction := os.environ.get(COMPLETE):
        return shell_complete(vitviz, {}, "vitviz", COMPLETE, instruction)
    try:
        with vitviz.make_context("vitviz", list(sys.argv[1:] if argv is None else argv)) as ctx:
            vitviz.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as result:
        return result.exit_code
    except click.ClickException as error:  # an error of the arguments
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
