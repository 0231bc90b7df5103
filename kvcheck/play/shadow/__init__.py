"""Safety seen from outside: the content of every slot of the pool, and who may read it.

Needs only the results of a manager; shared by the conformance suite and the monitor.
"""
