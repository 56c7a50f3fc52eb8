"""A body as a request or as an error: the same for every endpoint.

Must not know: which endpoints there are.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.api_error import ApiError, bad_parameter, bad_request
from layered_llm.transport.http.openai_schema import fields as read
from layered_llm.transport.http.openai_schema.body_fields import Field

RequestT = TypeVar("RequestT")

logger = logging.getLogger(__name__)


def checked(body: bytes, build: Callable[[read.JsonObject], RequestT], table: Sequence[Field]) -> RequestT | ApiError:
    """What `build` makes of the JSON object in `body`, whose fields `table` has, or why it does not."""
    try:
        fields = read.decode_object(body)
        _log_ignored(fields, table)
        return build(fields)
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)


def _log_ignored(fields: read.JsonObject, table: Sequence[Field]) -> None:
    if not logger.isEnabledFor(logging.DEBUG):
        return
    ignored = sorted(fields.keys() - {field.name for field in table})
    if ignored:
        logger.debug("fields without effect: %s", ignored)
