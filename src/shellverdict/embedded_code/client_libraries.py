"""Methods of client libraries that delete databases, buckets, machines and other stored resources.

The name of a method says what it does (`delete_bucket`, `DeleteBucketCommand`, `flushall`). Most of these
names are common, so they only count in code that also names a library for such a service; a few are
unambiguous by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from shellverdict.names import split_names
from shellverdict.verdict import EffectKind

__all__ = ["find_destroyed_kind", "find_service_kinds"]


_UNAMBIGUOUS_METHODS = split_names(
    "flushall flushdb flush_all dropdatabase drop_database drop_collection dropcollection drop_all "
    "delete_database drop_keyspace"
)
_LIBRARIES: Mapping[str, EffectKind] = MappingProxyType(
    {
        **dict.fromkeys(
            split_names(
                "boto3 botocore boto aiobotocore aioboto3 aws-sdk Aws AWS azure msrestazure kubernetes "
                "googleapiclient openstack digitalocean hcloud linode_api4 oci docker CloudFlare cloudflare "
                "pulumi dockerode kubeclient tencentcloud aliyunsdkcore proxmoxer pyVmomi"
            ),
            EffectKind.CLOUD,
        ),
        **dict.fromkeys(
            split_names(
                "redis Redis ioredis aioredis pymongo motor mongoengine mongodb mongoose Mongo Mongoid "
                "mongoid elasticsearch opensearchpy Elasticsearch cassandra cassandra-driver pymemcache "
                "memcache kafka confluent_kafka kafkajs pinecone qdrant_client weaviate influxdb "
                "influxdb_client neo4j firebase_admin firebase-admin sqlalchemy flask_sqlalchemy "
                "sequelize knex typeorm MongoDB peewee tortoise"
            ),
            EffectKind.DATABASE,
        ),
    }
)
_LIBRARY_PREFIXES = MappingProxyType(
    {
        "@aws-sdk/": EffectKind.CLOUD,
        "aws-sdk": EffectKind.CLOUD,
        "@google-cloud/": EffectKind.CLOUD,
        "@azure/": EffectKind.CLOUD,
        "@kubernetes/": EffectKind.CLOUD,
        "google.cloud": EffectKind.CLOUD,
        "Google.Cloud": EffectKind.CLOUD,
        "@elastic/": EffectKind.DATABASE,
        "@prisma/": EffectKind.DATABASE,
    }
)
_DESTROYING = split_names("delete terminate purge deregister destroy prune decommission wipe nuke")
_EMPTYING = split_names("purge truncate wipe")
_DROPPABLE = split_names(
    "database databases collection collections table tables schema index indexes keyspace all db users"
)
_PREFIXES = split_names("begin batch bulk force async admin recursive")
_WHOLE_COLLECTION_METHODS = split_names(
    "delete_many deletemany delete_by_query deletebyquery delete_topics deletetopics del destroy_all"
)
_INDICES = ("indices.delete", "collection.delete", "index.delete")
_ROUTINE_NOUNS = split_names("message messages item key token")  # programs delete these routinely
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def find_service_kinds(names_used: Iterable[str]) -> frozenset[EffectKind]:
    """Return the kinds of services (database, cloud storage …) whose client modules the code mentions."""
    kinds: set[EffectKind] = set()
    for name in names_used:
        if kind := _LIBRARIES.get(name) or _LIBRARIES.get(name.partition(".")[0]):
            kinds.add(kind)
        kinds |= {kind for prefix, kind in _LIBRARY_PREFIXES.items() if name.startswith(prefix)}
    return frozenset(kinds)


def find_destroyed_kind(method: str, kinds: frozenset[EffectKind], *, everything: bool) -> EffectKind | None:
    """Return the kind of resource that a method such as `client.delete_bucket` deletes, or None.

    `kinds` are the kinds of service that the code uses. `everything` means that no argument limits the call.
    """
    last = method.rpartition(".")[2]
    if last.lower() in _UNAMBIGUOUS_METHODS:
        return EffectKind.DATABASE
    words = [word.lower() for word in _WORD.findall(last[:64])]
    while words and words[0] in _PREFIXES:
        words.pop(0)
    if not words or set(words[1:]) & _ROUTINE_NOUNS:
        return None
    if EffectKind.CLOUD in kinds and words[0] in _DESTROYING:
        return EffectKind.CLOUD
    if EffectKind.DATABASE in kinds and _empties_database(method, words, everything):
        return EffectKind.DATABASE
    return None


def _empties_database(method: str, words: list[str], everything: bool) -> bool:
    """Return True if a client library's method drops or empties a database, collection, table or index."""
    if words[0] == "drop":
        return everything if len(words) == 1 else words[1] in _DROPPABLE
    if words[0] == "flush":
        return words[1:2] in (["all"], ["db"])
    if method.rpartition(".")[2].lower() in _WHOLE_COLLECTION_METHODS:
        return everything
    return words[0] in _EMPTYING or method.endswith(_INDICES)
