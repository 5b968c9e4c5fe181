"""HTTP: one ASGI stack for the HTTP API of workers and for the explorer.

app        routes, endpoints, limits and headers
requests   a request, its body, and the call that it becomes
inputs     JSON and queries, checked before anything is made of them
tensors    numbers in JSON and as bytes behind it
operations an operation as HTTP calls it
messages   operations of `darksight.v1` as JSON
problems   errors as problem details
api/       the operations of the service as JSON
explorer/  the pages in a browser
web/       the server below both
"""
