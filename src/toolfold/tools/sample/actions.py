"""Actions of the sample services: what their tools do with the records.

Each takes the running call and returns its result. `ACTIONS` maps the names in the data to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from toolfold.core.errors import CallError
from toolfold.core.types import Json
from toolfold.tools.sample.queries import NOW, compare, equals, fold
from toolfold.tools.sample.sample_records import SampleCall, make_plural

MAX_LISTED = 50
_SIZES = ("limit", "page_size", "per_page", "first", "maxResults", "count", "pageSize", "steps")
_DAY_START, _DAY_END = 9, 17
_DONE = frozenset({"done", "closed"})


def _list(call: SampleCall) -> Json:
    found = call.select()
    size = min(next((call.args[each] for each in _SIZES if call.args.get(each)), MAX_LISTED), MAX_LISTED)
    start = call.args.get("offset") or (call.args.get("page", 1) - 1) * size
    result = {make_plural(call.kind): found[start : start + size], "total": len(found)}
    return call.add_related(result, found)


def _get(call: SampleCall) -> Json:
    targets = call.require_targets()
    extra = call.make_fields()
    for each in targets:
        fixed = {name: value for name, value in extra.items() if name in each and isinstance(value, bool)}
        each.update(fixed)
    links = {name: value for name, value in call.rules.constants if isinstance(value, str)}
    others = [each for each in targets if all(equals(each.get(k), v) for k, v in extra.items() if k in each)]
    if not others:
        raise CallError(f"There is no such {call.kind.replace('_', ' ')}: it has other values than the call.")
    shown: Any = others[0] if len(others) == 1 else others
    return call.add_related({call.kind: shown, **links}, others)


def _add(call: SampleCall) -> Json:
    fields = call.make_fields()
    if call.rules.copied:
        for source in call.find_targets(call.rules.copied):
            fields = {**{k: v for k, v in source.items() if k != "id"}, **fields}
    return {"created": call.data.add(call.kind, fields)}


def _set(call: SampleCall) -> Json:
    if call.args.get("purge"):
        return _delete(call)
    changed = [call.change(each) for each in call.require_targets()]
    return {"changed": changed[0] if len(changed) == 1 else changed}


def _put(call: SampleCall) -> Json:
    if call.find_targets():
        return _set(call)
    fields = call.make_fields()
    key = dict(call.rules.constants).get("key")
    same = [each for each in call.own.values() if key and fields.get(key) and each.get(key) == fields[key]]
    record_id = call.data.make_id(call.kind, fields)
    found = same[0] if same else call.own.get(str(record_id))
    if found is not None:
        return {"changed": call.change(found)}
    return {"created": call.change(call.data.add(call.kind, fields), {})}


def _delete(call: SampleCall) -> Json:
    found = call.find_targets() or [each for each in call.select() if call.args]
    if not found:
        call.require_targets()
    for each in found:
        del call.own[str(each["id"])]
    return {"removed": found[0] if len(found) == 1 else found}


def _total(call: SampleCall) -> Json:
    group, amount = call.rules.words[:2]
    group = call.args.get("group_by", group)
    totals: dict[str, float] = {}
    call.args = {name: value for name, value in call.args.items() if name != "group_by"}
    found = call.select()
    for each in found:
        name = str(each.get(group, "other"))
        totals[name] = round(totals.get(name, 0) + (1 if amount == "1" else each.get(amount, 0)), 2)
    return {"totals": totals, "total": len(found)}


def _answer(call: SampleCall) -> Json:
    return {**call.answer}


def _reschedule(call: SampleCall) -> Json:
    (event,) = call.require_targets()
    length = _read_time(event["end"]) - _read_time(event["start"])
    call.change(event, {"start": call.args["newStart"]})
    event["end"] = call.args.get("newEnd") or _write_time(_read_time(event["start"]) + length)
    return {"changed": event}


def _find_availability(call: SampleCall) -> Json:
    args = call.args
    wanted = {fold(each) for each in args["participants"]}
    busy = [each for each in call.own.values() if wanted & set(map(fold, each.get("attendees", ())))]
    length = timedelta(minutes=args["durationMinutes"])
    pause = timedelta(minutes=args.get("bufferMinutes", 0))
    free = []
    for start in _working_times(_read_time(args["earliest"]), _read_time(args["latest"]) - length):
        end = start + length
        if end.hour + end.minute / 60 > _DAY_END or end.date() != start.date():
            continue
        if all(
            end + pause <= _read_time(each["start"]) or start - pause >= _read_time(each["end"])
            for each in busy
        ):
            free.append({"start": _write_time(start), "end": _write_time(end)})
    return {"free": free[: args.get("maxSlots", 5)]}


def _working_times(first: datetime, last: datetime) -> Iterator[datetime]:
    """Yield every half hour of the working days of at most a year."""
    start = first.replace(minute=0, second=0, microsecond=0)
    for step in range(2 * 24 * 366):
        moment = start + step * timedelta(minutes=30)
        if moment > last:
            return
        if moment >= first and moment.weekday() < 5 and _DAY_START <= moment.hour < _DAY_END:
            yield moment


def _reserve_room(call: SampleCall) -> Json:
    (event,) = call.find_targets("event")
    args, rooms = call.args, call.find_targets() or list(call.own.values())
    others = [each for each in call.data.records["event"].values() if each is not event]
    for room in rooms:
        taken = any(
            each.get("location") == room["name"]
            and compare(each["start"], "<", event["end"])
            and compare(each["end"], ">", event["start"])
            for each in others
        )
        fits = (
            room["capacity"] >= args.get("capacity", 1)
            and set(args.get("features", ())) <= set(room["features"])
            and args.get("floor", room["floor"]) == room["floor"]
        )
        if fits and not taken:
            event["location"] = room["name"]
            return {"reserved": room, "event": event}
    raise CallError("No room of the sample data is free at that time and has what is needed.")


def _relocate(call: SampleCall) -> Json:
    (item,) = call.require_targets()
    if call.args.get("mode") == "copy":
        copied = {name: value for name, value in item.items() if name != "id"}
        item = call.data.add(call.kind, copied)
    names = {"targetFolderId": "folderId", "newName": "name"}
    item.update({names[name]: value for name, value in call.args.items() if name in names})
    return {"changed": item}


def _adjust_stock(call: SampleCall) -> Json:
    changed = []
    for each in call.args["changes"]:
        record = call.data.get("stock", each["sku"])
        record["available"] = each.get("setTo", record.get("available", 0) + each.get("delta", 0))
        record["locationId"] = call.args["locationId"]
        changed.append(record)
    return {"changed": changed}


def _offer(call: SampleCall) -> Json:
    names = [name for name, kind in call.data.refs.items() if kind == call.kind]
    offers = []
    for each in call.answer:
        record = call.data.add(call.kind, {**each, "request": call.args})
        offers.append({**record, names[0]: record["id"]})
    return {"offers": [{k: v for k, v in each.items() if k != "request"} for each in offers]}


def _ship(call: SampleCall) -> Json:
    fields = call.make_fields()
    for offer in call.find_targets("rate"):
        fields |= {name: offer[name] for name in ("carrier", "service", "price", "currency")}
    track = {"carrier": fields["carrier"], "state": "booked", "events": [], "expected": "2026-04-07"}
    number = call.data.add("consignment", track)["id"]
    return {"created": call.data.add(call.kind, {**fields, "tracking-number": number})}


def _revise(call: SampleCall) -> Json:
    (page,) = call.require_targets()
    args, change = call.args, call.args.get("change") or {}
    if args.get("baseRevision", page["revision"]) != page["revision"]:
        raise CallError(f"The page has changed since: its revision is {page['revision']}. Read it again.")
    history = page.setdefault("history", {})
    history[str(page["revision"])] = page["body"]
    if "toRevision" in args:
        page["body"] = history.get(str(args["toRevision"]), page["body"])
    page["body"] = change.get("body", page["body"])
    for edit in change.get("edits", ()):
        count = -1 if edit.get("occurrence") == "all" else 1
        page["body"] = page["body"].replace(edit["find"], edit["replaceWith"], count)
    page |= {"title": args.get("newTitle", page["title"]), "revision": page["revision"] + 1}
    page["edited"] = NOW[:10]
    return {"changed": {name: value for name, value in page.items() if name != "history"}}


def _translate(call: SampleCall) -> Json:
    (page,) = call.require_targets()
    locale = call.args["targetLocale"]
    fields = {name: value for name, value in page.items() if name not in ("id", "history")}
    title = f"{page['title']} ({locale})"
    return {"created": call.data.add(call.kind, {**fields, "title": title, "locale": locale, "revision": 1})}


def _reply(call: SampleCall) -> Json:
    (message,) = call.require_targets()
    fields = call.make_fields()
    prefix, text = ("Fwd", message["body"]) if "to" in call.args else ("Re", call.args.get("body", ""))
    fields.pop("message_id")
    fields |= {"to": fields.get("to") or [message["from"]], "subject": f"{prefix}: {message['subject']}"}
    return {"created": call.data.add(call.kind, {**fields, "body": text, "in_reply_to": message["id"]})}


def _erase(call: SampleCall) -> Json:
    selector = call.args["selector"]
    days = selector.get("older_than_days")
    found = call.find_targets()
    if days is not None:
        limit = str(date.fromisoformat(NOW[:10]) - timedelta(days=days))
        everything = call.own.values()
        folder = selector["folder_id"]
        found = [
            each for each in everything if each["folder_id"] == folder and compare(each["date"], "<", limit)
        ]
    for each in found:
        if call.args.get("permanent"):
            del call.own[each["id"]]
        else:
            each["folder_id"] = "bin"
    return {"removed": found, "total": len(found)}


def _amend(call: SampleCall) -> Json:
    (message,) = call.require_targets()
    if call.args["operation"] == "retract":
        return {"removed": call.own.pop(message["id"])}
    message["text"] = call.args.get("text", message["text"])
    return {"changed": message}


def _revert(call: SampleCall) -> Json:
    """Add a rollout of the given revision or of the last one that succeeded."""
    fields = call.make_fields()
    place, wanted = (fields["workload"], fields["environment"]), fields.get("revision")
    earlier = [each for each in call.own.values() if (each["workload"], each["environment"]) == place]
    for each in sorted(earlier, key=lambda each: str(each["at"]), reverse=True):
        if each["outcome"] == "succeeded" if wanted is None else each.get("revision") == wanted:
            return {"created": call.data.add(call.kind, each | fields)}
    raise CallError("The arguments name no earlier rollout. Use list-rollouts to see the revisions.")


def _merge(call: SampleCall) -> Json:
    survivor, removed = call.data.get(call.kind, call.args["survivor_id"]), []
    for each in call.args["duplicate_ids"]:
        if each in call.own and each != survivor["id"]:
            removed.append(call.own.pop(each))
            for name, value in removed[-1].items():
                survivor.setdefault(name, value)
    return {"changed": survivor, "removed": removed}


def _list_overdue(call: SampleCall) -> Json:
    days = call.args.pop("min-days", 1)
    found = []
    for each in call.select():
        late = (date.fromisoformat(NOW[:10]) - date.fromisoformat(each.get("due") or NOW[:10])).days
        if late >= days and fold(each["status"]) not in _DONE:
            found.append({**each, "days_late": late})
    return {"issues": found, "total": len(found)}


def _search_code(call: SampleCall) -> Json:
    args = call.args
    pattern = args["pattern"] if args.get("mode") == "regex" else re.escape(args["pattern"])
    try:
        expression = re.compile(pattern, 0 if args.get("case_sensitive") else re.IGNORECASE)
    except re.error as error:
        raise CallError(f"The pattern is not a regular expression: {error}.") from None
    matches = []
    for each in call.own.values():
        wanted = (
            each["repo"] in (args.get("repos") or [each["repo"]])
            and fold(args.get("language", each["language"])) == fold(each["language"])
            and fnmatchcase(each["path"], args.get("path_glob", "*"))
        )
        for number, line in enumerate(each["content"].splitlines() if wanted else (), 1):
            if expression.search(line):
                matches.append({"repo": each["repo"], "path": each["path"], "line": number, "text": line})
    return {"matches": matches, "total": len(matches)}


def _draft_invoice(call: SampleCall) -> Json:
    fields, (debtor,) = call.make_fields(), call.find_targets("debtor")
    amount = sum(each.get("quantity", 1) * each["unit_price"] for each in fields["lines"])
    amount = round(amount * (1 - fields.get("discount_percent", 0) / 100), 2)
    fields |= {"debtor": debtor["legal_name"], "gross_amount": amount, "open_amount": amount}
    due = date.fromisoformat(NOW[:10]) + timedelta(days=fields.get("payment_terms_days", 14))
    return {"created": call.data.add(call.kind, {"currency": "EUR", **fields, "due_on": str(due)})}


def _credit_invoice(call: SampleCall) -> Json:
    (invoice,) = call.find_targets("invoice")
    lines = call.args.get("lines") or [{"amount": invoice.get("gross_amount", 0)}]
    amount = round(sum(each.get("amount", 0) for each in lines), 2)
    invoice["open_amount"] = max(round(invoice.get("open_amount", 0) - amount, 2), 0)
    if not invoice["open_amount"]:
        invoice["status"] = "paid"
    return {"created": call.data.add(call.kind, {**call.make_fields(), "amount": amount}), "invoice": invoice}


def _record_payment(call: SampleCall) -> Json:
    invoices, left = call.data.records["invoice"], call.args["amount"]
    own = [each for each in invoices.values() if each["debtor_id"] == call.args["debtor_id"]]
    shares = call.args.get("allocations") or [{"invoice_id": each["id"], "amount": left} for each in own]
    for share in shares:
        invoice = call.data.get("invoice", share["invoice_id"])
        paid = min(left, share["amount"], invoice.get("open_amount", 0))
        if paid > 0:
            left, invoice["open_amount"] = left - paid, round(invoice["open_amount"] - paid, 2)
            invoice["status"] = "part_paid" if invoice["open_amount"] else "paid"
    return {"created": call.data.add(call.kind, {**call.args, "unallocated": round(left, 2)})}


def _play(call: SampleCall) -> Json:
    now = call.own["now"]
    for item in call.find_targets("item")[:1]:
        now |= {name: item.get(name, "") for name in ("uri", "title", "artist")}
    return {"changed": call.change(now, {"queue": call.args.get("trackUris", []), "action": "resume"})}


def _create_playlist(call: SampleCall) -> Json:
    playlist = call.data.add(call.kind, {"trackUris": [], **call.args})
    uri = f"tunepocket:playlist:{playlist['id']}"
    entry = {"type": "playlist", "title": playlist["title"], "artist": "you", "section": "playlists"}
    call.data.records["item"][uri] = {"id": uri, "uri": uri, **entry, "playlistId": playlist["id"]}
    return {"created": {**playlist, "uri": uri}}


def _edit_playlist(call: SampleCall) -> Json:
    (playlist,) = call.require_targets()
    tracks = list(playlist["trackUris"])
    for each in call.args["operations"]:
        place: Any = each.get("at", each.get("from", len(tracks)))
        if each["op"] != "add" and place >= len(tracks):
            raise CallError(f"The playlist has only {len(tracks)} items, counted from 0.")
        if each["op"] == "add":
            tracks.insert(place, each["uri"])
        else:
            track = tracks.pop(place)
            if each["op"] == "move":
                tracks.insert(each["to"], track)
    playlist["trackUris"] = tracks
    return {"changed": playlist}


def _read_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.fromisoformat(NOW).tzinfo)


def _write_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


ACTIONS: Mapping[str, Callable[[SampleCall], Json]] = {
    "list": _list,
    "get": _get,
    "add": _add,
    "set": _set,
    "put": _put,
    "delete": _delete,
    "total": _total,
    "answer": _answer,
    "reschedule": _reschedule,
    "availability": _find_availability,
    "reserve": _reserve_room,
    "relocate": _relocate,
    "stock": _adjust_stock,
    "offer": _offer,
    "ship": _ship,
    "revise": _revise,
    "translate": _translate,
    "reply": _reply,
    "erase": _erase,
    "revert": _revert,
    "amend": _amend,
    "merge": _merge,
    "overdue": _list_overdue,
    "code": _search_code,
    "invoice": _draft_invoice,
    "credit": _credit_invoice,
    "pay": _record_payment,
    "play": _play,
    "playlist": _create_playlist,
    "edit": _edit_playlist,
}
READING_ACTIONS = frozenset({"list", "get", "total", "answer", "availability", "offer", "overdue", "code"})
"""Actions that change no record, apart from offers that expire."""
