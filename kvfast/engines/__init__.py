"""kvfast inside engines: a package for each, imported only where that engine is."""
