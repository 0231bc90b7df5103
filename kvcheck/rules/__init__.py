"""The directed suite: what each rule says, as programs and examples for any implementation."""
