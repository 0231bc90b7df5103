"""kvfast, uncompiled, with one mistake each, mostly at one of its sizes; see `kvcheck.mistakes`."""
