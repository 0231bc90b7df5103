"""Check an implementation against the contract. Needs the extra `conformance` (Hypothesis)."""
