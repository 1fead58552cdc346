"""What a masked language model said in every slot of a corpus."""

import dataclasses

import numpy as np

from truenegs_jax.synonyms.table import SynonymTable, contains


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
  """One entry a slot in use, in any order: M slots of T lines.

  Raises ValueError where the arrays do not fit one another: that is a defect of
  the code that made them.

  Attributes:
    sequence_M: int32, the number of the slot's line, 0 to T - 1.
    position_M: int32, the slot's place in that line.
    gold_M: int32, the token that stands there in the text.
    predicted_M: int32, what is judged: the token that the model takes for the
      likeliest, or one drawn from what it says.
    probability_M: float32, what it gives to that token.
    eligible_M: bool, hard correction may touch the slot.
    sequences: T arrays, the token ids of every line, nothing masked, [CLS]
      first and [SEP] last; lines without a slot are among them.
  """

  sequence_M: np.ndarray
  position_M: np.ndarray
  gold_M: np.ndarray
  predicted_M: np.ndarray
  probability_M: np.ndarray
  eligible_M: np.ndarray
  sequences: tuple[np.ndarray, ...]

  def __post_init__(self) -> None:
    for name in ("sequence_M", "position_M", "gold_M", "predicted_M"):
      self._check(name, np.integer)
    self._check("probability_M", np.floating)
    self._check("eligible_M", np.bool_)
    p_M = self.probability_M
    if not (
      (p_M >= 0) & (p_M < 1.001)
    ).all():  # A softmax may round to above 1.
      raise ValueError("probability_M has values that are no probabilities.")
    if (self.predicted_M < 0).any():
      raise ValueError("predicted_M has negative ids.")
    self._check_golds()

  @property
  def mismatch_M(self) -> np.ndarray:
    """bool: the prediction is not the gold."""
    return self.predicted_M != self.gold_M

  def corrected_M(self, table: SynonymTable) -> np.ndarray:
    """bool: hard correction spares the prediction, another word than the gold.

    The gold itself is none, though `include_self` drops it from the loss, too.
    """
    listed_M = contains(table, self.gold_M, self.predicted_M)
    return self.eligible_M & self.mismatch_M & listed_M

  def _check(self, name: str, kind: type) -> None:
    """An entry of this kind for every slot."""
    values = getattr(self, name)
    if values.shape != (len(self.sequence_M),):
      raise ValueError(
        f"{name} has shape {values.shape}, sequence_M"
        f" {self.sequence_M.shape}; both must be the same [M]."
      )
    if not np.issubdtype(values.dtype, kind):
      raise ValueError(f"{name} is {values.dtype}, not {kind.__name__}.")

  def _check_golds(self) -> None:
    """The gold of every slot stands where the slot says."""
    if not len(self.gold_M):
      return
    first, last = self.sequence_M.min(), self.sequence_M.max()
    if first < 0 or last >= len(self.sequences):
      raise ValueError(
        f"sequence_M names lines {first} to {last} of {len(self.sequences)}."
      )
    length_T = np.array([len(row) for row in self.sequences])
    start_T = np.cumsum(length_T) - length_T
    end_M = length_T[self.sequence_M] - 1
    if not ((0 < self.position_M) & (self.position_M < end_M)).all():
      raise ValueError("position_M names places not between [CLS] and [SEP].")
    tokens = np.concatenate(self.sequences)
    place_M = start_T[self.sequence_M] + self.position_M
    if (tokens[place_M] != self.gold_M).any():
      raise ValueError("gold_M is not what stands in the sequences.")
