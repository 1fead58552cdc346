# The public names of truenegs_jax. All other names may change.
from .data.batches import batches as batches
from .data.tokenizer import Tokenizer as Tokenizer
from .data.tokenizer import make_tokenizer as make_tokenizer
from .data.tokenizer_files import load_tokenizer as load_tokenizer
from .data.words import word_edges as word_edges
from .models.pretrain import BertMlm as BertMlm
from .models.pretrain import ElectraPair as ElectraPair
from .models.pretrain import init_params as init_params
from .models.pretrain import make_bert as make_bert
from .models.pretrain import make_electra as make_electra
from .objectives.electra import detection_loss as detection_loss
from .objectives.electra import electra_terms as electra_terms
from .objectives.masking import MaskingOptions as MaskingOptions
from .objectives.masking import hide_slots as hide_slots
from .objectives.mlm import is_whole_word as is_whole_word
from .objectives.mlm import mlm_loss as mlm_loss
from .objectives.mlm import mlm_terms as mlm_terms
from .objectives.negatives import false_negatives as false_negatives
from .objectives.slot_predictions import Options as Options
from .objectives.slot_predictions import weighted_sum as weighted_sum
from .objectives.soft_regularization import cosine_distance as cosine_distance
from .objectives.soft_regularization import (
  sentence_divergence as sentence_divergence,
)
from .pretrain.fill_masks import fill_masks as fill_masks
from .runtime.rng import purpose_keys as purpose_keys
from .runtime.rng import row_keys as row_keys
from .synonyms.run_table import build_table as build_table
from .synonyms.table import SynonymTable as SynonymTable
from .train.step import total_loss as total_loss
from .weights.export_model import export_model as export_model
from .weights.load import Pretrained as Pretrained
from .weights.load import load as load

__version__: str
