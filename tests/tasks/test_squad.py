"""Tests reading of SQuAD, windows, and extraction of answers from spans."""

import dataclasses
import json
import lzma
import re
import string

import numpy as np
import pytest

from support.texts import COMPRESSORS
from support.tokenizer_files import write_files
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.scoring import question_scores
from truenegs_jax.tasks.squad import (
  NO_ANSWER,
  best_answers,
  find_answer_span,
  make_windows,
  plan_windows,
  read_squad,
  tokenize_contexts,
)
from truenegs_jax.tasks.task import Question

LETTERS = [*string.ascii_lowercase, *string.digits, "成", "吉"]
VOCAB = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]
VOCAB += [*string.punctuation, "–", "…"]
VOCAB += ["the", "swan", "##ans", "mute", "bird", "##ing", "18", "##95"]
BERT = make_tokenizer(VOCAB, lowercase=True)
CASED = make_tokenizer(
  [*VOCAB, *"SUIÉ", "##\u0301", "##\u0307"], lowercase=False
)
# Words of many pieces and of none, accents composed and decomposed, capitals,
# quotes, Chinese, unusual white space.
WORDS = ["the", "Swan", "mute", "(1895–1943).", "É\u0301cole", "cafe\u0301s,"]
WORDS += ["e\u0301", '"x-ray"', "U.S.", "成吉swan", "…", "\u200b", "a\u00a0b"]
WORDS += ["birding", "the", "mute", "I\u0307stanbul"]
GAPS = [" ", " ", " ", "  ", "\n", "\u202f", "\t"]


def question(context, *answers, key="q", text="which bird ?"):
  spans = tuple((a, context.index(a)) for a in answers)
  return Question(key, text, context, spans, "x.json")


def make_questions(count: int, seed: int, size: int = 60) -> list[Question]:
  """Makes contexts of random words; answers may exclude punctuation."""
  rng = np.random.default_rng(seed)
  questions = []
  for number in range(count):
    words = rng.choice(WORDS, rng.integers(1, size))
    context = "".join(w + rng.choice(GAPS) for w in words)
    spans = [m.span() for m in re.finditer(r"[^\s\u200b]+", context)]
    spans = spans or [(0, len(context))]
    first = rng.integers(len(spans))
    last = min(len(spans) - 1, first + rng.integers(3))
    start, end = spans[first][0], spans[last][1]
    if rng.random() < 0.5 and end - start > 2:  # inside the punctuation
      inner = re.search(r'[^\W_](.*[^\W_])?[^",.()…]?', context[start:end])
      if inner:
        start, end = start + inner.start(), start + inner.end()
    answer = (context[start:end], start)
    text = " ".join(rng.choice(WORDS[:4], rng.integers(1, 9)))
    questions.append(Question(f"q{number}", text, context, (answer,), "x"))
  return questions


def perfect_logits(windows, spans, value=1.0):
  """Makes logits that are `value` at the start and end of each span."""
  logits = []
  for number, tokens in enumerate(windows.encoded.tokens):
    start, after = spans[windows.question_N[number]] - windows.first_N[number]
    offset, size = windows.offset_N[number], len(windows.is_max_context[number])
    logits_nx2 = np.zeros((len(tokens), 2), np.float32)
    if start >= 0 and after <= size:
      logits_nx2[[start + offset, after - 1 + offset], [0, 1]] = value
    logits.append(logits_nx2)
  return logits


def gold_spans(windows, tokenizer=BERT, answer=0) -> np.ndarray:
  """Returns first and after-last piece of each question's n-th answer."""
  spans = []
  for q, context in zip(windows.questions, windows.contexts, strict=True):
    text, start = q.answers[min(answer, len(q.answers) - 1)]
    [ids] = tokenizer.encode_lines([text])
    span = find_answer_span(context, start, start + len(text), ids)
    spans.append((-1, -1) if span is None else span)
  return np.array(spans)


# --- reading

BIRDS = [
  question("The mute swan sings, a swan.", "swan", "mute swan", key="a"),
  question("A bird is here.", "bird", key="b"),
  question("Three of them.", "Three", key="c"),
]


def as_json(questions) -> dict:
  """Converts questions to articles of two paragraphs with a question each."""
  articles: dict[int, dict] = {}
  for number, q in enumerate(questions):
    title = {"title": f"Title {number // 2}", "paragraphs": []}
    answers = [{"text": t, "answer_start": s} for t, s in q.answers]
    qas = [{"id": q.key, "question": q.text, "answers": answers}]
    paragraph = {"context": q.context, "qas": qas}
    articles.setdefault(number // 2, title)["paragraphs"].append(paragraph)
  return {"version": "1.1", "data": list(articles.values())}


def as_rows(questions) -> list[dict]:
  """Converts questions to rows as `datasets` writes them."""
  rows = []
  for q in questions:
    texts, starts = zip(*q.answers, strict=True)
    answers = {"text": list(texts), "answer_start": list(starts)}
    row = {"id": q.key, "context": q.context, "question": q.text}
    rows.append({**row, "title": "t", "answers": answers})
  return rows


def without_locations(questions) -> list[tuple]:
  return [dataclasses.astuple(q)[:-1] for q in questions]


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("dev.json.xz", json.dumps(as_json(BIRDS))),
    ("x.json", "\n".join(map(json.dumps, as_rows(BIRDS)))),
    ("x.jsonl", "\ufeff\n" + json.dumps(as_rows(BIRDS))),
  ],
)
def test_reads_every_form_of_a_file(tmp_path, name, content):
  path = tmp_path / name
  pack = COMPRESSORS.get(path.suffix, COMPRESSORS[""])
  path.write_bytes(pack(content.encode()))
  questions = read_squad(str(path))
  expected = BIRDS[: len(questions)]
  assert without_locations(questions) == without_locations(expected)
  if name == "dev.json.xz":
    location = f"{path}: article 1 (Title 0), paragraph 2, question b"
    assert questions[1].location == location


def test_ids_become_text_and_answers_move_to_the_nearest_occurrence(tmp_path):
  data = as_json(BIRDS)
  [qa], [other] = (x["qas"] for x in data["data"][0]["paragraphs"])
  qa["id"] = 1000
  qa["answers"][0]["answer_start"] = 21
  other["answers"][0]["answer_start"] = -13
  (tmp_path / "x.json").write_text(json.dumps(data))
  first, *rest = read_squad(str(tmp_path / "x.json"))
  assert (first.key, first.answers) == (
    "1000",
    (("swan", 23), ("mute swan", 4)),
  )
  assert without_locations(rest) == without_locations(BIRDS[1:])
  for name in ("a", "b"):  # without ids, of no place
    qa["id"] = None
    del other["id"]
    (tmp_path / f"{name}.json").write_text(json.dumps(data))
    first, second, _ = read_squad(f"{tmp_path}/{name}.json")
    assert (first.key, second.key) == ("number 1", "number 2")
    qa["id"] = other["id"] = "x"


FORM = "not in the form of SQuAD"


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ('{"data": []}', "no questions"),
    ('{"data": [{"paragraphs": 3}]}', f"article 1: {FORM}"),
    (json.dumps([{**as_rows(BIRDS)[0], "answers": {"text": []}}]), FORM),
  ],
)
def test_damaged_files_are_refused(tmp_path, content, message):
  (tmp_path / "x.json").write_text(content)
  with pytest.raises(DataError, match=message):
    read_squad(str(tmp_path / "x.json"))


@pytest.mark.parametrize(
  ("level", "key", "value", "message"),
  [
    ("paragraph", "context", 3, f", question b: {FORM}"),
    ("question", "id", "a", ", question a: .*already in .*paragraph 1"),
    ("question", "question", " \n", ", question b: .* is blank"),
    ("answer", "text", "heron", ", question b: .*'heron' does not occur"),
    ("question", "answers", [], ", question b: .*SQuAD v2.0 is not"),
  ],
)
def test_bad_records_are_refused_by_their_location(
  tmp_path, level, key, value, message
):
  data = as_json(BIRDS)
  paragraph = data["data"][0]["paragraphs"][1]
  question_b = paragraph["qas"][0]
  answer = question_b["answers"][0]
  record = dict(paragraph=paragraph, question=question_b, answer=answer)[level]
  record[key] = value
  (tmp_path / "x.json").write_text(json.dumps(data))
  with pytest.raises(DataError, match=r"\(Title 0\), paragraph 2" + message):
    read_squad(str(tmp_path / "x.json"))


# --- windows


def test_pieces_of_byte_level_bpe_have_no_white_space(tmp_path):
  tokenizer = load_tokenizer(str(write_files(tmp_path)), lowercase=False)
  text = "the Swan  swims\n"
  [context] = tokenize_contexts([text], tokenizer).values()
  pieces = [text[a:b] for a, b in context.words_Wx2]
  assert "".join(pieces) == "theSwanswims"
  assert all(piece == piece.strip() for piece in pieces)
  assert context.pieces_T.tolist() == tokenizer.encode_lines([text])[0]


def plan_like_bert(num_pieces, room, stride):
  """Runs BERT's loops: starts and sizes of windows, and each piece's window."""
  starts = [0]
  while starts[-1] + room < num_pieces:
    starts.append(starts[-1] + min(room, stride))
  windows = [(start, min(num_pieces - start, room)) for start in starts]
  holders = []
  for piece in range(num_pieces):
    scores = {}
    for number, (start, size) in enumerate(windows):
      context = min(piece - start, start + size - 1 - piece)
      if context >= 0:
        scores[number] = context + 0.01 * size
    holders.append(max(scores, key=scores.get))
  return windows, holders


@pytest.mark.parametrize("stride", [1, 7, 128])
@pytest.mark.parametrize("room", [1, 6, 40])
def test_windows_match_bert(room, stride):
  for num_pieces in (0, 1, room - 1, room, room + 1, room + 8, 310):
    windows, holders = plan_like_bert(num_pieces, room, stride)
    starts, masks = plan_windows(num_pieces, room, stride)
    assert list(zip(starts, map(len, masks), strict=True)) == windows
    for number, (start, mask) in enumerate(zip(starts, masks, strict=True)):
      pieces = (start + np.flatnonzero(mask)).tolist()
      assert pieces == [p for p, h in enumerate(holders) if h == number]


def test_rows_contain_question_window_and_answer_or_zero():
  questions = make_questions(40, 0)
  windows = make_windows(
    questions, BERT, train=True, length=20, stride=5, question_length=6
  )
  encoded = windows.encoded
  spans, complete = gold_spans(windows), []
  texts = [q.text for q in questions]
  question_ids = [ids[:6] for ids in BERT.encode_lines(texts)]
  assert encoded.num_cut == sum(
    len(BERT.encode_lines(texts)[number]) > 6 for number in windows.question_N
  )
  assert 0 < encoded.num_cut < len(windows.is_max_context)
  for row, number in enumerate(windows.question_N):
    prefix = [BERT.cls, *question_ids[number], BERT.sep]
    first, size = windows.first_N[row], len(windows.is_max_context[row])
    pieces = windows.contexts[number].pieces_T[first : first + size]
    assert encoded.tokens[row].tolist() == [*prefix, *pieces, BERT.sep]
    assert encoded.types[row].tolist() == [0] * len(prefix) + [1] * (size + 1)
    assert windows.offset_N[row] == len(prefix)
    assert len(encoded.tokens[row]) <= 20
    start, end = (encoded.targets[name][row] for name in ("start", "end"))
    first, after = spans[number] - first
    complete.append(first >= 0 and after <= size)
    if complete[-1]:
      answer = windows.contexts[number].pieces_T[slice(*spans[number])]
      assert encoded.tokens[row][start : end + 1].tolist() == answer.tolist()
    else:
      assert start == end == 0
  assert 0 < sum(complete) < len(complete)
  arrays = *encoded.tokens, *encoded.types, *encoded.targets.values()
  assert {x.dtype for x in arrays} == {np.dtype(np.int32)}


def test_answer_spans_are_its_pieces_or_whole_words():
  context = "born (1895–1943). A sixth swan , a sixth."
  [tokenized] = tokenize_contexts([context], BERT).values()
  for answer, pieces in {
    "1895": "18 ##95",
    "(1895": "( 18 ##95",
    "six": "s ##i ##x",
    "ixt": "s ##i ##x ##t ##h",
    " swan ": "swan",
    " swa": "swan",
    "ixth ": "s ##i ##x ##t ##h",
  }.items():
    start = context.index(answer)
    [ids] = BERT.encode_lines([answer])
    first, after = find_answer_span(tokenized, start, start + len(answer), ids)
    span = [BERT.vocab[i] for i in tokenized.pieces_T[first:after]]
    assert span == pieces.split()
  invisible = tokenize_contexts(["\u200b"], BERT)["\u200b"]
  assert find_answer_span(invisible, 0, 1, []) is None


# --- answers


@pytest.mark.parametrize("tokenizer", [BERT, CASED], ids=["uncased", "cased"])
@pytest.mark.parametrize("seed", range(2))
def test_perfect_logits_give_the_gold_texts(tokenizer, seed):
  questions = make_questions(60, seed, size=90)
  # Each answer fits into the window with the most context for its start.
  windows = make_windows(
    questions, tokenizer, train=False, length=90, stride=9, question_length=20
  )
  assert len(windows.is_max_context) > 3 * len(questions)
  spans = gold_spans(windows, tokenizer)
  answers = best_answers(windows, perfect_logits(windows, spans))
  num_exact = 0
  for q, span, context, answer in zip(
    questions, spans, windows.contexts, answers, strict=True
  ):
    gold = q.answers[0][0]
    pieces = context.pieces_T[slice(*span)].tolist()
    is_known = pieces and tokenizer.unk not in pieces
    if is_known and pieces == tokenizer.encode_lines([gold])[0]:
      assert answer == gold.strip(" \t\n\u202f\u200b")
      num_exact += 1
  assert num_exact > 40


def top_20(scores):
  return sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)[:20]


def best_spans_by_loops(windows, logits, max_answer):
  spans = {q.key: [] for q in windows.questions}
  for row, (start_n, end_n) in enumerate(x.T for x in logits):
    number, offset = windows.question_N[row], windows.offset_N[row]
    mask = windows.is_max_context[row]
    for start in top_20(start_n):
      for end in top_20(end_n):
        if not offset <= start <= end < offset + len(mask):
          continue
        if end - start + 1 > max_answer or not mask[start - offset]:
          continue
        shift = windows.first_N[row] - offset
        score = float(start_n[start]) + float(end_n[end])
        span = (score, start + shift, end + shift)
        spans[windows.questions[number].key].append(span)
  return {
    key: sorted(values, key=lambda span: -span[0])
    for key, values in spans.items()
  }


@pytest.mark.parametrize("max_answer", [1, 5, 30])
def test_best_answers_match_plain_loops(max_answer):
  # Contexts of distinct one-letter words.
  alphabet = "".join(LETTERS[:26])
  questions = [
    question(" ".join(alphabet[:size]), "a", key=str(size)) for size in (9, 26)
  ]
  windows = make_windows(
    questions, BERT, train=False, length=24, stride=3, question_length=4
  )
  rng = np.random.default_rng(0)
  # Few values, so that there are ties; positions of padding do not count.
  logits = [
    rng.integers(-3, 4, (n, 2)).astype(np.float32)
    for n in windows.encoded.lengths_N
  ]
  padded = [np.pad(x, ((0, 25), (0, 0)), constant_values=9) for x in logits]
  answers = best_answers(windows, padded, max_answer=max_answer)
  expected = best_spans_by_loops(windows, logits, max_answer)
  for q, answer in zip(windows.questions, answers, strict=True):
    _, first, last = expected[q.key][0]
    assert answer == q.context[2 * first : 2 * last + 1]


def test_the_answer_is_empty_without_candidates():
  [q] = questions = [question("\u200b", "\u200b")]
  windows = make_windows(questions, BERT, train=True)
  assert windows.encoded.targets["start"].tolist() == [0]
  [n] = windows.encoded.lengths_N
  answers = best_answers(windows, [np.zeros((n, 2), np.float32)])
  assert answers == [NO_ANSWER]


def test_unknown_words_are_complete():
  questions = [question("a swan (ʃwɒn), \ud800swan", "swan", key="q")]
  windows = make_windows(questions, BERT, train=False)
  [context] = windows.contexts
  texts = set()
  for piece in range(len(context.pieces_T)):
    logits = perfect_logits(windows, np.array([[piece, piece + 1]]))
    texts |= {*best_answers(windows, logits, num_best=1)}
  assert {"a", "swan", "(ʃwɒn),"} <= texts


# --- real data


def test_real_gold_spans_give_their_texts(tmp_path, real_data):
  path = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  vocab = lzma.decompress(path.read_bytes()).decode().splitlines()
  bert = make_tokenizer(vocab, lowercase=True)
  questions = read_squad(str(real_data / "squad" / "dev-v1.1.json.xz"))
  windows = make_windows(questions, bert, train=True, length=384)
  # The numbers of BERT's script for the dev set.
  assert (len(questions), len(windows.is_max_context)) == (10_570, 10_833)
  windows = make_windows(questions[:500], bert, train=False)
  golds = [[text for text, _ in q.answers] for q in questions[:500]]
  exact = np.zeros(500)
  for number in range(max(map(len, golds))):
    logits = perfect_logits(windows, gold_spans(windows, bert, number))
    answers = best_answers(windows, logits, num_best=1)
    exact = np.maximum(exact, question_scores(golds, answers)["em"])
  assert exact.mean() >= 99.5
