"""Safety seen from outside: what every slot of the pool holds, and who may read it.

Needs nothing but answers of a manager; shared by the conformance suite and the monitor.
"""
