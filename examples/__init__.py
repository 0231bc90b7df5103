"""Programs beside the package; a package, since vLLM also has a folder `examples`."""
