"""Planning: pure functions from layer specs and memory to groups, tensors and blocks (KV-PLAN-*).

One module per subject: `pages` what a spec implies, `merging` one spec for several layers, `unify`
layers made alike, `grouping` the groups, `memory` needs and the check, `layout` tensors, `blocks`
block sizes and capacity, `plan` the whole way. `planner` puts them behind the protocol.
"""
