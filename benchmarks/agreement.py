"""Whether the output layer in one pass gives what it does step by step.

  python benchmarks/agreement.py [--rows=16 --slots=77 --vocab=30522
      --width=768 --dtype=bfloat16] [--chunk=256] [--json=FILE]

Compares losses, gradients, predictions and draws on the device that JAX has, of
random vectors, with logits of all slots, whole and in chunks. Returns 1 where
they differ by more than rounding explains. Attention is compared by
attention.py, random numbers are by random_numbers.py --check.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import timing

from truenegs_jax.objectives import output_softmax
from truenegs_jax.runtime import errors, rng

Array = jax.Array

# Of the largest entry; and the share of slots that may have another token, as
# where two are as likely or a draw falls between two.
ROUNDING = {"float32": 1e-4, "bfloat16": 0.02}
OTHERS = {"float32": 0.005, "bfloat16": 0.02}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the differences; returns 1 where there is one too large."""
  args = arguments(argv)
  inputs = make(args)
  want = jax.jit(compared(plain))(*inputs)
  record = {"command": " ".join(sys.argv), **timing.machine()}
  right = True
  for chunk in (0, args.chunk):
    fused = functools.partial(output_softmax.compute, chunk=chunk)
    got = jax.jit(compared(fused))(*inputs)
    found = differences(got, want)
    most = {
      name: (OTHERS if name.endswith("ed") else ROUNDING)[args.dtype]
      for name in found
    }
    wrong = [name for name, x in found.items() if not x <= most[name]]
    right &= not wrong
    record[f"chunk {chunk}"] = found
    listed = ", ".join(f"{name} {x:.2g}" for name, x in found.items())
    print(f"chunk {chunk}: {listed}: {'TOO MUCH' if wrong else 'right'}")
  if args.json:
    timing.append_json(args.json, {**record, "agrees": right})
  return 0 if right else 1


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  """The command line; by default some rows of configs/electra_base.py."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  sizes = dict(rows=16, slots=77, vocab=30_522, width=768, chunk=256)
  for name, size in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=size)
  parser.add_argument("--dtype", choices=ROUNDING, default="bfloat16")
  parser.add_argument("--json", help="file to add the figures to")
  return parser.parse_args(argv)


def make(args: argparse.Namespace) -> tuple[Array, ...]:
  """Vectors, output layer, gold tokens, keys and weights of the losses."""
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


def plain(
  vectors_BxKxE: Array,
  word_VxE: Array,
  bias_V: Array,
  gold_BxK: Array,
  keys_B: Array,
) -> output_softmax.SoftmaxOutput:
  """As `vocabulary.read`, with nothing put together."""
  logits_BxKxV = jnp.einsum(
    "bke,ve->bkv",
    vectors_BxKxE,
    word_VxE.astype(vectors_BxKxE.dtype),
    preferred_element_type=jnp.float32,
  )
  logits_BxKxV = logits_BxKxV + bias_V
  return output_softmax.SoftmaxOutput(
    optax.softmax_cross_entropy_with_integer_labels(logits_BxKxV, gold_BxK),
    jnp.argmax(logits_BxKxV, axis=-1),
    output_softmax.sample(logits_BxKxV, keys_B, 1.0),
  )


def compared(read: Any) -> Any:
  """`(inputs) -> name -> what is compared` of one way to read the slots."""

  def run(vectors_BxKxE, word_VxE, bias_V, gold_BxK, keys_B, weight_BxK):
    def loss(vectors_BxKxE, word_VxE, bias_V):
      found = read(vectors_BxKxE, word_VxE, bias_V, gold_BxK, keys_B)
      return (found.loss_BxK * weight_BxK).sum(), {
        "loss": found.loss_BxK,
        "predicted": found.predicted_BxK,
        "sampled": found.sampled_BxK,
      }

    grads, found = jax.grad(loss, (0, 1, 2), has_aux=True)(
      vectors_BxKxE, word_VxE, bias_V
    )
    names = "to vectors", "to table", "to bias"
    return found | dict(zip(names, grads, strict=True))

  return run


def differences(got: dict[str, Array], want: dict[str, Array]) -> dict:
  """Name -> largest difference by the largest entry, or share of others."""
  found = {}
  for name, x in got.items():
    y = want[name]
    if name.endswith("ed"):
      found[name] = float((x != y).mean())
    else:
      x, y = x.astype(jnp.float32), y.astype(jnp.float32)
      found[name] = float(abs(x - y).max() / abs(y).max())
  return found


if __name__ == "__main__":
  try:
    sys.exit(main())
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
