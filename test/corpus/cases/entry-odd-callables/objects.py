import types


def call(data, context, calls=[]):  # noqa: B006
    calls.append(data is None)
    return [calls] * len(data or ())


handle = types.MethodType(lambda self, data, context: self.call(data, context), types.SimpleNamespace(call=call))
