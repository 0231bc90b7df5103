"""The directed suite: every rule as programs and examples for any implementation."""
