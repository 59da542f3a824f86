"""What valid requests need that no schema can say: they are completed before they are sent. Invalid ones stay as they are."""

import itertools
import json
import os
import re

import schemathesis

KNOWN = json.loads(os.environ["ROLLCALL_KNOWN"])
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Waits are to be short here.
WAIT_MS = 20
EXACT = 2**53 - 1
COUNT = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    keep_the_key(case)
    body = case.body if isinstance(case.body, dict) else {}
    wait = body.get("waitMs")
    if type(wait) is int and wait > WAIT_MS:
        body["waitMs"] = min(wait, WAIT_MS) if wait <= 30_000 else wait
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    # Cursors are what a page has given.
    for part in (case.query, body):
        if part:
            part.pop("cursor", None)
    if body.get("runAt", "") > "2026":
        body["runAt"] = "2026-01-01T00:00:00Z"
    # A batch has one key, or its members have theirs; a command has a key or an id.
    if case.headers and (case.path == "/v1/tasks/batch" or "commandId" in body):
        case.headers.pop("idempotency-key", None)
    # In the phase of coverage Schemathesis takes the quotes of an ETag for those of JSON.
    if case.headers and (case.headers.get("if-match") or "").isdigit():
        case.headers["if-match"] = f'"{case.headers["if-match"]}"'
    for field in ("payload", "result", "context", "tasks", "reports"):
        if field in body:
            body[field] = exact(body[field])
    name_what_is_there(case, body)


def keep_the_key(case):
    """Ids are taken from answers as well: without the key of this run all that follows would be 401."""
    if "/keys/" in case.path and (case.path_parameters or {}).get("id") in KNOWN["key"]:
        case.path_parameters["id"] = "another"


def name_what_is_there(case, body):
    """Three of four ids are of tasks, letters and attempts that exist."""
    id = (case.path_parameters or {}).get("id")
    if not isinstance(id, str) or not UUID.fullmatch(id):
        return
    number = next(COUNT)
    if number % 4 == 3:
        return
    kind = "letters" if "dead-letters" in case.path else "running" if "leaseToken" in body else "tasks"
    ids = KNOWN[kind]
    case.path_parameters["id"] = ids[number % len(ids)]
    if kind == "running":
        body["attempt"] = 1
        body["leaseToken"] = KNOWN["leaseToken"]


def exact(value):
    """JSON with the numbers that a double keeps."""
    if isinstance(value, list):
        return [exact(one) for one in value]
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if type(value) is int and abs(value) > EXACT:
        return 0
    return value
