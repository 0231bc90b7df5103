"""Examples as text: the notation of spec/examples.md, parsed and played on any implementation."""
