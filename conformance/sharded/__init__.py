"""Stages spread over ranks: a user's sharded stage is compared with the same stage on one process.

:mod:`.stage` has what a user writes, and :mod:`.described` reads it. :mod:`.layout` divides a whole tensor by its
placements. :mod:`.dimensions` and :mod:`.cases` plan the rows, :mod:`.on_rank` drives a row on a rank, :mod:`.whole` on
one process, and :mod:`.judging` compares the two, with :mod:`.some_ranks` for causes. :mod:`.runs` starts the ranks.
"""
