"""Start the vitviz page for `make app` and Hugging Face Spaces; vitviz/settings.py defines its variables."""

import sys

from vitviz.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["app"]))
