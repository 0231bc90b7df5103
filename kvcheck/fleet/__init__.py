"""Judge an index of engines: lives of a fleet on a bad network, and what the index must say."""
