"""The page of vitviz, as a Hugging Face Space and `make app` start it."""

from vitviz.ui.pages import build
from vitviz.ui.server import launch
from vitviz.ui.settings import settings

if __name__ == "__main__":
    allowed = settings()  # a Space is set up by its variables, see vitviz/ui/settings.py
    launch(build(allowed), allowed)
