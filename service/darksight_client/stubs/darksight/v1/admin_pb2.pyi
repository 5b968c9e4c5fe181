from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGION_MODE_UNSPECIFIED: _ClassVar[RegionMode]
    REGION_MODE_SHADOW: _ClassVar[RegionMode]
    REGION_MODE_ENFORCE: _ClassVar[RegionMode]
REGION_MODE_UNSPECIFIED: RegionMode
REGION_MODE_SHADOW: RegionMode
REGION_MODE_ENFORCE: RegionMode

class Version(_message.Message):
    __slots__ = ("version", "path", "class_names", "calibration_rows", "deployed_at")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_ROWS_FIELD_NUMBER: _ClassVar[int]
    DEPLOYED_AT_FIELD_NUMBER: _ClassVar[int]
    version: str
    path: str
    class_names: _containers.RepeatedScalarFieldContainer[str]
    calibration_rows: int
    deployed_at: _timestamp_pb2.Timestamp
    def __init__(self, version: _Optional[str] = ..., path: _Optional[str] = ..., class_names: _Optional[_Iterable[str]] = ..., calibration_rows: _Optional[int] = ..., deployed_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "active_version", "previous_version", "shadow_version", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHADOW_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    active_version: str
    previous_version: str
    shadow_version: str
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, name: _Optional[str] = ..., active_version: _Optional[str] = ..., previous_version: _Optional[str] = ..., shadow_version: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class DeployBundleRequest(_message.Message):
    __slots__ = ("model", "path", "activate", "author")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    path: str
    activate: bool
    author: str
    def __init__(self, model: _Optional[str] = ..., path: _Optional[str] = ..., activate: bool = ..., author: _Optional[str] = ...) -> None: ...

class DeployBundleResponse(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: Model
    version: str
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class ActivateVersionRequest(_message.Message):
    __slots__ = ("model", "version", "author")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    author: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class ActivateVersionResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("model", "author")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    author: str
    def __init__(self, model: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class RollBackResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetShadowRequest(_message.Message):
    __slots__ = ("model", "version", "author")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    author: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class SetShadowResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("alpha", "threshold", "fail_open", "metric_tags", "log_odds")
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FAIL_OPEN_FIELD_NUMBER: _ClassVar[int]
    METRIC_TAGS_FIELD_NUMBER: _ClassVar[int]
    LOG_ODDS_FIELD_NUMBER: _ClassVar[int]
    alpha: float
    threshold: float
    fail_open: bool
    metric_tags: _containers.RepeatedScalarFieldContainer[str]
    log_odds: float
    def __init__(self, alpha: _Optional[float] = ..., threshold: _Optional[float] = ..., fail_open: bool = ..., metric_tags: _Optional[_Iterable[str]] = ..., log_odds: _Optional[float] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("policy", "effective", "reject_score", "is_certified", "history")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    REJECT_SCORE_FIELD_NUMBER: _ClassVar[int]
    IS_CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    policy: Policy
    effective: Policy
    reject_score: str
    is_certified: bool
    history: _containers.RepeatedCompositeFieldContainer[PolicyChange]
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ..., effective: _Optional[_Union[Policy, _Mapping]] = ..., reject_score: _Optional[str] = ..., is_certified: bool = ..., history: _Optional[_Iterable[_Union[PolicyChange, _Mapping]]] = ...) -> None: ...

class PolicyChange(_message.Message):
    __slots__ = ("changed_at", "author", "policy", "comment", "loosened")
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    LOOSENED_FIELD_NUMBER: _ClassVar[int]
    changed_at: _timestamp_pb2.Timestamp
    author: str
    policy: Policy
    comment: str
    loosened: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changed_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., comment: _Optional[str] = ..., loosened: _Optional[_Iterable[str]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("model", "policy", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    policy: Policy
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("effective", "is_certified", "loosened")
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    IS_CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    LOOSENED_FIELD_NUMBER: _ClassVar[int]
    effective: Policy
    is_certified: bool
    loosened: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, effective: _Optional[_Union[Policy, _Mapping]] = ..., is_certified: bool = ..., loosened: _Optional[_Iterable[str]] = ...) -> None: ...

class DryRunPolicyRequest(_message.Message):
    __slots__ = ("model", "policy", "since", "until")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    model: str
    policy: Policy
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DryRunPolicyResponse(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: DecisionCounts
    after: DecisionCounts
    def __init__(self, before: _Optional[_Union[DecisionCounts, _Mapping]] = ..., after: _Optional[_Union[DecisionCounts, _Mapping]] = ...) -> None: ...

class DecisionCounts(_message.Message):
    __slots__ = ("points", "accepted", "outliers", "low_confidence", "regions", "invalid", "unscored", "accepted_labelled", "accepted_correct", "rejected_labelled", "rejected_correct", "stored")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    LOW_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    INVALID_FIELD_NUMBER: _ClassVar[int]
    UNSCORED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LABELLED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_CORRECT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_LABELLED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_CORRECT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    points: int
    accepted: int
    outliers: int
    low_confidence: int
    regions: int
    invalid: int
    unscored: int
    accepted_labelled: int
    accepted_correct: int
    rejected_labelled: int
    rejected_correct: int
    stored: int
    def __init__(self, points: _Optional[int] = ..., accepted: _Optional[int] = ..., outliers: _Optional[int] = ..., low_confidence: _Optional[int] = ..., regions: _Optional[int] = ..., invalid: _Optional[int] = ..., unscored: _Optional[int] = ..., accepted_labelled: _Optional[int] = ..., accepted_correct: _Optional[int] = ..., rejected_labelled: _Optional[int] = ..., rejected_correct: _Optional[int] = ..., stored: _Optional[int] = ...) -> None: ...

class ResetEvidenceRequest(_message.Message):
    __slots__ = ("model", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class ResetEvidenceResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class Corner(_message.Message):
    __slots__ = ("x", "y")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("name", "version", "polygon", "mode", "author", "comment", "saved_at", "expires_at", "is_from_bundle")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POLYGON_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    IS_FROM_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    polygon: _containers.RepeatedCompositeFieldContainer[Corner]
    mode: RegionMode
    author: str
    comment: str
    saved_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    is_from_bundle: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., polygon: _Optional[_Iterable[_Union[Corner, _Mapping]]] = ..., mode: _Optional[_Union[RegionMode, str]] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ..., saved_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., is_from_bundle: bool = ...) -> None: ...

class RegionChange(_message.Message):
    __slots__ = ("changed_at", "version", "name", "action", "author", "comment")
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    changed_at: _timestamp_pb2.Timestamp
    version: str
    name: str
    action: str
    author: str
    comment: str
    def __init__(self, changed_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., action: _Optional[str] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class Accuracy(_message.Message):
    __slots__ = ("rows", "correct", "low", "high")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    rows: int
    correct: int
    low: float
    high: float
    def __init__(self, rows: _Optional[int] = ..., correct: _Optional[int] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class ListRegionsRequest(_message.Message):
    __slots__ = ("model", "version", "include_history")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_HISTORY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    include_history: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., include_history: bool = ...) -> None: ...

class ListRegionsResponse(_message.Message):
    __slots__ = ("regions", "history")
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    history: _containers.RepeatedCompositeFieldContainer[RegionChange]
    def __init__(self, regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[RegionChange, _Mapping]]] = ...) -> None: ...

class PreviewRegionRequest(_message.Message):
    __slots__ = ("model", "version", "name", "polygon", "since", "until", "examples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLYGON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    name: str
    polygon: _containers.RepeatedCompositeFieldContainer[Corner]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    examples: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., polygon: _Optional[_Iterable[_Union[Corner, _Mapping]]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., examples: _Optional[int] = ...) -> None: ...

class PreviewRegionResponse(_message.Message):
    __slots__ = ("reference_points", "reference_inside", "reference_accuracy", "examined", "since", "accepted", "inside", "inside_accepted", "inside_rejected", "accuracy", "accepted_accuracy", "new_accuracy", "examples")
    REFERENCE_POINTS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_INSIDE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    INSIDE_FIELD_NUMBER: _ClassVar[int]
    INSIDE_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    INSIDE_REJECTED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    NEW_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    reference_points: int
    reference_inside: int
    reference_accuracy: Accuracy
    examined: int
    since: _timestamp_pb2.Timestamp
    accepted: int
    inside: int
    inside_accepted: int
    inside_rejected: int
    accuracy: Accuracy
    accepted_accuracy: Accuracy
    new_accuracy: Accuracy
    examples: _containers.RepeatedCompositeFieldContainer[RegionExample]
    def __init__(self, reference_points: _Optional[int] = ..., reference_inside: _Optional[int] = ..., reference_accuracy: _Optional[_Union[Accuracy, _Mapping]] = ..., examined: _Optional[int] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., accepted: _Optional[int] = ..., inside: _Optional[int] = ..., inside_accepted: _Optional[int] = ..., inside_rejected: _Optional[int] = ..., accuracy: _Optional[_Union[Accuracy, _Mapping]] = ..., accepted_accuracy: _Optional[_Union[Accuracy, _Mapping]] = ..., new_accuracy: _Optional[_Union[Accuracy, _Mapping]] = ..., examples: _Optional[_Iterable[_Union[RegionExample, _Mapping]]] = ...) -> None: ...

class RegionExample(_message.Message):
    __slots__ = ("prediction_id", "x", "y", "predicted", "label", "is_accepted", "probabilities", "received_at")
    PREDICTION_ID_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    IS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    prediction_id: str
    x: float
    y: float
    predicted: int
    label: int
    is_accepted: bool
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    received_at: _timestamp_pb2.Timestamp
    def __init__(self, prediction_id: _Optional[str] = ..., x: _Optional[float] = ..., y: _Optional[float] = ..., predicted: _Optional[int] = ..., label: _Optional[int] = ..., is_accepted: bool = ..., probabilities: _Optional[_Iterable[float]] = ..., received_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SaveRegionRequest(_message.Message):
    __slots__ = ("model", "version", "name", "polygon", "expires_at", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLYGON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    name: str
    polygon: _containers.RepeatedCompositeFieldContainer[Corner]
    expires_at: _timestamp_pb2.Timestamp
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., polygon: _Optional[_Iterable[_Union[Corner, _Mapping]]] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class SaveRegionResponse(_message.Message):
    __slots__ = ("region",)
    REGION_FIELD_NUMBER: _ClassVar[int]
    region: Region
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ...) -> None: ...

class SetRegionModeRequest(_message.Message):
    __slots__ = ("model", "version", "name", "mode", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    name: str
    mode: RegionMode
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., mode: _Optional[_Union[RegionMode, str]] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class SetRegionModeResponse(_message.Message):
    __slots__ = ("region",)
    REGION_FIELD_NUMBER: _ClassVar[int]
    region: Region
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ...) -> None: ...

class RemoveRegionRequest(_message.Message):
    __slots__ = ("model", "version", "name", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    name: str
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class RemoveRegionResponse(_message.Message):
    __slots__ = ("region",)
    REGION_FIELD_NUMBER: _ClassVar[int]
    region: Region
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ...) -> None: ...

class CarryOverRegionRequest(_message.Message):
    __slots__ = ("model", "name", "version", "to_version", "save", "author", "comment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TO_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    version: str
    to_version: str
    save: bool
    author: str
    comment: str
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., to_version: _Optional[str] = ..., save: bool = ..., author: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class CarryOverRegionResponse(_message.Message):
    __slots__ = ("region", "is_same_map", "stored_rows", "reference_rows", "rows_inside", "other_rows", "other_rows_inside", "is_saved")
    REGION_FIELD_NUMBER: _ClassVar[int]
    IS_SAME_MAP_FIELD_NUMBER: _ClassVar[int]
    STORED_ROWS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_INSIDE_FIELD_NUMBER: _ClassVar[int]
    OTHER_ROWS_FIELD_NUMBER: _ClassVar[int]
    OTHER_ROWS_INSIDE_FIELD_NUMBER: _ClassVar[int]
    IS_SAVED_FIELD_NUMBER: _ClassVar[int]
    region: Region
    is_same_map: bool
    stored_rows: int
    reference_rows: int
    rows_inside: int
    other_rows: int
    other_rows_inside: int
    is_saved: bool
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ..., is_same_map: bool = ..., stored_rows: _Optional[int] = ..., reference_rows: _Optional[int] = ..., rows_inside: _Optional[int] = ..., other_rows: _Optional[int] = ..., other_rows_inside: _Optional[int] = ..., is_saved: bool = ...) -> None: ...
