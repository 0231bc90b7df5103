"""The tests. README.md beside this file says which test goes where."""
