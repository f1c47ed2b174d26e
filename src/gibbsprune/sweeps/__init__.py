"""Any set of runs: declared in a file, planned into fleets, trained here or on a cluster, one result for each.

    file ─► runs ─► survey (what is done, begun, ready) ─► plan (fleets) ─► workers (here, processes, Ray) ─► results

``declare`` reads the file, ``results`` has one record per run, ``planner`` says what to train next and ``pace`` how
long that takes, ``fleets`` trains one fleet, ``workers`` say where, ``drive`` goes on until nothing is missing,
``page`` shows what came out. ``comparison`` and ``tuning`` make sweeps of their own.
"""
