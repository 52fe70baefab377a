"""Who may say what on NATS, as the server's own configuration: nobody writes permission blocks by hand.

    python -m upcall_deploy.permissions users deploy/nats/users.toml > deploy/nats/parts/users.conf
    python -m upcall_deploy.permissions harness --user shop lead-1 lead-2    # one block, to look at
    python -m upcall_deploy.permissions accounts > deploy/nats/parts/accounts.conf
    python -m upcall_deploy.permissions passwords > deploy/.env

Two accounts. UPCALL has the services and the streams. AGENTS has everyone else, and takes from UPCALL what
its users may need, as imports: so whatever one of them names as a reply subject is a subject of AGENTS, where
no stream listens. (In one account, a command published with the reply subject `log.session.…` would have the
server write its acknowledgement into the log: NATS checks no permission on reply subjects.) MONITOR is for
looking at streams and consumers, and reads no message.
"""

import argparse
import json
import secrets
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcall_contracts import streams, subjects
from upcall_contracts.ids import OPERATOR, is_token

SERVICES, AGENTS, MONITOR = "UPCALL", "AGENTS", "MONITOR"
JS_API = "$JS.API."
OUR_JS_API = f"JS.{SERVICES}.API."
"""Where the accounts beside UPCALL find its JetStream. They map $JS.API to it, so that clients need not know;
a server checks permissions behind the mapping, so these are the subjects in permission blocks."""

_INFO = "INFO"
_READABLE = (streams.TOPICS, streams.INBOX, streams.DEAD)
_CONSUMERS_OF_STREAM = ("CONSUMER.CREATE.{}.>", "CONSUMER.INFO.{}.*", "CONSUMER.DELETE.{}.*")
_NEXT = "CONSUMER.MSG.NEXT.{}.*"
_LOOKING = (_INFO, "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "CONSUMER.LIST.*", "CONSUMER.INFO.*.*")
_BESIDE_USERS = {"UPCALL_NATS_ROUTE_PASSWORD", "UPCALL_REDIS_PASSWORD"}
HEADER = "# Made by `python -m upcall_deploy.permissions {}`; change what it is made from.\n"


class UsersError(Exception):
    """The users' file can't be made into a configuration; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that a user may publish to, and those it may subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    never_publish: tuple[str, ...] = ()

    def block(self, indent: str = "") -> str:
        """The value of `permissions` in the server's configuration."""
        publish = f"allow: {_list(self.publish, indent + '  ')}"
        if self.never_publish:
            publish += f", deny: {_list(self.never_publish, indent + '  ')}"
        subscribe = f"allow: {_list(self.subscribe, indent + '  ')}"
        return f"{{\n{indent}  publish: {{ {publish} }}\n{indent}  subscribe: {{ {subscribe} }}\n{indent}}}"


def inbox_prefix(user: str) -> str:
    """The prefix of a user's own reply subjects; a client is told it as its inbox prefix."""
    return f"{subjects.REPLY_PREFIX}{_token(user)}"


def harness(user: str, sessions: Iterable[str]) -> Permissions:
    """A program that is the host of these sessions, and of no other."""
    sessions = _sessions(sessions)
    publish = [f"{kind}.{s}.*.*" for kind in ("cmd", "query") for s in sessions]
    publish += map(subjects.heartbeat, sessions)
    publish += [f"{OUR_JS_API}CONSUMER.CREATE.{streams.INBOX}.*.{subjects.inbox_all(s)}" for s in sessions]
    return _speaker(user, publish, (streams.TOPICS, streams.INBOX))


def runner(user: str, runner_id: str, agents: Iterable[str]) -> Permissions:
    """A runner, as itself, that takes the runs of these agents.

    It may beat for any session: those of the runs that it will claim are not known beforehand.
    """
    publish = [f"cmd.{_token(runner_id)}.*.*", f"query.{runner_id}.*.*", subjects.HEARTBEAT_ALL]
    for agent in map(_token, agents):
        of_agent = f"{streams.DISPATCH}.{agent}"
        publish += [
            f"{OUR_JS_API}CONSUMER.CREATE.{of_agent}.{subjects.dispatch(agent)}",
            f"{OUR_JS_API}CONSUMER.INFO.{of_agent}",
            f"{OUR_JS_API}CONSUMER.MSG.NEXT.{of_agent}",
            f"$JS.ACK.{of_agent}.>",
        ]
    return _speaker(user, publish, (streams.TOPICS,))


def agents(user: str) -> Permissions:
    """A harness that is any session and any runner, but not the operator: all who use it trust each other.

    For a program that hosts children itself: their sessions' ids are made by the services.
    """
    publish = ["cmd.*.*.*", "query.*.*.*", subjects.HEARTBEAT_ALL, f"$JS.ACK.{streams.DISPATCH}.>"]
    publish += [
        OUR_JS_API + verb for verb in _consumers(streams.DISPATCH, (*_CONSUMERS_OF_STREAM[:2], _NEXT))
    ]
    publish += [f"{OUR_JS_API}CONSUMER.CREATE.{streams.INBOX}.*.{subjects.INBOX_ALL}"]
    never = (f"cmd.{OPERATOR}.>", f"query.{OPERATOR}.>")
    return _speaker(user, publish, (streams.TOPICS, streams.INBOX), never)


def operator(user: str) -> Permissions:
    """A person, or a tool of theirs: sees everything and settles everything."""
    publish = [f"cmd.{OPERATOR}.*.*", f"query.{OPERATOR}.*.*"]
    publish += [f"{OUR_JS_API}CONSUMER.CREATE.{name}.>" for name in (streams.INBOX, streams.DEAD)]
    return _speaker(user, publish, _READABLE)


def monitor(user: str) -> Permissions:
    """Looks at streams and consumers, reads no message and changes nothing. Of the account MONITOR."""
    return Permissions(tuple(OUR_JS_API + verb for verb in _LOOKING), (inbox_prefix(user) + ".>",))


def _speaker(
    user: str, publish: Sequence[str], reads: Iterable[str], never: tuple[str, ...] = ()
) -> Permissions:
    """What all have who speak: their replies, every run's events, and consumers that they make and name.

    A consumer's name is all that protects it from others: clients make it up at random.
    """
    allowed = [*publish, OUR_JS_API + _INFO]
    allowed += [f"{OUR_JS_API}CONSUMER.CREATE.{streams.TOPICS}.*.{subjects.TOPIC_ALL}"]
    for name in reads:
        allowed += [OUR_JS_API + verb for verb in _consumers(name, (*_CONSUMERS_OF_STREAM[1:], _NEXT))]
        allowed += [f"$JS.ACK.{name}.>", f"$JS.FC.{name}.>"]
    return Permissions(tuple(allowed), (inbox_prefix(user) + ".>", subjects.TOPIC_ALL), never)


# The configuration of the accounts


def accounts() -> str:
    """`accounts.conf`: the accounts, what passes between them, and the users that are always there."""
    services, looking = list(_imported_by_agents()), [f"{JS_API}{verb}" for verb in _LOOKING]
    to_services = ("query.*.*.*", subjects.HEARTBEAT_ALL)
    offered = ", ".join(f"{{ stream: {_q(s)}, accounts: [{SERVICES}] }}" for s in to_services)
    watched = f"{{ user: monitor, password: $UPCALL_NATS_MONITOR_PASSWORD, permissions: {_watching()} }}"
    replies = f"{subjects.REPLY_PREFIX}>"
    lines = [
        HEADER.format("accounts"),
        "accounts {",
        f"  {SERVICES} {{",
        "    jetstream: enabled",
        "    users: [ { user: services, password: $UPCALL_NATS_SERVICES_PASSWORD } ]",
        "    exports: [",
        *(f"      {{ service: {_q(s)}, accounts: [{AGENTS}]{_response(s)} }}" for s in services),
        *(f"      {{ service: {_q(s)}, accounts: [{_also_agents(s)}{MONITOR}] }}" for s in looking),
        f"      {{ stream: {_q(subjects.TOPIC_ALL)}, accounts: [{AGENTS}] }}",
        f"      {{ stream: {_q(replies)}, accounts: [{AGENTS}, {MONITOR}] }}",
        "    ]",
        "    imports: [",
        *(f"      {{ stream: {{ account: {AGENTS}, subject: {_q(s)} }} }}" for s in to_services),
        "    ]",
        "  }",
        f"  {AGENTS} {{",
        "    include users.conf",
        f"    exports: [ {offered} ]",
        *_taking([*services, JS_API + _INFO], (subjects.TOPIC_ALL, replies)),
        "  }",
        f"  {MONITOR} {{",
        f"    users: [ {watched} ]",
        *_taking(looking, (replies,)),
        "  }",
        "  SYS { users: [ { user: system, password: $UPCALL_NATS_SYSTEM_PASSWORD } ] }",
        "}",
        "system_account: SYS",
    ]
    return "\n".join(lines) + "\n"


def _watching() -> str:
    return monitor("monitor").block("    ")


def _imported_by_agents() -> Iterable[str]:
    yield "cmd.*.*.*"
    for name in (*_READABLE, streams.DISPATCH):
        yield from (JS_API + verb for verb in _consumers(name, (*_CONSUMERS_OF_STREAM, _NEXT)))
        yield f"$JS.ACK.{name}.>"
        yield f"$JS.FC.{name}.>"


def _taking(services: Iterable[str], streamed: Iterable[str]) -> Iterable[str]:
    """The imports of an account beside UPCALL, where a mapping lets JetStream's API keep its name.

    Imported under that name, the server would answer for the account that asks, which has no JetStream.
    """
    services = list(services)
    yield "    imports: ["
    for subject in services:
        to = f", to: {_q(_ours(subject))}" if subject.startswith(JS_API) else ""
        yield f"      {{ service: {{ account: {SERVICES}, subject: {_q(subject)} }}{to} }}"
    yield from (f"      {{ stream: {{ account: {SERVICES}, subject: {_q(s)} }} }}" for s in streamed)
    yield "    ]"
    yield "    mappings: {"
    for subject in filter(lambda s: s.startswith(JS_API), services):
        yield f"      {_q(subject)}: {_q(_numbered(_ours(subject)))}"
    yield "    }"


def _ours(subject: str) -> str:
    return OUR_JS_API + subject.removeprefix(JS_API)


def _numbered(subject: str) -> str:
    """The target of a mapping: its `*` are the source's, in their order."""
    tokens = subject.split(".")
    places = iter(range(1, len(tokens) + 1))
    return ".".join(f"${next(places)}" if token == "*" else token for token in tokens)


def _response(service: str) -> str:
    return ", response: stream" if ".MSG.NEXT." in service else ""


def _also_agents(subject: str) -> str:
    return f"{AGENTS}, " if subject == JS_API + _INFO else ""


# The users


def users(text: str) -> str:
    """`users.conf`: the users of AGENTS, as a TOML file lists them."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsersError(f"the users' file is no TOML: {error}") from error
    blocks = [_user(kind, entry) for kind, entries in tables.items() for entry in entries]
    return HEADER.format("users users.toml") + "users: [\n" + "".join(blocks) + "]\n"


def _user(kind: str, entry: dict[str, Any]) -> str:
    name = entry.get("user")
    try:
        permissions = _permissions(kind, entry).block("    ")
        credentials = _credentials(entry)
    except (KeyError, ValueError) as error:
        raise UsersError(f"{kind} {name!r}: {error}") from error
    return f"  {{ {credentials}, permissions: {permissions} }}\n"


def _permissions(kind: str, entry: dict[str, Any]) -> Permissions:
    name = entry["user"]
    match kind:
        case "harness":
            return harness(name, entry["sessions"])
        case "runner":
            return runner(name, entry.get("id", name), entry["agents"])
        case "agents":
            return agents(name)
        case "operator":
            return operator(name)
        case _:
            raise ValueError("a user is a harness, a runner, an operator, or agents (any of the first two)")


def _credentials(entry: dict[str, Any]) -> str:
    if "nkey" in entry:
        return f"nkey: {entry['nkey']}"
    if password_env := entry.get("password_env"):
        return f"user: {_q(entry['user'])}, password: ${password_env}"
    if bcrypt := entry.get("bcrypt"):
        return f"user: {_q(entry['user'])}, password: {_q(bcrypt)}"
    raise ValueError("give it password_env (a variable's name), bcrypt (a password's hash) or nkey")


def passwords(configuration: str) -> str:
    """A new password for each variable that the configuration names, as lines of an environment file.

    They begin with a letter: the server reads a variable's value as a value of its configuration, where what
    begins with a digit is a number.
    """
    named = {word.strip("$,}") for word in configuration.split() if word.startswith("$UPCALL_NATS_")}
    return "".join(f"{name}=p{secrets.token_hex(16)}\n" for name in sorted(named | _BESIDE_USERS))


def _sessions(ids: Iterable[str]) -> list[str]:
    found = [_token(id_) for id_ in ids]
    if not found:
        raise ValueError("a harness needs at least one session")
    if OPERATOR in found:
        raise ValueError("no session may be called operator")
    return found


def _consumers(stream: str, verbs: Iterable[str]) -> list[str]:
    return [verb.format(stream) for verb in verbs]


def _token(text: str) -> str:
    if not is_token(text):
        raise ValueError(f"{text!r} is no id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return text


def _q(text: str) -> str:
    return json.dumps(text)


def _list(items: Sequence[str], indent: str) -> str:
    return "[\n" + "".join(f"{indent}  {_q(item)}\n" for item in items) + f"{indent}]"


# The command


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m upcall_deploy.permissions",
        description="Print parts of nats-server's configuration: accounts, users, one user's permissions.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("accounts", help="the accounts, and what passes between them")
    from_file = kinds.add_parser("users", help="the users of AGENTS, from a TOML file")
    from_file.add_argument("file", type=Path)
    new = kinds.add_parser("passwords", help="a new password for each variable, as an environment file")
    new.add_argument("file", type=Path, nargs="?", help="users.conf; without it, the ones it ships with")
    for kind, ids in (("harness", "SESSION"), ("runner", "AGENT"), ("agents", None), ("operator", None)):
        one = kinds.add_parser(kind, help=f"the permissions of one user: {kind}")
        one.add_argument(
            "--user", required=True, help="its name, which its reply subjects have: _INBOX.<name>.>"
        )
        if kind == "runner":
            one.add_argument("--id", help="the runner's id; the user's name if there is none")
        if ids:
            one.add_argument("ids", metavar=ids, nargs="+")
    return parser.parse_args(arguments)


def _print(options: argparse.Namespace) -> str:
    match options.kind:
        case "accounts":
            return accounts()
        case "users":
            return users(options.file.read_text())
        case "passwords":
            shipped = Path(__file__).parents[1] / "nats" / "parts" / "users.conf"
            return passwords(accounts() + (options.file or shipped).read_text())
        case kind:
            ids, runner_id = getattr(options, "ids", []), getattr(options, "id", None)
            entry = {"user": options.user, "sessions": ids, "agents": ids, "id": runner_id or options.user}
            return f"permissions: {_permissions(kind, entry).block()}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: printed. 2: it can't be."""
    try:
        print(_print(_arguments(arguments)), end="")
    except (OSError, UsersError, ValueError) as error:
        print(f"permissions: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
