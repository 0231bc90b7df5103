"""Checks of values and arguments of the contract, as every implementation may make them."""
