from ts.service import PredictionException


class Failing:
    def initialize(self, context):
        self.config = context.model_yaml_config

    async def handle(self, data, context):
        word = data[0]["body"]
        if word == "value":
            raise ValueError(word)
        if word == "refused":
            raise PredictionException("refused", 422)
        if word == "status":
            context.set_response_status(code=203, phrase="", idx=0)
        return {"tuple": (word,), "set": [{word}], "two": [word, word]}.get(word, [word])
