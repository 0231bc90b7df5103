"""What operations on pages and tables cost on a device, beside torch's own and plain copies."""
