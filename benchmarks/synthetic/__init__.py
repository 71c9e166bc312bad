"""Profiles that nobody measured: written from given times, for benchmarks, demonstrations and tests."""
