"""Start the page of vitviz, as a Hugging Face Space and `make app` do; vitviz/settings.py has its variables."""

import sys

from vitviz.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["app"]))
