"""Checks names of repositories on the Hugging Face hub."""

import re

_PART = r"\w([\w.-]*\w)?"
_NAME = re.compile(rf"(?!.*(\.\.|--)){_PART}(/{_PART})?", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)\w([\w./-]*[\w-])?", re.ASCII)


def is_hub_name(text: str) -> bool:
  """Whether the text has the form NAME or OWNER/NAME."""
  return _NAME.fullmatch(text) is not None


def is_revision(text: str) -> bool:
  """Whether the text could be a branch, a tag, a commit or refs/pr/N."""
  return _REVISION.fullmatch(text) is not None
