"""Reads and changes the files of checkpoints. A path is a local path, or the URI of an object in a
store that was registered here. The scenarios damage files through these functions, so they can run
on either.

Objects are read from the store itself, and not through the fault proxy."""
import os
import shutil

STORES = {}  # "s3://bucket" -> MotoServer, "gs://bucket" -> FakeGcs


def register(uri, store):
    STORES[uri] = store


def is_object(path):
    return path.startswith(("s3://", "gs://"))


def split(uri):
    """Returns the store, the bucket and the key of a URI."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return STORES["%s://%s" % (scheme, bucket)], bucket, key


def read(path):
    if is_object(path):
        store, bucket, key = split(path)
        return store.read(bucket, key)
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    """Replaces the contents of a file."""
    if is_object(path):
        store, bucket, key = split(path)
        store.put(bucket, key, data)
        return
    with open(path, "r+b") as f:  # the file stays the same, as in a fault of the disk
        f.write(data)
        f.truncate()


def remove(path):
    if is_object(path):
        store, bucket, key = split(path)
        store.delete(bucket, key)
    else:
        os.unlink(path)


def names(folder):
    """Returns the names of the files in a folder, in order. A missing folder has none."""
    if is_object(folder):
        store, bucket, key = split(folder)
        found = [name[len(key) + 1 :] for name in store.keys(bucket, key + "/")]
        return sorted(name for name in found if name and "/" not in name)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def copy_folder(folder, to):
    """Makes `to` a copy of a folder of files. Both are local, or both are in one store."""
    if is_object(folder):
        for name in names(to):
            remove("%s/%s" % (to, name))
        for name in names(folder):
            write("%s/%s" % (to, name), read("%s/%s" % (folder, name)))
    else:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(folder, to)
    return to
