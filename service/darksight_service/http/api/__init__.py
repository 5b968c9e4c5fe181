"""The HTTP API of a worker, and the health pages of the supervisor.

health      /metrics and health, served by the supervisor
server      the HTTP API of a worker: uvicorn in a thread
app         its application: tokens, and the routes of all operations
inference   the Open Inference Protocol, in JSON and with binary tensors
events      CloudEvents of inference loggers
payloads    the probabilities in the response of a model server
openapi     the OpenAPI document
"""

__all__: list[str] = []
