"""Measure operations on pages and tables on a device, beside torch's own and plain copies."""
