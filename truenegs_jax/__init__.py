"""ELECTRA and BERT pre-training on true negatives, in JAX and Flax.

Arrays carry their shape in their name: `logits_BxKxV`. One legend serves the
whole package:

  B  examples (rows) of a batch      V  vocabulary entries
  L  positions of a row              W  32-bit words of a bit row, ceil(V / 32)
  K  masked slots of a row           D  width of a network
  R  rows of a data set              E  width of the embeddings
  H  attention heads                 F  width of the feed-forward layer
  S  width of one attention head,    N  layers
     or of a list of synonyms        P  positions the position table holds
  C  classes, or bins of a histogram

`1` is a broadcast axis. A changed shape gets a new name.
"""

__version__ = "0.2.0"
