"""MindSpeed's start rules against MindSpeed's own argument classes."""
