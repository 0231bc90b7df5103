"""One class per block type: how a group uses the blocks of the pool."""
