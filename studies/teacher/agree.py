"""Measures how far WordNet and a teacher agree on what fits a context.

  PYTHONPATH=studies/hour python studies/teacher/agree.py TEXT MODEL RESULT

TEXT and MODEL are those of text.py; RESULT is the JSON file to write. At slots
of windows of 128 tokens, the teacher allows a word if it has at least a ratio
of the gold word's probability. Slots count whose gold token is a word with
synonyms, and is among the teacher's TOP likeliest.

Shapes: N windows, L positions, M slots, V tokens.
"""

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import measure
import numpy as np
import transformers

import truenegs_jax as tn

LENGTH = 128
TOP = 64
RATIOS = (0.1, 0.5, 1.0)
RATIO = 0.5  # of the examples
SOURCES = ("wordnet", "wordnet senses=1")
NEAR = 20  # ranks by frequency among which a word as frequent is drawn
AROUND = 14  # tokens on either side of an example
EXAMPLES = {"both": 14, "wordnet": 13, "teacher": 13}


@dataclasses.dataclass(frozen=True)
class Slot:
  """A slot that counts."""

  gold: int
  odds_V: np.ndarray  # f32, of each token against the gold token
  window_L: np.ndarray
  position: int


def find_words(tokenizer: tn.Tokenizer, tokens_NxL: np.ndarray) -> np.ndarray:
  """Returns which tokens are whole words, bool `[N, L]`."""
  is_part_NxL = tn.word_edges(tokenizer.vocab)[tokens_NxL] % 2 == 1
  next_NxL = np.pad(is_part_NxL, ((0, 0), (0, 1)))[:, 1:]
  return ~is_part_NxL & ~next_NxL


@dataclasses.dataclass(frozen=True)
class Judged:
  """A text, a teacher and lexicons."""

  documents: list[str]
  folder: str  # of the teacher

  @functools.cached_property
  def tokenizer(self) -> tn.Tokenizer:
    """The tokenizer of the teacher."""
    return tn.load_tokenizer(self.folder, lowercase=True)

  @functools.cached_property
  def tables(self) -> dict[str, tn.SynonymTable]:
    """The table of each source."""
    return {x: tn.build_table(self.tokenizer, x) for x in SOURCES}

  @functools.cached_property
  def windows(self) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and which of them are hidden, `[N, L]`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
    return measure.hide_windows(tokenizer, self.documents, LENGTH)

  @functools.cached_property
  def is_word_V(self) -> np.ndarray:
    """Which tokens are whole words of letters."""
    is_part_V = tn.word_edges(self.tokenizer.vocab) % 2 == 1
    return ~is_part_V & np.array([x.isalpha() for x in self.tokenizer.vocab])

  @functools.cached_property
  def ranks(self) -> tuple[np.ndarray, np.ndarray]:
    """Words by frequency in the windows, and the rank of each token."""
    counts_V = np.bincount(
      self.windows[0].ravel(), minlength=len(self.tokenizer.vocab)
    )
    words = np.flatnonzero(self.is_word_V)
    words = words[np.argsort(-counts_V[words], kind="stable")]
    rank_V = np.zeros(len(counts_V), int)
    rank_V[words] = np.arange(len(words))
    return words, rank_V

  def read_slots(self) -> Iterator[Slot]:
    """Yields the slots that count."""
    tokens_NxL, hidden_NxL = self.windows
    model = transformers.AutoModelForMaskedLM.from_pretrained(self.folder)
    has_list_V = self.tables["wordnet"].lengths_V > 0
    hidden_NxL = (
      hidden_NxL
      & find_words(self.tokenizer, tokens_NxL)
      & has_list_V[tokens_NxL]
    )
    for rows, log_p_MxV in measure.predict_slots(
      model.eval(), tokens_NxL, hidden_NxL, self.tokenizer.mask
    ):
      slots = np.argwhere(hidden_NxL[rows])
      for (row, position), log_p_V in zip(
        slots, log_p_MxV.numpy(), strict=True
      ):
        window_L = tokens_NxL[rows][row]
        gold = int(window_L[position])
        if (log_p_V > log_p_V[gold]).sum() < TOP:
          odds_V = np.exp(log_p_V - log_p_V[gold])
          yield Slot(gold, odds_V, window_L, int(position))

  def draw_as_frequent(
    self, token: int, but: set[int], rng: np.random.Generator
  ) -> int:
    """Draws a word about as frequent as a token, but none of some."""
    words, rank_V = self.ranks
    rank = rank_V[token]
    near = words[max(0, rank - NEAR) : rank + NEAR + 1]
    return int(rng.choice([x for x in near if x not in but]))

  def show(self, slot: Slot, kind: str, word: int) -> dict[str, Any]:
    """Returns an example for a reader."""
    vocab = np.array(self.tokenizer.vocab, object)
    before = slot.window_L[max(1, slot.position - AROUND) : slot.position]
    after = slot.window_L[slot.position + 1 :][:AROUND]
    texts = (" ".join(vocab[x]).replace(" ##", "") for x in (before, after))
    left, right = (x.replace("[SEP]", "").strip() for x in texts)
    left = re.sub(r"^##\S+ ", "", left)  # the rest of a word
    return {
      "kind": kind,
      "left": left,
      "gold": vocab[slot.gold],
      "right": right,
      "word": vocab[word],
      "odds": float(f"{slot.odds_V[word]:.2g}"),
    }


def count_allowed(
  judged: Judged, slot: Slot, source: str, rng: np.random.Generator
) -> dict[str, np.ndarray]:
  """Returns by measure what a slot adds to sums and counts, `[2, ratios]`."""
  listed = judged.tables[source].synonym_ids(slot.gold)
  drawn = [
    judged.draw_as_frequent(x, {*listed, slot.gold}, rng) for x in listed
  ]
  others_V = judged.is_word_V.copy()
  others_V[slot.gold] = False
  allowed_RxV = others_V & (slot.odds_V >= np.array(RATIOS)[:, None])
  both_R = allowed_RxV[:, listed].sum(axis=1)
  pairs_R = np.full(len(RATIOS), len(listed))
  return {
    "precision": np.stack([both_R, pairs_R]),
    "chance": np.stack([allowed_RxV[:, drawn].sum(axis=1), pairs_R]),
    "recall": np.stack([both_R, allowed_RxV.sum(axis=1)]),
  }


def sort_words(judged: Judged, slot: Slot, best: int) -> dict[str, list[int]]:
  """Returns the words of a slot that are examples of each kind."""
  listed = judged.tables["wordnet"].synonym_ids(slot.gold)
  is_new = best not in (slot.gold, *listed) and judged.is_word_V[best]
  return {
    "both": [x for x in listed if slot.odds_V[x] >= RATIO],
    "wordnet": [x for x in listed if slot.odds_V[x] < RATIO],
    "teacher": [best] if is_new else [],
  }


def judge(judged: Judged) -> dict[str, Any]:
  """Returns the figures of all slots, and examples."""
  rng = np.random.default_rng(0)
  counts: dict[tuple[str, str], list[np.ndarray]] = {}
  examples: dict[str, list[dict[str, Any]]] = {x: [] for x in EXAMPLES}
  num_slots = errors = listed_errors = 0
  for slot in judged.read_slots():
    num_slots += 1
    for source in SOURCES:
      added = count_allowed(judged, slot, source, rng)
      for name, sums_2xR in added.items():
        counts.setdefault((source, name), []).append(sums_2xR)
    best = int(np.argmax(slot.odds_V))
    if best != slot.gold:
      errors += 1
      listed_errors += best in judged.tables["wordnet"].synonym_ids(slot.gold)
    for kind, words in sort_words(judged, slot, best).items():
      if words:
        word = int(rng.choice(words))
        examples[kind].append(judged.show(slot, kind, word))
  return {
    "slots": num_slots,
    "errors": errors,
    "listed_errors": listed_errors,
    "figures": estimate_shares(counts),
    "examples": [
      x
      for kind, count in EXAMPLES.items()
      for x in rng.permutation(np.array(examples[kind], object))[:count]
    ],
  }


def estimate_shares(
  counts: dict[tuple[str, str], list[np.ndarray]],
) -> dict[str, Any]:
  """Returns shares by source, measure and ratio, each with twice its error."""
  figures: dict[str, Any] = {}
  for (source, name), values in counts.items():
    sums_MxR, counts_MxR = np.stack(values).transpose(1, 0, 2)
    figures.setdefault(source, {})[name] = {
      ratio: measure.estimate_ratio(sums_MxR[:, i], counts_MxR[:, i])
      for i, ratio in enumerate(RATIOS)
    }
  return figures


def main(text: str, folder: str, result: str) -> None:
  judged = Judged(measure.read_documents(text), folder)
  with open(result, "w") as file:
    json.dump(judge(judged), file, indent=1)
    file.write("\n")


if __name__ == "__main__":
  main(*sys.argv[1:])
