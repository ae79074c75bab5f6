"""What requests may say and what answers say, with bounds: the source of the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from ...features.text_head import LOGIT_SCALES
from ...methods.given import NONE
from ...ranges import MOST_SEED
from .packing import MOST_COLUMNS, MOST_ROWS, Matrix, PackedAnswer

MOST_CLASSES, MOST_TEMPLATES, MOST_IMAGES = 20_000, 200, 10_000
NAME = 200  # characters
ID = "^[0-9a-f]{32}$"

Name = Annotated[str, Field(min_length=1, max_length=NAME)]
Label = Annotated[int, Field(ge=NONE, lt=MOST_CLASSES)]
Class = Annotated[int, Field(ge=0, lt=MOST_CLASSES)] | Name
Known = (
    Annotated[list[Label], Field(max_length=MOST_ROWS)]
    | Annotated[dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,5})$")], Label | Name], Field(max_length=MOST_ROWS)]
)
Present = Annotated[list[Class], Field(min_length=1, max_length=MOST_CLASSES)]
Reject = Annotated[float, Field(gt=0, le=1)]
File = Annotated[str, Field(min_length=1)]

KNOWN = 'Labels that a person gave: {"3": "cat"} by image, or n numbers. −1: unknown; −2: none of the classes.'
PRESENT = "The classes that can occur, as names or numbers; the others get probability 0. Default: all."
REJECT = "Images whose score `none` is above it get the label −1, and the others are labelled once more."


_ONE_BATCH: JsonDict = {"oneOf": [{"required": ["image_features"]}, {"required": ["images"]}]}
_SOME_CLASSES: JsonDict = {"anyOf": [{"required": ["text_features"]}, {"required": ["classes"]}]}


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Batch(_Request):
    """The images: their features, or the files themselves."""

    model_config = ConfigDict(json_schema_extra=_ONE_BATCH)

    image_features: Matrix | None = Field(None, description="n×d unit rows, one per image.")
    images: Annotated[list[File], Field(min_length=1, max_length=MOST_IMAGES)] | None = Field(
        None, description="n image files in base64, at most 50 megapixels each. Needs a server with an encoder."
    )
    known: Known | None = Field(None, description=KNOWN)
    reject: Reject | None = Field(None, description=REJECT)
    probs: bool = Field(False, description="Answer with the probabilities of all classes too, n×k.")

    @model_validator(mode="after")
    def _one(self) -> Batch:
        if (self.image_features is None) == (self.images is None):
            raise ValueError("give either image_features or images")
        return self


class Head(_Request):
    """The classes: their text features, or names that the server's encoder encodes; and the method."""

    model_config = ConfigDict(json_schema_extra=_SOME_CLASSES)

    text_features: Matrix | None = Field(None, description="k×d unit rows, one per class.")
    classes: Annotated[list[Name], Field(min_length=1, max_length=MOST_CLASSES)] | None = Field(
        None, description="k class names. Without text_features they are encoded: that needs a server with an encoder."
    )
    templates: Annotated[list[Name], Field(min_length=1, max_length=MOST_TEMPLATES)] | None = Field(
        None, description='Prompts for class names, each with {} once. Default: "a photo of a {}."'
    )
    logit_scale: Annotated[float, Field(ge=LOGIT_SCALES[0], le=LOGIT_SCALES[1])] | None = Field(
        None, description="Default: the encoder's, or 100 with text_features."
    )
    normalize: bool = Field(
        False, description="Scale rows to unit norm. Otherwise rows without unit norm are an error."
    )
    method: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        "kedge", description="A method and its settings, like `stata:alpha=2`; `kedge ls methods` lists them."
    )
    present: Present | None = Field(None, description=PRESENT)

    @model_validator(mode="after")
    def _some(self) -> Head:
        if self.text_features is None and self.classes is None:
            raise ValueError("give text_features, or classes")
        if self.text_features is not None and self.templates is not None:
            raise ValueError("templates are for classes without text_features")
        return self


class AdaptRequest(Head, Batch):
    """Label n images jointly."""

    model_config = ConfigDict(json_schema_extra={**_ONE_BATCH, **_SOME_CLASSES})


class StreamRequest(Head):
    """A new stream."""


class StepRequest(Batch):
    """The next batch of a stream."""

    step: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = Field(
        None, description="The number of batches so far. If the stream has another one, nothing is done: 409."
    )


class PresentRequest(_Request):
    """The classes that can occur from now on."""

    present: Present | None = Field(description=PRESENT)


class Error(BaseModel):
    """What was wrong, and what to do."""

    error: str


class FoundClass(BaseModel):
    """A class that the batch seems to show."""

    number: int
    name: str
    count: float = Field(description="Expected number of its images.")
    evidence: float = Field(description="Mean zero-shot probability of its images.")
    example: int = Field(description="The image most surely of this class.")


class Verdict(BaseModel):
    """Can the labels be used?"""

    level: Literal["good", "weak", "do not use"]
    sentence: str
    accuracy: float = Field(description="Expected share of right labels.")
    numbers: dict[str, float | None]


class Labels(BaseModel):
    """The labels of a batch. Arrays are lists, or packed if the request's were."""

    labels: list[int] | PackedAnswer = Field(description="n class numbers; −1: none of the classes.")
    names: list[str] = Field(description="n class names.")
    probability: list[float] | PackedAnswer = Field(description="n: of the most probable class.")
    zero_shot_labels: list[int] | PackedAnswer = Field(description="n class numbers, by the encoder alone.")
    none: list[float] | PackedAnswer = Field(description="n scores: does the image show none of the classes?")
    review: list[int] | PackedAnswer = Field(description="Images with unknown label, most worth a look first.")
    classes: list[FoundClass] = Field(description="The classes found, most in doubt first.")
    verdict: Verdict
    info: dict[str, Any] = Field(description="What the method reports.")
    probs: list[list[float]] | PackedAnswer | None = Field(None, description="n×k, if asked for.")


class StepLabels(Labels):
    """The labels of a batch, and the number of batches the stream has had with it."""

    step: int


class StreamInfo(BaseModel):
    """A stream."""

    id: str
    step: int = Field(description="How many batches it has had.")
    method: dict[str, Any]
    classes: list[str]
    dimension: int = Field(le=MOST_COLUMNS)
    logit_scale: float
    normalize: bool
    present: list[int] | None


class StreamFile(BaseModel):
    """A stream on disk."""

    id: str
    bytes: int
    changed: float = Field(description="Seconds since 1970, of the last step.")


class StreamList(BaseModel):
    """All streams, the last used first."""

    streams: list[StreamFile]


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"]
    version: str
