"""SGLang's radix trees, driven by its own `Scheduler`, for `kvspec check --tree` (`trees`)."""
