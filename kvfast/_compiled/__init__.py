"""Home of the compiled twins of ``kvfast._core``; empty where nothing was compiled.

They are not placed beside their sources: an extension module shadows a ``.py`` of the same name,
and coverage, debuggers and CrossHair would look at the wrong build.
"""
