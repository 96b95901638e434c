"""The order: which sample stands at which position of an epoch, and who reads which position.

Knows integers and numpy. Does not know files, clocks, processes, torch, or any state: everything
here is a frozen value or a pure function of its arguments. Read in this order: `permutation`
(random numbers), `grid` (how the line is cut), `window` (the shuffle), `epoch` (position to
sample), `dealing` (step to positions), `schedule` (both together), `checkpoint` (what is saved),
`audit` (what was really read).
"""
