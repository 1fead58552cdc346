"""Bounds the time of a compiled step on an H100 from its listing.

  bounds = roofline.bound_launches(hlo_listing.parse(text), sizes)

A launch takes at least as long as its products at the peak rate, and as its
reads and writes at the memory's bandwidth. The sum of the larger of both is a
lower bound of the step: no launch costs time by itself, and no rate is below
its peak. On the other hand, what stays in the cache between two launches counts
as read again. Of an array that a slice or a gather reads, only that part
counts. The integer operations that make random bits are counted, but are not
in the bound. On TPUs the compiler's own estimate of cycles is read instead.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
from hlo_listing import Array, Computation, Launch, Listing, Operation

from truenegs_jax.models import flash_attention
from truenegs_jax.objectives import masking
from truenegs_jax.runtime import errors
from truenegs_jax.train import sharding
from truenegs_jax.train.start import Run

# NVIDIA's data sheet of the H100 SXM. f32 products run as TF32.
PEAK_FLOPS = {"bf16": 989e12, "f16": 989e12, "f32": 494e12}
BANDWIDTH = 3.352e12  # bytes/s
HLO_DTYPES = {"bfloat16": "bf16", "float32": "f32"}
# Integer units of a multiprocessor, multiprocessors, clock: as in h100.txtpb.
INTEGER_RATE = 64 * 132 * 1.98e9

PADDING = 256  # most columns that logits have beyond the vocabulary
MIN_FILL = 2**20  # bytes; filling a smaller array with zeros costs nothing

SLICES = {"slice", "dynamic-slice", "gather"}
VIEWS = {"bitcast"}
MOVES = VIEWS | {"copy", "convert", "transpose", "reshape"}
INTEGER_KINDS = {
  *("add", "subtract", "multiply", "divide", "remainder", "negate"),
  *("and", "or", "xor", "not", "shift-left", "shift-right-logical"),
  "shift-right-arithmetic",
}
WORKSPACE = {"s8", "u8"}  # dtypes of a custom call's results
_PRODUCT = re.compile("matmul|gemm")  # of NVIDIA's library
# Custom calls that cost what they read and write.
_PLAIN = re.compile(
  r"__cub\$|AllocateBuffer|AssumeGatherIndicesInBound"
  "|GatherScatterIndicesBitpacked|PrepareAsyncCall"
)
_FLASH = re.compile(
  rf"\b({flash_attention.FORWARD}|{flash_attention.BACKWARD})"
  r"(?:_window(\d+))?\b"
)
DRAW_INTEGERS = 3  # of `rng.is_kept` for each element: ^, ^, *
# Without an estimate libtpu writes 2^64 - 1, or nothing.
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,15})"')

KERNELS = "attention kernels"
SCORES = "attention's scores"
PRODUCTS = "other products"
LAYERS = "layers: norm, dropout, elementwise"
STACKS = "stacks of scan"
FILLS = "zero-fill"
LOGITS = "output layer, K x V"
EMBEDDINGS = "embeddings"
HEADS = "heads, losses, masking"
OPTIMIZER = "optimizer, gradient norm"
COPIES = "asynchronous copies"
GROUPS = (KERNELS, SCORES, PRODUCTS, LAYERS, STACKS, FILLS, LOGITS)
GROUPS += (EMBEDDINGS, HEADS, OPTIMIZER, COPIES)

Shape = tuple[int, ...]


class Sizes(NamedTuple):
  """Sizes by which the arrays of a step are recognized.

  Attributes:
    rows: rows of a micro-batch on one device.
    length: tokens of a row.
    slots: predicted positions of a row.
    vocab_size: without padding.
    heads: of each network.
    drops_weights: whether attention's weights drop out.
    table_sizes: sizes of arrays that have the vocabulary as one dimension.
  """

  rows: int
  length: int
  slots: int
  vocab_size: int
  heads: frozenset[int]
  drops_weights: bool
  table_sizes: frozenset[int]

  def count_logits(self, shapes: Sequence[Shape], min_positions: int) -> int:
    """Counts arrays that have logits of at least so many positions."""
    sizes = [logit_positions(shape, self.vocab_size) for shape in shapes]
    # A table [V, E] looks like logits at E positions.
    return sum(n >= min_positions and n not in self.table_sizes for n in sizes)

  def is_scores(self, shape: Shape) -> bool:
    """Whether an array has an entry for each head and pair of tokens."""
    *batch, queries, keys = (1, 1, *shape)
    return queries == keys == self.length and any(
      math.prod(batch) % (self.rows * heads) == 0 for heads in self.heads
    )


def get_sizes(
  run: Run, mesh: jax.sharding.Mesh, shapes: Sequence[Shape]
) -> Sizes:
  """Returns the sizes of a run; `shapes` are of its parameters and tables."""
  vocab_size = len(run.tokenizer.vocab)
  roles = run.model.roles.values()
  slices = mesh.shape[sharding.DATA_AXIS] * run.config.optim.accumulation
  return Sizes(
    rows=run.config.batch_size // slices,
    length=run.config.length,
    slots=masking.num_slots(run.config.length, run.options.masking.mask_prob),
    vocab_size=vocab_size,
    heads=frozenset(config.heads for config in roles),
    drops_weights=any(config.attention_dropout for config in roles),
    table_sizes=frozenset(n for s in shapes if vocab_size in s for n in s),
  )


def logit_positions(shape: Shape, vocab_size: int) -> int:
  """Returns the number of positions of which an array has logits, or 0.

  The vocabulary may be padded, split into blocks, and first or last.
  """
  splits = [(shape[:i], shape[i:]) for i in range(len(shape) + 1)]
  splits += [(right, left) for left, right in splits]
  for positions, tokens in splits:
    if vocab_size <= math.prod(tokens) < vocab_size + PADDING:
      return math.prod(positions)
  return 0


class Bound(NamedTuple):
  """The cost of one of the `launch.times` equal launches of an operation.

  Attributes:
    launch: the operation.
    group: one of GROUPS.
    nbytes: bytes read and written.
    flops: of products.
    dtype: of the products' operands.
    integers: integer operations on entries.
    cycles: a TPU compiler's estimate; None if there is none.
    logits_read: number of K x V arrays that are read.
    logits_written: number of those that are written.
  """

  launch: Launch
  group: str
  nbytes: float
  flops: float
  dtype: str
  integers: float
  cycles: int | None
  logits_read: int
  logits_written: int

  @property
  def compute_secs(self) -> float:
    """Seconds of its products at the peak rate."""
    return self.flops / PEAK_FLOPS.get(self.dtype, PEAK_FLOPS["bf16"])

  @property
  def memory_secs(self) -> float:
    """Seconds of its reads and writes at the memory's bandwidth."""
    return self.nbytes / BANDWIDTH

  @property
  def secs(self) -> float:
    """The lower bound of its time."""
    return max(self.compute_secs, self.memory_secs)


class _Part(NamedTuple):
  """An array, and how many bytes of it a launch reads or writes."""

  array: Array
  nbytes: float


def bound_launches(listing: Listing, sizes: Sizes) -> list[Bound]:
  """Bounds each launch; InputError for a custom call of unknown cost."""
  return [_bound(listing, launch, sizes) for launch in listing.launches()]


def _bound(listing: Listing, launch: Launch, sizes: Sizes) -> Bound:
  op, computation, _ = launch
  reads = _reads(listing, computation, op)
  writes = _writes(listing, computation, op)
  read, written = _entire(reads), _entire(writes)
  inner = list(_expand(listing, computation, op))
  products = [(c, x) for c, x in inner if _is_product(x)]
  dtypes = [_operand(c, x, 0).results[0].dtype for c, x in products]
  cycles = _CYCLES.search(op.attributes)
  is_copy = op.kind.endswith("-start")
  bound = Bound(
    launch=launch,
    group=COPIES,
    nbytes=sum(x.nbytes for x in (*reads, *writes)),
    flops=sum(_count_flops(c, x) for c, x in products),
    dtype=dtypes[0] if dtypes else "",
    integers=sum(_count_integers(x) for _, x in inner),
    cycles=int(cycles[1]) if cycles else None,
    logits_read=0 if is_copy else sizes.count_logits(read, sizes.slots),
    logits_written=0 if is_copy else sizes.count_logits(written, sizes.slots),
  )
  if is_copy:
    return bound
  if op.kind == "custom-call" and not (products or _PLAIN.search(op.target)):
    return _bound_kernel(computation, bound, sizes)
  if bound.logits_read or bound.logits_written:
    group = LOGITS
  elif moved := _moves(listing, computation, op):
    group = moved
  elif any(map(sizes.is_scores, read + written)):
    group = SCORES
  else:
    group = PRODUCTS if products else _group_by_path(op.op_name)
  return bound._replace(group=group)


def _bound_kernel(
  computation: Computation, bound: Bound, sizes: Sizes
) -> Bound:
  """Bounds a kernel of attention; InputError for any other.

  Kernels of the package count what they declare: each block that they read
  again, and products that they compute again.
  """
  op = bound.launch.op
  if "fmha" in op.target:  # cuDNN's
    (query,) = _operand(computation, op, 0).results
    batch, length, heads, size = query.shape
    factor = 10 if "Backward" in op.target else 4
    flops = factor * batch * heads * length**2 * size
    dtype = query.dtype
    return bound._replace(group=KERNELS, flops=flops, dtype=dtype)
  flash = _FLASH.search(op.op_name)
  if not flash:
    raise errors.InputError(
      f"The cost of the custom call '{op.target}' ({op.name}) is unknown. Add"
      " it to benchmarks/roofline.py."
    )
  _, words, _, query = (
    _operand(computation, op, i).results[0] for i in range(4)
  )
  rows, heads, _, length = words.shape
  cost = flash_attention.cost(
    flash[1],
    flash_attention.Settings(
      length=length,
      rate=float(sizes.drops_weights),
      window=int(flash[2] or 0),
      platform="cuda" if "triton" in op.target else "tpu",
    ),
    rows=rows,
    heads=heads,
    width=query.shape[-1],
    dtype={name: dtype for dtype, name in HLO_DTYPES.items()}[query.dtype],
  )
  draws = cost["transcendentals"] if sizes.drops_weights else 0
  return bound._replace(
    group=KERNELS,
    nbytes=cost["bytes_accessed"],
    flops=cost["flops"],
    dtype=query.dtype,
    integers=DRAW_INTEGERS * draws,
  )


def kernel_name(op: Operation) -> str:
  """Returns a name that tells kernels of attention apart."""
  flash = _FLASH.search(op.op_name)
  return flash[0] if flash else op.target


def _operand(computation: Computation, op: Operation, i: int) -> Operation:
  return computation[op.operands[i]]


def _expand(
  listing: Listing, computation: Computation, op: Operation
) -> Iterator[tuple[Computation, Operation]]:
  """Yields the operations in a fusion, or the operation itself."""
  if op.kind != "fusion":
    yield computation, op
    return
  inner = listing.computations[op.called[0]]
  for x in inner.values():
    yield from _expand(listing, inner, x)


def _behind(
  computation: Computation, op: Operation, kinds: set[str]
) -> Operation:
  """Follows the first operands of operations of these kinds."""
  while op.kind in kinds:
    op = _operand(computation, op, 0)
  return op


def _entire(parts: Sequence[_Part]) -> list[Shape]:
  """Returns the shapes of arrays of which nearly all is read or written."""
  return [x.array.shape for x in parts if x.nbytes >= 0.9 * x.array.nbytes]


def _reads(
  listing: Listing, computation: Computation, op: Operation
) -> list[_Part]:
  parts = []
  for i in range(len(op.operands)):
    operand = _operand(computation, op, i)
    share = _read_bytes(listing, computation, op, i) / max(operand.nbytes, 1)
    parts += [_Part(x, x.nbytes * share) for x in operand.results]
  return parts


def _read_bytes(
  listing: Listing, computation: Computation, op: Operation, i: int
) -> float:
  """Returns how many bytes of its operand `i` an operation reads."""
  operand = _operand(computation, op, i)
  if op.kind in SLICES and i == 0:
    return op.nbytes
  if op.kind == "dynamic-update-slice" and i == 0:
    return 0  # updated in place
  if op.kind != "fusion":
    return operand.nbytes
  inner = listing.computations[op.called[0]]
  (parameter,) = (
    x for x in inner.values() if x.kind == "parameter" and x.arguments == str(i)
  )
  return min(operand.nbytes, _used_bytes(listing, inner, parameter))


def _used_bytes(
  listing: Listing, computation: Computation, op: Operation
) -> float:
  """Returns the sum of the bytes of a result that each user reads."""
  return sum(
    _used_bytes(listing, computation, user)
    if user.kind in VIEWS
    else _read_bytes(listing, computation, user, i)
    for user in computation.values()
    for i, name in enumerate(user.operands)
    if name == op.name
  )


def _outputs(
  listing: Listing, computation: Computation, op: Operation
) -> tuple[Computation, list[Operation]]:
  """Returns the operations that compute the results, and where these are."""
  if op.kind != "fusion":
    return computation, [op]
  inner = listing.computations[op.called[0]]
  (root,) = (x for x in inner.values() if x.is_root)
  outputs = [root]
  if root.kind == "tuple":
    outputs = [inner[name] for name in root.operands]
  return inner, [_behind(inner, x, VIEWS) for x in outputs]


def _writes(
  listing: Listing, computation: Computation, op: Operation
) -> list[_Part]:
  inner, outputs = _outputs(listing, computation, op)
  parts = []
  for output in outputs:
    # In place: an update writes only its own entries.
    update = {"dynamic-update-slice": 1, "scatter": -1}.get(output.kind)
    is_call = output.kind == "custom-call"
    for array in output.results:
      if is_call and array.dtype in WORKSPACE:
        continue
      nbytes = array.nbytes
      if update is not None:
        nbytes = _operand(inner, output, update).nbytes
      parts.append(_Part(array, nbytes))
  return parts


def _is_product(op: Operation) -> bool:
  # TPUs compute products as convolutions.
  kinds = "dot", "convolution"
  return op.kind in kinds or bool(_PRODUCT.search(op.target))


def _count_flops(computation: Computation, op: Operation) -> float:
  """Counts the FLOPs of a product; those of a TPU count 0."""
  if op.kind == "convolution":
    return 0
  left, right = (_operand(computation, op, i).results[0].shape for i in (0, 1))
  shared = {
    *op.integers("rhs_contracting_(?:dims|dimensions)"),
    *op.integers("rhs_batch_(?:dims|dimensions)"),
  }
  columns = [n for i, n in enumerate(right) if i not in shared]
  return 2 * math.prod(left) * math.prod(columns)


def _count_integers(op: Operation) -> float:
  is_integer = op.kind in INTEGER_KINDS and op.results[0].dtype[0] in "su"
  return math.prod(op.results[0].shape) if is_integer else 0


def _moves(listing: Listing, computation: Computation, op: Operation) -> str:
  """Returns FILLS or STACKS for an operation that only moves data, or "".

  A stack may be written with a cheap function of the array.
  """
  inner, outputs = _outputs(listing, computation, op)
  sources = [_behind(inner, x, MOVES | {"broadcast"}) for x in outputs]
  if all(x.kind == "constant" for x in sources):
    return FILLS if op.nbytes > MIN_FILL else ""
  kinds = {_behind(inner, x, MOVES).kind for x in outputs}
  return STACKS if kinds <= {"dynamic-slice", "dynamic-update-slice"} else ""


def _group_by_path(path: str) -> str:
  """Returns the group of an operation that only JAX's path tells."""
  if re.search(r"/layer_\d|\bLayer\b|/while/", path):
    return LAYERS
  if "embedding" in path:
    return EMBEDDINGS
  return HEADS if "jvp(" in path else OPTIMIZER
