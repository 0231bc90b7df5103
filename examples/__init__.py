"""Programs beside the package; a package of its own, since vLLM has a folder `examples`, too."""
