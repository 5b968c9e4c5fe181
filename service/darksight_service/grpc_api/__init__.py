"""The wire: gRPC in, calls of the monitor, gRPC out.

scoring     Score, ScoreStream, ReportOutcomes, ListPoints
admin       models, versions and policies
inference   the Open Inference Protocol, for clients of Triton and KServe
status      what each error becomes on the wire
auth        who may call what
pools       the threads of a worker, and which calls need none
server      the gRPC server: limits, TLS, health, and the one table of all methods
"""

__all__: list[str] = []
