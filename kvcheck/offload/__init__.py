"""Judge an `OffloadManager`: lives of an engine, shadow content, and progress (KV-TIER-9 …)."""
