"""A WordNet of a dozen words, in the format of WordNet's own files."""

SYNSETS = {
  "noun": [
    ["house", "firm", "business_firm"],
    ["house", "home"],
    ["Indiana", "Hoosier_State", "in"],
    ["category"],
  ],
  "verb": [["stay", "remain"], ["take", "assume"], ["house", "lodge"]],
  "adj": [["good", "dependable"]],
  "adv": [],
}


def write_wordnet(folder, synsets_by_part=SYNSETS):
  """Writes synsets as WordNet's files into a new folder and returns it."""
  folder.mkdir(parents=True)
  for part, synsets in synsets_by_part.items():
    kind = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}[part]
    data, offsets = "  1 The licence is indented.\n", {}
    for lemmas in synsets:
      for lemma in lemmas:
        offsets.setdefault(lemma.lower(), []).append(len(data))
      words = " ".join(f"{lemma} 0" for lemma in lemmas)
      frames = " 00" if kind == "v" else ""
      data += f"{len(data):08} 03 {kind} {len(lemmas):02x} {words} 000{frames}"
      data += " | what it means  \n"
    index = "  1 The licence is indented.\n"
    for lemma, numbers in sorted(offsets.items()):
      joined = " ".join(f"{number:08}" for number in numbers)
      index += f"{lemma} {kind} {len(numbers)} 0 {len(numbers)} 0 {joined}  \n"
    (folder / f"data.{part}").write_text(data)
    (folder / f"index.{part}").write_text(index)
    (folder / f"{part}.exc").write_text("")
  (folder / "verb.exc").write_text("took take\n")
  lexnames = (f"{i:02}\tnoun.Tops\t1\n" for i in range(4))
  (folder / "lexnames").write_text("".join(lexnames))
  return folder
