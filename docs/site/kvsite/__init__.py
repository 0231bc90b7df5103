"""What the site adds to the pages of the repository."""
