"""Parse HTML pages."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The content of a page: tags, texts outside scripts and styles, and table rows."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.texts, self.data, self.rows, self._inside = [], [], "", [], None
        self._row = None
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs) if tag in ("script", "style") else None
        if tag == "tr":
            self._row = []
            self.rows.append(self._row)
        elif tag in ("td", "th"):
            self._row.append("")

    def handle_endtag(self, tag):
        self._inside = None
        if tag == "table":
            self._row = None

    def handle_data(self, text):
        if self._inside is None:
            self.texts.append(text)
            if self._row:
                self._row[-1] += text
        elif self._inside.get("id") == "data":
            self.data += text

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]
