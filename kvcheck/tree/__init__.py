"""Judge a tree of prefixes by lives of an engine, on a device that is made up."""
