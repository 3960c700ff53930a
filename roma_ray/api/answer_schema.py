"""The JSON schema that an answer has to fit, read from the file that `answer` names and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from roma_ray.errors import ConfigError
from roma_ray.types import Json


def answer_schema(answer: str) -> Json:
    """The JSON schema that the answer has to fit, None for `short` and `text`."""
    if answer in ("short", "text"):
        return None
    # Imported here: only an answer with a schema pays for it.
    import jsonschema
    from jsonschema.validators import validator_for

    try:
        schema = orjson.loads(Path(answer).expanduser().read_bytes())
        validator_for(schema).check_schema(schema)
    except OSError as error:
        raise ConfigError(
            f"answer={answer}: {error.strerror}", cure="answer is `short`, `text`, or the path of a JSON schema"
        ) from error
    except (ValueError, jsonschema.SchemaError) as error:
        reason = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
        raise ConfigError(f"answer={answer} is not a JSON schema: {reason}", cure="correct the file") from error
    _check_references(schema, answer)
    return schema


def _check_references(schema: Json, answer: str) -> None:
    """Raises ConfigError for a `$ref` that leads nowhere, or to another document: nothing is fetched for a schema."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    specification = specification_with(dialect, default=DRAFT202012) if dialect else DRAFT202012
    resource: Any = specification.create_resource(schema)
    registry: Any = Registry().with_resource(resource.id() or "", resource).crawl()
    resolver = registry.resolver(resource.id() or "")
    parts: list[Any] = [schema]
    while parts:
        part = parts.pop()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        reference = part.get("$ref") if isinstance(part, dict) else None
        if not isinstance(reference, str):
            continue
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise ConfigError(
                f"answer={answer}: $ref {reference!r} leads nowhere", cure="put what it names into the file's $defs"
            ) from error
