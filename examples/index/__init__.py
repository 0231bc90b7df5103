"""Judge an index that is a process of its own: engines for it, and Dynamo's as the example."""
