"""Examples as text: the notation of spec/examples.md, read and played on any implementation."""
