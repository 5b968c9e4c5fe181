"""HTTP servers of the explorer and of the API: uvicorn with limits and with certificates that can be renewed."""
