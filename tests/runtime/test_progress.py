"""Long work is shown on a terminal and in a log."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from truenegs_jax.runtime import progress


@pytest.mark.parametrize("fails", [False, True])
def test_work_has_two_lines_in_a_log_and_none_that_last_on_a_terminal(fails):
  def show(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    try:
      with progress.working(console, "Compiling"):
        assert "Compiling" in out.getvalue()
        assert not fails
    except AssertionError:
      assert fails
    return out.getvalue()

  first, *last = show(False).splitlines()
  assert first == "Compiling ..."
  assert [bool(re.fullmatch(r"\.\.\. 0\.\d s", x)) for x in last] == (
    [] if fails else [True]
  )
  shown = show(True)
  assert "0:00:00" in shown
  # The line is erased, and the cursor is shown again.
  assert shown.rstrip().endswith("\x1b[2K") and "\x1b[?25h" in shown


@pytest.mark.parametrize("control", ["\x1b[2J", "\r", "\x07", "\x7f", "\x9b"])
def test_texts_send_no_control_characters_to_the_terminal(control, capsys):
  text = f"a{control} :house: [b]"
  table = Table(text)
  table.add_row(text)
  console = progress.make_console()
  for printed in (text, Text(text), table):
    console.print(printed)
  with progress.counting(progress.log_console(), text, 1) as advance:
    advance()
  for output in capsys.readouterr():
    assert ":house: [b]" in output and output.replace("\n", "").isprintable()
