"""Checks the values of config keys against the rules of common_keys.py."""

from collections.abc import Iterable, Mapping
from typing import Any

from truenegs_jax.configs.common_keys import LARGEST, KeyRule
from truenegs_jax.models import layers
from truenegs_jax.objectives import masking, soft_regularization
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.train import metrics, sharding

# Names that an extension of the package may add to.
REGISTRIES: dict[str, Iterable[str]] = {
  "masking.style": masking.STYLES,
  "model.remat": layers.REMAT,
  "negatives.soft": soft_regularization.REGULARIZERS,
  "mesh.preset": sharding.MESHES,
  "log.writers": metrics.LOGGERS,
}


def check_values(
  values: Mapping[str, Any], rules: Mapping[str, KeyRule]
) -> None:
  """Raises InputError for a number out of range or an unknown choice.

  Both mappings have full keys. Keys without a value are skipped.
  """
  for name in [name for name in rules if name in values]:
    rule, value = rules[name], values[name]
    choices = REGISTRIES.get(name, rule.choices)
    for single in value if isinstance(value, tuple) else (value,):
      if (
        rule.low is not None and not rule.low <= single <= rule.high
      ):  # NaN too
        words = rule.range_in_words()
        if LARGEST == rule.high < single:
          words += f" and at most {LARGEST:,}"
        raise InputError(
          f"{name}={value} is out of range. It must be finite, {words}."
        )
      if choices:
        one_of(name, single, choices)
