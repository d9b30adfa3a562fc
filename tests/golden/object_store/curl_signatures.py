#!/usr/bin/env python3
"""Compares the signer of the program curl with botocore, and writes a field of signatures.json.

  curl_signatures.py    needs botocore from PyPI, and curl

The script sends each row of S3 and GCS with `curl --aws-sigv4` to a server in this process. It
verifies the signature as a store does: it decodes the request as it arrived, signs it with
botocore, and compares. Each row is sent with two spellings of its query:

  plain       in the order of the row, without '=' after a name that has no value
  canonical   sorted, and with each '=', which is the query that Evergrad sends

curl 7.88 does not send x-amz-content-sha256 by itself, which S3 requires, so the script gives it
this header. curl signs with the present time. If it is given another time with the header
x-amz-date, curl 7.88 sends this header twice.
"""
import datetime
import hashlib
import http.server
import json
import subprocess
import sys
import threading
from urllib.parse import unquote

from botocore.utils import percent_encode

import signatures


class Recorder(http.server.BaseHTTPRequestHandler):
    """Keeps the last request in `server.seen`."""

    protocol_version = 'HTTP/1.1'

    def handle_any(self):
        length = int(self.headers.get('Content-Length', 0))
        # self.path has only one of several slashes at its beginning.
        target = self.requestline.split(' ')[1]
        self.server.seen = (self.command, target, self.headers.items(), self.rfile.read(length))
        self.send_response(200)
        self.send_header('Content-Length', '0')
        self.end_headers()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, *_):
        pass


def query_of(row, is_canonical):
    pairs = [(percent_encode(name), percent_encode(value)) for name, value in row['query']]
    if is_canonical:
        return '&'.join('%s=%s' % pair for pair in sorted(pairs))
    return '&'.join(name + ('=' + value if value else '') for name, value in pairs)


def prefix_of(row):
    return 'x-goog-' if row['kind'] == 'gcs' else 'x-amz-'


def call_curl(row, is_canonical, port):
    """Sends a row with curl's own signer."""
    query = query_of(row, is_canonical)
    path = percent_encode(row['path'], safe='/~')
    body = signatures.body_of(row)
    provider = 'goog:goog' if row['kind'] == 'gcs' else 'aws:amz'
    command = ['curl', '--silent', '--show-error', '--globoff', '--path-as-is', '--max-time', '20']
    command += ['--connect-to', '::127.0.0.1:%d' % port, '--noproxy', '*']
    command += ['--aws-sigv4', '%s:%s:%s' % (provider, row['region'], row['service'])]
    command += ['--user', row['access_key_id'] + ':' + row['secret_access_key']]
    digest = hashlib.sha256(body).hexdigest()
    command += ['--header', '%scontent-sha256: %s' % (prefix_of(row), digest)]
    command += ['--head'] if row['method'] == 'HEAD' else ['--request', row['method']]
    for name, value in row['headers']:
        command += ['--header', '%s: %s' % (name, value) if value else name + ';']
    if row['session_token']:
        command += ['--header', 'x-amz-security-token: ' + row['session_token']]
    if body:
        command += ['--data-binary', '@-']
    command += ['http://' + row['host'] + path + ('?' + query if query else '')]
    return subprocess.run(command, input=body, capture_output=True)


def verify(row, seen):
    """Returns "" if the signature of a request is right, or else the reason."""
    method, target, lines, body = seen
    assert body == signatures.body_of(row), row['name']
    received = [(name.lower(), value) for name, value in lines]
    values = dict(received)
    added = [prefix_of(row) + 'date', prefix_of(row) + 'content-sha256']
    authorization = values.get('authorization', '')
    for name in added:
        if name not in values:
            return 'no ' + name
    if 'SignedHeaders=' not in authorization:
        return 'no signature'
    signed = authorization.split('SignedHeaders=')[1].split(',')[0].split(';')
    path, _, query = target.partition('?')
    pairs = [pair.partition('=') for pair in query.split('&')] if query else []
    moment = datetime.datetime.strptime(values[added[0]], '%Y%m%dT%H%M%SZ')
    arrived = dict(
        row,
        method=method,
        path=unquote(path),
        query=[[unquote(name), unquote(value)] for name, _, value in pairs],
        headers=[
            pair for pair in received if pair[0] in signed and pair[0] not in added + ['host']
        ],
        session_token='',
        wall_ms=signatures.utc(*moment.timetuple()[:6]),
    )
    want = dict(signatures.sign(arrived))['authorization']
    if want == authorization:
        return ''
    if want.split('Signature=')[0] == authorization.split('Signature=')[0]:
        return 'another signature'
    return 'other signed headers'


def compare(rows, is_canonical, server):
    """Returns the reason for each row whose signature is wrong."""
    wrong = {}
    for row in rows:
        server.seen = None
        done = call_curl(row, is_canonical, server.server_address[1])
        if server.seen is None:
            sys.exit('%s: curl sent nothing: %s' % (row['name'], done.stderr.decode()))
        reason = verify(row, server.seen)
        if reason:
            wrong[row['name']] = reason
    return wrong


def main():
    words = subprocess.run(['curl', '--version'], capture_output=True, text=True).stdout.split()
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(signatures.PATH, encoding='utf-8') as f:
        kept = json.load(f)
    # STS needs no signer, and the option of curl cannot express an empty region.
    rows = [row for row in kept['requests'] if row['service'] != 'sts' and row['region']]
    kept['curl'] = {'version': words[1], 'rows': len(rows)}
    for name, is_canonical in (('plain', False), ('canonical', True)):
        wrong = compare(rows, is_canonical, server)
        kept['curl']['wrong_with_%s_query' % name] = wrong
        for row, reason in wrong.items():
            print('%s query: %s: %s' % (name, row, reason))
        print('%s query: %d of %d rows are wrong' % (name, len(wrong), len(rows)))
    signatures.write(kept)
    server.shutdown()


if __name__ == '__main__':
    main()
