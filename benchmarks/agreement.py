"""Compares the output layer in one pass with the same, step by step.

  python benchmarks/agreement.py [--rows=16 --slots=77 --vocab=30522
      --width=768 --dtype=bfloat16] [--chunk=256] [--json=FILE]

Compares losses, gradients, predictions and samples of random vectors on JAX's
default device: once with the logits of all slots in memory, once in chunks of
slots. Returns 1 if they differ by more than rounding errors.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax
import timing

from truenegs_jax.objectives import output_softmax
from truenegs_jax.runtime import rng

Array = jax.Array

# Largest difference, relative to the largest entry.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}
# Largest share of slots with another token: two tokens may be almost equally
# likely, or a uniform number may fall next to the border of two.
TOKEN_TOLERANCE = {"float32": 0.005, "bfloat16": 0.02}
TOKENS = ("predicted", "sampled")


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the differences; returns 1 if one is too large."""
  args = parse_arguments(argv)
  inputs = make_inputs(args)
  expected = jax.jit(collect_outputs(compute_step_by_step))(*inputs)
  record = timing.new_record()
  agrees = True
  for chunk in (0, args.chunk):
    one_pass = functools.partial(output_softmax.compute, chunk=chunk)
    outputs = jax.jit(collect_outputs(one_pass))(*inputs)
    differences = compare(outputs, expected)
    is_right = True
    for name, difference in differences.items():
      limits = TOKEN_TOLERANCE if name in TOKENS else TOLERANCE
      is_right &= difference <= limits[args.dtype]  # also false for NaN
    agrees &= is_right
    record[f"chunk {chunk}"] = differences
    listed = ", ".join(f"{name} {x:.2g}" for name, x in differences.items())
    print(f"chunk {chunk}: {listed}: {'right' if is_right else 'WRONG'}")
  if args.json:
    timing.append_json(args.json, {**record, "agrees": agrees})
  return 0 if agrees else 1


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; default sizes are those of configs/electra_base.py."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  sizes = dict(rows=16, slots=77, vocab=30_522, width=768, chunk=256)
  for name, size in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=size)
  parser.add_argument("--dtype", choices=TOLERANCE, default="bfloat16")
  parser.add_argument("--json", help="File to append the figures to.")
  return parser.parse_args(argv)


def make_inputs(args: argparse.Namespace) -> tuple[Array, ...]:
  """Draws vectors, table, bias, gold tokens, row keys and loss weights."""
  keys = jax.random.split(jax.random.key(0), 5)
  shape = args.rows, args.slots
  return (
    jax.random.normal(keys[0], (*shape, args.width), args.dtype),
    0.1 * jax.random.normal(keys[1], (args.vocab, args.width)),
    jax.random.normal(keys[2], (args.vocab,)),
    jax.random.randint(keys[3], shape, 0, args.vocab),
    rng.row_keys(jax.random.key(1), 0, jnp.arange(args.rows)),
    jax.random.uniform(keys[4], shape),
  )


def compute_step_by_step(
  vectors_BxKxE: Array,
  word_VxE: Array,
  bias_V: Array,
  gold_BxK: Array,
  keys_B: Array,
) -> output_softmax.SoftmaxOutput:
  """Computes the same as `output_softmax.compute`, in separate steps."""
  word_VxE = word_VxE.astype(vectors_BxKxE.dtype)
  logits_BxKxV = bias_V + jnp.einsum(
    "bke,ve->bkv", vectors_BxKxE, word_VxE, preferred_element_type=jnp.float32
  )
  return output_softmax.SoftmaxOutput(
    optax.softmax_cross_entropy_with_integer_labels(logits_BxKxV, gold_BxK),
    jnp.argmax(logits_BxKxV, axis=-1),
    output_softmax.sample(logits_BxKxV, keys_B, 1.0),
  )


def collect_outputs(
  layer: Callable[..., output_softmax.SoftmaxOutput],
) -> Callable[..., dict[str, Array]]:
  """Returns `fn(*inputs)`: a layer's loss, tokens and gradients by name."""

  def fn(vectors_BxKxE, word_VxE, bias_V, gold_BxK, keys_B, weight_BxK):
    def loss(vectors_BxKxE, word_VxE, bias_V):
      output = layer(vectors_BxKxE, word_VxE, bias_V, gold_BxK, keys_B)
      return (output.loss_BxK * weight_BxK).sum(), {
        "loss": output.loss_BxK,
        "predicted": output.predicted_BxK,
        "sampled": output.sampled_BxK,
      }

    gradients = jax.grad(loss, (0, 1, 2), has_aux=True)
    grads, outputs = gradients(vectors_BxKxE, word_VxE, bias_V)
    names = "to vectors", "to table", "to bias"
    return outputs | dict(zip(names, grads, strict=True))

  return fn


def compare(
  outputs: dict[str, Array], expected: dict[str, Array]
) -> dict[str, float]:
  """Returns by name: the share of other tokens, or the relative difference."""
  differences = {}
  for name, x in outputs.items():
    y = expected[name]
    if name in TOKENS:
      differences[name] = float((x != y).mean())
    else:
      x, y = x.astype(jnp.float32), y.astype(jnp.float32)
      differences[name] = float(abs(x - y).max() / abs(y).max())
  return differences


if __name__ == "__main__":
  with timing.exit_on_error():
    sys.exit(main())
