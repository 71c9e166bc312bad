"""The four command lines: parse, call one function, print."""
