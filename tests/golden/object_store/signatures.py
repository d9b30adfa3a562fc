#!/usr/bin/env python3
"""Writes signatures.json, which has signed requests for object stores.

The rows of S3 and STS are signed by botocore's own S3SigV4Auth and SigV4Auth, with a fixed clock.
botocore has no signer for GOOG4-HMAC-SHA256, and Google has published no example of a signed
header. The rows of GCS are therefore signed by a subclass of S3SigV4Auth that replaces the name of
the algorithm, the prefix of the key, the end of the scope and the names of the headers, and nothing
else. The script fails if one of three signatures that Amazon has published for S3 differs.

  signatures.py    needs botocore from PyPI. The result of curl_signatures.py, which is a field of
                   the file, is kept
"""
import datetime
import json
import os

import botocore
import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import percent_encode

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'signatures.json')
# The keys of Amazon's published examples.
KEY, SECRET = 'AKIAIOSFODNN7EXAMPLE', 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'
GOOGLE_KEY = 'GOOG1EXAMPLEEXAMPLEEXAMPLE'
TOKEN = 'FwoGZXIvYXdzEXAMPLE//////////wEaDPSR+token=='
NOTE = (
    'Written by signatures.py with botocore %s; the header of the script says how. Requests with '
    'the headers that a signer must add. A body is its text, repeated.'
)
PUBLISHED = {
    'published: get with a range': (
        'f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41'
    ),
    'published: lifecycle': 'fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543',
    'published: list': '34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7',
}


class Goog4Auth(botocore.auth.S3SigV4Auth):
    def _modify_request_before_signing(self, request):
        request.headers['x-goog-date'] = request.context['timestamp']
        request.headers['x-goog-content-sha256'] = self.payload(request)

    def _scope_parts(self, request):
        date = request.context['timestamp'][:8]
        return [date, self._region_name, 'storage', 'goog4_request']

    def credential_scope(self, request):
        return '/'.join(self._scope_parts(request))

    def scope(self, request):
        return '/'.join([self.credentials.access_key] + self._scope_parts(request))

    def string_to_sign(self, request, canonical_request):
        lines = super().string_to_sign(request, canonical_request).split('\n')
        return '\n'.join(['GOOG4-HMAC-SHA256'] + lines[1:])

    def signature(self, string_to_sign, request):
        key = ('GOOG4' + self.credentials.secret_key).encode()
        for part in self._scope_parts(request):
            key = self._sign(key, part)
        return self._sign(key, string_to_sign, hex=True)

    def _inject_signature_to_request(self, request, signature):
        request = super()._inject_signature_to_request(request, signature)
        value = request.headers['Authorization']
        del request.headers['Authorization']
        request.headers['Authorization'] = value.replace('AWS4-', 'GOOG4-', 1)
        return request


def utc(*parts):
    return int(datetime.datetime(*parts, tzinfo=datetime.timezone.utc).timestamp() * 1000)


def row(name, method='GET', path='/', query=(), headers=(), body='', **other):
    made = {
        'name': name,
        'kind': 's3',
        'method': method,
        'host': 'examplebucket.s3.amazonaws.com',
        'path': path,
        'query': [list(pair) for pair in query],
        'headers': [list(pair) for pair in headers],
        'body': body,
        'body_times': 1,
        'region': 'us-east-1',
        'service': 's3',
        'wall_ms': utc(2013, 5, 24),
        'access_key_id': KEY,
        'secret_access_key': SECRET,
        'session_token': '',
    }
    assert not set(other) - set(made), other
    made.update(other)
    return made


def keys():
    """Yields (name, path) of awkward keys."""
    yield 'a space', '/a key'
    yield 'spaces at both ends', '/ key '
    yield 'an equals sign', '/table/date=2024-01-31/part=0'
    yield 'a plus', '/a+b'
    yield 'a percent sign', '/100%'
    yield 'an escape as text', '/a%2Fb%20c'
    yield 'an ampersand', '/a&b'
    yield 'a question mark', '/what?'
    yield 'a number sign', '/issue#7'
    yield 'a tilde', '/~user/x'
    yield 'an asterisk and quotes', '/it\'s "all" (*)!'
    yield 'a dollar and a semicolon', '/test$file;v=1,2:@'
    yield 'brackets', '/a[0]{b}|c^`<>'
    yield 'a backslash', '/a\\b'
    yield 'unicode', '/größe/模型/🙂'
    yield 'two slashes', '/runs//7'
    yield 'leading slashes', '///a'
    yield 'leading dots', '/.hidden/..name/...'
    yield 'dot segments', '/a/./b/../c'
    yield 'a trailing slash', '/folder/'
    yield 'unreserved characters', '/-._~09azAZ'
    yield 'the longest', '/' + 'k/' * 511 + 'kk'
    yield 'the longest of escapes', '/' + 'é' * 512


def queries():
    """Yields (name, query) of awkward queries."""
    yield 'uploads', [('uploads', '')]
    yield 'acl', [('acl', '')]
    yield 'a part', [('partNumber', '7'), ('uploadId', 'VXBsb2Fk.ID_~-x')]
    yield 'an upload id with all of base64', [('uploadId', 'a+b/c=='), ('partNumber', '10000')]
    yield 'a prefix with slashes', [('list-type', '2'), ('prefix', 'runs/7/'), ('delimiter', '/')]
    yield 'a token', [
        ('list-type', '2'),
        ('continuation-token', '1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J='),
    ]
    yield 'a prefix with spaces', [('prefix', ' a b '), ('list-type', '2')]
    yield 'an escape as text', [('prefix', 'a%2Fb'), ('marker', '%')]
    yield 'a plus', [('prefix', 'a+b c')]
    yield 'an ampersand and a number sign', [('prefix', 'a&b#c?d')]
    yield 'unicode', [('prefix', 'größe/模型')]
    yield 'an empty prefix', [('prefix', ''), ('delimiter', '/')]
    yield 'only an empty value beside others', [('delete', ''), ('a', '1')]
    yield 'one name twice', [('key', 'b'), ('key', 'a'), ('key', '')]
    yield 'one pair twice', [('key', 'a'), ('key', 'a')]
    yield 'names in another order when encoded', [('z', '1'), ('é', '2'), ('a', '3'), ('~', '4')]
    yield 'a name that begins another', [('a', '1'), ('a-b', '2'), ('a.b', '3'), ('a=', '4')]
    yield 'upper case before lower case', [('prefix', 'x'), ('Prefix', 'y'), ('X', 'z')]
    yield 'values in another order when encoded', [('k', 'z'), ('k', 'é'), ('k', '{'), ('k', '!')]
    yield 'a space in a name', [('a b', 'c'), ('a', 'b c')]
    yield 'a tilde and an asterisk', [('prefix', '~*\'()!')]


def headers():
    """Yields (name, headers) of awkward headers."""
    yield 'a range', [('Range', 'bytes=0-1048575')]
    yield 'a condition', [('If-None-Match', '*'), ('Content-Type', 'application/octet-stream')]
    yield 'an etag', [('If-Match', '"9b2cf535f27731c974343645a3985328"')]
    yield 'spaces in a value', [('x-amz-meta-a', '  b   c  d  ')]
    yield 'a tab in a value', [('x-amz-meta-a', 'b\tc \t d')]
    yield 'quotes with spaces', [('x-amz-meta-a', '"b   c"')]
    yield 'an empty value', [('x-amz-meta-empty', '')]
    yield 'upper case', [('X-AMZ-META-LOUD', 'VALUE'), ('x-amz-ACL', 'private')]
    yield 'one name twice', [('x-amz-meta-a', 'z'), ('x-amz-meta-a', 'a')]
    yield 'one name in two cases', [
        ('X-Amz-Meta-A', '1 '),
        ('x-amz-meta-b', '2'),
        ('x-amz-meta-a', '3'),
    ]
    yield 'many', [('x-amz-meta-%d' % n, 'value %d' % (n * n)) for n in range(40)]
    yield 'names with signs', [
        ('x-amz-meta-a_b', '1'),
        ('x-amz-meta-a.b', '2'),
        ('x-amz-meta-a-b', '3'),
    ]
    yield 'a checksum', [
        ('x-amz-checksum-crc32c', 'yZRlqg=='),
        ('x-amz-sdk-checksum-algorithm', 'CRC32C'),
    ]


def rows():
    yield row('published: get with a range', path='/test.txt', headers=[('Range', 'bytes=0-9')])
    yield row('published: lifecycle', query=[('lifecycle', '')])
    yield row('published: list', query=[('max-keys', '2'), ('prefix', 'J')])
    for name, path in keys():
        yield row('key: ' + name, path=path)
    for name, query in queries():
        yield row('query: ' + name, query=query)
    for name, lines in headers():
        yield row('headers: ' + name, 'PUT', '/k', headers=lines, body='x')
    yield row(
        'all at once',
        'PUT',
        '/b/a=b c+é',
        [('partNumber', '1'), ('uploadId', 'a/+=')],
        [('Content-MD5', 'XrY7u+Ae7tCTyyK7j1rNww==')],
        'hello',
        host='127.0.0.1:9000',
    )
    yield row('method: head', 'HEAD', '/k')
    yield row('method: delete', 'DELETE', '/k')
    yield row('method: post without a body', 'POST', '/k', [('uploads', '')])
    yield row('body: xml', 'POST', '/k', [('uploadId', 'u')], body='<Complete>é\n</Complete>\n')
    yield row('body: 5 MiB', 'PUT', '/k', body='0123456789abcdef', body_times=5 << 16)
    yield row('body: bytes of control', 'PUT', '/k', body='\x00\x01\r\n\x7f')
    yield row('token: get', path='/k', session_token=TOKEN)
    yield row('token: list', query=[('list-type', '2')], session_token=TOKEN)
    yield row('host: a port', path='/bucket/k', host='localhost:9000')
    yield row('host: an address', path='/bucket/k', host='[::1]:9000')
    yield row('host: dots in the bucket', path='/k', host='a.b-c.s3.eu-central-1.amazonaws.com')
    yield row(
        'time: the last second of a year', path='/k', wall_ms=utc(2024, 12, 31, 23, 59, 59) + 999
    )
    yield row('time: the first second of a year', path='/k', wall_ms=utc(2025, 1, 1))
    yield row('time: a leap day', path='/k', wall_ms=utc(2028, 2, 29, 12, 34, 56))
    yield row('region: europe', path='/k', region='eu-central-1')
    yield row('region: a name of MinIO', path='/k', region='my-region_1')
    yield row('region: empty', path='/k', region='')
    yield row('secret: signs', path='/k', secret_access_key='+/=&%~ "\\')
    form = 'Action=GetCallerIdentity&Version=2011-06-15'
    sts = dict(host='sts.eu-west-1.amazonaws.com', region='eu-west-1', service='sts')
    form_type = [('Content-Type', 'application/x-www-form-urlencoded; charset=utf-8')]
    yield row('sts: post', 'POST', headers=form_type, body=form, **sts)
    yield row(
        'sts: post with a token', 'POST', headers=form_type, body=form, session_token=TOKEN, **sts
    )
    yield row('sts: get', query=[('Action', 'GetCallerIdentity'), ('Version', '2011-06-15')], **sts)
    gcs = dict(
        kind='gcs',
        host='storage.googleapis.com',
        region='auto',
        service='storage',
        access_key_id=GOOGLE_KEY,
    )
    yield row('gcs: get', path='/bucket/k', **gcs)
    condition = [('x-goog-if-generation-match', '0')]
    yield row('gcs: put if absent', 'PUT', '/bucket/k', headers=condition, body='x', **gcs)
    yield row('gcs: metadata', 'PUT', '/bucket/k', headers=[('X-Goog-Meta-A', ' b  c ')], **gcs)
    yield row('gcs: uploads', 'POST', '/bucket/k', [('uploads', '')], **gcs)
    yield row('gcs: a key of signs', path='/bucket/a=b c+%é/~', **gcs)
    yield row('gcs: list', path='/bucket/', query=[('list-type', '2'), ('prefix', 'a/b')], **gcs)
    yield row('gcs: another region', path='/bucket/k', **{**gcs, 'region': 'europe-west1'})
    yield row('gcs: a year ends', path='/bucket/k', wall_ms=utc(1999, 12, 31, 23, 59, 59), **gcs)


def body_of(one):
    return (one['body'] * one['body_times']).encode('utf-8')


def sign(one):
    """Returns the names and values of the headers that the signer adds."""
    moment = datetime.datetime.utcfromtimestamp(one['wall_ms'] // 1000)
    botocore.auth.get_current_datetime = lambda remove_tzinfo=True: moment
    credentials = Credentials(
        one['access_key_id'], one['secret_access_key'], one['session_token'] or None
    )
    signer = {
        's3': botocore.auth.S3SigV4Auth,
        'sts': botocore.auth.SigV4Auth,
        'storage': Goog4Auth,
    }[one['service']]
    request = AWSRequest(
        method=one['method'],
        url='https://' + one['host'] + percent_encode(one['path'], safe='/~'),
        params=[tuple(pair) for pair in one['query']],
        data=body_of(one),
    )
    given = {name.lower() for name, _ in one['headers']}
    for name, value in one['headers']:
        request.headers[name] = value
    signer(credentials, one['service'], one['region']).add_auth(request)
    return sorted([n.lower(), v] for n, v in request.headers.items() if n.lower() not in given)


def write(kept):
    """Writes the file with one request on each line."""
    head = json.dumps({name: kept[name] for name in ('note', 'curl')}, indent=1)
    lines = ',\n  '.join(json.dumps(one) for one in kept['requests'])
    with open(PATH, 'w', encoding='utf-8') as f:
        f.write(head[: -len('\n}')] + ',\n "requests": [\n  ' + lines + '\n ]\n}\n')


def main():
    made = list(rows())
    names = [one['name'] for one in made]
    assert len(set(names)) == len(names)
    for one in made:
        one['want'] = sign(one)
        if one['name'] in PUBLISHED:
            assert dict(one['want'])['authorization'].endswith(PUBLISHED[one['name']]), one['name']
    kept = {'note': NOTE % botocore.__version__, 'curl': None, 'requests': made}
    if os.path.exists(PATH):
        with open(PATH, encoding='utf-8') as f:
            kept['curl'] = json.load(f)['curl']
    write(kept)
    print('%d rows' % len(made))


if __name__ == '__main__':
    main()
