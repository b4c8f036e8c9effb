"""What chats and search engines show of a link to the page."""

import io
import re
from urllib.request import urlopen

from PIL import Image
from running import Running

from vitviz.web import bundle

TAG = re.compile(r'<meta\s+(?:property|name)="((?:og|twitter):[\w:]+)"\s+content="([^"]*)"')


def test_a_link_preview_has_our_title_and_picture(app: Running) -> None:
    with urlopen(app.url) as answer:
        pairs = TAG.findall(answer.read().decode())
    tags = dict(pairs)
    assert len(tags) == len(pairs)  # none twice: crawlers take the first or the last
    assert (tags["og:title"], tags["og:description"]) == (bundle.TITLE, bundle.LEAD)
    assert not [text for text in tags.values() if "radio" in text]
    assert tags["og:image"].startswith("http")
    with urlopen(tags["og:image"]) as answer:
        assert answer.headers["content-type"] == "image/jpeg"
        picture = Image.open(io.BytesIO(answer.read()))
    assert [str(length) for length in picture.size] == [tags["og:image:width"], tags["og:image:height"]]


def test_a_static_site_has_the_same_preview() -> None:
    assert "@@preview@@" in bundle.template("site.html")
    assert bundle.LEAD in bundle.template()
