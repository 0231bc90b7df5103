"""Common parts of all folders: layouts, errors, checks of arguments, the two forms of an operation.

Nothing is imported here: `layout`, `backend` and `errors` work without torch.
"""
