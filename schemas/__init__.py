"""JSON documents that programs exchange with Taylor: their versioned schemas, generated from pydantic models."""
