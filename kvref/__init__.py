"""The reference manager: obvious, slow, and checked by its invariants after every operation."""
