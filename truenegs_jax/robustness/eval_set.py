"""A set to score on: transformed examples and, if it has any, originals."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from truenegs_jax.robustness.transformation import TransformedSet


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Transformed examples, with what they are scored against.

  Attributes:
    name: name in the config and in results.
    title: name in tables.
    original: N examples before the change; empty if the set has none.
    transformed: M examples.
    variants: for each of the N scored questions, the indices of its variants in
      `transformed`, whose worst counts; if empty, the original counts again.
    merged: classes of the model -> class of the set.
    about: source, seed, resources and counts, for results.
  """

  name: str
  title: str
  original: Sequence[Any]
  transformed: Sequence[Any]
  variants: Sequence[Sequence[int]]
  merged: Mapping[str, str] = dataclasses.field(default_factory=dict)
  about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @classmethod
  def paired(
    cls,
    name: str,
    title: str,
    original: Sequence[Any],
    transformed: Sequence[Any],
    **fields: Any,
  ) -> Self:
    """Makes a set of pairs or, without originals, of transformed examples."""
    variants = [(i,) for i in range(len(transformed))]
    return cls(name, title, original, transformed, variants, **fields)

  @classmethod
  def from_transformed(cls, name: str, result: TransformedSet) -> Self:
    """Converts a set that a transformation made."""
    about = {
      "resources": dict(result.resources),
      "seed": result.seed,
      "tried": result.tried,
      "changed": len(result.original),
      "refused": dict(result.refused),
    }
    return cls.paired(
      name, result.title, result.original, result.transformed, about=about
    )
