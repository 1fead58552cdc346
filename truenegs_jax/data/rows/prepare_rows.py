"""Text -> vocabulary -> rows on disk: what the verb `prepare` and `main` call.

  folder, tokenizer = prepare("texts/*.txt", length=128, vocab="vocab.txt")

The same text and options find the rows that an earlier call wrote; one that was
stopped is gone on with.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.rows import (
  build_rows,
  chunks,
  merge_chunks,
  rows_folder,
  worker_pool,
)
from truenegs_jax.data.rows.rows_folder import RowsOptions
from truenegs_jax.data.tokens import fast_encoder, train_vocabulary
from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  printable,
)
from truenegs_jax.runtime.progress import Display

MIN_ENTRIES, MAX_ENTRIES = 10, 10_000_000  # of a vocabulary that is trained


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
  """The options of a preparation.

  Attributes:
    sources: parts of the corpus, as `open_corpus` takes them.
    length: tokens of a row.
    vocab: "train", or what `load_tokenizer` takes.
    vocab_size: entries at most, where the vocabulary is trained.
    strip_accents: None does it where text is lower-cased, as BERT.
    errors: "strict" refuses damaged text, "replace" mends and counts it.
    stopping: when a mixture with weights ends, as of `open_corpus`.
    tokenizer: backend of the encoder, "fast" or "tf_text"; the ids are equal.
    num_workers: processes; 0 for one per core that this process may use.
    rows: the folder; empty for one in the cache named by the options. A whole
      folder named here serves without its text, too.
    resources: what sources need, such as `{"reader": open_wordnet()}`.
  """

  sources: str
  length: int
  vocab: str = "train"
  vocab_size: int = 8192
  lowercase: bool = True
  strip_accents: bool | None = None
  layout: str = "electra"
  overflow: str = "carry"
  held_out: float = 0.01
  seed: int = 0
  errors: str = "strict"
  stopping: str = "all"
  tokenizer: str = "fast"
  num_workers: int = 1
  rows: str = ""
  resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Plan:
  """Which rows are wanted, and what they are made of.

  Attributes:
    folder: where the rows are or will be.
    corpus: None where rows came to this machine without their text.
    given: the vocabulary, unless it is trained.
    backend: of the encoder; like the number of workers it changes no row.
  """

  folder: pathlib.Path
  options: RowsOptions
  corpus: Corpus | None
  given: Tokenizer | None
  vocab_size: int
  backend: str
  num_workers: int

  def is_prepared(self) -> bool:
    """Whether the rows are there; the manifest is written last."""
    return _is_whole(self.folder)


def prepare(sources: str, **options: Any) -> tuple[pathlib.Path, Tokenizer]:
  """Makes the rows folder of these options, or finds it made.

  Args:
    sources, **options: as of `PrepareOptions`.

  Returns:
    The rows folder and its tokenizer (`vocab.txt` in the folder).

  Raises:
    InputError: an option or the vocabulary is unusable.
    DataError: unusable text, or the folder holds the rows of other options.
    DiskError: cannot be written.
  """
  return execute_plan(make_plan(PrepareOptions(sources, **options)))


def make_plan(r: PrepareOptions) -> Plan:
  """Checks a request and names the folder; reads no text, writes nothing.

  Raises:
    InputError: an option or the vocabulary is unusable.
    DataError: a part of the corpus is missing.
  """
  if r.tokenizer not in fast_encoder.BACKENDS:
    known = ", ".join(fast_encoder.BACKENDS)
    raise InputError(
      f"data.tokenizer={r.tokenizer!r} is unknown; known: {known}."
    )
  if r.vocab == "train" and not MIN_ENTRIES <= r.vocab_size <= MAX_ENTRIES:
    raise InputError(
      f"data.vocab_size={r.vocab_size}: allowed is {MIN_ENTRIES} to"
      f" {MAX_ENTRIES:,}; BERT has 30,522."
    )
  if r.num_workers < 0:
    raise InputError(f"data.workers={r.num_workers}: 0 (all cores) or more.")
  named = pathlib.Path(r.rows).expanduser().resolve() if r.rows else None
  if named == pathlib.Path(pathlib.Path("/").resolve().anchor):
    raise InputError(f"data.rows={r.rows!r}: give a folder of its own.")
  corpus = _corpus(r, named)
  given = None
  if r.vocab != "train":
    given = tokenizer_lib.load_tokenizer(
      r.vocab, lowercase=r.lowercase, strip_accents=r.strip_accents
    )
  options = RowsOptions(
    sources=corpus.identity() if corpus else _options_of(named)["sources"],
    vocabulary=given.fingerprint if given else f"train:{r.vocab_size}",
    lowercase=r.lowercase,
    strip_accents=(r.lowercase if r.strip_accents is None else r.strip_accents),
    length=r.length,
    layout=r.layout,
    overflow=r.overflow,
    held_out=r.held_out,
    seed=r.seed,
  )
  folder = named or (
    cache.folder().resolve() / "rows" / rows_folder.rows_fingerprint(options)
  )
  if corpus and corpus.includes(folder):
    raise InputError(
      f"{folder}, where the rows would be, lies in the corpus itself: name"
      " another folder with data.rows or TRUENEGS_CACHE."
    )
  return Plan(
    folder,
    options,
    corpus,
    given,
    r.vocab_size,
    r.tokenizer,
    r.num_workers or worker_pool.available_cores(),
  )


def execute_plan(plan: Plan) -> tuple[pathlib.Path, Tokenizer]:
  """Makes the rows of a plan, or finds them made; returns as `prepare`."""
  if plan.corpus and not plan.is_prepared():
    if plan.num_workers > 1:
      worker_pool.check_main_guard()  # which would wait for its parent's lock
    with build_rows.folder_lock(plan.folder):
      if not plan.is_prepared():  # another process made it while we waited
        built = _build(plan, build_rows.ONLY_JOB)
        _merge(plan, built)
  elif build_rows.unfinished_folder(
    plan.folder
  ).exists():  # killed as it cleared up
    with build_rows.folder_lock(plan.folder):
      shutil.rmtree(
        build_rows.unfinished_folder(plan.folder), ignore_errors=True
      )
  return _made(plan)


def execute_job(
  plan: Plan, share: tuple[int, int]
) -> tuple[pathlib.Path, Tokenizer] | None:
  """Does job i of n; returns as `prepare`, or None where others have work.

  Jobs may run at the same time on machines that share the folder's file system.
  The rows are the same as of one process.
  """
  if plan.corpus and not plan.is_prepared():
    with build_rows.folder_lock(plan.folder, shared=True):
      if not plan.is_prepared():
        built = _build(plan, share)
    if not plan.is_prepared() and not built.is_complete():
      return None
    with build_rows.folder_lock(
      plan.folder
    ):  # until the others, too, are through
      if not plan.is_prepared():
        _merge(plan, built)
  return _made(plan)


def _made(plan: Plan) -> tuple[pathlib.Path, Tokenizer]:
  rows_folder.check_options(plan.folder, plan.options)
  o = plan.options
  return plan.folder, tokenizer_lib.load_tokenizer(
    str(plan.folder), lowercase=o.lowercase, strip_accents=o.strip_accents
  )


def _build(plan: Plan, share: tuple[int, int]) -> chunks.ChunkSet:
  assert plan.corpus is not None  # or there would be nothing to build
  display = Display()
  names = plan.corpus.names()
  display.say(f"Preparing {names} -> {plan.folder}")
  if not plan.corpus.is_local():
    display.say("Fetching from the Hugging Face hub what is not here yet.")
  tokenizer = plan.given or _trained(plan, plan.corpus, share, display)
  with display.bar("Building rows") as show:
    return build_rows.build_chunks(
      plan.folder,
      plan.corpus,
      tokenizer,
      plan.options,
      backend=plan.backend,
      num_workers=plan.num_workers,
      share=share,
      progress=show,
    )


def _trained(
  plan: Plan, corpus: Corpus, share: tuple[int, int], display: Display
) -> Tokenizer:
  """The vocabulary of the text; the first job of an array trains it."""
  o = plan.options
  with build_rows.folder_lock(plan.folder, "vocabulary.lock"):
    temporary = build_rows.open_unfinished(plan.folder, o, share=share)
    kept = temporary / "vocab.txt"
    if not kept.exists():
      try:
        vocab = _train(plan, corpus, display)
      except (InputError, DataError):
        shutil.rmtree(temporary, ignore_errors=True)
        raise
      display.say(f"Trained a vocabulary of {len(vocab):,} entries.")
      tokenizer_lib.write_vocabulary(vocab, kept)
    return tokenizer_lib.load_tokenizer(
      str(kept), lowercase=o.lowercase, strip_accents=o.strip_accents
    )


def _train(plan: Plan, corpus: Corpus, display: Display) -> tuple[str, ...]:
  meter = Meter()
  with display.bar("Training the vocabulary") as show:

    def progress(
      text_bytes: int, detail: str, *, at_once: bool = False
    ) -> None:
      done = None if meter.fraction_read == 1 else meter.fraction_read
      show(text_bytes, done, detail, at_once=at_once)

    return train_vocabulary.train_vocabulary(
      (document.text for document in corpus.read(meter)),
      size=plan.vocab_size,
      lowercase=plan.options.lowercase,
      strip_accents=plan.options.strip_accents,
      progress=progress,
    )


def _merge(plan: Plan, built: chunks.ChunkSet) -> None:
  manifest = merge_chunks.merge(plan.folder, built)
  _say_summary(Display(), manifest, built.corpus.part_names())


def _say_summary(
  display: Display, manifest: dict[str, Any], part_names: list[str]
) -> None:
  """Prints the size of the rows, their sources and oddities of the text."""
  splits, parts = manifest["splits"], manifest["parts"]
  display.say(
    f"{splits['train']['rows']:,} rows of {manifest['options']['length']}"
    f" tokens to train on ({splits['train']['padding_share']:.1%} padding),"
    f" {splits['held_out']['rows']:,} held out."
  )
  if lost := manifest["lost_share"]:
    display.say(f"  {lost:.1%} of the tokens are in no row (data.overflow)")
  if len(parts) > 1:
    total = max(1, sum(part["text_bytes"] for part in parts))
    for name, part in zip(part_names, parts, strict=True):
      share, times = part["text_bytes"] / total, part["passes"]
      often = f", read up to {times} times" if times > 1 else ""
      display.say(f"  {share:6.1%} of the text: {name}{often}")
  for name, count in manifest["oddities"].items():
    display.say(f"  {count:,} {name}")


def _is_whole(folder: pathlib.Path) -> bool:
  return (folder / "manifest.json").exists()  # written last, then renamed


def _options_of(folder: pathlib.Path | None) -> dict[str, Any]:
  return rows_folder.read_manifest(folder)["options"] if folder else {}


def _corpus(r: PrepareOptions, named: pathlib.Path | None) -> Corpus | None:
  """The corpus; None where rows came to this machine without the text."""
  try:
    return open_corpus(
      r.sources, errors=r.errors, stopping=r.stopping, **r.resources
    )
  except UnavailableError as error:
    if not named or not _is_whole(named):
      raise
    Display().say(
      f"{printable(error)}\nTaking the rows in {named} as they are."
    )
    return None
