"""The evaluation of Labach & Valaee's paper, run again: a user of the library, not a part of it.

``cells`` says what is run, as a sweep. ``published`` holds the numbers that the paper prints; ``groups`` takes results
that differ in their seed together; ``findings``, ``tables``, ``extras`` and ``figures`` make ``docs/results.md`` of
them. ``python -m paper`` does all that, and says what is missing.
"""
