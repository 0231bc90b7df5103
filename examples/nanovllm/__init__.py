"""nano-vllm's own scheduler over kvfast."""
