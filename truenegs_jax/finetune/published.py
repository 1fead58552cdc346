"""Published results on the dev sets, to print beside one's own; percent.

Nothing here is computed: the rows of the paper's Tables 3 and 4 and those of
other reports of ELECTRA. CoLA is Matthews' correlation, STS-B Spearman's, MNLI
is matched, all others of GLUE accuracy; SQuAD is v1.1.
"""

import dataclasses
from collections.abc import Collection, Mapping

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
SQUAD = ("squad_em", "squad_f1")

SIZES = ("small", "base", "large")
TABLE_3, TABLE_4 = "paper, Table 3", "paper, Table 4"
GOOGLE = "google-research/electra, README"
COMMUNITY = "richarddwang/electra_pytorch, README"
NVIDIA = "NVIDIA/DeepLearningExamples, TensorFlow2 ELECTRA"

PICKED = "runs not stated, probably the best of several"
LENGTH = "of another pre-training than Table 3's, at length 512"
COPIED = (
  "probably copied: task by task the numbers of Google's ELECTRA-Small-OWT;"
  " if HC and SR are each the best of several runs, about 1.0 too low beside"
  " them on average"
)
COPIED_SQUAD = (
  "EM probably copied: it is Google's for ELECTRA-Small++, trained on more data"
)
RELEASED = "Google's weights, trained on more data and for longer"


@dataclasses.dataclass(frozen=True)
class Row:
  """One published model.

  Attributes:
    name: as its report has it, "ELECTRA small HC".
    source: who reports it.
    family, size: "electra" or "bert"; "small", "base" or "large".
    scores: by task, of GLUE and SQUAD; only what was reported.
    note: what a reader has to know before comparing.
  """

  name: str
  source: str
  family: str
  size: str
  scores: Mapping[str, float]
  note: str


def size_of(width: int) -> str:
  """Which of SIZES a network of so many units is like: base from 768 on."""
  return SIZES[(width >= 768) + (width >= 1024)]


def rows_for(
  tasks: Collection[str], *, family: str, width: int
) -> tuple[Row, ...]:
  """The rows to print beside results on some tasks.

  Args:
    tasks: names in GLUE; "squad" stands for both in SQUAD.
    family: "electra" or "bert".
    width: hidden size of the network.

  Returns:
    The rows that report any of the tasks; empty where there are none, as for
    small BERTs.
  """
  size = size_of(width)
  names = {*tasks, *(SQUAD if "squad" in tasks else ())}
  return tuple(
    row
    for row in ROWS
    if (row.family, row.size) == (family, size) and names & set(row.scores)
  )


def _glue(text: str) -> dict[str, float]:
  return dict(zip(GLUE, map(float, text.split()), strict=True))


def _squad(text: str) -> dict[str, float]:
  """EM, and F1 where it was reported."""
  return dict(zip(SQUAD, map(float, text.split()), strict=False))


def _row(name: str, source: str, scores: Mapping[str, float], note: str) -> Row:
  """A row whose name begins with its family and size."""
  family, size = name.lower().replace("+", "").replace(",", "").split()[:2]
  return Row(name, source, family, size, scores, note)


def _table_3(name: str, scores: str, note: str = PICKED) -> Row:
  return _row(name, TABLE_3, _glue(scores), note)


def _table_4(name: str, scores: str, note: str = PICKED) -> Row:
  return _row(name, TABLE_4, _squad(scores), note)


_REPEATED = _row(
  "ELECTRA small",
  COMMUNITY,
  _glue("58.72 88.03 86.04 86.16 88.63 80.4 87.45 67.46"),
  "one pre-training on OpenWebText, mean of 10 runs, whose standard deviation"
  " is 0.1 (QQP) to 1.9 (RTE), CoLA's 1.3. 14 pre-trainings, each"
  " scored by the best of 10 runs of every task, average 81.38 (sd 0.57, 80.42"
  " to 82.23)",
)
_FAILED = _row(
  "ELECTRA small, generator 1",
  "google-research/electra, issue 73",
  {"cola": 51.0, "sst2": 85.2, "mnli": 75.0} | _squad("61.0 70.1"),
  "a user's pre-training on OpenWebText that went wrong: its generator was as"
  " wide as the discriminator; with 1/4 of that it was competitive",
)

ROWS: tuple[Row, ...] = (
  _table_3("BERT base", "61.1 93.0 86.8 87.1 90.8 84.7 91.4 67.9"),
  _table_3("BERT base HC", "62.9 93.2 87.5 87.4 90.9 84.9 91.5 69.3"),
  _table_3("BERT base SR", "61.2 93.5 89.0 87.5 90.9 84.8 91.6 68.6"),
  _table_3("BERT large", "61.7 93.7 88.5 90.1 91.3 86.7 92.4 72.9"),
  _table_3("BERT large HC", "62.3 93.4 89.0 90.5 91.5 87.0 93.0 73.7"),
  _table_3("BERT large SR", "62.3 94.2 89.2 90.1 91.4 87.0 92.8 74.0"),
  _table_3("ELECTRA small", "56.8 88.3 87.4 86.8 88.3 78.9 87.9 68.5", COPIED),
  _table_3("ELECTRA small HC", "62.0 89.8 87.0 86.7 89.0 80.4 88.0 67.9"),
  _table_3("ELECTRA small SR", "61.1 90.1 89.5 87.0 89.4 80.8 88.8 68.6"),
  _table_3("ELECTRA base", "68.3 95.3 90.9 91.3 91.7 88.5 93.0 82.3"),
  _table_3("ELECTRA base HC", "70.9 95.6 91.2 91.3 92.0 88.7 93.6 83.8"),
  _table_3("ELECTRA base SR", "70.4 95.4 90.4 91.2 91.9 89.1 93.4 84.8"),
  _table_4("ELECTRA small", "75.8 83.9", COPIED_SQUAD),
  _table_4("ELECTRA small HC", "77.7 85.6", f"{PICKED}; {LENGTH}"),
  _table_4("ELECTRA small SR", "76.0 84.2", f"{PICKED}; {LENGTH}"),
  _table_4("ELECTRA base", "85.1 91.6"),
  _table_4("ELECTRA base HC", "85.7 92.1"),
  _table_4("ELECTRA base SR", "85.6 92.0"),
  _row(
    "ELECTRA small OWT",
    GOOGLE,
    _glue("56.8 88.3 87.4 86.8 88.3 78.9 87.9 68.5"),
    "one pre-training on OpenWebText",
  ),
  _REPEATED,
  _FAILED,
  _row(
    "ELECTRA small++",
    GOOGLE,
    _glue("57.0 91.2 88.0 87.5 89.0 81.3 88.4 66.7") | _squad("75.8"),
    RELEASED,
  ),
  _row(
    "ELECTRA base++",
    GOOGLE,
    _glue("67.7 95.1 89.5 91.2 91.5 88.8 93.2 82.7") | _squad("86.8"),
    RELEASED,
  ),
  _row(
    "ELECTRA large",
    GOOGLE,
    _glue("69.1 96.9 90.8 92.6 92.4 90.9 95.0 88.0") | _squad("89.7"),
    RELEASED,
  ),
  _row(
    "ELECTRA base++",
    NVIDIA,
    _squad("87.02 92.72"),
    f"{RELEASED}; mean of 5 runs, standard deviation 0.17 and 0.14",
  ),
  _row(
    "ELECTRA base",
    NVIDIA,
    _squad("85.0 90.95"),
    "pre-trained on Wikipedia and BooksCorpus, as the paper's",
  ),
)
