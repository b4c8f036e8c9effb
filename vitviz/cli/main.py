"""Entry point of the command line.

People count layers, heads, rows and columns from 1 here, as on the page; the Python API counts from 0.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

COMPLETE = "_VITVIZ_COMPLETE"  # what a shell asks with
INTERRUPTED = 130  # a shell's exit code for a program that Ctrl-C has ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for an error that is said on standard error, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that this terminal or file cannot encode is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(argv)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"\nvitviz: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    import click  # here, so that Ctrl-C while these are imported ends as any other
    from click.shell_completion import shell_complete

    from vitviz.cli.commands import vitviz

    if instruction := os.environ.get(COMPLETE):
        return shell_complete(vitviz, {}, "vitviz", COMPLETE, instruction)
    try:
        with vitviz.make_context("vitviz", list(sys.argv[1:] if argv is None else argv)) as ctx:
            vitviz.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:  # of the arguments
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
