"""Check an implementation against the contract."""
