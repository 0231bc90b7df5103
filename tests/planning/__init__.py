"""Tests of planning as a whole: properties, and broken planners they must catch."""
