"""Methods of client libraries that destroy what a service holds: databases, buckets, machines.

What a method is called says what it does (`delete_bucket`, `DeleteBucketCommand`, `flushall`). Most of these
names mean nothing on other objects, so they count only in code that names a library for such a service; a few
are unmistakable by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from shellverdict.names import names
from shellverdict.verdict import Kind

__all__ = ["destroys", "services"]


_UNMISTAKABLE = names(
    "flushall flushdb flush_all dropdatabase drop_database drop_collection dropcollection drop_all "
    "delete_database drop_keyspace"
)
_LIBRARIES: Mapping[str, Kind] = MappingProxyType(
    {
        **dict.fromkeys(
            names(
                "boto3 botocore boto aiobotocore aioboto3 aws-sdk Aws AWS azure msrestazure kubernetes "
                "googleapiclient openstack digitalocean hcloud linode_api4 oci docker CloudFlare cloudflare "
                "pulumi dockerode kubeclient tencentcloud aliyunsdkcore proxmoxer pyVmomi"
            ),
            Kind.CLOUD,
        ),
        **dict.fromkeys(
            names(
                "redis Redis ioredis aioredis pymongo motor mongoengine mongodb mongoose Mongo Mongoid "
                "mongoid elasticsearch opensearchpy Elasticsearch cassandra cassandra-driver pymemcache "
                "memcache kafka confluent_kafka kafkajs pinecone qdrant_client weaviate influxdb "
                "influxdb_client neo4j firebase_admin firebase-admin sqlalchemy flask_sqlalchemy "
                "sequelize knex typeorm MongoDB peewee tortoise"
            ),
            Kind.DATABASE,
        ),
    }
)
_SCOPES = MappingProxyType(
    {
        "@aws-sdk/": Kind.CLOUD,
        "aws-sdk": Kind.CLOUD,
        "@google-cloud/": Kind.CLOUD,
        "@azure/": Kind.CLOUD,
        "@kubernetes/": Kind.CLOUD,
        "google.cloud": Kind.CLOUD,
        "Google.Cloud": Kind.CLOUD,
        "@elastic/": Kind.DATABASE,
        "@prisma/": Kind.DATABASE,
    }
)
_DESTROYING = names("delete terminate purge deregister destroy prune decommission wipe nuke")
_EMPTYING = names("purge truncate wipe")
_DROPPED = names(
    "database databases collection collections table tables schema index indexes keyspace all db users"
)
_PREFIXES = names("begin batch bulk force async admin recursive")
_WHOLE = names(
    "delete_many deletemany delete_by_query deletebyquery delete_topics deletetopics del destroy_all"
)
_INDICES = ("indices.delete", "collection.delete", "index.delete")
_EVERYDAY = names("message messages item key token")  # what programs delete all day long
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def services(named: Iterable[str]) -> frozenset[Kind]:
    """What kinds of service code speaks to, by the modules and constants it names."""
    found: set[Kind] = set()
    for name in named:
        if kind := _LIBRARIES.get(name) or _LIBRARIES.get(name.partition(".")[0]):
            found.add(kind)
        found |= {kind for prefix, kind in _SCOPES.items() if name.startswith(prefix)}
    return frozenset(found)


def destroys(method: str, kinds: frozenset[Kind], *, everything: bool) -> Kind | None:
    """What is lost by calling a method (`client.delete_bucket`), where code speaks to such services.

    `everything` says that the call names nothing it is limited to.
    """
    last = method.rpartition(".")[2]
    if last.lower() in _UNMISTAKABLE:
        return Kind.DATABASE
    words = [word.lower() for word in _WORD.findall(last[:64])]
    while words and words[0] in _PREFIXES:
        words.pop(0)
    if not words or set(words[1:]) & _EVERYDAY:
        return None
    if Kind.CLOUD in kinds and words[0] in _DESTROYING:
        return Kind.CLOUD
    if Kind.DATABASE in kinds and _empties(method, words, everything):
        return Kind.DATABASE
    return None


def _empties(method: str, words: list[str], everything: bool) -> bool:
    if words[0] == "drop":
        return everything if len(words) == 1 else words[1] in _DROPPED
    if words[0] == "flush":
        return words[1:2] in (["all"], ["db"])
    if method.rpartition(".")[2].lower() in _WHOLE:
        return everything
    return words[0] in _EMPTYING or method.endswith(_INDICES)
