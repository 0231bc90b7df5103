"""The longest hit stated by enumeration, against implementations on random caches."""
