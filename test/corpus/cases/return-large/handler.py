import hashlib


def handle(data, context):
    if data is None:
        return None
    answers = []
    for row in data:
        body = row["body"]
        if isinstance(body, bytearray):
            answers.append([len(body), hashlib.sha256(body).hexdigest()])
        else:
            answers.append(bytes(i % 251 for i in range(1000)) * (int(body) // 1000))
    return answers
