"""Races: times and memory of two versions of a framework, in processes that live side by side and take turns."""
