"""What is particular to kvref."""
