"""Groups and coordinators with one rule broken each, and which checks catch them."""
