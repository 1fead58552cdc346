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


def write_wordnet(folder):
  """Writes SYNSETS into a new folder, which is returned."""
  folder.mkdir(parents=True)
  for part, synsets in SYNSETS.items():
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
    for lemma, places in sorted(offsets.items()):
      known = " ".join(f"{place:08}" for place in places)
      index += f"{lemma} {kind} {len(places)} 0 {len(places)} 0 {known}  \n"
    (folder / f"data.{part}").write_text(data)
    (folder / f"index.{part}").write_text(index)
    (folder / f"{part}.exc").write_text("")
  (folder / "verb.exc").write_text("took take\n")
  lexnames = (f"{i:02}\tnoun.Tops\t1\n" for i in range(4))
  (folder / "lexnames").write_text("".join(lexnames))
  return folder
