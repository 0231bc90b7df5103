"""A record as a page to look at: `model` makes frames of it, `page` the HTML."""
