"""Reference implementation of the objectives, in numpy f64 and loops.

  case = make_case(0)
  check_terms(make_options(prediction="sample"), case, pair=True, train=False)

A case has rows, a synonym table, and the arrays of a stub model whose outputs
are simple functions of them. Only the random draws (slots, masked tokens and
samples) are taken from the code under test, as `Draws`; they have their own
tests. Terms without gradient read the arrays `frozen`, all others the arrays
`live`, so differences of f64 sums are the expected gradients.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from support import tiny
from truenegs_jax.objectives import electra, masking, mlm, output_softmax
from truenegs_jax.objectives.slot_predictions import Options
from truenegs_jax.runtime import rng as rng_lib

B, L, V, E, D = 4, 24, tiny.V, 6, 5
PIECES = np.arange(50, V)  # the `##` tokens

Sums = dict[str, tuple]


def make_options(*, style="80_10_10", unit="token", **fields) -> Options:
  """Builds options for the tiny vocabulary, with many slots."""
  masking_options = dataclasses.replace(
    tiny.MASKING, mask_prob=0.4, style=style, unit=unit
  )
  return Options(masking=masking_options, **fields)


def is_recipe(fields):
  """Returns whether a kind of smoothing goes with its share."""
  share, by = fields["smoothing"], fields["smoothing_by"]
  return not share or by == "uniform" or (by == "set") == (share == 1)


@dataclasses.dataclass(frozen=True)
class Case:
  """A batch, a synonym table and the arrays of a stub model."""

  tokens_BxL: np.ndarray
  documents_BxL: np.ndarray  # 0 for padding
  listed_VxV: np.ndarray  # [v, w]: whether w is in the synonym list of v
  edges_V: np.ndarray  # of `word_edges`
  params: dict[str, np.ndarray]  # f32
  layout: str = "bits"  # of the synonym table, or "ids"
  seed: int = 0  # of the draws


def make_case(seed: int, *, layout: str = "bits") -> Case:
  """Generates a full row, two rows of several documents and an empty row.

  The likeliest prediction is the gold token, a synonym of it or a random token,
  each at a third of the positions.
  """
  rng = np.random.default_rng(seed)
  tokens_BxL = rng.integers(5, V, (B, L)).astype(np.int32)
  documents_BxL = 1 + np.cumsum(rng.random((B, L)) < 0.25, axis=1)
  documents_BxL[0] = 1
  documents_BxL *= np.arange(L) < np.array([[L], [L], [17], [0]])
  starts = np.diff(documents_BxL, axis=1, prepend=-1) != 0
  tokens_BxL[starts & (rng.random((B, L)) < 0.5)] = tiny.CLS
  tokens_BxL[0, 0] = PIECES[0]  # read if code wraps around at the row's end
  listed_VxV = tiny.dense_table(seed)
  listed_VxV[rng.random(V) < 0.3] = False  # words without synonyms
  listed_VxV |= np.diag(rng.random(V) < 0.5)
  shapes = {
    "logits": (B, L, V),
    "word": (V, E),
    "state": (V, D),
    "detect_weight": (D, 1),
    "detect_bias": (B, L),  # one per position
  }
  params = {n: np.float32(rng.normal(size=s)) for n, s in shapes.items()}
  for index in np.ndindex(B, L):
    gold = tokens_BxL[index]
    [listed] = np.nonzero(listed_VxV[gold])
    synonym = rng.choice(listed) if len(listed) else gold
    likely = rng.choice([gold, synonym, rng.integers(V)])
    params["logits"][(*index, likely)] += 5.0
  return Case(
    tokens_BxL=tokens_BxL,
    documents_BxL=documents_BxL.astype(np.int32),
    listed_VxV=listed_VxV,
    edges_V=np.where(np.isin(np.arange(V), PIECES), 3, rng.choice([0, 2], V)),
    params=params,
    layout=layout,
    seed=seed,
  )


def set_params(case: Case, **params) -> Case:
  """Returns the case with other arrays of the stub model."""
  params = {name: np.float32(x) for name, x in params.items()}
  return dataclasses.replace(case, params={**case.params, **params})


def compute_states(table_VxD, tokens_BxL, documents_BxL):
  """Returns states that depend on the token, its vector and the document."""
  own_BxLxD = table_VxD[tokens_BxL]
  return own_BxLxD + 0.5 * own_BxLxD[:, ::-1] + 0.1 * documents_BxL[..., None]


def detection_logits(params, hidden_BxLxD):
  """Returns `[B, L]`, positive for tokens that seem replaced."""
  logits_BxLx1 = hidden_BxLxD @ params["detect_weight"]
  return logits_BxLx1[..., 0] + params["detect_bias"]


class StubModel:
  """Has the methods that objectives call, and records what it encodes."""

  def __init__(self, params=None, encoded=None):
    self.params = params
    self.encoded = [] if encoded is None else encoded

  def bind(self, variables):
    return StubModel(variables["params"], self.encoded)

  def generate_logits(self, inputs, positions_BxK, keys_B):
    del inputs, keys_B
    index_BxKx1 = positions_BxK[..., None]
    return jnp.take_along_axis(self.params["logits"], index_BxKx1, axis=1)

  generate_vectors = generate_logits

  def output_layer(self):
    return jnp.eye(V), jnp.zeros(V)  # the vectors are the logits

  def encode(self, inputs, keys_B, words_BxLxE=None):
    del words_BxLxE  # the rows of these tokens
    self.encoded.append((inputs["tokens"], keys_B))
    return compute_states(
      self.params["state"], inputs["tokens"], inputs["documents"]
    )

  def detect(self, hidden_BxLxD):
    return detection_logits(self.params, hidden_BxLxD)

  def token_embedding(self, ids):
    return self.params["word"][ids]


def compute_terms(options: Options, case: Case, *, model=None, **mode):
  """Returns the terms of the code under test."""
  params = jax.tree.map(jnp.asarray, case.params)
  return make_objective(options, case, model=model, **mode)(params)


def make_objective(
  options: Options, case: Case, *, pair: bool, train: bool, model=None
):
  """Returns the code under test as a function of the stub's arrays."""
  aux = {"edges_V": jnp.asarray(case.edges_V)}
  if case.layout == "bits" and not options.smoothing:
    aux["bits_VxW"] = jnp.asarray(tiny.pack_bits(case.listed_VxV))
  else:
    ids_VxS = tiny.list_ids(case.listed_VxV)
    rates_VxS = np.take_along_axis(find_rates(case.listed_VxV), ids_VxS, axis=1)
    aux["ids_VxS"] = jnp.asarray(ids_VxS)
    aux["rates_VxS"] = jnp.where(ids_VxS < 0, 0.0, jnp.float32(rates_VxS))
  return functools.partial(
    electra.electra_terms if pair else mlm.mlm_terms,
    batch=make_inputs(case),
    keys_B=make_keys(case),
    aux=aux,
    model=model or StubModel(),
    options=options,
    train=train,
  )


def make_inputs(case: Case) -> dict:
  """Returns the batch that objectives take."""
  return {
    "tokens": jnp.asarray(case.tokens_BxL),
    "types": jnp.zeros_like(case.tokens_BxL),
    "documents": jnp.asarray(case.documents_BxL),
  }


def make_keys(case: Case):
  """Returns one key per row."""
  rows_B = jnp.arange(len(case.tokens_BxL))
  return rng_lib.row_keys(jax.random.key(case.seed), 0, rows_B)


@dataclasses.dataclass(frozen=True)
class Slot:
  """A slot in use."""

  row: int
  position: int
  gold: int
  masked_as: int  # the token in the masked input
  sampled: int
  is_dropped: bool
  prediction: int  # the likeliest token or the sample, by the options


@dataclasses.dataclass(frozen=True)
class Draws:
  """The slots of a batch, and its masked rows."""

  slots: list[Slot]
  masked_BxL: np.ndarray


_hide = jax.jit(masking.hide_slots, static_argnums=3)


@jax.jit
def _sample(logits_BxKxV, keys_B):
  gold_BxK = jnp.zeros(logits_BxKxV.shape[:2], jnp.int32)
  layer = jnp.eye(V), jnp.zeros(V)
  output = output_softmax.compute(logits_BxKxV, *layer, gold_BxK, keys_B)
  return output.sampled_BxK


def draw_slots(options: Options, case: Case) -> Draws:
  """Runs masking and sampling of the code under test."""
  inputs, keys_B = make_inputs(case), make_keys(case)
  drawn, masked_BxL = jax.device_get(
    _hide(
      inputs["tokens"],
      inputs["documents"],
      rng_lib.purpose_keys(keys_B, rng_lib.MASK),
      options.masking,
      {"edges_V": case.edges_V},
    )
  )
  positions_BxK, weight_BxK = drawn.positions_BxK, drawn.weight_BxK
  logits_BxKxV = np.take_along_axis(
    case.params["logits"], positions_BxK[..., None], axis=1
  )
  drop_keys_B = rng_lib.purpose_keys(keys_B, rng_lib.DROP)
  dropped_BxK = (
    np.asarray(rng_lib.uniform(drop_keys_B, weight_BxK.shape[1:]))
    < options.drop_prob
  )
  sampled_BxK = _sample(
    logits_BxKxV, rng_lib.purpose_keys(keys_B, rng_lib.SAMPLE)
  )
  slots = []
  for row, k in np.argwhere(weight_BxK > 0):
    index = row, position = int(row), int(positions_BxK[row, k])
    gold, masked_as = int(case.tokens_BxL[index]), int(masked_BxL[index])
    sampled = int(sampled_BxK[row, k])
    likeliest = int(logits_BxKxV[row, k].argmax())
    prediction = {"argmax": likeliest, "sample": sampled}[options.prediction]
    dropped = bool(dropped_BxK[row, k])
    slots.append(
      Slot(row, position, gold, masked_as, sampled, dropped, prediction)
    )
  return Draws(slots, masked_BxL)


def expected_terms(
  options: Options,
  case: Case,
  *,
  pair: bool,
  train: bool,
  live: dict | None = None,
  draws: Draws | None = None,
) -> Sums:
  """Returns (sum, count) of all terms except `pair_cosine`.

  `live` and `draws` are those of the case by default.
  """
  frozen = {name: np.float64(x) for name, x in case.params.items()}
  live, draws = live or frozen, draws or draw_slots(options, case)
  terms = _mlm_terms(options, case, draws, live, train=train)
  if not train:
    hidden = [s for s in draws.slots if s.masked_as == tiny.MASK]
    terms["mlm_hidden"] = sum(_plain_loss(live, s) for s in hidden), len(hidden)
  if options.soft_weight or not train:
    losses = [_soft_loss(options, s, live) for s in draws.slots]
    terms["soft"] = sum(losses), len(losses)
  if options.sentence_weight:
    terms["sentence"] = _sentence_term(
      case, draws, live["state"], frozen["state"]
    )
  if pair:
    terms |= _detection_terms(options, case, draws, live)
  return terms


def _log_softmax(x):
  return scipy.special.log_softmax(x, axis=-1)


def _plain_loss(params, slot: Slot) -> float:
  logits_V = params["logits"][slot.row, slot.position]
  return -_log_softmax(logits_V)[slot.gold]


def find_rates(listed_VxV: np.ndarray) -> np.ndarray:
  """Returns 1 / the longer list of both words, 0 unless a pair is mutual."""
  listed_VxV = listed_VxV & ~np.eye(len(listed_VxV), dtype=bool)
  mutual_VxV = listed_VxV & listed_VxV.T
  num_V = mutual_VxV.sum(axis=1)
  return mutual_VxV / np.maximum(np.maximum(num_V, num_V[:, None]), 1)


def _loss(options: Options, case: Case, params, slot: Slot) -> float:
  log_p_V = _log_softmax(params["logits"][slot.row, slot.position])
  gated = options.strict_subword and is_piece(case, slot)
  share = 0.0 if gated else options.smoothing
  return smoothed_loss(
    log_p_V, slot.gold, case.listed_VxV, share=share, by=options.smoothing_by
  )


def smoothed_loss(
  log_p_V: np.ndarray,
  gold: int,
  listed_VxV: np.ndarray,
  *,
  share: float,
  by: str,
) -> float:
  """Returns the smoothed cross-entropy of one gold token."""
  synonyms = [s for s in np.nonzero(listed_VxV[gold])[0] if s != gold]
  if not share or not synonyms:
    return -log_p_V[gold]
  if by in ("model", "set"):
    log_set = scipy.special.logsumexp(log_p_V[[gold, *synonyms]])
    return share * -log_set + (1 - share) * -log_p_V[gold]
  if by == "uniform":
    spread = np.mean([-log_p_V[s] for s in synonyms])
    return share * spread + (1 - share) * -log_p_V[gold]
  rates_V, p_V = find_rates(listed_VxV)[gold], np.exp(log_p_V)
  choices = [
    rates_V[s] * np.log(p_V[gold] / (p_V[gold] + p_V[s])) for s in synonyms
  ]
  return share * sum(choices) - log_p_V[gold]


def is_piece(case: Case, slot: Slot) -> bool:
  """Returns whether a slot is a piece of a longer word of its document."""
  return not find_words(case)[slot.row, slot.position]


def find_words(case: Case) -> np.ndarray:
  """Returns `[B, L]`, false for pieces that are joined to another token."""
  words_BxL = np.ones(case.tokens_BxL.shape, bool)
  for row, i in np.ndindex(len(words_BxL), words_BxL.shape[1] - 1):
    same = case.documents_BxL[row, i] == case.documents_BxL[row, i + 1]
    first, second = case.edges_V[case.tokens_BxL[row, i : i + 2]]
    if same and first in (2, 3) and second in (1, 3):
      words_BxL[row, i : i + 2] = False
  return words_BxL


def is_false_negative(options: Options, case: Case, slot: Slot) -> bool:
  """Returns whether hard correction removes a slot."""
  if options.strict_subword and is_piece(case, slot):
    return False
  if slot.prediction == slot.gold:
    return False
  return bool(case.listed_VxV[slot.gold, slot.prediction])


def _mlm_terms(
  options: Options, case: Case, draws: Draws, live, *, train: bool
) -> Sums:
  slots = draws.slots
  false = [s for s in slots if is_false_negative(options, case, s)]
  kept = [s for s in slots if not (options.hard_correction and s in false)]
  kept = [s for s in kept if not (train and s.is_dropped)]
  losses = [_loss(options, case, live, s) for s in kept]
  terms: Sums = {"mlm": (sum(losses), len(kept))}
  if options.hard_correction or options.smoothing or options.drop_prob:
    plain = sum(_plain_loss(live, s) for s in slots)
    terms["mlm_uncorrected"] = plain, len(slots)
  if options.hard_correction:
    rows = len({s.row for s in false}), len({s.row for s in slots})
    wrong = [s for s in slots if s.prediction != s.gold]
    false_wrong = [s for s in wrong if s in false]
    terms["corrected_of_slots"] = len(false), len(slots)
    terms["corrected_of_mismatches"] = len(false_wrong), len(wrong)
    terms["corrected_rows"] = rows
  return terms


def _soft_loss(options: Options, slot: Slot, live) -> float:
  gold_E = live["word"][slot.gold]
  predicted_E = live["word"][slot.prediction]
  assert options.soft == "cosine"
  if (gold_E == predicted_E).all():
    return 0.0
  norms = np.linalg.norm(gold_E) * np.linalg.norm(predicted_E)
  return 1 - gold_E @ predicted_E / max(norms, 1e-8)


def _fill_slots(case: Case, slots: list[Slot], name: str) -> np.ndarray:
  """Returns the rows with a field of each slot at its position."""
  tokens_BxL = case.tokens_BxL.copy()
  for slot in slots:
    tokens_BxL[slot.row, slot.position] = getattr(slot, name)
  return tokens_BxL


def _sentence_term(case, draws, live, frozen) -> tuple:
  predicted_BxL = _fill_slots(case, draws.slots, "prediction")
  log_p = _log_softmax(compute_states(live, predicted_BxL, case.documents_BxL))
  log_s = _log_softmax(
    compute_states(frozen, case.tokens_BxL, case.documents_BxL)
  )
  loss_BxL = (np.exp(log_p) * (log_p - log_s)).sum(axis=-1)
  real_BxL = case.documents_BxL != 0
  return loss_BxL[real_BxL].sum(), real_BxL.sum()


def _detection_terms(options: Options, case: Case, draws: Draws, live) -> Sums:
  corrupted_BxL = _fill_slots(case, draws.slots, "sampled")
  table_VxD = live["state"]
  states_BxLxD = compute_states(table_VxD, corrupted_BxL, case.documents_BxL)
  logits_BxL = detection_logits(live, states_BxLxD)
  spared = {
    (s.row, s.position)
    for s in draws.slots
    if s.sampled != s.gold
    and case.listed_VxV[s.gold, s.sampled]
    and not (options.strict_subword and is_piece(case, s))
  }
  real = _positions(case.documents_BxL != 0)
  replaced = _positions(corrupted_BxL != case.tokens_BxL)
  labels = {x: float(x in replaced) for x in sorted(real)}
  labels |= dict.fromkeys(spared, options.discriminator_label)
  if options.discriminator_label < 0:
    labels = {x: label for x, label in labels.items() if x not in spared}
  labels_N = np.array([*labels.values()])
  logits_N = np.array([logits_BxL[x] for x in labels])
  losses_N = np.logaddexp(0, logits_N) - labels_N * logits_N
  terms: Sums = {
    "detect": (losses_N.sum(), len(labels)),
    "replaced": (labels_N.sum(), len(labels)),
    "detect_histogram": (
      _histogram(logits_N, labels_N),
      _histogram(logits_N, 1 - labels_N),
    ),
  }
  if options.discriminator_label < 1:
    terms["spared"] = len(spared), len(real)
  return terms


def _positions(is_BxL: np.ndarray) -> set[tuple[int, int]]:
  return set(map(tuple, np.argwhere(is_BxL).tolist()))


def _histogram(logits_N, weights_N) -> np.ndarray:
  """Adds weights up in 400 bins from -10 to 10, clipping logits outside."""
  bins_N = np.clip(np.floor((logits_N + 10) / 0.05), 0, 399).astype(int)
  return np.bincount(bins_N, weights_N, minlength=400)


LOSSES = ("mlm", "soft", "sentence", "detect")
STEP = 1e-5  # of finite differences


def check_terms(
  options: Options,
  case: Case,
  *,
  pair: bool,
  train: bool,
) -> Sums:
  """Compares all terms with the reference, and returns the reference.

  Sums in f32 must agree to 1e-6 and counts exactly; in a histogram, one logit
  may be in the next bin.
  """
  terms = compute_terms(options, case, pair=pair, train=train)
  actual = jax.device_get(terms)
  expected = expected_terms(options, case, pair=pair, train=train)
  assert actual.keys() - {"pair_cosine"} == expected.keys()
  for name, sums in expected.items():
    if name == "detect_histogram":
      for a, b in zip(actual[name], sums, strict=True):
        off_C = np.abs(np.cumsum(a) - np.cumsum(b))
        assert off_C[-1] == 0 and off_C.sum() <= 1
      continue
    is_count = name.startswith("corrected") or name in ("replaced", "spared")
    tolerance = 0 if is_count else 1e-6
    np.testing.assert_allclose(
      actual[name][0], sums[0], rtol=tolerance, atol=tolerance, err_msg=name
    )
    np.testing.assert_array_equal(actual[name][1], sums[1], err_msg=name)
  return expected


def gradients(options: Options, case: Case, *, pair: bool = True) -> dict:
  """Returns the gradients of each term by the stub's arrays."""
  terms = make_objective(options, case, pair=pair, train=True)
  names = (*LOSSES, "pair_cosine")

  def sums(params):
    return {name: x[0] for name, x in terms(params).items() if name in names}

  return jax.device_get(jax.jit(jax.jacrev(sums))(case.params))


def check_gradients(options: Options, case: Case, *, pair: bool) -> None:
  """Compares all gradients with finite differences of the f64 sums."""
  actual = gradients(options, case, pair=pair)
  draws, rng = draw_slots(options, case), np.random.default_rng(0)
  frozen = {name: np.float64(x) for name, x in case.params.items()}
  for name, array in case.params.items():
    direction = rng.normal(size=array.shape)
    ends = [
      expected_terms(
        options,
        case,
        pair=pair,
        train=True,
        live={**frozen, name: frozen[name] + step * direction},
        draws=draws,
      )
      for step in (STEP, -STEP)
    ]
    for loss in set(LOSSES) & ends[0].keys():
      slope = (ends[0][loss][0] - ends[1][loss][0]) / (2 * STEP)
      grad = np.float64(actual[loss][name])
      np.testing.assert_allclose(
        (grad * direction).sum(),
        slope,
        rtol=1e-4,
        atol=1e-5 * (1 + np.linalg.norm(grad)),
        err_msg=f"{loss} by {name}",
      )
      if slope == 0.0:
        assert not grad.any(), f"{loss} by {name}"
  assert not any(grad.any() for grad in actual["pair_cosine"].values())
