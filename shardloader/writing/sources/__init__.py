"""Sources: what can be turned into shards, behind one seam.

`base` says what a source is; one module a kind follows it; `opening` finds out which kind a word
means. A source is read in *parts*, bounded pieces that follow from the input alone, never from
the number of workers, so that any worker may read any part and the result is the same.
"""
