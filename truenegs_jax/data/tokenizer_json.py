"""Completes the content of any `tokenizer.json`, of the library `tokenizers`.

  if not is_bert(content):
    tokenizer = Tokenizer(**define(content, config, path, mask_token=""))

A definition is a `tokenizer.json` that has a token for each id and for the role
of each special token, and gives the same ids for a text each time.
"""

import itertools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import normalizers

from truenegs_jax.runtime.errors import InputError

Json = Mapping[str, Any]
Names = dict[str, str]  # of tokens, by role
# Role -> keys of tokenizer_config.json, and usual names of its token.
ROLES = {
  "pad": (["pad_token"], ["[PAD]", "<pad>", "<|pad|>", "<|padding|>"]),
  "unk": (["unk_token"], ["[UNK]", "<unk>", "<|unk|>"]),
  "cls": (["cls_token", "bos_token"], ["[CLS]", "<s>", "<cls>", "<bos>"]),
  "sep": (["sep_token", "eos_token"], ["[SEP]", "</s>", "<sep>", "<eos>"]),
  "mask": (["mask_token"], ["[MASK]", "<mask>", "<|mask|>"]),
}
SPECIALS = tuple(names[0] for _, names in ROLES.values())
# Longer words become [UNK], as in transformers (BERT's TF code allows 200).
MAX_WORD_CHARACTERS = 100
MAX_ENTRIES = 2**24
CONFIG = "tokenizer_config.json"
FIX = "Use the original files of the tokenizer."
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of added tokens
UNUSED = "[unused row {}]"  # no text is encoded to it, as it has spaces


def is_bert(content: Json) -> bool:
  """Whether a tokenizer is BERT's, whatever it does to case and accents."""
  model = content["model"]
  vocab = content["model"]["vocab"]
  if not vocab:
    raise ValueError("no entries")
  normalizer = content.get("normalizer") or {}
  splitter = content.get("pre_tokenizer") or {"type": "BertPreTokenizer"}
  return (
    isinstance(vocab, dict)
    and model.get("type", "WordPiece") == "WordPiece"
    and model.get("continuing_subword_prefix", "##") == "##"
    and model.get("max_input_chars_per_word", 100) == MAX_WORD_CHARACTERS
    and sorted(vocab.values()) == [*range(len(vocab))]
    and all(name in vocab for name in SPECIALS)
    and splitter["type"] == "BertPreTokenizer"
    and normalizer.get("type", "BertNormalizer") == "BertNormalizer"
    and normalizer.get("clean_text", True) is True
    and normalizer.get("handle_chinese_chars", True) is True
    and all(
      token["special"] and token["content"] in vocab
      for token in content.get("added_tokens") or ()
    )
  )


def define(
  content: Json, config: Json, path: pathlib.Path, *, mask_token: str
) -> dict[str, Any]:
  """Completes the content of the file `path`; returns fields of `Tokenizer`.

  Args:
    config: of the files beside it. Special tokens that it names are added if
      they are new, and unused tokens if it has a larger `vocab_size`.
    mask_token: is added if there is none; "" to refuse that.

  Raises:
    InputError: special tokens are missing; ValueError and others: damage.
  """
  names = _find_roles(content, config)
  _check_roles(names, path, mask_token)
  mark = _find_mark(content)
  complete = _complete(content, names, mark, config.get("vocab_size", 0))
  text = json.dumps(complete, ensure_ascii=False)
  try:
    backend = tokenizers.Tokenizer.from_str(text)
    backend.encode("\ue000")  # Unigram without an unknown token raises
  except Exception as error:  # `tokenizers` raises no other class
    raise ValueError(str(error)) from error
  ids = backend.get_vocab()
  if sorted(ids.values()) != [*range(len(ids))]:
    raise ValueError("two tokens have one id")
  normalizer = backend.normalizer or normalizers.Sequence([])
  return {
    "vocab": tuple(sorted(ids, key=ids.__getitem__)),
    "lowercase": "a" in normalizer.normalize_str("A"),
    "strip_accents": "e" in normalizer.normalize_str("é"),
    **{role: ids.get(name, -1) for role, name in names.items()},
    "mark": mark,
    "definition": text,
  }


def _find_roles(content: Json, config: Json) -> Names:
  """Returns the name of the token of each role; "" for none."""
  added = {token["content"] for token in content.get("added_tokens") or ()}
  others = {"unk": content["model"].get("unk_token"), **_find_template(content)}
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


def _find_template(content: Json) -> Names:
  """Returns the tokens that come before ("cls") and after ("sep") a text."""
  for step in _list_processors(content):
    if "cls" in step:  # of BERT and RoBERTa
      return {"cls": step["cls"][0], "sep": step["sep"][0]}
    if step["type"] == "TemplateProcessing":
      names = [x.get("SpecialToken", {"id": ""})["id"] for x in step["single"]]
      text = names.index("")
      before = ["", *names[:text]]
      after = [*names[text + 1 :], ""]
      return {"cls": before[-1], "sep": after[0]}
  return {}


def _list_processors(content: Json) -> list[Json]:
  part = content.get("post_processor") or {"processors": []}
  return part.get("processors", [part])


def _check_roles(names: Names, path: pathlib.Path, mask_token: str) -> None:
  """Sets the mask; InputError if a role has no token, or that of another."""
  names["mask"] = names["mask"] or mask_token
  if mask_token not in ("", names["mask"]) or mask_token.isalnum():
    raise InputError(
      f"data.mask_token={mask_token!r} could be a word, or is not that of the"
      f" tokenizer, {names['mask']!r}. Remove it, or set it to '<mask>'."
    )
  fix = f"in a {CONFIG} beside it; a new token is added"
  for role in ("mask", "pad", "cls", "sep"):
    if not names[role]:
      way = "Set --config.data.mask_token='<mask>', or name"
      way = f"{way if role == 'mask' else 'Name'} a {role}_token {fix}"
      raise InputError(f"data.vocab: '{path}' has no {role} token. {way}.")
  for one, other in itertools.combinations(("pad", "mask", "sep", "cls"), 2):
    if names[one] == names[other] and one != "sep":
      raise InputError(
        f"data.vocab: '{path}' has one token for {one} and {other},"
        f" {names[one]!r}. Name another {one}_token {fix}."
      )


def _find_mark(content: Json) -> str:
  """Returns the mark of words: see `Tokenizer.mark`."""
  if prefix := content["model"].get("continuing_subword_prefix"):
    return "##" if prefix == "##" else ""
  parts = [content.get(x) for x in ("normalizer", "pre_tokenizer")]
  text = json.dumps(parts, ensure_ascii=False)
  if '"ByteLevel"' in text:
    return "Ġ"
  return "▁" if "▁" in text else ""


def _complete(content: Json, names: Names, mark: str, num_rows: int) -> Json:
  """Returns the content of a definition."""
  model = {**content["model"], "dropout": None}
  pieces = model["vocab"]
  if not isinstance(pieces, dict):  # of Unigram, with scores
    pieces = {piece: i for i, (piece, _) in enumerate(pieces)}
  added = {x["content"]: dict(x) for x in content.get("added_tokens") or ()}
  ids = {name: token["id"] for name, token in added.items()} | pieces
  specials = [name for name in names.values() if name]
  for name in specials:
    ids.setdefault(name, max(ids.values()) + 1)
  size = max(*ids.values(), num_rows - 1) + 1
  if size > MAX_ENTRIES:
    raise ValueError(f"{len(ids):,} entries with ids up to {size:,}")
  ids |= {UNUSED.format(i): i for i in {*range(size)} - {*ids.values()}}
  num_inner = max(pieces.values()) + 1
  if isinstance(model["vocab"], dict):  # `tokenizers` would fill its holes
    model["vocab"] = {name: i for name, i in ids.items() if i < num_inner}
  for name, i in ids.items():
    if i >= num_inner or name in specials:
      token = {"id": i, "content": name, **dict.fromkeys(FLAGS, False)}
      token |= added.get(name, {"special": True})
      added[name] = {**token, "special": token["special"] or name in specials}
  # A mask stands for a piece with the space before it.
  added[names["mask"]]["lstrip"] |= mark in ("Ġ", "▁")
  # [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
  ends = {role: [names[role], ids[names[role]]] for role in ("cls", "sep")}
  steps: list[Json] = [{"type": "BertProcessing", **ends}]
  if any(x.get("trim_offsets") for x in _list_processors(content)):
    options = {"add_prefix_space": True, "trim_offsets": True}
    steps = [{"type": "ByteLevel", **options}, *steps]
  return {
    **content,
    **dict.fromkeys(("truncation", "padding")),
    "added_tokens": sorted(added.values(), key=lambda x: x["id"]),
    "post_processor": {"type": "Sequence", "processors": steps},
    "model": model,
  }
