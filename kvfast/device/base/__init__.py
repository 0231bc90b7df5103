"""What every folder needs: layouts, errors, checks of arguments, the two forms of an operation.

Nothing is imported here: `layout`, `backend` and `errors` are there without torch.
"""
