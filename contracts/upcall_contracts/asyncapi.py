"""The AsyncAPI 3.0 description of the wire: channels, messages and who sends what."""

from typing import Any

from .commands import COMMANDS
from .events import EVENT_TYPES, Family
from .queries import QUERIES

Node = dict[str, Any]

_FAMILY_ID = {
    Family.LIFECYCLE: ("attempt", "The run's attempt, from 1."),
    Family.WORK: ("work_id", "The work."),
    Family.QUESTION: ("request_id", "The question."),
    Family.REPORT: ("period_id", "The report's period."),
}

_PARAMETERS = {
    "caller": "A session id, a runner's id, or operator.",
    "run_id": "The run that the event is of.",
    "parent_run_id": "The parent's run, whose topic has the copy.",
    "session_id": "The session.",
    "item_id": "The request_id, period_id or work_id.",
    "agent": "The agent's name.",
    "service": "The service that gave up.",
    "event": "What happened.",
    **dict(_FAMILY_ID.values()),
}


def asyncapi_document(version: str) -> Node:
    """The whole document; its messages refer to the JSON Schemas beside it."""
    channels: Node = {
        "reply": _channel(None, ["refused"], {}),
        "query_reply": _channel(None, ["refused"], {}),
    }
    messages: Node = {"refused": _message("errors/reply.json", "A command or query was refused.")}
    operations: Node = {}
    _add_requests(channels, messages, operations)
    _add_events(channels, messages, operations)
    _add_rest(channels, messages, operations)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Upcall",
            "version": version,
            "description": "How a subagent calls up to its parent: asking, continuing and reporting.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "parameters": {name: {"description": text} for name, text in _PARAMETERS.items()},
        },
    }


def _add_requests(channels: Node, messages: Node, operations: Node) -> None:
    """Commands on JetStream, answered at the header reply_to; queries as plain requests."""
    for kind, folder, specs in (("cmd", "commands", COMMANDS), ("query", "queries", QUERIES)):
        reply_channel = "reply" if kind == "cmd" else "query_reply"
        for (noun, verb), spec in specs.items():
            name, done = f"{kind}_{noun}_{verb}", f"{kind}_{noun}_{verb}_reply"
            messages[name] = _message(f"{folder}/{noun}.{verb}.json", spec.model.__doc__ or "")
            if kind == "cmd":
                messages[name]["headers"] = _REPLY_TO
            messages[done] = _message(f"{folder}/{noun}.{verb}.reply.json", f"The result of {noun}.{verb}.")
            channels[name] = _channel(f"{kind}.{{caller}}.{noun}.{verb}", [name], {"caller": "caller"})
            channels[reply_channel]["messages"][done] = _ref("components", "messages", done)
            operations[name] = _operation("receive", name, [name]) | {
                "reply": {
                    **({"address": {"location": "$message.header#/reply_to"}} if kind == "cmd" else {}),
                    "channel": _ref("channels", reply_channel),
                    "messages": [_ref("channels", reply_channel, "messages", m) for m in (done, "refused")],
                }
            }


def _add_events(channels: Node, messages: Node, operations: Node) -> None:
    """Each family on its run's topic, and its copy on the parent's."""
    for family in Family:
        types = [kind.value for (of, _), kind in EVENT_TYPES.items() if of is family]
        words = [event for of, event in EVENT_TYPES if of is family]
        for kind in types:
            messages[kind] = _message(f"events/{kind}.json", f"The event {kind}.")
        id_name, _ = _FAMILY_ID[family]
        tail = f"{{run_id}}.{family.value}.{{{id_name}}}.{{event}}"
        parameters = {"run_id": "run_id", id_name: id_name}
        for name, address, more in (
            (f"run_{family.value}", f"run.{tail}", {}),
            (
                f"child_{family.value}",
                f"run.{{parent_run_id}}.child.{tail}",
                {"parent_run_id": "parent_run_id"},
            ),
        ):
            channels[name] = _channel(address, types, parameters | more)
            channels[name]["parameters"]["event"] = {"description": _PARAMETERS["event"], "enum": words}
            operations[name] = _operation("send", name, types)


def _add_rest(channels: Node, messages: Node, operations: Node) -> None:
    """Inboxes, dispatches, heartbeats and dead letters."""
    messages["heartbeat"] = _message("records/heartbeat.json", "A host says that it is there; may be empty.")
    messages["dispatch"] = _message("records/run.json", "A run to claim; ack it once the claim is answered.")
    messages["dead_letter"] = _message("records/dead_letter.json", "A message that could not be handled.")
    items = [
        kind.value
        for (family, _), kind in EVENT_TYPES.items()
        if family in (Family.QUESTION, Family.WORK) or kind.value == "report_delivered"
    ]
    for name, address, names, parameters, action in (
        ("inbox", "inbox.{session_id}.{item_id}", items, ("session_id", "item_id"), "send"),
        ("dispatch", "dispatch.{agent}", ["dispatch"], ("agent",), "send"),
        ("heartbeat", "heartbeat.{session_id}", ["heartbeat"], ("session_id",), "receive"),
        ("dead", "dead.{service}", ["dead_letter"], ("service",), "send"),
    ):
        channels[name] = _channel(address, names, {parameter: parameter for parameter in parameters})
        operations[name] = _operation(action, name, names)


def _channel(address: str | None, messages: list[str], parameters: dict[str, str]) -> Node:
    channel: Node = {
        "address": address,
        "messages": {name: _ref("components", "messages", name) for name in messages},
    }
    if parameters:
        channel["parameters"] = {
            name: _ref("components", "parameters", of) for name, of in parameters.items()
        }
    return channel


def _message(path: str, summary: str) -> Node:
    return {"summary": " ".join(summary.split()), "payload": {"$ref": f"./{path}"}}


def _operation(action: str, channel: str, messages: list[str]) -> Node:
    return {
        "action": action,
        "channel": _ref("channels", channel),
        "messages": [_ref("channels", channel, "messages", name) for name in messages],
    }


def _ref(*path: str) -> Node:
    return {"$ref": "#/" + "/".join(path)}


_REPLY_TO: Node = {
    "type": "object",
    "properties": {
        "reply_to": {"type": "string", "description": "An inbox under _INBOX. for the reply; may be absent."}
    },
}
