"""Policies applied: to requests as the server gets them, and to objects of files and clusters."""
