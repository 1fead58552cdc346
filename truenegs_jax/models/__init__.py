"""Networks and heads in Flax; no other folder imports flax.linen.

Imports `runtime` and `config`. Start reading in `pretrain.ElectraPair`, whose
layers are in `encoder.py`.
"""
