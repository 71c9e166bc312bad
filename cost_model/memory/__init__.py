"""Memory of a layer, a stage and a job."""
