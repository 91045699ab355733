TITLE = "beside the handler"
