"""Finds the entities that the tags of words mean, and counts them.

find_entities(["B-loc", "I-loc", "O"])  # [("loc", 0, 2)]
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

OUTSIDE = "O"
TAG = re.compile("O|[BIES]-.+")
Tags = Sequence[str]


class Entity(NamedTuple):
  """Words with the same type, from `start` to before `end`."""

  type: str
  start: int
  end: int


def find_entities(tags: Tags) -> list[Entity]:
  """Returns the entities of a sentence, as conlleval does.

  B and S begin an entity, E and S end one. I and E go on with an entity of
  their type, and begin one after anything else. So tags in BIO, IOB1 and IOBES
  are all read right (Tjong Kim Sang and Buchholz 2000; the default of seqeval).
  """
  entities = []
  start = 0
  last = ""  # the type of an entity that may go on; "" if there is none
  for i, tag in enumerate([*tags, OUTSIDE]):
    prefix, _, kind = tag.partition("-")
    goes_on = prefix in ("I", "E") and kind == last
    if last and not goes_on:
      entities.append(Entity(last, start, i))
    if not goes_on:
      start = i
    last = kind
    if prefix in ("E", "S"):
      entities.append(Entity(kind, start, i + 1))
      last = ""
  return entities


def to_bio(tags: Tags) -> tuple[str, ...]:
  """Returns tags of the same entities in BIO, where each begins with B."""
  bio = [OUTSIDE] * len(tags)
  for kind, start, end in find_entities(tags):
    bio[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
  return tuple(bio)


def list_tags(types: Iterable[str]) -> tuple[str, ...]:
  """Returns the tags of types in BIO, O first."""
  return OUTSIDE, *(f"{x}-{kind}" for kind in types for x in "BI")


def keep_type(tags: Tags, kind: str) -> list[str]:
  """Returns tags of which those of other types are O."""
  return [x if x.partition("-")[2] == kind else OUTSIDE for x in tags]


def name_scheme(sentences: Iterable[tuple[Tags, str]]) -> str:
  """Names the scheme of tags with their locations; how exceptions are read."""
  inner = []  # locations of entities that begin with I
  lone = 0  # entities that begin with B, although nothing is before them
  for tags, location in sentences:
    if any(x[0] in "ES" for x in tags):
      return "IOBES, read as BIO"
    last = Entity("", 0, 0)
    for entity in find_entities(tags):
      if tags[entity.start][0] == "I":
        inner.append(location)
      else:
        lone += (last.type, last.end) != (entity.type, entity.start)
      last = entity
  if not inner:
    return "BIO"
  if not lone:
    return "IOB1, read as BIO"
  return (
    f"BIO, but {len(inner):,} entities begin with I instead of B, the first in"
    f" {inner[0]}; read as B"
  )


def count_entities(
  golds: Sequence[Tags], answers: Sequence[Tags], *, strict: bool
) -> np.ndarray:
  """Counts gold, predicted and equal entities of N sentences, int `[3, N]`.

  `strict` counts only predicted entities that begin with B, which is seqeval's
  strict mode for BIO.
  """
  counts = []
  for gold, answer in zip(golds, answers, strict=True):
    true = {*find_entities(gold)}
    predicted = {*find_entities(answer)}
    if strict:
      predicted = {x for x in predicted if answer[x.start][0] == "B"}
    counts.append((len(true), len(predicted), len(true & predicted)))
  return np.array(counts).T
