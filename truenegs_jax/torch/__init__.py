"""Losses on true negatives for PyTorch, equal to those of JAX.

Imports runtime, config and synonyms, and neither jax nor transformers. Start
reading in `losses.mlm_loss`.
"""

from truenegs_jax.torch.losses import Synonyms as Synonyms
from truenegs_jax.torch.losses import detection_labels as detection_labels
from truenegs_jax.torch.losses import make_trainer_loss as make_trainer_loss
from truenegs_jax.torch.losses import mlm_loss as mlm_loss
from truenegs_jax.torch.losses import soft_loss as soft_loss
