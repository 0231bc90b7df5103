"""Draw a recording: `model` has its frames, `page` the HTML."""
