"""Static vectors: every edge of small graphs as records, to be replayed by any implementation.

`kvcheck.explore.vectors.sets` says which graphs, `kvcheck.explore.vectors.graph` finds their edges,
`kvcheck.explore.vectors.tour` walks along all of them, and `kvcheck.explore.vectors.write` records the walks. The
files are brought along in `data/vectors`; `kvcheck.records.manifest` reads what they say of
themselves.
"""
