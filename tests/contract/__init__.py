"""The contract, tried on the three implementations there are."""
