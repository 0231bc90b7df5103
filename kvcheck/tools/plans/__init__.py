"""From a description of a model to a plan of its cache, and what the plan costs.

`kinds` and `model` describe a model and split it over workers, `document` reads plan files,
`report` gathers what `kvspec plan` shows, `shipped` finds the installed descriptions.
`spec/planning.md` of the repository describes the file format.
"""
