"""Replaying records against any implementation, through the public interface only."""
