"""One pipeline stage on fake tensors: exact live memory with no accelerator (needs the extra ``torch``)."""
