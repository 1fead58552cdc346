"""What the objectives are to compute, said again in numpy f64 and loops.

  case = make_case(0)
  got = terms_of(options, case, pair=True, train=False)
  want = expected(options, case, pair=True, train=False)

A case is rows, a relation, and a stub for a network whose outputs are simple
functions of a few arrays. Only what is drawn (slots, what hides them, samples)
is taken from the code under test, as `Draws`; whether that is right, their own
tests say. What sends no gradient reads the
arrays `held`, all else the arrays `live`, so differences of f64 sums are the
gradients that there are to be.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import (
  electra,
  masking,
  mlm,
  options,
  output_softmax,
)
from truenegs_jax.runtime import rng as rng_lib

B, L, V, E, D = 6, 24, tiny.V, 6, 5
PIECES = np.arange(50, V)  # the `##` tokens

Options = options.Options
Sums = dict[str, tuple]


def make_options(*, style="80_10_10", repeats=False, **fields) -> Options:
  """Options over the tiny vocabulary; slots are many."""
  draws = dataclasses.replace(
    tiny.MASKING, mask_prob=0.4, style=style, with_replacement=repeats
  )
  return Options(masking=draws, **fields)


@dataclasses.dataclass(frozen=True)
class Case:
  """One batch and all that its terms are made of."""

  tokens_BxL: np.ndarray
  documents_BxL: np.ndarray  # 0 for padding
  listed_VxV: np.ndarray  # bool
  continues_V: np.ndarray  # bool
  params: dict[str, np.ndarray]  # f32
  layout: str = "bits"  # or "ids"
  seed: int = 0  # of the draws


def make_case(seed: int, *, layout: str = "bits") -> Case:
  """Random rows: full, packed, short and empty ones.

  Predictions lean to the gold token, to one that is listed for it, or to any, a
  third of the places each.
  """
  rng = np.random.default_rng(seed)
  tokens_BxL = rng.integers(5, V, (B, L)).astype(np.int32)
  documents_BxL = np.stack([np.ones(L), np.zeros(L), *_packed(rng)]).astype(
    np.int32
  )
  starts = np.diff(documents_BxL, axis=1, prepend=-1) != 0
  tokens_BxL[starts & (rng.random((B, L)) < 0.5)] = tiny.CLS
  tokens_BxL[0, 0] = PIECES[0]  # what a wrong look past the row's end finds
  listed_VxV = tiny.dense_table(seed)
  listed_VxV[rng.random(V) < 0.3] = False  # words without synonyms
  listed_VxV |= np.diag(rng.random(V) < 0.5)
  continues_V = np.isin(np.arange(V), PIECES)
  params = _params(rng)
  for place in np.ndindex(B, L):
    gold = tokens_BxL[place]
    [listed] = np.nonzero(listed_VxV[gold])
    synonym = rng.choice(listed) if len(listed) else gold
    likely = rng.choice([gold, synonym, rng.integers(V)])
    params["logits"][(*place, likely)] += 5.0
  return Case(
    tokens_BxL, documents_BxL, listed_VxV, continues_V, params, layout, seed
  )


def take_rows(case: Case, rows: list[int]) -> Case:
  """The case of some of its rows."""
  params = {
    name: x[rows] if name in ("logits", "opinion") else x
    for name, x in case.params.items()
  }
  return dataclasses.replace(
    case,
    tokens_BxL=case.tokens_BxL[rows],
    documents_BxL=case.documents_BxL[rows],
    params=params,
  )


def set_params(case: Case, **params) -> Case:
  """The case with other arrays of the stub."""
  params = {name: np.float32(x) for name, x in params.items()}
  return dataclasses.replace(case, params={**case.params, **params})


def _packed(rng) -> np.ndarray:
  """Rows of documents 1, 2, ... and then padding; two rows are full."""
  rows = np.zeros((B - 2, L))
  for row, end in zip(rows, (L, L, 17, 9), strict=True):
    row[:end] = 1 + np.cumsum(rng.random(end) < 0.25)
  return rows


def _params(rng) -> dict[str, np.ndarray]:
  shapes = {
    "logits": (B, L, V),
    "word": (V, E),
    "state": (V, D),
    "generator": (V, D),
    "judge": (D, 1),
    "opinion": (B, L),  # of each token, added to its detection logit
  }
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


# --- the stub of a network: these serve numpy and JAX alike ------------------


def states(table_VxD, tokens_BxL, documents_BxL):
  """States that know their own token, its mirror image and the document."""
  own_BxLxD = table_VxD[tokens_BxL]
  return own_BxLxD + 0.5 * own_BxLxD[:, ::-1] + 0.1 * documents_BxL[..., None]


def detection_logits(params, hidden_BxLxD):
  """`[B, L]`, positive for a token that seems replaced."""
  return (hidden_BxLxD @ params["judge"])[..., 0] + params["opinion"]


class StubModel:
  """Has the methods that an objective needs, and notes what it encodes."""

  def __init__(self, params=None, encoded=None):
    self.params = params
    self.encoded = [] if encoded is None else encoded

  def bind(self, variables):
    return StubModel(variables["params"], self.encoded)

  def generate_logits(self, inputs, positions_BxK, keys_B):
    del inputs, keys_B
    places_BxKx1 = positions_BxK[..., None]
    return jnp.take_along_axis(self.params["logits"], places_BxKx1, axis=1)

  def generate_vectors(self, inputs, positions_BxK, keys_B):
    return self.generate_logits(inputs, positions_BxK, keys_B)

  def output_layer(self):
    return jnp.eye(V), jnp.zeros(V)  # the vectors are the logits

  def encode(self, inputs, keys_B, words_BxLxE=None):
    del words_BxLxE  # the rows of these tokens
    self.encoded.append(("state", inputs["tokens"], keys_B))
    return states(self.params["state"], inputs["tokens"], inputs["documents"])

  def encode_generator(self, inputs, keys_B):
    self.encoded.append(("generator", inputs["tokens"], keys_B))
    return states(
      self.params["generator"], inputs["tokens"], inputs["documents"]
    )

  def judge(self, hidden_BxLxD):
    return detection_logits(self.params, hidden_BxLxD)

  def token_embedding(self, ids):
    return self.params["word"][ids]

  def mean_embedding(self, p_BxKxV):
    return p_BxKxV @ self.params["word"]


def random_params(model):
  """Random parameters of a real model; compiles no init."""
  rng = np.random.default_rng(0)
  init = functools.partial(pretrain.init_params, model)
  return jax.tree.map(
    lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype),
    jax.eval_shape(init, jax.random.key(0)),
  )


def terms_of(
  options: Options, case: Case, *, pair: bool, train: bool, model=None
):
  """The terms of the code under test, on the device."""
  return objective(options, case, pair=pair, train=train, model=model)(
    jax.tree.map(jnp.asarray, case.params)
  )


def objective(
  options: Options, case: Case, *, pair: bool, train: bool, model=None
):
  """params -> terms of the code under test."""
  fn = electra.electra_terms if pair else mlm.mlm_terms
  aux = {"continues_V": jnp.asarray(case.continues_V)}
  aux |= (
    {"bits_VxW": jnp.asarray(tiny.pack_bits(case.listed_VxV))}
    if case.layout == "bits"
    else {"ids_VxS": jnp.asarray(tiny.list_ids(case.listed_VxV))}
  )
  return functools.partial(
    fn,
    batch=inputs_of(case),
    keys_B=keys_of(case),
    aux=aux,
    model=model or StubModel(),
    options=options,
    train=train,
  )


def inputs_of(case: Case) -> dict:
  """The batch as an objective gets it."""
  arrays = {
    "tokens": case.tokens_BxL,
    "types": np.zeros_like(case.tokens_BxL),
    "documents": case.documents_BxL,
  }
  return {name: jnp.asarray(x) for name, x in arrays.items()}


def keys_of(case: Case):
  """One key a row."""
  rows_B = jnp.arange(len(case.tokens_BxL))
  return rng_lib.row_keys(jax.random.key(case.seed), 0, rows_B)


# --- what is drawn -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slot:
  """One slot in use."""

  row: int
  position: int
  gold: int
  shown: int  # the token that stands there when it is to be predicted
  sampled: int  # what the first slot of this position drew
  judged: int  # the prediction that is judged


@dataclasses.dataclass(frozen=True)
class Draws:
  """The slots of a batch, and its rows with the slots hidden."""

  slots: list[Slot]
  masked_BxL: np.ndarray


def draw(options: Options, case: Case) -> Draws:
  """What masking and sampling draw for a case."""
  inputs, keys_B = inputs_of(case), keys_of(case)
  drawn, masked_BxL = masking.hide_slots(
    inputs["tokens"],
    inputs["documents"],
    rng_lib.purpose_keys(keys_B, rng_lib.MASK),
    options.masking,
  )
  positions_BxK, weight_BxK, masked_BxL = map(
    np.asarray, (drawn.positions_BxK, drawn.weight_BxK, masked_BxL)
  )
  logits_BxKxV = np.take_along_axis(
    case.params["logits"], positions_BxK[..., None], axis=1
  )
  sampled_BxK = np.asarray(
    output_softmax.sample(
      jnp.asarray(logits_BxKxV),
      rng_lib.purpose_keys(keys_B, rng_lib.SAMPLE),
      options.sampling_temperature,
    )
  )
  slots, first = [], {}
  for row, k in np.argwhere(weight_BxK > 0):
    place = row, position = int(row), int(positions_BxK[row, k])
    sampled = first.setdefault(place, int(sampled_BxK[row, k]))
    likeliest = int(logits_BxKxV[row, k].argmax())
    judged = {"argmax": likeliest, "sample": sampled}[options.prediction]
    gold, shown = case.tokens_BxL[place], masked_BxL[place]
    slots.append(Slot(row, position, int(gold), int(shown), sampled, judged))
  return Draws(slots, masked_BxL)


# --- the terms ---------------------------------------------------------------


def expected(
  options: Options,
  case: Case,
  *,
  pair: bool,
  train: bool,
  live: dict | None = None,
  draws: Draws | None = None,
) -> Sums:
  """name -> (sum, count) of all terms but `pair_cosine`.

  Args:
    options, case, pair, train: as in `terms_of`.
    live: f64 arrays, where they are not the case's own.
    draws: `draw(options, case)`, where it is known.
  """
  held = {name: np.float64(x) for name, x in case.params.items()}
  live = live or held
  draws = draws or draw(options, case)
  terms = _mlm_terms(options, case, draws, live)
  if not train:
    hidden = [s for s in draws.slots if s.shown == tiny.MASK]
    terms["mlm_hidden"] = (
      sum(_plain_loss(live, s) for s in hidden),
      len(hidden),
    )
  if options.soft_weight or not train:
    losses = [_soft_loss(options, s, live, held) for s in draws.slots]
    terms["soft"] = sum(losses), len(losses)
  if options.sentence_weight:
    terms["sentence"] = _sentence_term(
      options, case, draws, live, held, pair=pair
    )
  if pair:
    terms |= _detection_terms(options, case, draws, live)
  return terms


def _log_softmax(x):
  x = x - x.max(axis=-1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _plain_loss(params, slot: Slot) -> float:
  logits_V = params["logits"][slot.row, slot.position]
  return -_log_softmax(logits_V)[slot.gold]


def _loss(options: Options, case: Case, params, slot: Slot) -> float:
  logits_V = params["logits"][slot.row, slot.position]
  log_p_V = _log_softmax(logits_V / options.temperature)
  synonyms = np.nonzero(case.listed_VxV[slot.gold])[0]
  if not len(synonyms):
    return -log_p_V[slot.gold]
  spread = np.mean([-log_p_V[s] for s in synonyms])
  share = options.smoothing
  return (1 - share) * -log_p_V[slot.gold] + share * spread


def _piece_follows(case: Case, slot: Slot) -> bool:
  """Whether a `##` piece of the same document comes next."""
  row, after = slot.row, slot.position + 1
  if after == case.tokens_BxL.shape[1]:
    return False
  documents_L = case.documents_BxL[row]
  if documents_L[after] != documents_L[slot.position]:
    return False
  return bool(case.continues_V[case.tokens_BxL[row, after]])


def is_false(options: Options, case: Case, slot: Slot) -> bool:
  """Whether hard correction takes a slot for a false negative."""
  if options.strict_subword and _piece_follows(case, slot):
    return False
  if slot.judged == slot.gold and not options.include_self:
    return False
  return bool(case.listed_VxV[slot.gold, slot.judged])


def _mlm_terms(options: Options, case: Case, draws: Draws, live) -> Sums:
  slots, wrong = draws.slots, [s for s in draws.slots if s.judged != s.gold]
  false = [s for s in slots if is_false(options, case, s)]
  kept = [s for s in slots if not (options.hard_correction and s in false)]
  count = {"kept": len(kept), "slots": len(slots)}[options.normalizer]
  terms: Sums = {
    "mlm": (sum(_loss(options, case, live, s) for s in kept), count)
  }
  if options.hard_correction or options.temperature != 1 or options.smoothing:
    plain = sum(_plain_loss(live, s) for s in slots)
    terms["mlm_uncorrected"] = plain, len(slots)
  if options.hard_correction:
    rows = len({s.row for s in false}), len({s.row for s in slots})
    terms |= {
      "corrected_of_slots": (len(false), len(slots)),
      "corrected_of_mismatches": (
        len([s for s in wrong if s in false]),
        len(wrong),
      ),
      "corrected_rows": rows,
    }
  return terms


def _soft_loss(options: Options, slot: Slot, live, held) -> float:
  gold_params, judged_params = {
    "both": (live, live),
    "gold": (live, held),
    "predicted": (held, live),
  }[options.soft_gradient]
  gold_E = gold_params["word"][slot.gold]
  if options.soft_prediction == "predicted":
    judged_E = judged_params["word"][slot.judged]
  else:
    assert options.soft_prediction == "expected"
    logits_V = judged_params["logits"][slot.row, slot.position]
    judged_E = np.exp(_log_softmax(logits_V)) @ judged_params["word"]
  return {"cosine": _cosine_distance}[options.soft](gold_E, judged_E)


def _cosine_distance(a, b) -> float:
  if (a == b).all():
    return 0.0
  return 1 - a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-8)


def _filled(case: Case, slots: list[Slot], name: str) -> np.ndarray:
  """The rows with a field of the slots written into them."""
  tokens_BxL = case.tokens_BxL.copy()
  for slot in slots:
    tokens_BxL[slot.row, slot.position] = getattr(slot, name)
  return tokens_BxL


def _sentence_term(
  options: Options, case: Case, draws: Draws, live, held, *, pair: bool
) -> tuple:
  target_BxL = {"original": case.tokens_BxL, "masked": draws.masked_BxL}
  network = {"kept": "state", "generator": "generator" if pair else "state"}
  name = network[options.sentence_encoder]
  log_p = _log_softmax(
    states(live[name], _filled(case, draws.slots, "judged"), case.documents_BxL)
  )
  log_s = _log_softmax(
    states(held[name], target_BxL[options.sentence_target], case.documents_BxL)
  )
  of, to = {"forward": (log_p, log_s), "reverse": (log_s, log_p)}[
    options.sentence_direction
  ]
  loss_BxL = (np.exp(of) * (of - to)).sum(axis=-1)
  real_BxL = case.documents_BxL != 0
  return loss_BxL[real_BxL].sum(), real_BxL.sum()


def _detection_terms(options: Options, case: Case, draws: Draws, live) -> Sums:
  corrupted_BxL = _filled(case, draws.slots, "sampled")
  hidden_BxLxD = states(live["state"], corrupted_BxL, case.documents_BxL)
  logits_BxL = detection_logits(live, hidden_BxLxD)
  spared = {
    (s.row, s.position)
    for s in draws.slots
    if s.sampled != s.gold
    and case.listed_VxV[s.gold, s.sampled]
    and not (options.strict_subword and _piece_follows(case, s))
  }
  real = {(int(r), int(i)) for r, i in np.argwhere(case.documents_BxL != 0)}
  replaced = {
    (int(r), int(i)) for r, i in np.argwhere(corrupted_BxL != case.tokens_BxL)
  }
  judged, fakes = {
    "none": (real, replaced),
    "relabel": (real, replaced - spared),
    "ignore": (real - spared, replaced - spared),
  }[options.discriminator]
  losses = [
    np.logaddexp(0, -logits_BxL[x] if x in fakes else logits_BxL[x])
    for x in sorted(judged)
  ]
  terms: Sums = {
    "detect": (sum(losses), len(judged)),
    "replaced": (len(fakes), len(judged)),
    "detect_histogram": (
      _histogram([logits_BxL[x] for x in fakes]),
      _histogram([logits_BxL[x] for x in judged - fakes]),
    ),
  }
  if options.discriminator != "none":
    terms["spared"] = len(spared), len(real)
  return terms


def _histogram(logits: list[float]) -> np.ndarray:
  """400 bins of 0.05 from -10 to 10; the outer ones hold what lies beyond."""
  counts_C = np.zeros(400)
  for x in logits:
    counts_C[int(np.clip(np.floor((x + 10) / 0.05), 0, 399))] += 1
  return counts_C
