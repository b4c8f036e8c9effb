"""The page of vitviz, as a Hugging Face Space and `make app` start it."""

from vitviz.server.pages import build
from vitviz.server.server import launch
from vitviz.server.settings import settings

if __name__ == "__main__":
    allowed = settings()  # a Space is set up by its variables, see vitviz/server/settings.py
    launch(build(allowed), allowed)
