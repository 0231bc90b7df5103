"""Where the rules differ from vLLM 0.24.0: one vector each, and a twin that must fail it."""
