"""The processes of the service: a supervisor and its children, the workers, the storage worker and the explorer."""
