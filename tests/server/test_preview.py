"""What chats and search engines show of a link to a static site."""

from vitviz.web import bundle


def test_a_static_site_has_a_preview() -> None:
    assert "@@preview@@" in bundle.template("site/page/site.html")
    assert f'<meta property="og:description" content="{bundle.LEAD}">' in bundle.preview("preview.jpg")
