"""The tools of the command: replays of traffic, benchmarks, plans, pages."""
