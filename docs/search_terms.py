"""What readers type into the search box, and the section that answers it."""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

# Page -> id of a section or config key -> terms, divided by commas.
TERMS = {
  "install": {
    "install": "pip, wheel, git, requirements, version, upgrade, uninstall",
    "extras": "extra, cuda, driver, pytorch, torch",
    "without-a-network": "offline, proxy, air gap",
  },
  "reference/config": {
    "optim.lr": "learning rate, learning rates, lr",
    "optim.warmup_steps": "warmup, warm-up",
    "optim.schedule": "schedule, learning rate schedule, scheduler",
    "optim.decay_steps": "wsd, warmup-stable-decay, trapezoidal, cooldown",
    "optim.weight_decay": "weight decay",
    "optim.accumulation": "gradient accumulation, micro-batch",
    "batch_size": "batch size",
    "length": "sequence length, max length",
    "seed": "random seed",
    "steps": "number of steps, epochs",
    "model.dtype": "bfloat16, mixed precision, dtype",
    "model.attention": "flash attention",
    "model.remat": "gradient checkpointing, rematerialization",
    "masking.prob": "mask probability, masking rate",
    "masking.unit": "whole word masking",
  },
  "reference/commands": {
    "environment-variables": "environment variable, environment variables",
  },
  "reference/workdir": {"files-of-a-workdir": "workdir, output folder"},
  "reference/sources": {
    "sources-of-synonyms": "synonyms, lexicon, wordnet, thesaurus",
    "sources-of-text": "csv, json lines, parquet, txt",
    "buckets": "s3, gcs, bucket",
  },
  "how_to/choose_recipe": {
    "which-recipe": "recipe, hard correction, soft regularization",
    "which-config": "config, configs, model size",
    "change-single-values": "change a value, hyperparameters",
  },
  "how_to/prepare_text": {
    "choose-the-vocabulary": "vocabulary, tokenizer, vocab.txt",
    "choose-the-text": "corpus, data set, dataset, data",
  },
  "how_to/resume": {
    "how-a-run-stops": "Ctrl-C, Ctrl+C, Ctrl C, stop, interrupt, SIGTERM",
    "resume-and-recover": "resume, checkpoint, checkpoints, continue, restart",
    "runs-with-a-time-limit": "time limit, minutes",
  },
  "how_to/read_a_run": {
    "open-the-report": "report, report.html, plot, curves",
    "send-the-records-to-a-logger": "tensorboard, wandb, weights & biases",
    "watch-it-from-another-terminal": "status, progress, report",
  },
  "how_to/export": {
    "export-and-convert": "export, hugging face, transformers, safetensors",
    "upload-to-the-hub": "upload, hub, push to hub",
  },
  "how_to/finetune": {
    "your-own-task": "classifier, classification, fine-tune, fine-tuning",
    "glue-and-squad": "glue, squad",
  },
  "how_to/many_devices": {
    "use-many-devices": "gpu, multi-gpu, distributed, cluster",
    "save-memory": "memory",
  },
  "how_to/tpu": {"run-on-a-cloud-tpu": "tpu, google cloud"},
  "tutorials/own_text": {
    "train-on-your-own-text": "own text, my text, custom data, other language",
  },
  "tutorials/released_weights": {
    "start-from-released-weights": "pretrained, init, released weights",
  },
  "help/loss": {
    "is-my-loss-normal": "loss, plateau, loss curve, not learning",
  },
  "help/troubleshooting": {
    "it-is-slow": "slow, speed",
    "it-needs-too-much-memory": "out of memory, oom, killed",
    "it-hangs": "hangs, stuck, hang",
  },
  "reference/errors": {
    "error-messages": "error, error message, exception",
    "exit-code-6-not-finite": "nan, inf, not finite, diverges",
  },
  "explanation/differences": {
    "differences-from-the-paper": "differences, deviations, footnote",
  },
  "explanation/true_negatives": {
    "true-negatives": "true negative, false negative, false negatives, paper",
  },
}


def list_pages(*_: object) -> list[str]:
  """Returns the pages to read in every build: Sphinx keeps no index entries."""
  return [*TERMS]


def add_index_entries(app: Sphinx, doctree: nodes.document) -> None:
  """Adds the terms of a page to the index, whose entries the search prefers."""
  ids = {
    name for node in doctree.findall(nodes.Element) for name in node["ids"]
  }
  entries = []
  for target, terms in TERMS.get(app.env.docname, {}).items():
    if target not in ids:
      logging.getLogger(__name__).warning(
        "%s has no section '%s'. Correct docs/search_terms.py.",
        app.env.docname,
        target,
      )
    for term in terms.split(", "):
      entries.append(("single", term, target, "main", None))
  doctree.insert(0, addnodes.index(entries=entries))
