"""Networks and heads in Flax; no other folder imports flax.linen.

Imports runtime only. Start reading in `pretrain.ElectraPair`, then `encoder`;
`attention` has the implementations among which `choose_attention` chooses.
"""
