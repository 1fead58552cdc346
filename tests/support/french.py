"""Sentences of Littré's dictionary, and entries of a French thesaurus."""

import pathlib
import random

import nltk.langnames  # noqa: F401  (not later, where a test hides torch)

# fmt: off
SENTENCES = (
  "Abraham a toujours été célèbre dans l'Orient.",
  "Il se rendra célèbre en faisant des millions de malheureux.",
  "Cent orateurs fameux sous le seul règne d'Auguste ! quelle épidémie !",
  "Je brise avec honneur mon illustre esclavage.",
  "De mille exploits fameux enfler ma renommée.",
  "C'est un personnage illustre dans son genre.",
  "La grandeur véritable est dans la bienfaisance.",
  "Qu'un ami véritable est une douce chose !",
  "Il est vrai que les scènes en furent curieuses.",
  "Milan, revois ton prince, et reprends ton vrai maître.",
  "Je lui vouai dès lors une amitié sincère.",
  "Ami de coeur, ami dévoué, sincère.",
  "De fidèles amis et des coeurs assurés.",
  "Il confirma par cette victoire le nom d'Africain dans sa maison.",
  "Je lui ai recédé la maison qu'il m'avait vendue.",
  "Une beauté qu'on vient d'arracher au sommeil.",
)
# fmt: on
# The format of MyThes, with words of thes_fr.dat.
THESAURUS = """UTF-8
célèbre|1
(Adjectif Verbe)|fameux|illustre|renommé|réputé
dans|1
(Préposition)|sous
sincère|1
(Adjectif)|fidèle|dévoué|vrai|au sujet de
véritable|1
(Adjectif)|exact|vrai|sincère
"""
STOP_WORDS = ("dans", "le", "la", "un", "une", "à")


def write_french(folder: pathlib.Path) -> dict[str, str]:
  """Writes a corpus, a thesaurus and stop words; returns config values."""
  lines = random.Random(0).choices(SENTENCES, k=1500)  # over 10,000 words
  blocks = ["\n".join(lines[i : i + 10]) for i in range(0, len(lines), 10)]
  (folder / "french.txt").write_text("\n\n".join(blocks))
  (folder / "thes_fr.dat").write_text(THESAURUS)
  (folder / "stop_words.txt").write_text("\n".join(STOP_WORDS))
  return {
    "data.sources": folder / "french.txt",
    "data.rows": "",
    "data.vocab_size": 400,
    "negatives.sources": f"pairs path={folder}/thes_fr.dat",
    "negatives.stop_words": folder / "stop_words.txt",
  }
