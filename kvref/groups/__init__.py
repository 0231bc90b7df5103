"""One class per block type: its use of the blocks of the pool."""
