"""Static vectors: every edge of small graphs as records, to be replayed by any implementation.

`kvspec.vectors.sets` says which graphs, `kvspec.vectors.graph` finds their edges,
`kvspec.vectors.tour` walks along all of them, and `kvspec.vectors.write` records the walks. The
files are brought along in `data/vectors`; `kvspec.vectors.manifest` reads what they say of
themselves.
"""
