"""ELECTRA and BERT pre-training on true negatives, in JAX and Flax.

`__init__.pyi` lists what is public; each name is imported when first used.

Names of arrays end in their shape: `logits_BxKxV`. The letters mean the same in
the whole package:

  B  rows of a batch                 V  vocabulary entries
  L  positions of a row              W  32-bit words of a bit row, ceil(V / 32)
  K  slots of a row                  D  width of a network
  R  rows of a data set              E  width of the embeddings
  H  attention heads                 F  width of the feed-forward layer
  S  width of one attention head,    N  layers
     or of a synonym list            P  entries of the position table
  C  classes, or bins of a histogram

`1` is a broadcast axis. A variable of another shape gets another name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.2.0"
