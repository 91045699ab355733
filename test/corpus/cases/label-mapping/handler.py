from ts.utils.util import load_label_mapping, map_class_to_label


class Labels:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.one(row["body"]) for row in data]

    def one(self, body):
        try:
            if isinstance(body, str):
                mapping = load_label_mapping(body)
                return [mapping, map_class_to_label([[0.5, 0.25], [0.125, 0.0625]], mapping)]
            return map_class_to_label(body["probs"], body["mapping"], body["classes"])
        except KeyError as err:
            return "no label for %s" % err
        except Exception:
            return "refused"
