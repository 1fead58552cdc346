"""Reads HTML as a browser does: its elements, scripts, title and tables."""

import html.parser


class Parser(html.parser.HTMLParser):
  """Collects what the tests of pages look at."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.scripts, self.title = [], [], ""
    self.tables = []  # of rows of texts
    self._open = []  # names of open elements
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    if tag not in ("meta", "link", "input"):
      self._open.append(tag)
    if tag == "script":
      self.scripts.append("")
    if tag == "table":
      self.tables.append([])
    if tag == "tr":
      self.tables[-1].append([])
    if tag in ("td", "th"):
      self.tables[-1][-1].append("")

  def handle_endtag(self, tag):
    while self._open and self._open.pop() != tag:
      pass

  def handle_data(self, data):
    if {"td", "th"} & {*self._open}:
      self.tables[-1][-1][-1] += data
    if self._open and self._open[-1] == "script":
      self.scripts[-1] += data
    if self._open and self._open[-2:] == ["head", "title"]:
      self.title += data


def read_rows(*blocks):
  """Returns the rows of each table in some HTML, without their heads."""
  return [rows[1:] for rows in Parser("".join(blocks)).tables]
