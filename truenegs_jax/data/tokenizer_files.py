"""Reads the tokenizers of files, folders and the hub, and writes them.

A vocab.txt is BERT's WordPiece. A tokenizer.json may be of any kind; tokens of
its roles, such as [MASK], are found in the files beside it.
"""

import contextlib
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders

from truenegs_jax.data.tokenizer import (
  ACCENTS,
  CONFIG,
  JSON,
  MAX_WORD_CHARACTERS,
  ROLES,
  SPECIALS,
  VOCABULARY,
  WHITE,
  Tokenizer,
  list_tokens,
  make_tokenizer,
  normalize,
)
from truenegs_jax.data.trial import try_tokenizer
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import FAILING, InputError
from truenegs_jax.runtime.paths import is_hub_name, join_inside, open_path

FILES = [VOCABULARY, JSON]
ADDED = "added_tokens.json"
# Those that a tokenizer.json needs beside it, and of a model on the hub.
SETTINGS = ["config.json", "special_tokens_map.json", CONFIG]
HUB_FILES = [*FILES, *SETTINGS, ADDED]
MAX_VALUES = 2**22  # of a tokenizer.json; Gemma's has 2 million
FIX = "Use the original files of the tokenizer."
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of added tokens
# BERT's tokenizer.json, whatever its entries, and what it does to case.
BERT: dict[str, dict[str, Any]] = {
  "model": {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": MAX_WORD_CHARACTERS,
  },
  "normalizer": {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
  },
  "pre_tokenizer": {"type": "BertPreTokenizer"},
}
Json = Mapping[str, Any]


def load_tokenizer(
  path_or_name: str, *, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
  """Reads a vocabulary, and returns its tokenizer.

  >>> len(load_tokenizer("rows/vocab.txt", lowercase=True).vocab)
  38

  Args:
    path_or_name: a `vocab.txt`, a `tokenizer.json`, a folder that contains one
      of them, or the name of a model on the Hugging Face hub (needs internet).
    lowercase, strip_accents: of BERT's, as for `make_tokenizer`. Other files
      say themselves what they do to case and accents.
  """
  strip_accents = lowercase if strip_accents is None else strip_accents
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  path = open_path("data.vocab", path_or_name)
  is_hub = path.suffix not in (".txt", ".json") and is_hub_name(path_or_name)
  if is_hub and not path.exists():
    path = _download(path_or_name)
  problem = "does not exist"
  if path_or_name and path.is_dir():
    problem = "has no vocab.txt and no tokenizer.json"
    path = find_file(path) or path / VOCABULARY
    if path.suffix == ".txt" and path.exists():
      _check_folder(path.parent, options)
  if not path_or_name or not path.exists():
    raise InputError(
      f"data.vocab={path_or_name!r} {problem}. Set --config.data.vocab=FILE, a"
      " vocab.txt or a tokenizer.json, or to its folder, a model on the hub or"
      " train; --vocab of `truenegs synonyms` to one of these files or a run."
    )
  if path.suffix != ".json":
    entries = _read_entries(path)
    tokenizer = make_tokenizer(entries, **options, origin=str(path))
    return _add_tokens(tokenizer, path.parent)
  with files.read_json(path, InputError, FIX, MAX_VALUES) as content:
    if _is_bert(content):
      _check_options(content.get("normalizer", {}), path, options)
      vocab = list_tokens(content["model"]["vocab"])
      return make_tokenizer(vocab, **options, origin=str(path))
    config: dict[str, Any] = {}
    for name in SETTINGS:
      with read_beside(path.parent, name) as values:
        config |= values
    names = _name_roles(content, config)
    _check_roles(names, path)
    return _define(content, names, config.get("vocab_size", 0))


def find_file(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the file of a folder's vocabulary: a vocab.txt only if BERT's."""
  text, json_file = (join_inside(folder, name) for name in FILES)
  if not json_file.is_file():
    return text if text.is_file() else None
  with files.read_json(json_file, InputError, FIX, MAX_VALUES) as content:
    return text if text.is_file() and _is_bert(content) else json_file


def build_tokenizer(options: Any, vocab: str) -> Tokenizer:
  """Loads a vocabulary with `lowercase` and `accents` of `options`."""
  return load_tokenizer(
    vocab, lowercase=options.lowercase, strip_accents=ACCENTS[options.accents]
  )


def write_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path) -> None:
  """Writes the files that `load_tokenizer` reads."""
  for name in {*FILES} - {*tokenizer.files}:  # of a run that has ended early
    if (folder / name).exists():
      (folder / name).unlink()
  for name, text in tokenizer.files.items():
    with files.atomic_file(folder / name) as file:
      file.write(text.encode())


def _download(name: str) -> pathlib.Path:
  from huggingface_hub import snapshot_download  # slow to import

  try:
    return pathlib.Path(snapshot_download(name, allow_patterns=HUB_FILES))
  except Exception as error:  # the library raises many kinds of errors
    raise InputError(
      f"data.vocab={name!r} is no file or folder, and downloading it from the"
      f" hub failed ({type(error).__name__}). Run `hf download {name}"
      " --local-dir FOLDER` elsewhere, and set --config.data.vocab=FOLDER."
    ) from error


def _read_entries(path: pathlib.Path) -> list[str]:
  """Returns the entries of a vocab.txt, without white space at their ends."""
  try:
    text = files.read_file(path).decode("utf-8-sig").rstrip("\r\n")
  except (OSError, ValueError) as error:
    if isinstance(error, OSError) and error.errno in FAILING:
      raise
    raise InputError(
      f"{path}: cannot be read ({files.describe_error(error)}). It must have an"
      " entry a line. If it is compressed, unpack it (gunzip, xz -d)."
    ) from error
  return [line.rstrip(WHITE) for line in text.split("\n")]


def _add_tokens(tokenizer: Tokenizer, folder: pathlib.Path) -> Tokenizer:
  """Adds the tokens that users added to BERT's, in files beside a vocab.txt."""
  added = _read_added_tokens(folder)
  new = [token for token in added if token["content"] not in tokenizer.vocab]
  if not new:
    return tokenizer
  backend = tokenizer.make_backend()
  backend.decoder = decoders.WordPiece()
  content = json.loads(backend.to_str()) | {"added_tokens": new}
  try:
    return _define(content, dict(zip(ROLES, SPECIALS, strict=True)), 0)
  except ValueError as error:
    raise InputError(
      f"'{folder}': the tokens in {ADDED} or {CONFIG} do not fit the"
      f" {VOCABULARY} ({error}). {FIX}"
    ) from error


def _read_added_tokens(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the tokens beside a vocab.txt that users added, sorted by id.

  transformers finds them in a text before it splits the text into words.
  """
  plain = {"special": False, **dict.fromkeys(FLAGS, False)}
  added: dict[str, Any] = {}
  with read_beside(folder, ADDED) as ids:
    for name, i in ids.items():
      added[name] = {**plain, "normalized": True, "id": int(i)}
  with read_beside(folder, CONFIG) as config:
    for i, token in config.get("added_tokens_decoder", {}).items():
      flags = {name: bool(token.get(name)) for name in plain}
      added[token["content"]] = {**flags, "id": int(i)}
  by_id = sorted(added.items(), key=lambda item: item[1]["id"])
  return [{**token, "content": name} for name, token in by_id]


def _is_bert(content: Json) -> bool:
  """Whether a tokenizer is BERT's, whatever it does to case and accents."""
  vocab = content["model"]["vocab"]
  parts = [(content.get(name, {}), own) for name, own in BERT.items()]
  return (
    isinstance(vocab, dict)
    and vocab.keys() >= {*SPECIALS}
    and all(x is not None and {**x, **own} == {**own, **x} for x, own in parts)
    and all(
      token["special"] and token["content"] in vocab
      for token in content.get("added_tokens") or ()
    )
  )


def _check_folder(folder: pathlib.Path, options: Mapping[str, bool]) -> None:
  """Raises InputError if a folder says that its BERT has other options."""
  lowercase, strip_accents = read_text_options(folder)
  known = {"lowercase": lowercase, "strip_accents": strip_accents}
  if strip_accents is not None:
    given = {name: x for name, x in known.items() if x is not None}
    _check_options(given, folder, options)


def read_text_options(folder: pathlib.Path) -> tuple[bool | None, bool | None]:
  """Reads whether text is lower-cased and loses its accents; None if unknown.

  As in transformers, a tokenizer_config.json decides before BERT's
  tokenizer.json. Accents that are left out, or null, are stripped if text is
  lower-cased.
  """
  with read_beside(folder, JSON, MAX_VALUES) as content:
    is_bert = bool(content) and _is_bert(content)
    normalizer = content.get("normalizer", {}) if is_bert else {}
  with read_beside(folder, CONFIG, MAX_VALUES) as config:
    cases = [config.get("do_lower_case"), normalizer.get("lowercase")]
    accents = [config.get("strip_accents"), normalizer.get("strip_accents")]
    lowercase = next((x for x in cases if isinstance(x, bool)), None)
    strip = next((x for x in accents if isinstance(x, bool)), lowercase)
  return lowercase, strip


def _check_options(
  normalizer: Json, path: pathlib.Path, options: Mapping[str, bool]
) -> None:
  """Raises InputError if BERT's normalizer differs from the options."""
  own = dict(normalizer)
  if own.get("strip_accents") is None:  # it means the value of lowercase
    own["strip_accents"] = own.get("lowercase", options["lowercase"])
  for name, value in options.items():
    if own.get(name, value) != value:
      raise InputError(
        f"data: {name}={value} differs from {name}={own[name]} in '{path}'. Set"
        " --config.data.lowercase or --config.data.accents to its value"
        " (--lowercase, --accents of `truenegs synonyms`), or use another"
        " vocabulary."
      )


@contextlib.contextmanager
def read_beside(
  folder: pathlib.Path, name: str, max_values: int = files.MAX_VALUES
) -> Iterator[Json]:
  """Yields the JSON object of a folder's file; {} if there is no such file."""
  if (folder / name).exists():
    path = join_inside(folder, name)
    with files.read_json(path, InputError, FIX, max_values) as values:
      yield values
  else:
    yield {}


def _name_roles(content: Json, config: Json) -> dict[str, str]:
  """Returns the name of the token of each role; "" for none."""
  if not content["model"]["vocab"]:
    raise ValueError("no entries")
  added = {token["content"] for token in content.get("added_tokens") or ()}
  others = {"unk": content["model"].get("unk_token")}
  names = {}
  for role, (keys, usual) in ROLES.items():
    given = [config.get(key) for key in keys]
    named = [x["content"] if isinstance(x, dict) else x for x in given]
    known = (name for name in usual if name in added)
    names[role] = next(filter(None, [*named, others.get(role), *known]), "")
  # Where text gets a token on one side only, it gets it on both.
  names["cls"] = names["cls"] or names["sep"]
  names["sep"] = names["sep"] or names["cls"]
  return names


def _check_roles(names: dict[str, str], path: pathlib.Path) -> None:
  """Raises InputError if a role has no token, or that of another."""
  fix = "in a tokenizer_config.json beside it; a new token is added"
  for role in ("mask", "pad", "cls", "sep"):
    if not names[role]:
      raise InputError(
        f"data.vocab: '{path}' has no {role} token. Name a {role}_token {fix}."
      )
  for one, other in itertools.combinations(("pad", "mask", "sep", "cls"), 2):
    if names[one] == names[other] and one != "sep":
      raise InputError(
        f"data.vocab: '{path}' has one token for {one} and {other},"
        f" {names[one]!r}. Name another {one}_token {fix}."
      )


def _define(content: Json, names: dict[str, str], num_rows: int) -> Tokenizer:
  """Completes a tokenizer.json with special tokens and `num_rows` rows."""
  text = json.dumps(content, ensure_ascii=False)
  # It may be a stranger's, and a panic in Rust would end this process.
  if reason := try_tokenizer(text.encode()):
    raise ValueError(f"a trial failed: {reason}")
  backend = tokenizers.Tokenizer.from_str(text)
  specials = [name for name in names.values() if name]
  backend.add_special_tokens(specials)
  vocab = list_tokens(backend.get_vocab(), num_rows)
  ids = {name: i for i, name in enumerate(vocab)}
  model = {**content["model"], "dropout": None}
  size = len(model["vocab"])
  if isinstance(model["vocab"], dict):  # `tokenizers` would fill its holes
    size = max(model["vocab"].values()) + 1
    model["vocab"] = {name: i for i, name in enumerate(vocab[:size])}
  given = {x["content"]: x for x in content.get("added_tokens") or ()}
  added = []
  for i, name in enumerate(vocab):
    if i >= size or name in specials or name in given:
      token = {"special": True, **dict.fromkeys(FLAGS, False)}
      token |= given.get(name, {}) | {"id": i, "content": name}
      token["special"] |= name in specials
      added.append(token)
  steps = str({**content, "model": "", "added_tokens": ""})
  if "ByteLevel" in steps or "▁" in steps:
    mask = next(x for x in added if x["content"] == names["mask"])
    mask["lstrip"] = True  # it stands for a word with the space before it
  # [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
  ends = {role: [names[role], ids[names[role]]] for role in ("cls", "sep")}
  complete = {
    **content,
    **dict.fromkeys(("truncation", "padding")),
    "added_tokens": added,
    "post_processor": {"type": "BertProcessing", **ends},
    "model": model,
  }
  return Tokenizer(
    tuple(vocab),
    lowercase="a" in normalize(backend, "A"),
    strip_accents="e" in normalize(backend, "é"),
    **{role: ids.get(name, -1) for role, name in names.items()},
    definition=json.dumps(complete, ensure_ascii=False),
  )
