"""The page of vitviz, as a Hugging Face Space and `make app` start it."""

from vitviz.ui.pages import build
from vitviz.ui.server import launch

if __name__ == "__main__":
    launch(build())
