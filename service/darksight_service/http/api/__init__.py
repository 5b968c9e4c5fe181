"""The HTTP API of a worker, and the health pages of the supervisor.

health      /metrics and health, served by the supervisor
server      the HTTP API of a worker: uvicorn in a thread
app         its application: tokens, and the routes of all operations
operations  an operation as HTTP calls it
messages    darksight.v1 as JSON
inference   the Open Inference Protocol, in JSON and with binary tensors
events      CloudEvents of inference loggers
payloads    the probabilities in the response of a model server
tensors     numbers in JSON, and tensors as bytes behind it
openapi     the OpenAPI document
"""

__all__: list[str] = []
