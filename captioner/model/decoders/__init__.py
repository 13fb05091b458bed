"""Regions and the words so far to the next word: LSTMs with attention, or attention alone.

In: regions (B, L, D) and caption ids. Out: logits of the next word, and where the decoder looked for it. Read
`interface.py` first: every decoder is used through it. `lstm.py` is the paper's; `two_layers.py` puts a second LSTM on
top; `transformer.py` has none. `captioner.model.decoder` makes the one that the settings ask for.
"""
