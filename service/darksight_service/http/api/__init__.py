"""HTTP transports of the service.

health      /metrics and health, served by the supervisor
server      the HTTP API of a worker: uvicorn in a thread
app         its application: tokens, limits and errors around the methods of the gRPC server
routes      the paths, and the gRPC method that answers each
inference   the Open Inference Protocol, in JSON and with binary tensors
messages    darksight.v1 as JSON
events      CloudEvents of inference loggers
requests    tags of requests that wait for their responses
payloads    the probabilities in the response of a model server
tensors     numbers in JSON, and tensors as bytes behind it
calls       a request and the call that it becomes
problems    errors as problem details
openapi     the OpenAPI document
pages       the document and the page to try calls
protocol    limits of connections
"""

__all__: list[str] = []
