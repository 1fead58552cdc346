// Ranks pages that contain all words: guides before reference, API last.
var Scorer = {
  score: ([page, title, anchor, descr, score, filename, kind]) =>
    score +
    (kind !== "text" ? 0
      : page.startsWith("reference/api/") ? -3
      : /^(install|how_to|tutorials|help)/.test(page) ? 2 : 0),
  // The values of Sphinx, which also gives an index entry up to 100.
  objNameMatch: 11, objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
