"""The order: which sample stands at which position of an epoch, and who reads which position.

Knows integers and numpy. Does not know files, clocks, processes, torch, or anything that changes:
everything here is a frozen value or a pure function (some remember what they computed last). Read
in this order:

    integers      what counts as a number
    permutation   where random numbers come from
    grid, turns   how the line of samples is cut into lanes, and how positions go round them
    window        the shuffle inside a lane
    epoch         from a position to its sample
    topology      which of the readers is this
    dealing       from a step and a rank to positions; the end of an epoch
    schedule      from a step and a rank to samples
    checkpoint    what is saved, and what may be loaded
    position      what load, set_epoch, break and the epoch's end do
    audit         what was really read

Words: a *lane-rank* is one of the grid's ranks, which owns the lanes of its workers; a *place* is a
number on the line; a *position* a number in the order; a *pass* goes once over all samples.
"""
