"""A second hidden cluster, written apart from `benchmarks.standin_*` and from the product.

A network is a program that runs: tensors live as long as something refers to them, backward passes come from a tape,
ring attention is a loop, collectives give tensors of their own. What such a program does is recorded; profiles and logs
are written from the record, and the true figures of large jobs are read off it.
"""
