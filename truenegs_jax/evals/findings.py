"""What the task "corrections" has found: shown, and written to its workdir.

results.json  all numbers, and what they are of
cases.json    the cases of the paper's figure 3
sheet.csv     corrections for people to judge; sheet-2.csv where that is another
plots/        the rates over the steps, where there are several
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from truenegs_jax.errors import disk_errors
from truenegs_jax.evals import checkpoint_rates, corrections, detector, rates
from truenegs_jax.evals.lines import Lines
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import startup


@dataclasses.dataclass(frozen=True)
class Findings:
  """Corrections among the predictions of a text's lines.

  Attributes:
    text: the lines that were filled.
    tables: the sources of synonyms by name; the first is the one of table 2.
    checkpoints: by source, in the order of their steps.
    judgements: of the sources on one another, at the last checkpoint.
    cases: of the first source, at the last checkpoint.
    searched: predictions of the last checkpoint.
    sheet: CSV; "" is none.
  """

  text: Lines
  tables: Mapping[str, SynonymTable]
  checkpoints: Mapping[str, list[checkpoint_rates.Checkpoint]]
  judgements: tuple[detector.Judgement, ...]
  cases: list[corrections.Case]
  searched: int
  sheet: str

  @property
  def table_2(self) -> list[checkpoint_rates.Checkpoint]:
    """The checkpoints by the first source."""
    return self.checkpoints[next(iter(self.tables))]


def show(f: Findings, console: Console) -> None:
  """Prints all tables; those of kinds of words are of the last checkpoint."""
  text, last = f.text, f.table_2[-1].rates
  console.print(
    f"{len(text.sequences):,} lines, {text.num_cut:,} of them cut to"
    f" {text.length} tokens; {text.num_headings:,} headings left out",
    soft_wrap=True,
  )
  console.print(checkpoint_rates.show(f.table_2, next(iter(f.tables))))
  console.print(rates.show_pairs(last.pairs))
  if last.by_speech:
    console.print(rates.show_groups(last.by_speech, "By part of speech"))
  console.print(
    rates.show_groups(last.by_frequency, "By rank of frequency in this text")
  )
  if f.judgements:
    for golds in ("all", "shared"):
      console.print(detector.show_judgements(f.judgements, golds=golds))
  console.print(corrections.show(f.cases, f.searched))


def save(
  f: Findings, workdir: pathlib.Path, about: Mapping[str, Any]
) -> list[pathlib.Path]:
  """Writes the files, each under its name once it is whole; returns them.

  The numbers come first: a sheet that is in the way costs no measurement.

  Args:
    workdir: a folder that is there.
    about: what results.json begins with: what was measured.

  Raises:
    DiskError: one could not be written.
  """
  written = [workdir / "results.json", workdir / "cases.json"]
  startup.save_json(written[0], {**about, **_numbers(f)})
  startup.save_json(written[1], [dataclasses.asdict(case) for case in f.cases])
  if f.sheet:
    written.append(_save_sheet(workdir, f.sheet.encode()))
  if len(f.table_2) > 1:
    written.append(workdir / "plots" / "correction_rates.png")
    checkpoint_rates.draw(f.table_2, written[-1])
  return written


def _save_sheet(workdir: pathlib.Path, sheet: bytes) -> pathlib.Path:
  """Writes it where nobody's judgements are, and says where that was."""
  names = (f"sheet-{number}.csv" for number in itertools.count(2))
  for name in itertools.chain(["sheet.csv"], names):
    path = workdir / name
    with disk_errors(path):
      if not path.exists():
        whole = path.with_suffix(".tmp")
        whole.write_bytes(sheet)
        whole.replace(path)
      if path.read_bytes() == sheet:
        break
  return path


def _numbers(f: Findings) -> dict[str, Any]:
  return {
    "lines": len(f.text.sequences),
    "lines_cut": f.text.num_cut,
    "headings_left_out": f.text.num_headings,
    "length": f.text.length,
    "fingerprints": {
      "text": f.text.fingerprint,
      "synonyms": {name: t.fingerprint for name, t in f.tables.items()},
      "vocabulary": next(iter(f.tables.values())).vocabulary,
    },
    "tables": {name: dict(t.options) for name, t in f.tables.items()},
    "checkpoints": {
      source: [dataclasses.asdict(at) for at in found]
      for source, found in f.checkpoints.items()
    },
    "judgements": [dataclasses.asdict(j) for j in f.judgements],
  }
