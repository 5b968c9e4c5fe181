"""The operations of the service over gRPC.

methods     the methods, made from the table of operations
callers     who calls, by token or client certificate
status      gRPC statuses of errors
pools       the threads of a worker
silence     ends calls whose caller sends nothing
health      grpc.health.v1: Check and Watch
server      the gRPC server: limits, tokens, TLS and health
"""

__all__: list[str] = []
