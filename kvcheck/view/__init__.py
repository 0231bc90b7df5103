"""A story drawn: `model` has its frames, `page` the HTML."""
