from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_UNSPECIFIED: _ClassVar[Decision]
    DECISION_ACCEPT: _ClassVar[Decision]
    DECISION_REJECT: _ClassVar[Decision]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_NONE: _ClassVar[Reason]
    REASON_OUTLIER: _ClassVar[Reason]
    REASON_LOW_CONFIDENCE: _ClassVar[Reason]
    REASON_REGION: _ClassVar[Reason]
    REASON_INVALID: _ClassVar[Reason]
    REASON_UNSCORED: _ClassVar[Reason]

class CertificateVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CERTIFICATE_VERDICT_UNSPECIFIED: _ClassVar[CertificateVerdict]
    CERTIFICATE_VERDICT_NONE: _ClassVar[CertificateVerdict]
    CERTIFICATE_VERDICT_OPEN: _ClassVar[CertificateVerdict]
    CERTIFICATE_VERDICT_KEPT: _ClassVar[CertificateVerdict]
    CERTIFICATE_VERDICT_BROKEN: _ClassVar[CertificateVerdict]
DECISION_UNSPECIFIED: Decision
DECISION_ACCEPT: Decision
DECISION_REJECT: Decision
REASON_UNSPECIFIED: Reason
REASON_NONE: Reason
REASON_OUTLIER: Reason
REASON_LOW_CONFIDENCE: Reason
REASON_REGION: Reason
REASON_INVALID: Reason
REASON_UNSCORED: Reason
CERTIFICATE_VERDICT_UNSPECIFIED: CertificateVerdict
CERTIFICATE_VERDICT_NONE: CertificateVerdict
CERTIFICATE_VERDICT_OPEN: CertificateVerdict
CERTIFICATE_VERDICT_KEPT: CertificateVerdict
CERTIFICATE_VERDICT_BROKEN: CertificateVerdict

class Tensor(_message.Message):
    __slots__ = ("shape", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class TopRow(_message.Message):
    __slots__ = ("classes", "class_names", "log_probabilities", "other")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedScalarFieldContainer[int]
    class_names: _containers.RepeatedScalarFieldContainer[str]
    log_probabilities: _containers.RepeatedScalarFieldContainer[float]
    other: float
    def __init__(self, classes: _Optional[_Iterable[int]] = ..., class_names: _Optional[_Iterable[str]] = ..., log_probabilities: _Optional[_Iterable[float]] = ..., other: _Optional[float] = ...) -> None: ...

class TopRows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[TopRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[TopRow, _Mapping]]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "version", "tensor", "rows", "top", "is_logits", "prediction_ids", "event_time", "partial_ok", "batch_id", "tags", "row_tags", "class_names", "idempotency_key", "probe", "resolution")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    IS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_IDS_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_OK_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ROW_TAGS_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    tensor: Tensor
    rows: Rows
    top: TopRows
    is_logits: bool
    prediction_ids: _containers.RepeatedScalarFieldContainer[str]
    event_time: _timestamp_pb2.Timestamp
    partial_ok: bool
    batch_id: bytes
    tags: _containers.ScalarMap[str, str]
    row_tags: _containers.RepeatedCompositeFieldContainer[Tags]
    class_names: _containers.RepeatedScalarFieldContainer[str]
    idempotency_key: str
    probe: bool
    resolution: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., top: _Optional[_Union[TopRows, _Mapping]] = ..., is_logits: bool = ..., prediction_ids: _Optional[_Iterable[str]] = ..., event_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., partial_ok: bool = ..., batch_id: _Optional[bytes] = ..., tags: _Optional[_Mapping[str, str]] = ..., row_tags: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., class_names: _Optional[_Iterable[str]] = ..., idempotency_key: _Optional[str] = ..., probe: bool = ..., resolution: _Optional[str] = ...) -> None: ...

class Tags(_message.Message):
    __slots__ = ("tags",)
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("model", "version", "batch_id", "decision", "reason", "p_value", "log_density", "log_kde", "points", "recorded", "set_size", "set_classes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    P_VALUE_FIELD_NUMBER: _ClassVar[int]
    LOG_DENSITY_FIELD_NUMBER: _ClassVar[int]
    LOG_KDE_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    SET_SIZE_FIELD_NUMBER: _ClassVar[int]
    SET_CLASSES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    batch_id: bytes
    decision: _containers.RepeatedScalarFieldContainer[Decision]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    p_value: _containers.RepeatedScalarFieldContainer[float]
    log_density: _containers.RepeatedScalarFieldContainer[float]
    log_kde: _containers.RepeatedScalarFieldContainer[float]
    points: _containers.RepeatedScalarFieldContainer[float]
    recorded: bool
    set_size: _containers.RepeatedScalarFieldContainer[int]
    set_classes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., batch_id: _Optional[bytes] = ..., decision: _Optional[_Iterable[_Union[Decision, str]]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ..., p_value: _Optional[_Iterable[float]] = ..., log_density: _Optional[_Iterable[float]] = ..., log_kde: _Optional[_Iterable[float]] = ..., points: _Optional[_Iterable[float]] = ..., recorded: bool = ..., set_size: _Optional[_Iterable[int]] = ..., set_classes: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreStreamRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: ScoreRequest
    def __init__(self, request: _Optional[_Union[ScoreRequest, _Mapping]] = ...) -> None: ...

class ScoreStreamResponse(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: ScoreResponse
    error: StreamError
    def __init__(self, response: _Optional[_Union[ScoreResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "message", "row", "field")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    row: int
    field: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., row: _Optional[int] = ..., field: _Optional[str] = ...) -> None: ...

class ReportOutcomesRequest(_message.Message):
    __slots__ = ("model", "outcomes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    model: str
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, model: _Optional[str] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("prediction_id", "label", "label_name", "observed_at")
    PREDICTION_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    prediction_id: str
    label: int
    label_name: str
    observed_at: _timestamp_pb2.Timestamp
    def __init__(self, prediction_id: _Optional[str] = ..., label: _Optional[int] = ..., label_name: _Optional[str] = ..., observed_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReportOutcomesResponse(_message.Message):
    __slots__ = ("recorded", "accuracy")
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    recorded: int
    accuracy: AccuracyReport
    def __init__(self, recorded: _Optional[int] = ..., accuracy: _Optional[_Union[AccuracyReport, _Mapping]] = ...) -> None: ...

class AccuracyReport(_message.Message):
    __slots__ = ("version", "estimate", "withheld", "audited", "audit_labels", "audit_labels_needed", "certificate", "certificate_log_evidence")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_LABELS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_LABELS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_LOG_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    version: str
    estimate: AccuracyRange
    withheld: str
    audited: AccuracyRange
    audit_labels: int
    audit_labels_needed: int
    certificate: CertificateVerdict
    certificate_log_evidence: float
    def __init__(self, version: _Optional[str] = ..., estimate: _Optional[_Union[AccuracyRange, _Mapping]] = ..., withheld: _Optional[str] = ..., audited: _Optional[_Union[AccuracyRange, _Mapping]] = ..., audit_labels: _Optional[int] = ..., audit_labels_needed: _Optional[int] = ..., certificate: _Optional[_Union[CertificateVerdict, str]] = ..., certificate_log_evidence: _Optional[float] = ...) -> None: ...

class AccuracyRange(_message.Message):
    __slots__ = ("value", "low", "high")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class ListPointsRequest(_message.Message):
    __slots__ = ("model", "version", "since", "until", "decisions", "reasons", "predicted", "is_shadow", "page_size", "page_token", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    IS_SHADOW_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    decisions: _containers.RepeatedScalarFieldContainer[Decision]
    reasons: _containers.RepeatedScalarFieldContainer[Reason]
    predicted: _containers.RepeatedScalarFieldContainer[int]
    is_shadow: bool
    page_size: int
    page_token: str
    tags: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[Decision, str]]] = ..., reasons: _Optional[_Iterable[_Union[Reason, str]]] = ..., predicted: _Optional[_Iterable[int]] = ..., is_shadow: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListPointsResponse(_message.Message):
    __slots__ = ("points", "next_page_token")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[Point]
    next_page_token: str
    def __init__(self, points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("id", "prediction_id", "model", "version", "received_at", "event_time", "x", "y", "log_density", "log_kde", "p_value", "decision", "reason", "predicted", "top_probability", "label", "probabilities", "tags", "trace_id", "prediction_set", "odds", "known", "other")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    LOG_DENSITY_FIELD_NUMBER: _ClassVar[int]
    LOG_KDE_FIELD_NUMBER: _ClassVar[int]
    P_VALUE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    TOP_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_SET_FIELD_NUMBER: _ClassVar[int]
    ODDS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    id: str
    prediction_id: str
    model: str
    version: str
    received_at: _timestamp_pb2.Timestamp
    event_time: _timestamp_pb2.Timestamp
    x: float
    y: float
    log_density: float
    log_kde: float
    p_value: float
    decision: Decision
    reason: Reason
    predicted: int
    top_probability: float
    label: int
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    tags: _containers.ScalarMap[str, str]
    trace_id: str
    prediction_set: _containers.RepeatedScalarFieldContainer[int]
    odds: float
    known: int
    other: float
    def __init__(self, id: _Optional[str] = ..., prediction_id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., received_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., event_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., x: _Optional[float] = ..., y: _Optional[float] = ..., log_density: _Optional[float] = ..., log_kde: _Optional[float] = ..., p_value: _Optional[float] = ..., decision: _Optional[_Union[Decision, str]] = ..., reason: _Optional[_Union[Reason, str]] = ..., predicted: _Optional[int] = ..., top_probability: _Optional[float] = ..., label: _Optional[int] = ..., probabilities: _Optional[_Iterable[float]] = ..., tags: _Optional[_Mapping[str, str]] = ..., trace_id: _Optional[str] = ..., prediction_set: _Optional[_Iterable[int]] = ..., odds: _Optional[float] = ..., known: _Optional[int] = ..., other: _Optional[float] = ...) -> None: ...
