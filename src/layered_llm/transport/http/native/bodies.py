"""Bodies of the native endpoints as requests or as errors.

Must not know: which endpoints there are.
"""

from collections.abc import Callable
from typing import TypeVar

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.api_error import ApiError, bad_parameter, bad_request
from layered_llm.transport.http.openai_schema import fields as read

RequestT = TypeVar("RequestT")


def checked(body: bytes, build: Callable[[read.JsonObject], RequestT]) -> RequestT | ApiError:
    """What `build` makes of the JSON object in `body`, or why it does not."""
    try:
        return build(read.decode_object(body))
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)
