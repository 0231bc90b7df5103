"""Static vectors: every edge of small graphs as records, to be replayed by any implementation.

`sets` says which graphs, `graph` finds their edges, `tour` walks along all of them, and `write`
records the walks. The files are brought along in `kvcheck/data/vectors`; `kvcheck.records.manifest`
reads what they say of themselves.
"""
