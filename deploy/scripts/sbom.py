#!/usr/bin/env python3
"""Writes the SPDX 2.3 list of the files in an image: each file with its SHA-256, and the Debian
package of each library.

  sbom.py --root FOLDER --name NAME --version V --commit C --epoch SECONDS --out FILE

The package of a library is the package that owns the file of the same name on this machine.
bundle.sh has copied the library from this file.
"""
import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess

SEARCHED = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib")

LIBRARIES = ("usr/lib/", "lib64/")  # folders of the image that have the libraries


def digests(path):
    with open(path, "rb") as f:
        content = f.read()
    return hashlib.sha1(content).hexdigest(), hashlib.sha256(content).hexdigest()


def owners(names):
    """Returns {library: (package, version, source)} for the libraries that a package of this
    machine owns. dpkg runs once for all libraries, because each run takes half a second."""
    places = {}
    for name in names:
        for folder in SEARCHED:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                for place in (path, os.path.realpath(path), os.path.realpath(path)[len("/usr") :]):
                    places.setdefault(place, set()).add(name)
    found = subprocess.run(["dpkg", "-S", *sorted(places)], capture_output=True, text=True).stdout
    owned = {}
    for line in found.splitlines():
        if ": /" in line and not line.startswith("diversion "):
            package_name, place = line.split(": ", 1)
            for name in places.get(place, ()):
                owned.setdefault(name, package_name.split(",")[0].split(":")[0])
    fields = "${Package}\t${Version}\t${source:Package}\n"
    wanted = sorted(set(owned.values()))
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", fields, *wanted], capture_output=True, text=True, check=True
    )
    about = {row.split("\t")[0]: tuple(row.split("\t")) for row in shown.stdout.splitlines()}
    return {name: about[package_name] for name, package_name in owned.items()}


def package(identifier, name, version, **more):
    made = {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    made.update(more)
    return made


def relation(one, kind, other):
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in "root name version commit epoch out".split():
        flags.add_argument("--" + flag, required=True)
    given = flags.parse_args()
    created = datetime.datetime.fromtimestamp(int(given.epoch), datetime.timezone.utc)
    top = "SPDXRef-Package-evergrad"
    files, packages, relations, seen = [], [], [], set()
    paths = sorted(
        os.path.relpath(os.path.join(folder, name), given.root)
        for folder, _, names in os.walk(given.root)
        for name in names
    )
    owned = owners({os.path.basename(path) for path in paths if path.startswith(LIBRARIES)})
    for path in paths:
        sha1, sha256 = digests(os.path.join(given.root, path))
        identifier = "SPDXRef-File-" + re.sub(r"[^A-Za-z0-9.]", "-", path)
        files.append(
            {
                "SPDXID": identifier,
                "fileName": "./" + path,
                "checksums": [
                    {"algorithm": "SHA1", "checksumValue": sha1},
                    {"algorithm": "SHA256", "checksumValue": sha256},
                ],
                "licenseConcluded": "NOASSERTION",
                "licenseInfoInFiles": ["NOASSERTION"],
                "copyrightText": "NOASSERTION",
            }
        )
        relations.append(relation(top, "CONTAINS", identifier))
        found = owned.get(os.path.basename(path)) if path.startswith(LIBRARIES) else None
        if found:
            name, version, source = found
            part = "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.]", "-", name)
            if part not in seen:
                seen.add(part)
                url = "pkg:deb/debian/%s@%s?arch=amd64&distro=debian-12" % (
                    name.replace("+", "%2B"),
                    version.replace("+", "%2B").replace(":", "%3A"),
                )
                reference = {
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": url,
                }
                about = "Debian source package " + source
                packages.append(
                    package(part, name, version, externalRefs=[reference], sourceInfo=about)
                )
                relations.append(relation(top, "DEPENDS_ON", part))
            relations.append(relation(identifier, "GENERATED_FROM", part))
    own = package(top, given.name, given.version, licenseDeclared="Apache-2.0")
    own["sourceInfo"] = "commit " + given.commit
    own["filesAnalyzed"] = True
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    code = hashlib.sha1("".join(sums).encode()).hexdigest()
    own["packageVerificationCode"] = {"packageVerificationCodeValue": code}
    own["licenseInfoFromFiles"] = ["NOASSERTION"]
    content = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "%s-%s" % (given.name, given.version),
        "documentNamespace": "https://evergrad.dev/spdx/%s/%s" % (given.name, content),
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: evergrad-release"],
        },
        "packages": [own] + packages,
        "files": files,
        "relationships": [relation("SPDXRef-DOCUMENT", "DESCRIBES", top)] + relations,
    }
    with open(given.out, "w") as f:
        json.dump(document, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
