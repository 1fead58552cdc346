"""Opens the teacher that `negatives.sources` names: a model and its weights."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from truenegs_jax.data.tokenizer import Tokenizer, check_tokens
from truenegs_jax.models import encoder, pretrain
from truenegs_jax.objectives.teacher import Outputs, Params, Teacher
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.run_table import TeacherOptions
from truenegs_jax.train import sharding
from truenegs_jax.weights import find
from truenegs_jax.weights.match import MatchedWeights, match_own_model


@dataclasses.dataclass(frozen=True)
class OpenTeacher:
  """A teacher's model and options, without arrays."""

  options: TeacherOptions
  matched: MatchedWeights
  model: pretrain.Model

  @property
  def config(self) -> encoder.EncoderConfig:
    """Sizes of the masked language model."""
    return self.model.roles[self.model.mlm_role]

  def make_reader(
    self, mesh: jax.sharding.Mesh, spec: sharding.MeshSpec
  ) -> Teacher:
    """Returns how an objective on a mesh reads it."""

    def predict(
      params: Params, inputs: Mapping[str, jax.Array], slots_BxK: jax.Array
    ) -> Outputs:
      bound = self.model.bind({"params": params})
      last_type = self.config.type_vocab_size - 1
      inputs = {**inputs, "types": jnp.minimum(inputs["types"], last_type)}
      vectors_BxKxE = bound.generate_vectors(inputs, slots_BxK, None)
      return vectors_BxKxE, *bound.output_layer()

    o = self.options
    gathered = sharding.gather_params(predict, mesh, spec)
    return Teacher(gathered, o.top, o.temperature, o.ratio)

  def select(self, params: Params) -> Params:
    """Returns the (abstract) parameters without those of a discriminator."""
    return {
      k: x for k, x in params.items() if not k.startswith("discriminator")
    }

  def check_length(self, length: int) -> None:
    """Raises InputError if rows have more tokens than it has positions."""
    positions = self.config.max_positions
    if length > positions:
      raise InputError(
        f"length={length} is over the {positions:,} positions of the teacher"
        f" '{self.options.path}'. Set --config.length={positions} or less."
      )

  def check_vocabulary(self, tokenizer: Tokenizer) -> None:
    """Raises DataError if the vocabulary is not that of the run."""
    path = self.options.path
    fix = (
      f"Set --config.data.vocab to the vocabulary of '{path}', or use a teacher"
      " that was trained with that of the run."
    )
    owner = f"The teacher '{path}'"
    check_tokens(owner, self.matched.tokenizer, tokenizer, fix)


@functools.cache  # the plans of a run open the same one
def open_teacher(
  options: TeacherOptions, *, dtype: str, report: find.Report
) -> OpenTeacher:
  """Opens a teacher that computes in `dtype`; only headers are read."""
  with naming_errors(options.path):
    networks = find.Weights(options.path, report).networks
    if "bert" in networks:
      model, matched = match_own_model(networks, pooler=False)
    else:  # a generator is read with its own embeddings, shared or not
      model, matched = match_own_model(networks, sharing="none")
      model = model.clone(sharing="full")
  model = encoder.replace_configs(model, dtype=dtype)
  return OpenTeacher(options, matched, model)


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
  """Says in errors about weights that they are the teacher's."""
  try:
    yield
  except InputError as e:
    raise InputError(f"negatives.sources: teacher path={path}: {e}") from e


def fingerprint(options: TeacherOptions, params: Params) -> str:
  """Identifies a teacher by its options, except its path, and its content."""
  own = dataclasses.replace(options, path="")
  arrays = (x.tobytes() for x in jax.tree.leaves(params))
  return files.short_sha256(repr(own), *arrays)
