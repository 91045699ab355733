def handle(data, context):
    return data and [[len(data), context.system_properties["batch_size"], row["body"]] for row in data]
