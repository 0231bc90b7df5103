"""The reference with one mistake each, a file per chapter, as `kvcheck.mistakes` reads them."""
