"""Start the vitviz page for `make app` and Hugging Face Spaces: `vitviz app`, with its options and variables."""

import sys

from vitviz.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["app", *sys.argv[1:]]))
