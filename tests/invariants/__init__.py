"""The named invariants, each against a state that only it rejects."""
