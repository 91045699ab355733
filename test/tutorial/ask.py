"""Polls /ping until the server is healthy, or posts a file as the form field `data`, as `curl --form data=@FILE` does.

ask.py ping URL
ask.py post URL FILE        prints the answer's body
"""

import pathlib
import sys
import time
import urllib.error
import urllib.request
import uuid


def ping(url):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                if b"Healthy" in answer.read():
                    return
        except urllib.error.URLError:
            pass
        time.sleep(0.1)
    sys.exit("the server did not become healthy within a minute")


def post(url, path):
    boundary, file = uuid.uuid4().hex, pathlib.Path(path)
    head = ('--{}\r\nContent-Disposition: form-data; name="data"; filename="{}"\r\nContent-Type: image/jpeg\r\n\r\n').format(
        boundary, file.name
    )
    body = head.encode() + file.read_bytes() + "\r\n--{}--\r\n".format(boundary).encode()
    headers = {"Content-Type": "multipart/form-data; boundary=" + boundary}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
        print(answer.read().decode())


if __name__ == "__main__":
    {"ping": ping, "post": post}[sys.argv[1]](*sys.argv[2:])
