"""GLUE's files, the recipe of each task, and submissions."""

import collections

import datasets
import numpy as np
import pytest

from support.texts import COMPRESSORS
from truenegs_jax.data.tokens.tokenizer import make_tokenizer
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.tasks import glue
from truenegs_jax.tasks.batches import encode
from truenegs_jax.tasks.glue import TASKS, write_submission
from truenegs_jax.tasks.task import SCORE

NLI = "index,promptID,pairID,genre,bp1,bp2,p1,p2,sentence1,sentence2"
MRPC = "#1 ID,#2 ID,#1 String,#2 String"
STS = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2"
QQP = "id,qid1,qid2,question1,question2,is_duplicate"
# The first lines of train and dev, and of test; none for CoLA's train and dev.
HEADERS = {
  "cola": ("", "index,sentence"),
  "sst2": ("sentence,label", "index,sentence"),
  "mrpc": (f"\ufeffQuality,{MRPC}", f"index,{MRPC}"),
  "stsb": (f"{STS},score", STS),
  "qqp": (QQP, "id,question1,question2"),
  "mnli": (f"{NLI},label1,gold_label", NLI),
  "qnli": ("index,question,sentence,label", "index,question,sentence"),
  "rte": ("index,sentence1,sentence2,label", "index,sentence1,sentence2"),
}
# The places of the texts and the label among them.
PLACES = {
  "cola": ((3,), 1),
  "sst2": ((0,), 1),
  "mrpc": ((3, 4), 0),
  "stsb": ((7, 8), 9),
  "qqp": ((3, 4), 5),
  "mnli": ((8, 9), 11),
  "qnli": ((1, 2), 3),
  "rte": ((1, 2), 3),
}
# Of the test files, where they lie elsewhere.
TEST_PLACES = {"cola": (1,), "sst2": (1,), "qqp": (1, 2)}
# Labels of GLUE's files -> their id, as in the table of ELECTRA's code.
LABELS = {name: {"0": 0, "1": 1} for name in ("cola", "sst2", "mrpc", "qqp")}
LABELS["mnli"] = {"contradiction": 0, "entailment": 1, "neutral": 2}
LABELS["qnli"] = LABELS["rte"] = {"entailment": 0, "not_entailment": 1}
LABELS["stsb"] = {"0.000": 0.0, "2.5": 0.5, "5.000": 1.0}  # scaled
TEXTS = ['say "x', "é\u2028y", '"q" 1', " c "]
WORDS = "the swan is ##s mute white a b c d e f g h i , .".split()
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True
)


def write_split(root, name, split, *, suffix="", extra=()):
  """Writes a file laid out as GLUE has it; returns texts and labels."""
  is_test = split.startswith("test")
  header = HEADERS[name][is_test].split(",") if HEADERS[name][is_test] else []
  texts, label = PLACES[name]
  texts = TEST_PLACES.get(name, texts) if is_test else texts
  rows, wanted = [], []
  for i, answer in enumerate(LABELS[name]):
    row = [f"-{i}" for _ in header or range(4)]
    pair = [TEXTS[i + k] for k in range(len(texts))]
    for place, text in zip(texts, pair, strict=True):
      row[place] = text
    if is_test:
      row[0] = str(90 - i)
    else:
      row[label] = answer
    rows.append(row)
    wanted.append((*pair, None if is_test else answer))
  lines = ["\t".join(row) for row in ([header] if header else []) + rows]
  file = {"dev": "dev_matched", "test": "test_matched"}.get(split, split)
  file = file if name == "mnli" else split
  path = root / TASKS[name].title / f"{file}.tsv{suffix}"
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(COMPRESSORS[suffix]("\n".join([*lines, *extra]).encode()))
  return path, wanted


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_every_file_of_every_task_is_read(tmp_path, name, suffix):
  task = TASKS[name]
  for split in task.split_sizes:
    path, wanted = write_split(tmp_path, name, split, suffix=suffix)
    examples, skipped = glue.read_split(task, split, str(tmp_path))
    got = [(x.first, x.second, x.label) for x in examples]
    if task.kind == SCORE and not split.startswith("test"):
      wanted = [(a, b, float(score)) for a, b, score in wanted]
    if len(wanted[0]) == 2:
      wanted = [(a, None, label) for a, label in wanted]
    assert got == wanted and not skipped
    has_header = bool(HEADERS[name][split.startswith("test")])
    assert examples[1].location == f"{path}:{2 + has_header}"
    keys = ["90", "89"] if split.startswith("test") else ["0", "1"]
    assert [x.key for x in examples[:2]] == keys
    assert examples == glue.read_split(task, split, "", file=str(path)).examples


@pytest.mark.parametrize("name", TASKS)
def test_classes_have_the_ids_of_electra_and_scores_its_scale(tmp_path, name):
  write_split(tmp_path, name, "train")
  examples = glue.read_split(TASKS[name], "train", str(tmp_path)).examples
  target_N = encode(examples, TASKS[name], TOKENIZER, length=16).targets
  assert target_N["label"].tolist() == list(LABELS[name].values())
  is_score = TASKS[name].kind == SCORE
  assert target_N["label"].dtype == (np.float32 if is_score else np.int32)


def test_the_recipe_of_each_task_is_electras():
  assert " ".join(TASKS) == "cola sst2 mrpc stsb qqp mnli qnli rte"
  get = lambda field: {n: getattr(task, field) for n, task in TASKS.items()}
  assert {n for n, value in get("epochs").items() if value == 10} == {
    "stsb",
    "rte",
  }
  assert {n for n, value in get("both_orders").items() if value} == {
    "mrpc",
    "stsb",
  }
  metrics = {n: value[0] for n, value in get("metrics").items()}
  assert metrics.pop("cola") == "matthews"
  assert metrics.pop("stsb") == "spearman"
  assert set(metrics.values()) == {"accuracy"}


# Of the copy on the hub: its own order and names of classes.
HUB = {
  "cola": (["sentence"], ["unacceptable", "acceptable"]),
  "mrpc": (["sentence1", "sentence2"], ["not_equivalent", "equivalent"]),
  "mnli": (
    ["premise", "hypothesis"],
    ["entailment", "neutral", "contradiction"],
  ),
  "stsb": (["sentence1", "sentence2"], None),
}


@pytest.mark.parametrize("name", HUB)
def test_the_hubs_copy_gives_the_same(tmp_path, name):
  texts, names = HUB[name]
  task = TASKS[name]
  label = datasets.ClassLabel(names=names) if names else "float32"
  features = {c: datasets.Value("string") for c in texts} | {
    "label": label if names else datasets.Value("float32"),
    "idx": datasets.Value("int32"),
  }
  make = lambda ids: datasets.Dataset.from_dict(
    {c: list("pqr") for c in texts} | {"label": ids, "idx": [7, 8, 9]},
    datasets.Features(features),
  )
  middle = "_matched" if name == "mnli" else ""
  datasets.DatasetDict(
    {f"validation{middle}": make([0, 1, 1]), f"test{middle}": make([-1] * 3)}
  ).save_to_disk(str(tmp_path / name))
  for where in (tmp_path, tmp_path / name):
    examples = glue.read_split(task, "dev", f"hf:{where}").examples
    wanted = {"cola": ["0", "1", "1"], "mrpc": ["0", "1", "1"]}
    wanted["mnli"] = ["entailment", "neutral", "neutral"]
    assert [x.label for x in examples] == wanted.get(name, [0.0, 1.0, 1.0])
    assert [x.first for x in examples] == list("pqr")
    assert [x.second for x in examples] == (
      list("pqr") if len(texts) == 2 else [None] * 3
    )
    test = glue.read_split(task, "test", f"hf:{where}").examples
    assert [(x.key, x.label) for x in test] == [(k, None) for k in "789"]
    file = f"hf:{where}:test{middle}"
    assert test == glue.read_split(task, "test", "nowhere", file=file).examples


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path):
  extra = ["5\t6", "9\t1\t2\tq\t\t1"]
  write_split(tmp_path, "qqp", "train", extra=extra)
  examples, skipped = glue.read_split(TASKS["qqp"], "train", str(tmp_path))
  assert (len(examples), skipped, examples[-1].second) == (3, 1, "")
  write_split(tmp_path, "qqp", "test", extra=["5\t6"])
  with pytest.raises(DataError, match="QQP/test.tsv:4: 2 fields, but 3 col"):
    glue.read_split(TASKS["qqp"], "test", str(tmp_path))


@pytest.mark.parametrize(
  ("name", "row", "message"),
  [
    ("rte", "7\ta", "RTE/dev.tsv:4: 2 fields, but 4 columns"),
    ("rte", "7\ta\t \tentailment", "RTE/dev.tsv:4: .*'sentence2' is empty"),
    ("rte", "7\ta\tb\tmaybe", "RTE/dev.tsv:4: label 'maybe' is none of"),
    ("cola", "x\t2\t\ta", "CoLA/dev.tsv:3: label '2' is none of '0', '1'"),
    ("stsb", "7" + 6 * "\t-" + "\ta\tb\tgood", "tsv:5: .*not a finite number"),
    ("stsb", "7" + 6 * "\t-" + "\ta\tb\t5.1", "tsv:5: score 5.1; .* 0 to 5"),
  ],
)
def test_other_bad_rows_are_refused_by_line(tmp_path, name, row, message):
  write_split(tmp_path, name, "dev", extra=[row])
  with pytest.raises(DataError, match=message):
    glue.read_split(TASKS[name], "dev", str(tmp_path))


@pytest.mark.parametrize("index", ["90", "x7", "-1", "089"])
def test_indices_that_glue_would_refuse_are_refused_at_once(tmp_path, index):
  write_split(tmp_path, "rte", "test", extra=[f"{index}\ta\tb"])
  with pytest.raises(
    DataError, match=f"test.tsv:4: index '{index}'; .*each once"
  ):
    glue.read_split(TASKS["rte"], "test", str(tmp_path))


def test_what_is_not_there_is_said_with_a_way_out(tmp_path):
  write_split(tmp_path, "mnli", "dev_mismatched")
  with pytest.raises(
    DataError,
    match=r"(?s)MNLI/dev_matched.tsv: .*\.gz.*holds dev_mis.*save_to",
  ):
    glue.read_split(TASKS["mnli"], "dev", str(tmp_path))
  with pytest.raises(InputError, match="RTE has no split 'dev_mis.*train, dev"):
    glue.read_split(TASKS["rte"], "dev_mismatched", str(tmp_path))
  write_split(tmp_path, "rte", "dev")
  with pytest.raises(DataError, match="no column 'question'; .*'sentence1'"):
    glue.read_split(TASKS["qnli"], "dev", "", file=f"{tmp_path}/RTE/dev.tsv")


# Rows, the counts of labels, and rows that a reader of quotes would lose.
REAL = {
  ("cola", "train", ""): {"1": 6023, "0": 2528},
  ("cola", "dev", ""): {"1": 721, "0": 322},
  ("sst2", "train", ""): {"1": 37569, "0": 29780},
  ("sst2", "dev", ""): {"1": 444, "0": 428},
  ("mrpc", "train", ""): {"1": 2474, "0": 1194},
  ("mrpc", "dev", ""): {"1": 279, "0": 129},
  ("stsb", "train", ""): 5749,
  ("stsb", "dev", ""): 1500,
  ("qqp", "train", "QQP/train.sample9k.tsv.xz"): 8999,
  ("qqp", "dev", "QQP/dev.sample1k-from-train.tsv.xz"): 1000,
  ("mnli", "train", "MNLI/train.sample10k.tsv.xz"): 9999,
  ("mnli", "dev", ""): {
    "entailment": 3479,
    "neutral": 3123,
    "contradiction": 3213,
  },
  ("qnli", "train", "QNLI/train.sample10k.tsv.xz"): 9999,
  ("qnli", "dev", ""): {"not_entailment": 2761, "entailment": 2702},
  ("rte", "train", ""): {"entailment": 1249, "not_entailment": 1241},
  ("rte", "dev", ""): {"entailment": 146, "not_entailment": 131},
}


@pytest.mark.parametrize(("name", "split", "file"), REAL)
def test_real_files_have_the_published_counts(real_data, name, split, file):
  root, counts = real_data / "glue", REAL[name, split, file]
  task = TASKS[name]
  examples, skipped = glue.read_split(
    task, split, str(root), file=str(root / file) if file else ""
  )
  if isinstance(counts, dict):
    assert collections.Counter(x.label for x in examples) == counts
    counts = sum(counts.values())
  assert (len(examples), skipped) == (counts, 0)
  if not file:
    assert task.split_sizes[split] == counts


@pytest.mark.parametrize(
  ("name", "split", "file", "predicted", "answers"),
  [
    ("cola", "test", "CoLA", [1, 0, 1], ["1", "0", "1"]),
    ("sst2", "test", "SST-2", [1, 0, 1], ["1", "0", "1"]),
    ("mrpc", "test", "MRPC", [1, 0, 1], ["1", "0", "1"]),
    ("qqp", "test", "QQP", [1, 0, 1], ["1", "0", "1"]),
    ("stsb", "test", "STS-B", [5.2, -1, 0.12345], ["5.000", "0.000", "0.123"]),
    ("mnli", "test", "MNLI-m", [0, 1, 2], list(LABELS["mnli"])),
    ("mnli", "test_mismatched", "MNLI-mm", [0, 1, 2], list(LABELS["mnli"])),
    ("qnli", "test", "QNLI", [0, 1, 0], ["entailment", "not_entailment"] * 2),
    ("rte", "test", "RTE", [0, 1, 0], ["entailment", "not_entailment"] * 2),
  ],
)
def test_submissions_are_as_glue_wants_them(
  tmp_path, name, split, file, predicted, answers
):
  keys = ["10", "9", "0"]  # in another order than the file's
  said = [TASKS[name].labels[i] if TASKS[name].labels else i for i in predicted]
  path = write_submission(tmp_path, TASKS[name], split, keys, said)
  assert path == tmp_path / f"{file}.tsv"
  lines = [f"{k}\t{a}" for k, a in zip(keys, answers, strict=False)][::-1]
  assert path.read_text().split("\n") == ["index\tprediction", *lines, ""]
  assert list(tmp_path.iterdir()) == [path]


def test_submissions_that_glue_would_refuse_are_not_written(tmp_path):
  write = write_submission
  with pytest.raises(DataError, match="RTE, test: index '0'; .*each once"):
    write(tmp_path, TASKS["rte"], "test", ["0", "0"], ["entailment"] * 2)
  with pytest.raises(DataError, match="STS-B: a score of nan"):
    write(tmp_path, TASKS["stsb"], "test", ["0"], [np.nan])
  assert not list(tmp_path.iterdir())
  with pytest.raises(DiskError, match="missing/RTE.tsv could not be written"):
    write(tmp_path / "missing", TASKS["rte"], "test", ["0"], ["entailment"])
