def handle(data, context):
    return data and [[context.model_name, context.manifest, context.model_yaml_config]]
