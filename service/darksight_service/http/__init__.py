"""HTTP: one ASGI stack for the HTTP API of workers and for the explorer.

app        routes, endpoints, limits and headers
requests   a request, its body, and the call that it becomes
problems   errors as problem details
api/       the operations of the service as JSON
explorer/  the pages in a browser
web/       the server below both
"""
