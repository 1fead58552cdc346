"""Reads the code blocks of the documentation, and captures their commands."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import textwrap

from truenegs_jax.config.flags import parse_config

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted(
  page
  for pattern in ("*.md", "docs/**/*.md", "*/README.md", "studies/*/*.md")
  for page in ROOT.glob(pattern)
  if not {"_build", "runs"} & {*page.relative_to(ROOT).parts}
)
RUN = "<!-- run -->"  # above a block: a test executes it
FENCE = re.compile(
  r"(?ms)^( *)(```+|:::+)(\S*)[^\n]*\n(.*?)^\1\2\s*?$",
)
# Bash calls the handler for every command that it does not find, and it finds
# none: the words of each are written to a file.
CAPTURE = """
PATH=/nowhere
command_not_found_handle() {
  printf '%s\\0' "$@" $'\\036' >> commands
  echo OUTPUT
}
"""


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of a page; `language` is a word or a MyST directive."""

  language: str
  text: str
  is_run: bool  # a test executes it


def read_blocks(page: pathlib.Path) -> list[Block]:
  """Returns the code blocks of a page, also those inside of admonitions."""
  return _parse(page.read_text(encoding="utf-8"))


def _parse(text: str) -> list[Block]:
  blocks = []
  for match in FENCE.finditer(text):
    _, fence, language, body = match.groups()
    body = textwrap.dedent(body)
    if fence.startswith(":"):
      blocks += _parse(body)
    else:
      is_run = text[: match.start()].rstrip().endswith(RUN)
      blocks.append(Block(language, body, is_run))
  return blocks


def write_files(page: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes what commands of a page read: configs, those of runs, and studies.

  A config is a Python block that begins with `# FILE.py`.
  """
  for block in read_blocks(page):
    if match := re.match(r"# ([\w.]+\.py)\n", block.text):
      (folder / match[1]).write_text(block.text)
  for path in ROOT.glob("studies/**/*.py"):
    copy = folder / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy)
  config = parse_config(["--config=demo"])
  named = re.findall(r"--config=runs/(\w+)/config\.json", page.read_text())
  for name in {"demo", *named}:
    workdir = folder / "runs" / name
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(config.to_dict()))


def capture_commands(script: str, folder: pathlib.Path) -> list[list[str]]:
  """Runs a script in `folder` with no commands; returns the words of each.

  Bash expands variables, loops and `$@`; functions stand for the launch
  scripts, and OUTPUT for what a command prints.
  """
  scripts = [str(p.relative_to(ROOT)) for p in ROOT.glob("launch/*.sh")]
  functions = "".join(
    f'function {name} {{ command_not_found_handle {name} "$@"; }}\n'
    for name in scripts
  )
  done = subprocess.run(
    ["/bin/bash"],
    input=CAPTURE + functions + script,
    cwd=folder,
    text=True,
    capture_output=True,
    timeout=20,
  )
  assert "syntax error" not in done.stderr, done.stderr
  file = folder / "commands"
  lines = file.read_text().split("\0\036\0") if file.exists() else []
  return [line.split("\0") for line in lines if line]


def read_first_cells(name: str, section: str = "") -> set[str]:
  """Returns the first cells of a page's tables, without backticks and heads.

  `name` is a page of docs/reference; `section` the beginning of a heading,
  whose subsections are included.
  """
  text = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
  if section:
    level, rest = re.split(rf"(?m)^(#+) {section}.*\n", text, maxsplit=1)[1:]
    text = re.split(rf"(?m)^#{{1,{len(level)}}} ", rest)[0]
  # A head is followed by a line of dashes.
  cells = re.findall(r"(?m)^\| (.*?) \|.*\n(?!\| -)", text + "\n")
  return {cell.strip("`") for cell in cells if set(cell) != {"-"}}
